"""Memory of each device over its order of ops; times come from a timeline, knows no limits and no hardware.

What one unit (stage, micro-batch, subsequence) of activations A does, with A_W the part that W still needs:

    F     start +A
    B     end   -A                      the whole backward
    I, W  end   -(A - A_W), end -A_W    its two halves
    any   start +transient, end -transient

Keys and values of a micro-batch count from its first F on a stage (subsequence 0) to the end of its last B or
I (subsequence 0 again: backward runs from the last subsequence to the first); their gradients from its first
B or I.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from pipesim.plan import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pipesim.costs.table import CostTable
    from pipesim.plan import Plan
    from pipesim.timeline import Timeline

_BACKWARDS = [int(Kind.B), int(Kind.I)]


@dataclass(frozen=True, eq=False)
class Memory:
    """What each device holds, op by op, in the rows of `plan`.

    during int64 [ops]: held while an op runs, transients included; after int64 [ops]: held from its end to
    the next op. Both without static_bytes int64 [devices]. Bytes, or stage-units for `in_flight`.
    """

    plan: Plan
    static_bytes: NDArray[np.int64]
    during: NDArray[np.int64]
    after: NDArray[np.int64]

    @cached_property
    def peak_rows(self) -> NDArray[np.int64]:
        """int64 [devices]: the row at which each device first holds most, -1 where it has no ops."""
        bounds = self.plan.offsets.tolist()
        peaks = [
            start + int(self.during[start:stop].argmax()) if stop > start else -1 for start, stop in pairwise(bounds)
        ]
        return np.array(peaks, dtype=np.int64)

    @property
    def peaks(self) -> NDArray[np.int64]:
        """int64 [devices]: the most each device ever holds beside its static bytes."""
        with_none = np.append(self.during, 0)  # row -1 of a device without ops
        return with_none[self.peak_rows]

    def curve(self, device: int, timeline: Timeline) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Times [2·ops of the device] in ns and the bytes held from each of them on, static bytes included.

        A step function: two points an op, its start and its end.
        """
        rows = slice(int(self.plan.offsets[device]), int(self.plan.offsets[device + 1]))
        times = np.stack([timeline.start_ns[rows], timeline.end_ns[rows]], axis=1).ravel()
        held = np.stack([self.during[rows], self.after[rows]], axis=1).ravel()
        return times, held + self.static_bytes[device]


def memory_of(plan: Plan, costs: CostTable) -> Memory:
    """Bytes each device holds under a legal plan; depends on the order of ops alone, not on time."""
    at_start, at_end = _changes(costs)
    transient = costs.transient_bytes if costs.transient_bytes.any() else None
    cells = _cells(plan, costs.class_of_microbatch, at_start.shape)
    static = costs.static_bytes_of_devices(plan)
    return _levels(plan, cells, at_start=at_start, at_end=at_end, transient=transient, static_bytes=static)


def in_flight(plan: Plan) -> Memory:
    """Stage-units whose forward has started and whose backward (B, or W where it is split) has not ended."""
    shape = (len(Kind), 1, 1, 1)
    at_start, at_end = np.zeros((2, *shape), dtype=np.int64)
    at_start[Kind.F] = 1
    at_end[[Kind.B, Kind.W]] = -1
    nothing = np.zeros(plan.shape.devices, dtype=np.int64)
    return _levels(plan, plan.kind, at_start=at_start, at_end=at_end, transient=None, static_bytes=nothing)


def peak_in_flight(plan: Plan) -> list[float]:
    """Per device, in micro-batches of one device's share: a stage-unit is 1/(v·k) of it."""
    units = plan.shape.stages_per_device * plan.shape.subsequences
    return [peak / units for peak in in_flight(plan).peaks.tolist()]


def _changes(costs: CostTable) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Bytes that an op adds at its start and (negative) frees at its end, int64 [5, C, S, k] each."""
    at_start = np.zeros(costs.duration_ns.shape, dtype=np.int64)
    at_end = np.zeros_like(at_start)
    whole, weight = costs.activation_bytes, costs.weight_activation_bytes
    at_start[Kind.F] = whole
    at_end[Kind.B], at_end[Kind.I], at_end[Kind.W] = -whole, weight - whole, -weight
    at_start[Kind.F, ..., 0] += costs.kv_bytes
    at_start[_BACKWARDS, ..., -1] += costs.kv_gradient_bytes
    at_end[_BACKWARDS, ..., 0] -= costs.kv_bytes + costs.kv_gradient_bytes
    return at_start, at_end


def _cells(plan: Plan, class_of_microbatch: NDArray[np.int32], shape: tuple[int, ...]) -> NDArray[np.int32]:
    """int32 [ops]: the place of each op in a flattened table [5, C, S, k]."""
    _, classes, stages, subsequences = shape
    cell = plan.kind.astype(np.int32)
    if classes > 1:
        cell *= classes
        cell += class_of_microbatch[plan.microbatch]
    cell *= stages
    cell += plan.stage
    if subsequences > 1:
        cell *= subsequences
        cell += plan.subsequence
    return cell


def _levels(
    plan: Plan,
    cells: NDArray[np.integer],
    *,
    at_start: NDArray[np.int64],
    at_end: NDArray[np.int64],
    transient: NDArray[np.int64] | None,
    static_bytes: NDArray[np.int64],
) -> Memory:
    after = (at_start + at_end).ravel().take(cells).cumsum()
    before_device = np.concatenate([[0], after])[plan.offsets[:-1]]
    if before_device.any():  # only where a device does not end as it began: a plan cut short
        after -= np.repeat(before_device, np.diff(plan.offsets))
    # What is held while an op runs is what is left after it and what it frees at its end.
    extra = -at_end if transient is None else transient - at_end
    return Memory(plan, static_bytes, after + extra.ravel().take(cells), after)
