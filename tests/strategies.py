"""Hypothesis strategies shared by the tests: shapes, legal plans, cost tables and networks, all small and exact."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from pipesim.costs.table import CostTable
from pipesim.dependencies import ABSENT, producers, remote_producers
from pipesim.network import NO_PORT, Network
from pipesim.plan import Kind, Op, PipelineShape, Placement, Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import DrawFn


@dataclass(frozen=True, eq=False)
class Case:
    """Everything one simulation needs."""

    plan: Plan
    costs: CostTable
    network: Network

    def __repr__(self) -> str:
        lines = [repr(self.plan.shape), f"device_of {self.plan.placement.device_of.tolist()}", str(self.plan)]
        lines += [f"{name} {getattr(self.costs, name).tolist()}" for name in ("duration_ns", "boundary_bytes")]
        fields = ("latency_ns", "bytes_per_second", "out_port", "in_port")
        lines += [f"{name} {getattr(self.network, name).tolist()}" for name in fields]
        return "\n".join(lines)


@st.composite
def shapes(
    draw: DrawFn, max_devices: int = 4, max_microbatches: int = 4, max_stages: int = 2, max_subsequences: int = 3
) -> PipelineShape:
    """A shape small enough to print."""
    return PipelineShape(
        draw(st.integers(1, max_devices)),
        draw(st.integers(1, max_microbatches)),
        draw(st.integers(1, max_stages)),
        draw(st.integers(1, max_subsequences)),
    )


@st.composite
def placements(draw: DrawFn, shape: PipelineShape) -> Placement:
    """Looped, or every stage of each of one or two directions anywhere at all."""
    if draw(st.booleans()):
        return Placement.looped(shape)
    directions = draw(st.integers(1, 2))
    device = st.integers(0, shape.devices - 1)
    device_of = [[draw(device) for _ in range(shape.stages)] for _ in range(directions)]
    direction_of = [draw(st.integers(0, directions - 1)) for _ in range(shape.microbatches)]
    return Placement(np.array(device_of, dtype=np.int32), np.array(direction_of, dtype=np.int8))


@st.composite
def legal_plans(draw: DrawFn, shape: PipelineShape | None = None) -> Plan:
    """A random order of all ops that respects every dependency, cut into the orders of the devices."""
    shape = shape or draw(shapes())
    plan = _unordered_plan(draw, shape)
    needs = producers(plan)
    return _reordered(draw, plan, (needs.own, needs.stage, needs.sequence))


@st.composite
def tangled_plans(draw: DrawFn, shape: PipelineShape | None = None) -> Plan:
    """Random orders that respect each device's own dependencies only: devices may wait for each other for ever."""
    shape = shape or draw(shapes())
    plan = _unordered_plan(draw, shape)
    needs = producers(plan)
    local = np.where(remote_producers(plan, needs) == ABSENT, needs.stage, ABSENT)
    return _reordered(draw, plan, (needs.own, local, needs.sequence))


@st.composite
def cost_tables(draw: DrawFn, shape: PipelineShape) -> CostTable:
    """Few different small costs, zero among them, so that many things happen at the same time."""
    classes = draw(st.integers(1, 2))
    largest = draw(st.sampled_from([0, 1, 3]))
    cells = (classes, shape.stages, shape.subsequences)

    def array(size: tuple[int, ...], highest: int) -> np.ndarray:
        count = int(np.prod(size))
        drawn = draw(st.lists(st.integers(0, highest), min_size=count, max_size=count))
        return np.array(drawn, dtype=np.int64).reshape(size)

    activation = array(cells, 3)
    return CostTable(
        duration_ns=array((len(Kind), *cells), largest),
        activation_bytes=activation,
        weight_activation_bytes=activation // 2,
        transient_bytes=array((len(Kind), *cells), 2),
        kv_bytes=array(cells[:2], 2),
        kv_gradient_bytes=array(cells[:2], 2),
        boundary_bytes=array((classes, shape.subsequences), 3),
        static_bytes=array((shape.stages,), 3),
        class_of_microbatch=array((shape.microbatches,), classes - 1).astype(np.int32),
        name="random",
        host_overhead_ns=draw(st.integers(0, 1)),
    )


@st.composite
def networks(draw: DrawFn, devices: int) -> Network:
    """Free links, links with latency only, or ports of their own or shared by devices, at rates that round."""
    square = devices * devices

    def array(values: Sequence[int], dtype: type[np.generic]) -> np.ndarray:
        drawn = draw(st.lists(st.sampled_from(values), min_size=square, max_size=square))
        return np.array(drawn, dtype=dtype).reshape(devices, devices)

    latency = array([0, 1, 2], np.int64)
    if not draw(st.booleans()):
        return Network(latency, *_no_ports(devices))
    rate = array(draw(st.sampled_from([[10**9], [0, 10**9], [10**9, 3 * 10**8]])), np.int64)
    if draw(st.booleans()):
        own = Network.uniform(devices)
        return Network(latency, rate, own.out_port, own.in_port)
    return Network(latency, rate, array([NO_PORT, 0, 1], np.int32), array([NO_PORT, 2, 3], np.int32))


@st.composite
def cases(draw: DrawFn, *, tangled: bool = False) -> Case:
    """A plan with costs and links; tangled: its devices may wait for each other for ever."""
    plan = draw(tangled_plans() if tangled else legal_plans())
    return Case(plan, draw(cost_tables(plan.shape)), draw(networks(plan.shape.devices)))


def _no_ports(devices: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    nowhere = np.full((devices, devices), NO_PORT, dtype=np.int32)
    return np.zeros((devices, devices), dtype=np.int64), nowhere, nowhere


def _unordered_plan(draw: DrawFn, shape: PipelineShape) -> Plan:
    """All ops of a shape in no useful order; each unit has B or I and W, with or without R."""
    placement = draw(placements(shape))
    orders: list[list[Op]] = [[] for _ in range(shape.devices)]
    parts = st.sampled_from([(Kind.B,), (Kind.I, Kind.W), (Kind.R, Kind.B), (Kind.R, Kind.I, Kind.W)])
    uniform = draw(st.one_of(st.none(), parts))
    for microbatch in range(shape.microbatches):
        home = placement.device_of[placement.direction_of[microbatch]]
        for stage in range(shape.stages):
            for subsequence in range(shape.subsequences):
                kinds = (Kind.F, *(uniform or draw(parts)))
                orders[home[stage]] += [Op(kind, stage, microbatch, subsequence) for kind in kinds]
    return Plan.from_orders("random", shape, placement, orders)


def _reordered(draw: DrawFn, plan: Plan, inputs: tuple[np.ndarray, ...]) -> Plan:
    """The ops in an order in which each comes after its inputs; drawn ranks choose among those that could."""
    rank = draw(st.lists(st.integers(0, 255), min_size=len(plan), max_size=len(plan)))
    users: list[list[int]] = [[] for _ in range(len(plan))]
    missing = [0] * len(plan)
    for column in inputs:
        for row in np.flatnonzero(column != ABSENT).tolist():
            users[column[row]].append(row)
            missing[row] += 1
    ready = [(rank[row], row) for row in range(len(plan)) if not missing[row]]
    heapq.heapify(ready)
    orders: list[list[Op]] = [[] for _ in range(plan.shape.devices)]
    while ready:
        _, row = heapq.heappop(ready)
        orders[plan.device[row]].append(plan.op(row))
        for user in users[row]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, (rank[user], user))
    return Plan.from_orders(plan.schedule, plan.shape, plan.placement, orders)
