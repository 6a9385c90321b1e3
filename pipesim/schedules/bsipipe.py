"""BSIPipe: two opposing V-shaped pipelines, co-scheduled at the subsequence level within a memory limit.

p = 4: stages of both directions on each device; a micro-batch of one direction turns round without a message.

    device 0   down 0 and 7, up 3 and 4         down: 0 > 1 > 2 > 3
    device 1   down 1 and 6, up 2 and 5                         v
    device 2   down 2 and 5, up 1 and 6               7 < 6 < 5 < 4
    device 3   down 3 and 4, up 0 and 7         up: the same from device 3

p=4 m=2 v=2 k=2 F=1 B=2:

    0 F0 F1 .  F2 f2 F3 f3 f0 .  f1 b1--- b0--- .  .  b3--- B3--- b2--- B2--- B1--- .  .  B0---
    1 .  F0 F2 F1 F3 f2 f0 f3 f1 .  .  .  b1--- b3--- b0--- b2--- B3--- B1--- B2--- B0--- .  .
    2 .  F2 F0 F3 F1 f0 f2 f1 f3 .  .  .  b3--- b1--- b2--- b0--- B1--- B3--- B0--- B2--- .  .
    3 F2 F3 .  F0 f0 F1 f1 f2 .  f3 b3--- b2--- .  .  b1--- B1--- b0--- B0--- B3--- .  .  B2---

Numbers are units: 0 and 1 are micro-batch 0, which goes down, 2 and 3 micro-batch 1, which goes up.

Only the abstract of BSIPipe is published; this is our generator of what it promises. Even micro-batches go down,
odd ones up. Every (direction, stage) is a 1F1B stream over subsequences; how a device mixes its four streams is
found by list scheduling from both ends of time (`_search`), on unit costs or on the costs and links given. A device
never holds more than C micro-batches of its share, whatever k is: the limit is a constraint of the search.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from pipesim.bounds import OpTables, bounds_of, hop_times
from pipesim.errors import ShapeError
from pipesim.plan import Kind, Placement, Plan
from pipesim.schedules import Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pipesim.costs.table import CostTable
    from pipesim.network import Network
    from pipesim.plan import PipelineShape

    Limited = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
    """What ops acquire and release, int64 [2, stages, m, k] each (forward, backward); the limits, int64 [p]."""

DEFAULT_IN_FLIGHT = 4


def generate(
    shape: PipelineShape,
    costs: CostTable | None = None,
    network: Network | None = None,
    memory_limit_bytes: int | None = None,
) -> Plan:
    """The shortest plan found within `shape.in_flight` micro-batches and `memory_limit_bytes` of activations.

    Without costs F = 1 and B = 2 and links are free; without either limit C = 4. Same input, same plan. Raises
    ShapeError on odd devices, and on a limit under what one micro-batch needs, with the smallest that works.
    """
    from pipesim.compiled_cache import announced

    _refuse(shape)
    placement = opposing_placement(shape)
    tables = _tables(shape, placement, costs, network)
    limited = []
    if memory_limit_bytes is None or shape.in_flight is not None:
        limited.append(_in_flight_limit(shape))
    if memory_limit_bytes is not None:
        if costs is None or not costs.activation_bytes.any():
            raise ShapeError("--memory-limit", memory_limit_bytes, "unit costs say nothing of bytes", "give a model")
        limited.append(_bytes_limit(shape, placement, costs, memory_limit_bytes))
    with announced("bsipipe scheduler"):
        return _plan_of(shape, placement, tables, limited)


def opposing_placement(shape: PipelineShape) -> Placement:
    """Even micro-batches down, odd ones up."""
    return Placement.opposing_v(shape, (np.arange(shape.microbatches) % 2).astype(np.int8))


def _refuse(shape: PipelineShape) -> None:
    if shape.devices % 2:
        raise ShapeError("--devices/-p", shape.devices, "bsipipe needs an even number", f"{shape.devices + 1} would do")
    if shape.in_flight is not None and shape.in_flight < 1:
        raise ShapeError(
            "--in-flight",
            shape.in_flight,
            f"too small: a micro-batch runs all {shape.subsequences} subsequences forward before its first backward",
            "the smallest that works is 1",
        )


def _tables(shape: PipelineShape, placement: Placement, costs: CostTable | None, network: Network | None) -> OpTables:
    """Durations and hops by unit. No op takes less than 1 ns here: starts then say the order."""
    size = (shape.stages, shape.microbatches, shape.subsequences)
    nothing = np.zeros(size, dtype=np.int64)
    if costs is None:
        return OpTables(nothing + 1, nothing + 2, nothing, nothing, np.zeros((2, *size), dtype=np.int64))
    duration = _by_microbatch(costs, costs.duration_ns) + costs.host_overhead_ns
    hop = np.zeros((2, *size), dtype=np.int64) if network is None else hop_times(placement, costs, network)
    forward, backward = (np.maximum(duration[kind], 1) for kind in (Kind.F, Kind.B))
    return OpTables(forward, backward, nothing, nothing, hop)


def _by_microbatch(costs: CostTable, table: NDArray[np.int64]) -> NDArray[np.int64]:
    """A table [..., C, S, k] of classes as [..., S, m, k] of micro-batches."""
    return np.moveaxis(table[..., costs.class_of_microbatch, :, :], -3, -2)


def _in_flight_limit(shape: PipelineShape) -> Limited:
    """C micro-batches of a device's share are 2kC stage-units."""
    acquired = np.zeros((2, shape.stages, shape.microbatches, shape.subsequences), dtype=np.int64)
    acquired[0] = 1
    limit = DEFAULT_IN_FLIGHT if shape.in_flight is None else shape.in_flight
    units = int(Fraction(str(limit)) * 2 * shape.subsequences)
    return acquired, acquired[::-1], np.full(shape.devices, units, dtype=np.int64)


def _bytes_limit(shape: PipelineShape, placement: Placement, costs: CostTable, limit: int) -> Limited:
    """Activations, keys and values and their gradients; room is left for the largest transient of each device."""
    acquired = np.zeros((2, shape.stages, shape.microbatches, shape.subsequences), dtype=np.int64)
    released = np.zeros_like(acquired)
    activation = _by_microbatch(costs, costs.activation_bytes)
    kv, kv_gradient = (
        _by_microbatch(costs, table[..., np.newaxis])[..., 0] for table in (costs.kv_bytes, costs.kv_gradient_bytes)
    )
    acquired[0] = released[1] = activation
    acquired[0, ..., 0] += kv
    acquired[1, ..., -1] += kv_gradient
    released[1, ..., 0] += kv + kv_gradient
    transient = np.zeros(shape.devices, dtype=np.int64)
    most = costs.transient_bytes[[Kind.F, Kind.B]].max(axis=(0, 1, 3))
    for devices in placement.device_of:
        np.maximum.at(transient, devices, most)
    _refuse_bytes(limit, placement, acquired, transient)
    return acquired, released, limit - transient


def _refuse_bytes(limit: int, placement: Placement, acquired: NDArray[np.int64], transient: NDArray[np.int64]) -> None:
    from pipesim.schedules._problem import claims
    from pipesim.units import format_gib

    device_of, direction_of = placement.device_of.astype(np.int64), placement.direction_of.astype(np.int64)
    claim = claims(device_of, direction_of, acquired[np.newaxis], len(transient))[0].max(axis=1) + transient
    if claim.max() > limit:
        raise ShapeError(
            "--memory-limit",
            format_gib(limit),
            f"too small: device {claim.argmax()} needs {format_gib(int(claim.max()))} for one micro-batch",
            f"the smallest that works is {int(claim.max())} bytes; or cut sequences finer",
        )


def _plan_of(shape: PipelineShape, placement: Placement, tables: OpTables, limited: list[Limited]) -> Plan:
    from pipesim.schedules._problem import build
    from pipesim.schedules._search import search

    acquired, released, limit = (np.stack(part) for part in zip(*limited, strict=True))
    duration = np.stack([tables.forward, tables.backward])
    problem = build(placement, shape.devices, duration, tables.hop, acquired, released, limit)
    bound = bounds_of(tables, placement, shape.devices).lower_ns
    start = search(problem, bound).start.reshape(duration.shape)
    role, stage, microbatch, subsequence = np.indices(start.shape, dtype=np.int32).reshape(4, -1)
    device = placement.device_of[placement.direction_of[microbatch], stage]
    kind = np.where(role == 0, Kind.F, Kind.B).astype(np.int8)
    order = np.lexsort((start.reshape(-1), device))
    cuts = np.searchsorted(device[order], np.arange(1, shape.devices))
    devices = [(kind[o], stage[o], microbatch[o], subsequence[o]) for o in np.split(order, cuts)]
    return Plan.from_columns("bsipipe", shape, placement, devices)


SCHEDULE = Schedule(
    name="bsipipe",
    title="two opposing V-shaped pipelines over subsequences, in bounded memory",
    published=2025,
    source="BSIPipe, published so far as an abstract; our generator of its five properties",
    generate=generate,
    defaults={"subsequences": 4, "in_flight": None},
    fixed={"stages_per_device": 2},
    options=frozenset({"costs", "network", "memory_limit_bytes"}),
    note=f"in_flight {DEFAULT_IN_FLIGHT} where neither it nor a memory limit is given",
)
