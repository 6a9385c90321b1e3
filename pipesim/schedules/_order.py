"""The shape that every one-forward-one-backward order shares: warm-up, steady pairs, cool-down."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipesim.plan import Kind, Placement, Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from pipesim.plan import Columns, PipelineShape

    Visits = tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.integer]]
    """Stages, micro-batches, subsequences in the order a device visits them."""


def interlace(forward: Visits, backward: Visits, warmup: int) -> Columns:
    """`warmup` forwards, then (F, B) pairs until the forwards are used up, then the rest of the backwards."""
    count = len(forward[0])
    pairs = count - warmup
    places = np.arange(count)
    forward_at = np.where(places < warmup, places, 2 * places - warmup)
    backward_at = np.where(places < pairs, warmup + 2 * places + 1, count + places)
    kind = np.full(2 * count, Kind.F, dtype=np.int8)
    kind[backward_at] = Kind.B
    columns = []
    for forward_column, backward_column in zip(forward, backward, strict=True):
        column = np.empty(2 * count, dtype=np.int32)
        column[forward_at] = forward_column
        column[backward_at] = backward_column
        columns.append(column)
    return kind, columns[0], columns[1], columns[2]


def one_stage_visits(shape: PipelineShape, stage: int) -> tuple[Visits, Visits]:
    """Forward and backward visits of a device with one stage: micro-batches in order, subsequences 0..k-1
    forward and k-1..0 backward."""
    units = np.arange(shape.units, dtype=np.int32)
    microbatch, subsequence = np.divmod(units, shape.subsequences)
    stages = np.full(shape.units, stage, dtype=np.int32)
    return (stages, microbatch, subsequence), (stages, microbatch, shape.subsequences - 1 - subsequence)


def one_stage_plan(schedule: str, shape: PipelineShape, warmup: Callable[[int], int]) -> Plan:
    """A plan with one stage per device; `warmup(device)` is clamped to the forwards there are."""
    devices = []
    for device in range(shape.devices):
        forward, backward = one_stage_visits(shape, device)
        devices.append(interlace(forward, backward, min(warmup(device), shape.units)))
    return Plan.from_columns(schedule, shape, Placement.looped(shape), devices)


def looped_visits(shape: PipelineShape) -> tuple[Visits, Visits]:
    """Forward and backward visits of a device with v stages, as local stages 0..v-1.

    Units are cut into max(1, n // p) groups whose sizes differ by at most one, larger first. Forward: group by
    group, stages 0..v-1, the group's units; backward: stages v-1..0, each micro-batch's subsequences reversed.
    """
    v, k = shape.stages_per_device, shape.subsequences
    groups = np.array_split(np.arange(shape.units, dtype=np.int32), max(1, shape.units // shape.devices))
    sizes = np.array([len(group) for group in groups])
    start = np.repeat(np.cumsum(sizes) - sizes, sizes)
    size = np.repeat(sizes, sizes)
    unit = np.arange(shape.units, dtype=np.int32)
    place = np.empty((v, shape.units), dtype=np.int64)
    for local_stage in range(v):
        place[local_stage] = start * v + local_stage * size + (unit - start)
    local = np.empty(v * shape.units, dtype=np.int32)
    units = np.empty_like(local)
    for local_stage in range(v):
        local[place[local_stage]] = local_stage
        units[place[local_stage]] = unit
    microbatch, subsequence = np.divmod(units, k)
    return (local, microbatch, subsequence), (v - 1 - local, microbatch, k - 1 - subsequence)


def looped_warmup(shape: PipelineShape, forward: Visits, backward: Visits) -> int:
    """Forwards before the first backward on the last device: the least that has every micro-batch's last
    subsequence through the last stage before its own first backward."""

    def places(visits: Visits) -> NDArray[np.int64]:
        ends = (visits[0] == shape.stages_per_device - 1) & (visits[2] == shape.subsequences - 1)
        found = np.flatnonzero(ends)
        return found[np.argsort(visits[1][found], kind="stable")]

    return int(np.max(places(forward) - places(backward)))


def looped_plan(schedule: str, shape: PipelineShape) -> Plan:
    """A plan with v stages per device, stage s on device s mod p: interleaved 1F1B for every m, v and k."""
    forward, backward = looped_visits(shape)
    last = looped_warmup(shape, forward, backward)
    devices = []
    for device in range(shape.devices):
        warmup = min(last + 2 * (shape.devices - 1 - device), shape.units * shape.stages_per_device)
        here = [(visits[0] * shape.devices + device, visits[1], visits[2]) for visits in (forward, backward)]
        devices.append(interlace(here[0], here[1], warmup))
    return Plan.from_columns(schedule, shape, Placement.looped(shape), devices)
