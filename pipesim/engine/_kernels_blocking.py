"""The compiled loops of the engine with sends and receives; they know arrays only.

Events (ends of ops and sends, arrivals) wait in a heap by time. All events of a moment are handled, with all they
lead to, before the messages that are ready ask for their ports in order of their sends (see `reference_blocking`).
A stack holds what is still to be done at this moment: a device to walk on, an element to look at, a step to end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pipesim.compiled_cache import kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pipesim.engine._kernels import Times

ABSENT = -1
COMPUTE, SEND = 0, 1


class Job(NamedTuple):
    """What is to be run: n ops, s steps, e elements, p devices; see Program.

    members int32 [s] with member_offsets int64 [e+1]: the steps of each element; duration, hold, latency int64 [n]
    by row; out_port, in_port int32 [n] of each row's message.
    """

    blocks: bool
    offsets: NDArray[np.int64]
    action: NDArray[np.int8]
    row: NDArray[np.int32]
    device: NDArray[np.int32]
    partner: NDArray[np.int32]
    input_of: NDArray[np.int32]
    group_end: NDArray[np.int32]
    element: NDArray[np.int32]
    queue_next: NDArray[np.int32]
    members: NDArray[np.int32]
    member_offsets: NDArray[np.int64]
    eager: NDArray[np.bool_]
    duration: NDArray[np.int64]
    hold: NDArray[np.int64]
    latency: NDArray[np.int64]
    out_port: NDArray[np.int32]
    in_port: NDArray[np.int32]


class State(NamedTuple):
    """How far everything is.

    place int64 [p]: the step each device stands at; posted, active, ended bool [s]; arrived bool [n]: messages that
    came before their receive was active; head bool [e]: at the front of its queue; left int64 [e]: its steps that
    have not ended; port_free int64 [ports]; heap_time, heap_what int64: a binary heap of events; stack, ready
    int64: work of this moment (a task is an element, then a step to end, then a device); sizes int64 [3]: of heap,
    stack and ready.
    """

    place: NDArray[np.int64]
    posted: NDArray[np.bool_]
    active: NDArray[np.bool_]
    ended: NDArray[np.bool_]
    arrived: NDArray[np.bool_]
    head: NDArray[np.bool_]
    left: NDArray[np.int64]
    port_free: NDArray[np.int64]
    heap_time: NDArray[np.int64]
    heap_what: NDArray[np.int64]
    stack: NDArray[np.int64]
    ready: NDArray[np.int64]
    sizes: NDArray[np.int64]


HEAP, STACK, READY = 0, 1, 2


@kernel
def _push_event(state: State, time: int, step: int) -> None:
    """Adds the end of a step to the heap."""
    place = state.sizes[HEAP]
    state.sizes[HEAP] += 1
    while place > 0:
        parent = (place - 1) // 2
        if state.heap_time[parent] <= time:
            break
        state.heap_time[place], state.heap_what[place] = state.heap_time[parent], state.heap_what[parent]
        place = parent
    state.heap_time[place], state.heap_what[place] = time, step


@kernel
def _pop_event(state: State) -> int:
    """Takes the step of the earliest event off the heap."""
    step = int(state.heap_what[0])
    state.sizes[HEAP] -= 1
    size = state.sizes[HEAP]
    time, what = state.heap_time[size], state.heap_what[size]
    place = 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and state.heap_time[child + 1] < state.heap_time[child]:
            child += 1
        if state.heap_time[child] >= time:
            break
        state.heap_time[place], state.heap_what[place] = state.heap_time[child], state.heap_what[child]
        place = child
    state.heap_time[place], state.heap_what[place] = time, what
    return step


@kernel
def _push(state: State, task: int) -> None:
    state.stack[state.sizes[STACK]] = task
    state.sizes[STACK] += 1


@kernel
def _look_at(job: Job, state: State, element: int) -> None:
    """Activates what has been posted of an element at the front of its queue: messages get ready, or are there."""
    if not state.head[element]:
        return
    for place in range(job.member_offsets[element], job.member_offsets[element + 1]):
        step = job.members[place]
        if state.active[step] or not state.posted[step]:
            continue
        state.active[step] = True
        row, other, sends = job.row[step], job.partner[step], job.action[step] == SEND
        if state.arrived[row]:
            _push(state, len(job.queue_next) + step)
        elif (sends and job.eager[row]) or (not job.eager[row] and state.active[other]):
            state.ready[state.sizes[READY]] = step if sends else other
            state.sizes[READY] += 1


@kernel
def _end(job: Job, state: State, step: int) -> None:
    """Ends a step: its queue takes the next element, its device may walk on."""
    state.ended[step] = True
    _push(state, len(job.queue_next) + len(job.action) + job.device[step])
    element = job.element[step]
    if element == ABSENT:
        return
    state.left[element] -= 1
    following = job.queue_next[element]
    if state.left[element] == 0 and following != ABSENT:
        state.head[following] = True
        _push(state, following)


@kernel
def _walk(job: Job, state: State, times: Times, device: int, now: int) -> None:
    """Walks a device on until it computes or waits."""
    while state.place[device] < job.offsets[device + 1]:
        step = state.place[device]
        if job.action[step] == COMPUTE:
            row, needed = job.row[step], job.input_of[step]
            if times.start[row] == ABSENT and (needed == ABSENT or state.ended[needed]):
                times.start[row] = now
                _push_event(state, now + job.duration[row], step)
            return
        waits = False
        for member in range(step, job.group_end[step]):
            if not state.posted[member]:
                state.posted[member] = True
                _push(state, job.element[member])
            waits = waits or (job.blocks and not state.ended[member])
        if waits:
            return
        state.place[device] = job.group_end[step]


@kernel
def _settle(job: Job, state: State, times: Times, now: int) -> None:
    """Does all there is to do at this moment."""
    elements, steps = len(job.queue_next), len(job.action)
    while state.sizes[STACK] > 0:
        state.sizes[STACK] -= 1
        task = state.stack[state.sizes[STACK]]
        if task < elements:
            _look_at(job, state, task)
        elif task < elements + steps:
            _end(job, state, task - elements)
        else:
            _walk(job, state, times, task - elements - steps, now)


@kernel
def _happen(job: Job, state: State, times: Times, step: int, now: int) -> None:
    """Handles the event of a step: the end of an op or a send, the arrival of what a receive waits for."""
    row = job.row[step]
    if job.action[step] == COMPUTE:
        times.end[row] = now
        state.place[job.device[step]] = step + 1
        _end(job, state, step)
    elif job.action[step] == SEND or state.active[step]:
        _end(job, state, step)
    else:
        state.arrived[row] = True


@kernel
def _ask(job: Job, state: State, times: Times, now: int) -> None:
    """Grants the ready messages their ports, in order of their sends."""
    count = state.sizes[READY]
    state.ready[:count].sort()
    for send in state.ready[:count]:
        row, begin = job.row[send], now
        out_port, in_port = job.out_port[row], job.in_port[row]
        if out_port != ABSENT:
            begin = max(begin, state.port_free[out_port])
        if in_port != ABSENT:
            begin = max(begin, state.port_free[in_port])
        released = begin + job.hold[row]
        if out_port != ABSENT:
            state.port_free[out_port] = released
        if in_port != ABSENT:
            state.port_free[in_port] = released
        times.transfer_start[row], times.transfer_end[row] = begin, released
        times.arrival[row] = released + job.latency[row]
        _push_event(state, times.transfer_end[row], send)
        _push_event(state, times.arrival[row], job.partner[send])
    state.sizes[READY] = 0


@kernel
def run_steps(job: Job, times: Times, state: State) -> None:
    """Fills `times`; `state.ended` tells which steps could end."""
    now = 0
    for device in range(len(job.offsets) - 1):
        _walk(job, state, times, device, now)
    while True:
        _settle(job, state, times, now)
        if state.sizes[HEAP] > 0 and state.heap_time[0] == now:
            _happen(job, state, times, _pop_event(state), now)
        elif state.sizes[READY] > 0:
            _ask(job, state, times, now)
        elif state.sizes[HEAP] > 0:
            now = state.heap_time[0]
        else:
            return
