"""The compiled loops of the engine; they know arrays only, and no plan, cost table or network.

Without ports every message goes when its producer ends, so devices can be run in any order, each as far as its
inputs are known. With ports the order of asking decides, so completions are handled in order of (time, device);
each device has at most one op running, hence a tournament tree with a leaf per device holds all events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipesim.compiled_cache import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

ABSENT = -1
NEVER = 2**63 - 1


class Work(NamedTuple):
    """What is to be run: n ops, p devices; the columns of the plan, of Producers, of CostTable and Network.

    destination int16 [n]: the device that waits for a row's message, ABSENT where it sends none; size_of int32
    [C, k]: which size a message has; hold_ns int64 [sizes, p, p]: how long a message keeps its ports.
    """

    offsets: NDArray[np.int64]
    kind: NDArray[np.int8]
    stage: NDArray[np.int16]
    microbatch: NDArray[np.int32]
    subsequence: NDArray[np.int16]
    own: NDArray[np.int32]
    neighbour: NDArray[np.int32]
    sequence: NDArray[np.int32]
    destination: NDArray[np.int16]
    class_of: NDArray[np.int32]
    duration_ns: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    size_of: NDArray[np.int32]
    hold_ns: NDArray[np.int64]
    out_port: NDArray[np.int32]
    in_port: NDArray[np.int32]


class Times(NamedTuple):
    """The result, int64 [n] each: as in Timeline, ABSENT where an op has not run or sends nothing."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    transfer_start: NDArray[np.int64]
    transfer_end: NDArray[np.int64]
    arrival: NDArray[np.int64]


class Progress(NamedTuple):
    """How far each device is, int64 [p]: the row it runs next, when it is free, the row whose message it awaits;
    port_free int64 [ports]: when the last transfer granted so far leaves each port."""

    place: NDArray[np.int64]
    free_at: NDArray[np.int64]
    awaited: NDArray[np.int64]
    port_free: NDArray[np.int64]


@kernel
def destinations(offsets: NDArray[np.int64], neighbour: NDArray[np.int32]) -> NDArray[np.int16]:
    """int16 [n]: the device that needs each row's output and is not its own, ABSENT where there is none."""
    found = np.full(len(neighbour), np.int16(ABSENT))
    for device in range(len(offsets) - 1):
        for row in range(offsets[device], offsets[device + 1]):
            producer = neighbour[row]
            if producer != ABSENT and (producer < offsets[device] or producer >= offsets[device + 1]):
                found[producer] = device
    return found


@kernel
def _begin(offsets: NDArray[np.int64], ports: int) -> Progress:
    devices = len(offsets) - 1
    return Progress(
        offsets[:-1].copy(),
        np.zeros(devices, np.int64),
        np.full(devices, ABSENT, np.int64),
        np.zeros(ports, np.int64),
    )


@kernel
def _start_next(work: Work, times: Times, progress: Progress, device: int) -> bool:
    """Starts the next op of a device if all its inputs are known; else notes the message it waits for."""
    row = progress.place[device]
    first, end = work.offsets[device], work.offsets[device + 1]
    if row == end:
        return False
    if work.own[row] > row or work.sequence[row] > row:
        return False  # it waits for a later op of its own device, hence for ever
    at = progress.free_at[device]
    producer = work.neighbour[row]
    if producer >= first and producer < end:
        if producer > row:
            return False
    elif producer != ABSENT:
        if times.arrival[producer] == ABSENT:
            progress.awaited[device] = producer
            return False
        at = max(at, times.arrival[producer])
    batch_class = work.class_of[work.microbatch[row]]
    times.start[row] = at
    at += work.duration_ns[work.kind[row], batch_class, work.stage[row], work.subsequence[row]]
    times.end[row] = at
    progress.free_at[device] = at
    progress.place[device] = row + 1
    return True


@kernel
def _send(work: Work, times: Times, progress: Progress, device: int, row: int) -> int:
    """Grants the transfer of a row that has ended; returns the device that had been waiting for it, or ABSENT."""
    to = work.destination[row]
    if to == ABSENT:
        return ABSENT
    begin = times.end[row]
    out_port, in_port = work.out_port[device, to], work.in_port[device, to]
    if out_port != ABSENT:
        begin = max(begin, progress.port_free[out_port])
    if in_port != ABSENT:
        begin = max(begin, progress.port_free[in_port])
    size = work.size_of[work.class_of[work.microbatch[row]], work.subsequence[row]]
    released = begin + work.hold_ns[size, device, to]
    if out_port != ABSENT:
        progress.port_free[out_port] = released
    if in_port != ABSENT:
        progress.port_free[in_port] = released
    times.transfer_start[row] = begin
    times.transfer_end[row] = released
    times.arrival[row] = released + work.latency_ns[device, to]
    if progress.awaited[to] != row:
        return ABSENT
    progress.awaited[to] = ABSENT
    return int(to)


@kernel
def run_without_ports(work: Work, times: Times) -> int:
    """Fills `times` where no message ever waits for a port; returns how many ops could run."""
    progress = _begin(work.offsets, 0)
    awake = np.arange(len(work.offsets))  # as many as devices, and one to spare
    count = len(work.offsets) - 1
    done = 0
    while count > 0:
        count -= 1
        device = awake[count]
        while _start_next(work, times, progress, device):
            done += 1
            woken = _send(work, times, progress, device, progress.place[device] - 1)
            if woken != ABSENT:
                awake[count] = woken
                count += 1
    return done


@kernel
def run_with_ports(work: Work, times: Times, ports: int) -> int:
    """Fills `times` with transfers queued at their ports; returns how many ops could run."""
    progress = _begin(work.offsets, ports)
    devices = len(work.offsets) - 1
    leaves = 1
    while leaves < devices:
        leaves *= 2
    ending = np.full(2 * leaves, NEVER)
    for device in range(devices):
        if _start_next(work, times, progress, device):
            _set(ending, leaves, device, progress.free_at[device])
    done = 0
    while ending[1] != NEVER:
        device = _earliest(ending, leaves)
        done += 1
        woken = _send(work, times, progress, device, progress.place[device] - 1)
        if woken != ABSENT and _start_next(work, times, progress, woken):
            _set(ending, leaves, woken, progress.free_at[woken])
        more = _start_next(work, times, progress, device)
        _set(ending, leaves, device, progress.free_at[device] if more else NEVER)
    return done


@kernel
def _set(tree: NDArray[np.int64], leaves: int, leaf: int, value: int) -> None:
    """Changes a leaf of a tree in which every node is the least of its two children, node 1 the least of all."""
    node = leaves + leaf
    tree[node] = value
    while node > 1:
        node //= 2
        tree[node] = min(tree[2 * node], tree[2 * node + 1])


@kernel
def _earliest(tree: NDArray[np.int64], leaves: int) -> int:
    """The first leaf that holds the least value."""
    node = 1
    while node < leaves:
        node *= 2
        if tree[node] != tree[node // 2]:
            node += 1
    return node - leaves
