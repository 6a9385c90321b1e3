"""Compiled list scheduling of opposing pipelines under memory limits; knows no rule of priority and no search.

Each (direction, stage) is a stream: its forwards run in the order of micro-batch and subsequence, its backwards
in the order of micro-batch and reversed subsequence. A device multiplexes the streams of its stages: whenever it
is free it takes, of the next forward and next backward of each, the one that can start first, and of several the
one with the smallest priority. Ops are numbered (kind*stages + stage)*units + unit, unit = microbatch*k + subsequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

NEVER = 1 << 60
"""The time of what cannot happen; `list_schedule` answers it when every device is stuck."""


class Problem(NamedTuple):
    """What is to be scheduled; d devices, R limited resources, times in nanoseconds.

    device_of int64 [2, stages]; streams int64 [d, streams of a device, 2]: (direction, stage);
    units int64 [2, most], unit_counts int64 [2]: units of each direction in order; direction_of int64 [m];
    duration, hop int64 [ops]: the op, and from its end to the arrival of its output at the neighbour stage;
    acquired, released int64 [R, ops]: taken at an op's start, given back at its end; limit int64 [R, d].
    """

    stages: int
    subsequences: int
    device_of: NDArray[np.int64]
    streams: NDArray[np.int64]
    units: NDArray[np.int64]
    unit_counts: NDArray[np.int64]
    direction_of: NDArray[np.int64]
    duration: NDArray[np.int64]
    hop: NDArray[np.int64]
    acquired: NDArray[np.int64]
    released: NDArray[np.int64]
    claim: NDArray[np.int64]
    limit: NDArray[np.int64]


class State(NamedTuple):
    """How far a schedule has come.

    forwards, backwards int64 [2, stages]: ops done of each stream; input_at int64 [ops]: when the output of the
    neighbour stage is there; free_at, next_op, next_at int64 [d]; stale bool [d]: next_op must be looked up again;
    held int64 [R, d]; needed, kept int64 [R, d, m]: what a micro-batch will still acquire, and holds now;
    oldest int64 [d]: the first micro-batch not finished here.
    """

    forwards: NDArray[np.int64]
    backwards: NDArray[np.int64]
    input_at: NDArray[np.int64]
    free_at: NDArray[np.int64]
    next_op: NDArray[np.int64]
    next_at: NDArray[np.int64]
    stale: NDArray[np.bool_]
    held: NDArray[np.int64]
    needed: NDArray[np.int64]
    kept: NDArray[np.int64]
    oldest: NDArray[np.int64]


@njit(cache=True, inline="always")
def _begin(problem: Problem) -> State:
    devices, ops = problem.streams.shape[0], len(problem.duration)
    stages, unit_total = problem.stages, ops // (2 * problem.stages)
    resources = problem.limit.shape[0]
    input_at = np.full(ops, NEVER, np.int64)
    input_at[:unit_total] = 0
    return State(
        np.zeros((2, stages), np.int64),
        np.zeros((2, stages), np.int64),
        input_at,
        np.zeros(devices, np.int64),
        np.full(devices, -1, np.int64),
        np.full(devices, NEVER, np.int64),
        np.ones(devices, np.bool_),
        np.zeros((resources, devices), np.int64),
        problem.claim.copy(),
        np.zeros_like(problem.claim),
        np.zeros(devices, np.int64),
    )


@njit(cache=True, inline="always")
def _next_forward(problem: Problem, state: State, direction: int, stage: int, window: int) -> int:
    """The next forward of a stream, -1 if there is none or the stream's window is full."""
    place = state.forwards[direction, stage]
    full = place - state.backwards[direction, stage] >= window
    if full or place == problem.unit_counts[direction]:
        return -1
    unit_total = len(problem.duration) // (2 * problem.stages)
    return stage * unit_total + problem.units[direction, place]


@njit(cache=True, inline="always")
def _next_backward(problem: Problem, state: State, direction: int, stage: int) -> int:
    """The next backward of a stream, -1 if its forward has not been."""
    place = state.backwards[direction, stage]
    first = place - place % problem.subsequences
    mirrored = first + problem.subsequences - 1 - (place - first)
    if mirrored >= state.forwards[direction, stage]:
        return -1
    unit_total = len(problem.duration) // (2 * problem.stages)
    return (problem.stages + stage) * unit_total + problem.units[direction, mirrored]


@njit(cache=True, inline="always")
def _fits(problem: Problem, state: State, device: int, op: int, guarded: bool) -> bool:
    """Whether an op's memory is free; guarded: and every older micro-batch could still finish, in order of age.

    The guard is the banker's rule. It keeps list scheduling from filling a device with forwards whose backwards
    wait for forwards that no longer fit.
    """
    unit_total = len(problem.duration) // (2 * problem.stages)
    microbatch = op % unit_total // problem.subsequences
    for resource in range(problem.limit.shape[0]):
        acquired = problem.acquired[resource, op]
        room = problem.limit[resource, device] - state.held[resource, device] - acquired
        if room < 0:
            return False
        if guarded and acquired > 0:
            for older in range(state.oldest[device], microbatch):
                if state.needed[resource, device, older] > room:
                    return False
                room += state.kept[resource, device, older]
    return True


@njit(cache=True, inline="always")
def _look_up(
    problem: Problem, state: State, device: int, priority: NDArray[np.int64], window: NDArray[np.int64], guarded: bool
) -> None:
    """Finds the op a device starts next: the earliest, of several the one with the smallest priority."""
    best, best_at = -1, NEVER
    for place in range(problem.streams.shape[1]):
        direction, stage = problem.streams[device, place]
        for backward in range(2):
            if backward:
                op = _next_backward(problem, state, direction, stage)
            else:
                op = _next_forward(problem, state, direction, stage, window[direction, stage])
            if op < 0 or state.input_at[op] == NEVER:
                continue
            at = max(state.input_at[op], state.free_at[device])
            better = at < best_at or (at == best_at and priority[op] < priority[best])
            if better and _fits(problem, state, device, op, guarded):
                best, best_at = op, at
    state.next_op[device], state.next_at[device] = best, best_at
    state.stale[device] = False


@njit(cache=True, inline="always")
def _account(problem: Problem, state: State, device: int, op: int, microbatch: int) -> None:
    """Memory after an op; what it frees is free when the device starts its next op, so it counts at once."""
    done = True
    for resource in range(problem.limit.shape[0]):
        acquired, kept = problem.acquired[resource, op], problem.acquired[resource, op] - problem.released[resource, op]
        state.held[resource, device] += kept
        state.needed[resource, device, microbatch] -= acquired
        state.kept[resource, device, microbatch] += kept


@njit(cache=True, inline="always")
def _run(problem: Problem, state: State, device: int) -> int:
    """Runs the next op of a device, tells the neighbour stage, and returns when it ends."""
    op = state.next_op[device]
    unit_total = len(problem.duration) // (2 * problem.stages)
    row, unit = divmod(op, unit_total)
    backward, stage = divmod(row, problem.stages)
    microbatch = unit // problem.subsequences
    direction = problem.direction_of[microbatch]
    end = state.next_at[device] + problem.duration[op]
    state.free_at[device] = end
    _account(problem, state, device, op, microbatch)
    if backward:
        state.backwards[direction, stage] += 1
        receiver, consumer = stage - 1, op - unit_total
    else:
        state.forwards[direction, stage] += 1
        receiver, consumer = stage + 1, op + unit_total
    state.stale[device] = True
    if receiver == problem.stages:  # the loss: the backward of the last stage follows its own forward
        receiver, consumer = stage, (problem.stages + stage) * unit_total + unit
    if receiver >= 0:
        state.input_at[consumer] = end + problem.hop[op]
        state.stale[problem.device_of[direction, receiver]] = True
    if backward and stage == 0 or backward:
        while state.oldest[device] < len(problem.direction_of) and _finished(problem, state, device):
            state.oldest[device] += 1
    return end


@njit(cache=True, inline="always")
def _finished(problem: Problem, state: State, device: int) -> bool:
    oldest = state.oldest[device]
    for resource in range(problem.limit.shape[0]):
        if state.needed[resource, device, oldest] > 0 or state.kept[resource, device, oldest] > 0:
            return False
    return True


@njit(cache=True, error_model="numpy")
def list_schedule(
    problem: Problem, priority: NDArray[np.int64], window: NDArray[np.int64], guarded: bool, start: NDArray[np.int64]
) -> int:
    """Schedules every op, smallest priority first, and returns the makespan, NEVER if the devices get stuck.

    priority int64 [ops]; window int64 [2, stages]: forwards of a stream whose backward is not done;
    guarded: use the banker's rule, with which no device gets stuck; start int64 [ops]: is filled with start times.
    """
    state = _begin(problem)
    makespan = 0
    for _ in range(len(problem.duration)):
        first = 0
        for device in range(len(state.free_at)):
            if state.stale[device]:
                _look_up(problem, state, device, priority, window, guarded)
            if state.next_at[device] < state.next_at[first]:
                first = device
        if state.next_at[first] == NEVER:
            return NEVER
        start[state.next_op[first]] = state.next_at[first]
        makespan = max(makespan, _run(problem, state, first))
    return makespan
