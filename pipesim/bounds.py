"""Lower bounds of a step's time that hold for every order of the same ops on the same devices; knows no schedule.

    work           the device with most to do, without a pause
    critical path  the longest chain of dependencies, each on a free device, messages included
    device         of the ops of one device that cannot start before time h and that no less than t must follow:
                   h + their work + t, for every h and t

With equal costs and free links `device` is m(F+B) + (p-1)(F+B) for 1F1B and m(F+B) + (p/2-1)(F+B)/(2k) for two
opposing V-shaped pipelines, whose middle devices have to wait for the first message from either end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipesim.dependencies import BACKWARD, FORWARD, RECOMPUTE, WEIGHT, row_tables, unit_keys

if TYPE_CHECKING:
    from fractions import Fraction

    from numpy.typing import NDArray

    from pipesim.costs.table import CostTable
    from pipesim.network import Network
    from pipesim.plan import Placement, Plan
    from pipesim.timeline import Timeline

    Table = NDArray[np.int64]
    """[stages, m, k], nanoseconds."""


@dataclass(frozen=True)
class Bounds:
    """No order of a plan's ops on its devices takes less, in nanoseconds."""

    work_ns: int
    critical_path_ns: int
    device_ns: int

    @property
    def lower_ns(self) -> int:
        """The best of them."""
        return max(self.work_ns, self.critical_path_ns, self.device_ns)


@dataclass(frozen=True, eq=False)
class OpTables:
    """Durations by unit: int64 [stages, m, k] each; weight is the split-off weight gradient (0 if none),
    recompute runs between forward and backward (0 if none), hop int64 [2, stages, m, k] the way of the output of
    a forward (0) or backward (1) to the neighbour stage."""

    forward: Table
    backward: Table
    weight: Table
    recompute: Table
    hop: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Chains:
    """The longest chain of dependencies before each op starts and after it ends: int64 [stages, m, k] each."""

    before_forward: Table
    before_backward: Table
    after_forward: Table
    after_backward: Table


def lower_bounds(plan: Plan, costs: CostTable, network: Network) -> Bounds:
    """Lower bounds of a plan's makespan under these costs and links."""
    tables = op_tables(plan, costs, network)
    return bounds_of(tables, plan.placement, plan.shape.devices)


def bounds_of(tables: OpTables, placement: Placement, devices: int) -> Bounds:
    """Lower bounds from per-op tables; every stage of every micro-batch runs on the device of its direction."""
    found = chains(tables)
    before_weight = found.before_backward + tables.backward
    before_recompute = found.before_forward + tables.forward
    after_recompute = tables.backward + found.after_backward
    parts = [
        (found.before_forward, tables.forward, found.after_forward),
        (found.before_backward, tables.backward, found.after_backward),
        (before_weight, tables.weight, np.zeros_like(tables.weight)),
        (before_recompute, tables.recompute, after_recompute),
    ]
    there = [part for part in parts if part[1].any()] or parts[:1]
    before, duration, after = (np.stack(part) for part in zip(*there, strict=True))
    device = placement.device_of[placement.direction_of].T  # [stages, m]
    work, best = 0, 0
    for here in range(devices):
        mine = device == here
        work = max(work, int(duration[:, mine].sum()))
        best = max(best, _device_bound(*(part[:, mine].reshape(-1) for part in (before, duration, after))))
    critical = int((before + duration + after).max(initial=0))
    return Bounds(work, critical, best)


def _device_bound(before: NDArray[np.int64], duration: NDArray[np.int64], after: NDArray[np.int64]) -> int:
    """Over the ops that start latest, and over those with most to follow: earliest start + work + least to follow.

    Ops that take no time are left out: they are free, or not there.
    """
    there = duration > 0
    best = 0
    for key, other in ((before[there], after[there]), (after[there], before[there])):
        if len(key):
            order = np.argsort(-key, kind="stable")
            least = np.minimum.accumulate(other[order])
            best = max(best, int((key[order] + np.cumsum(duration[there][order]) + least).max()))
    return best


def chains(tables: OpTables) -> Chains:
    """The longest chains before and after each forward and backward; see `pipesim.dependencies` for the rules."""
    before_forward = _along(tables.forward, tables.hop[0], np.zeros_like(tables.forward))
    ready = before_forward + tables.forward + tables.recompute
    before_backward = _against(tables.backward, tables.hop[1], ready)
    after_backward = _before_end(tables.backward, tables.hop[1], tables.weight)
    follows = tables.recompute + tables.backward + after_backward
    after_forward = _after_start(tables.forward, tables.hop[0], follows)
    return Chains(before_forward, before_backward, after_forward, after_backward)


def _along(duration: Table, hop: Table, first: Table) -> Table:
    """Earliest starts where an op follows the stage before it and the subsequence before it."""
    start = first.copy()
    since_first = np.cumsum(duration, axis=-1) - duration
    for stage in range(len(start)):
        if stage:
            arrived = start[stage - 1] + duration[stage - 1] + hop[stage - 1]
            np.maximum(start[stage], arrived, out=start[stage])
        start[stage] = np.maximum.accumulate(start[stage] - since_first[stage], axis=-1) + since_first[stage]
    return start


def _against(duration: Table, hop: Table, first: Table) -> Table:
    """The same for backwards, which run from the last stage and the last subsequence to the first."""
    return _turned(_along(_turned(duration), _turned(hop), _turned(first)))


def _after_start(duration: Table, hop: Table, least: Table) -> Table:
    """Longest chain after each forward's end; `least` is what follows on its own stage."""
    after = least.copy()
    until_last = np.cumsum(duration[..., ::-1], axis=-1)[..., ::-1] - duration
    for stage in reversed(range(len(after))):
        if stage + 1 < len(after):
            onward = hop[stage] + duration[stage + 1] + after[stage + 1]
            np.maximum(after[stage], onward, out=after[stage])
        rest = (after[stage] - until_last[stage])[..., ::-1]
        after[stage] = np.maximum.accumulate(rest, axis=-1)[..., ::-1] + until_last[stage]
    return after


def _before_end(duration: Table, hop: Table, least: Table) -> Table:
    """Longest chain after each backward's end."""
    return _turned(_after_start(_turned(duration), _turned(hop), _turned(least)))


def _turned(table: Table) -> Table:
    """Stages and subsequences in reverse."""
    return np.ascontiguousarray(table[::-1, :, ::-1])


def op_tables(plan: Plan, costs: CostTable, network: Network) -> OpTables:
    """The durations and hops of a plan's ops by unit; host overhead included."""
    shape = plan.shape
    durations = costs.durations(plan)
    rows_of = row_tables(plan, unit_keys(plan))

    def table(role: int) -> Table:
        if role not in rows_of:
            return np.zeros((shape.stages, shape.microbatches, shape.subsequences), dtype=np.int64)
        rows = rows_of[role]
        found = np.where(rows >= 0, durations[rows], 0)
        return found.reshape(shape.stages, shape.microbatches, shape.subsequences)

    hop = hop_times(plan.placement, costs, network)
    return OpTables(table(FORWARD), table(BACKWARD), table(WEIGHT), table(RECOMPUTE), hop)


def hop_times(placement: Placement, costs: CostTable, network: Network) -> NDArray[np.int64]:
    """int64 [2, stages, m, k]: nanoseconds from the end of a forward (0) or backward (1) to its output's arrival at
    the neighbour stage, ports free; 0 on the same device and where there is no neighbour."""
    home = placement.device_of[placement.direction_of].T  # [stages, m]
    size = costs.boundary_bytes[costs.class_of_microbatch]  # [m, k]
    result = np.zeros((2, *home.shape, size.shape[1]), dtype=np.int64)
    result[0, :-1] = _hops(home[:-1], home[1:], size, network)
    result[1, 1:] = _hops(home[1:], home[:-1], size, network)
    return result


def _hops(
    source: NDArray[np.int32], destination: NDArray[np.int32], size: NDArray[np.int64], network: Network
) -> NDArray[np.int64]:
    source, destination = source[..., np.newaxis], destination[..., np.newaxis]
    taken = network.hold_ns(size, source, destination) + network.latency_ns[source, destination]
    return np.where(source == destination, 0, taken)


def optimality_gap(timeline: Timeline, bounds: Bounds | None = None) -> float | None:
    """(makespan - lower bound) / lower bound; None without work."""
    lower = (bounds or lower_bounds(timeline.plan, timeline.costs, timeline.network)).lower_ns
    return (timeline.makespan_ns - lower) / lower if lower else None


def opposing_bound(
    devices: int, microbatches: int, subsequences: int, forward: Fraction, backward: Fraction
) -> Fraction:
    """m(F+B) + (p/2-1)(F+B)/(2k): no order of two opposing V-shaped pipelines is faster, with equal costs and free
    links. F and B are one micro-batch's times on one device's share."""
    both = forward + backward
    return microbatches * both + (devices // 2 - 1) * both / (2 * subsequences)
