"""Compiled list scheduling of opposing pipelines under memory limits; knows no rule of priority and no search.

Each (direction, stage) is a stream: its forwards run in the order of micro-batch and subsequence, its backwards in
the order of micro-batch and reversed subsequence. A device multiplexes the streams of its stages: whenever it is
free it takes, of the next forward and the next backward of each, the one that can start first, and of several the
one with the smallest priority. An op is a number: (role·stages + stage)·units + unit, where role is 0 forward,
1 backward and unit = microbatch·k + subsequence.

Helpers take arrays one by one: a tuple of arrays costs compiled code ten times the time, for counting references.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipesim.compiled_cache import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

NEVER = 1 << 60
"""The time of what cannot happen; `list_schedule` answers it when every device is stuck."""


class Problem(NamedTuple):
    """What is to be scheduled: d devices, R limited resources, times in nanoseconds.

    device_of int64 [2, stages]; streams int64 [d, streams of a device, 2]: (direction, stage) of each;
    units int64 [2, most], unit_counts int64 [2]: the units of each direction in order; direction_of int64 [m];
    duration, hop int64 [ops]: of the op, and from its end to the arrival of its output at the neighbour stage;
    acquired, released int64 [R, ops]: taken at an op's start, given back at its end; limit int64 [R, d];
    claim int64 [R, d, m]: all that a micro-batch acquires on a device.
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
    limit: NDArray[np.int64]
    claim: NDArray[np.int64]


@kernel(error_model="numpy")
def _fits(limit: Ints, held: Ints, acquired: Ints, device: int, op: int) -> bool:
    """Whether every resource has room for an op."""
    for resource in range(limit.shape[0]):
        if held[resource, device] + acquired[resource, op] > limit[resource, device]:
            return False
    return True


@kernel(error_model="numpy")
def _safe(
    limit: Ints,
    held: Ints,
    acquired: Ints,
    needed: Ints,
    kept: Ints,
    oldest: Ints,
    device: int,
    op: int,
    microbatch: int,
) -> bool:
    """Whether all older micro-batches could still finish here after an op, in order of age (the banker's rule).

    It keeps list scheduling from filling a device with forwards whose backwards wait for forwards that no longer
    fit. needed, kept int64 [R, d, m]: what a micro-batch will still acquire, and holds now.
    """
    for resource in range(limit.shape[0]):
        room = limit[resource, device] - held[resource, device] - acquired[resource, op]
        for older in range(oldest[device], microbatch):
            if needed[resource, device, older] > room:
                return False
            room += kept[resource, device, older]
    return True


@kernel(error_model="numpy")
def _next_unit(role: int, forwards: int, backwards: int, window: int, unit_count: int, k: int) -> int:
    """The place in its direction's units of a stream's next forward (role 0) or backward, -1 if it may not be."""
    if role == 0:
        return forwards if forwards - backwards < window and forwards < unit_count else -1
    first = backwards // k * k
    place = first + k - 1 - (backwards - first)
    return place if place < forwards else -1


@kernel(error_model="numpy")
def _settle(
    acquired: Ints,
    released: Ints,
    held: Ints,
    needed: Ints,
    kept: Ints,
    oldest: Ints,
    device: int,
    op: int,
    microbatch: int,
) -> None:
    """Memory after an op. What it frees at its end is free for the device's next op, so all counts at once."""
    for resource in range(held.shape[0]):
        remains = acquired[resource, op] - released[resource, op]
        held[resource, device] += remains
        needed[resource, device, microbatch] -= acquired[resource, op]
        kept[resource, device, microbatch] += remains
    while oldest[device] < needed.shape[2]:
        for resource in range(held.shape[0]):
            if needed[resource, device, oldest[device]] > 0 or kept[resource, device, oldest[device]] > 0:
                return
        oldest[device] += 1


@kernel(error_model="numpy")
def _deliver(
    input_at: Ints,
    stale: NDArray[np.bool_],
    device_of: Ints,
    op: int,
    arrival: int,
    stages: int,
    unit_total: int,
    direction: int,
) -> None:
    """Tells the neighbour stage of an op when its output is there."""
    row, unit = op // unit_total, op % unit_total
    role, stage = row // stages, row % stages
    receiver = stage + 1 - 2 * role
    if receiver == stages:  # the loss: the backward of the last stage follows its own forward
        role, receiver = 1, stage
    if receiver >= 0:
        input_at[(role * stages + receiver) * unit_total + unit] = arrival
        stale[device_of[direction, receiver]] = True


@kernel(error_model="numpy")
def _look_up(
    streams: Ints, units: Ints, unit_counts: Ints, done: Ints, input_at: Ints, priority: Ints, window: Ints,
    limit: Ints, held: Ints, acquired: Ints, needed: Ints, kept: Ints, oldest: Ints, stages: int, k: int,
    device: int, free_at: int, guarded: bool,
) -> tuple[int, int]:  # fmt: skip
    """The op a device starts next and when (NEVER if none): the earliest, of several the smallest priority."""
    unit_total = len(input_at) // (2 * stages)
    best, best_at = -1, NEVER
    for stream in range(streams.shape[1]):
        direction, stage = streams[device, stream, 0], streams[device, stream, 1]
        forwards, backwards = done[0, direction, stage], done[1, direction, stage]
        for role in range(2):
            place = _next_unit(role, forwards, backwards, window[direction, stage], unit_counts[direction], k)
            if place < 0:
                continue
            unit = units[direction, place]
            op = (role * stages + stage) * unit_total + unit
            at = max(input_at[op], free_at)
            if at > best_at or at == NEVER or (at == best_at and priority[op] >= priority[best]):
                continue
            if not _fits(limit, held, acquired, device, op):
                continue
            if guarded and not _safe(limit, held, acquired, needed, kept, oldest, device, op, unit // k):
                continue
            best, best_at = op, at
    return best, best_at


@kernel(error_model="numpy")
def list_schedule(problem: Problem, priority: Ints, window: Ints, guarded: bool, start: Ints) -> int:
    """Schedules every op, smallest priority first; returns the makespan, NEVER if the devices get stuck.

    priority int64 [ops]; window int64 [2, stages]: most forwards of a stream whose backward is not done;
    guarded: use the banker's rule, with which no device gets stuck; start int64 [ops] is filled with start times.
    """
    stages, k, device_of, streams, units, unit_counts, direction_of = problem[:7]
    duration, hop, acquired, released, limit, claim = problem[7:]
    devices, ops = streams.shape[0], len(duration)
    unit_total = ops // (2 * stages)
    done = np.zeros((2, 2, stages), np.int64)
    input_at = np.full(ops, NEVER, np.int64)
    input_at[:unit_total] = 0
    free_at, oldest = np.zeros(devices, np.int64), np.zeros(devices, np.int64)
    next_op, next_at = np.zeros(devices, np.int64), np.full(devices, NEVER, np.int64)
    stale = np.ones(devices, np.bool_)
    held, needed, kept = np.zeros_like(limit), claim.copy(), np.zeros_like(claim)
    for _ in range(ops):
        first = 0
        for device in range(devices):
            if stale[device]:
                next_op[device], next_at[device] = _look_up(
                    streams, units, unit_counts, done, input_at, priority, window, limit, held, acquired, needed, kept,
                    oldest, stages, k, device, free_at[device], guarded,
                )  # fmt: skip
                stale[device] = False
            if next_at[device] < next_at[first]:
                first = device
        if next_at[first] == NEVER:
            return NEVER
        op, row = next_op[first], next_op[first] // unit_total
        microbatch = op % unit_total // k
        direction = direction_of[microbatch]
        start[op], free_at[first] = next_at[first], next_at[first] + duration[op]
        stale[first] = True
        done[row // stages, direction, row % stages] += 1
        _settle(acquired, released, held, needed, kept, oldest, first, op, microbatch)
        _deliver(input_at, stale, device_of, op, free_at[first] + hop[op], stages, unit_total, direction)
    return int(free_at.max())
