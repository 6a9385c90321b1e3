"""Memory of devices: hand-made plans, cases from the field, and a replay op by op as the oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesim.costs.unit import UnitCosts, unit_costs
from pipesim.engine import simulate
from pipesim.memory import in_flight, memory_of, peak_in_flight
from pipesim.plan import Kind, Op, PipelineShape, Placement, Plan
from pipesim.schedules import build_plan

MB = 10**6
SCHEDULES = ("gpipe", "1f1b", "interleaved", "seq1f1b", "seq1f1b-interleaved")


def costs_of(shape: PipelineShape, *, activation=0, weight=0, times=(1, 1, 1)):
    unit = replace(UnitCosts.of(*times), activation_bytes=activation, weight_activation_bytes=weight)
    return unit_costs(unit, shape)[0]


def zb_h1(devices: int, microbatches: int) -> Plan:
    """1F1B warm-up; W of a micro-batch follows I of the r-th later one; leftovers last."""
    orders = []
    for r in range(devices):
        warmup = min(devices - r - 1, microbatches)
        order = [Op(Kind.F, r, i) for i in range(warmup)]
        for i in range(microbatches):
            if warmup + i < microbatches:
                order.append(Op(Kind.F, r, warmup + i))
            order.append(Op(Kind.I, r, i))
            if i >= r:
                order.append(Op(Kind.W, r, i - r))
        order += [Op(Kind.W, r, i) for i in range(max(0, microbatches - r), microbatches)]
        orders.append(order)
    shape = PipelineShape(devices, microbatches)
    return Plan.from_orders("zb-h1", shape, Placement.looped(shape), orders)


@pytest.mark.parametrize(("activation", "weight", "peaks"), [(10, 6, [40, 36, 32, 28]), (34, 32, [136, 134, 132, 130])])
def test_o25_input_half_frees_its_part_and_weight_half_the_rest(activation, weight, peaks):
    """Field case O25: a memory model freed everything at I (or at W), and the peaks came out wrong."""
    plan = zb_h1(4, 8)
    memory = memory_of(plan, costs_of(plan.shape, activation=activation, weight=weight))
    assert memory.peaks.tolist() == peaks
    assert memory.after[plan.offsets[1:] - 1].tolist() == [0] * 4


def test_o25_the_whole_backward_frees_all():
    """Field case O25, its counterpart: 1F1B with the same activations."""
    shape = PipelineShape(4, 8)
    memory = memory_of(build_plan("1f1b", shape), costs_of(shape, activation=10, weight=6))
    assert memory.peaks.tolist() == [40, 30, 20, 10]


def test_o25_a_unit_is_in_flight_until_its_weight_half_ends():
    assert peak_in_flight(zb_h1(4, 8)) == [4, 4, 4, 4]


@pytest.mark.parametrize(
    ("kept_per_stage", "transient", "peaks"),
    [(24, 100, [196, 172, 148, 124]), (24, 0, [96, 72, 48, 24]), (4, 600, [616, 612, 608, 604])],
    ids=["a layer at a time", "transient forgotten", "the whole stage at once"],
)
def test_o27_recomputed_activations_live_while_the_backward_runs(kept_per_stage, transient, peaks):
    """Field case O27: the transient of full recompute was forgotten, or a whole stage was rebuilt at once."""
    shape = PipelineShape(4, 8)
    costs = costs_of(shape, activation=kept_per_stage * MB)
    transients = np.zeros_like(costs.transient_bytes)
    transients[Kind.B] = transient * MB
    memory = memory_of(build_plan("1f1b", shape), replace(costs, transient_bytes=transients))
    assert memory.peaks.tolist() == [peak * MB for peak in peaks]


def test_transient_does_not_outlive_its_op():
    shape = PipelineShape(1, 1)
    costs = costs_of(shape, activation=5)
    transients = np.zeros_like(costs.transient_bytes)
    transients[Kind.F], transients[Kind.B] = 7, 11
    memory = memory_of(build_plan("1f1b", shape), replace(costs, transient_bytes=transients))
    assert memory.during.tolist() == [12, 16]
    assert memory.after.tolist() == [5, 0]


def test_o36_peaks_of_1f1b_fall_along_the_pipeline_and_of_gpipe_do_not():
    """Field case O36: people ask for the peak of every rank, not of the first one."""
    shape = PipelineShape(4, 8)
    costs = costs_of(shape, activation=10**9)
    assert memory_of(build_plan("1f1b", shape), costs).peaks.tolist() == [
        4 * 10**9,
        3 * 10**9,
        2 * 10**9,
        10**9,
    ]
    assert memory_of(build_plan("gpipe", shape), costs).peaks.tolist() == [8 * 10**9] * 4


def test_keys_and_values_stay_for_the_whole_micro_batch():
    """Two subsequences: keys/values from F.0 to the end of B.0, their gradients from B.1 on."""
    shape = PipelineShape(1, 1, subsequences=2)
    costs = costs_of(shape, activation=20)
    costs = replace(costs, kv_bytes=costs.kv_bytes + 100, kv_gradient_bytes=costs.kv_gradient_bytes + 1000)
    memory = memory_of(build_plan("seq1f1b", shape), costs)
    assert str(memory.plan) == "0F0.0 0F0.1 0B0.1 0B0.0"
    assert memory.during.tolist() == [110, 120, 1120, 1110]
    assert memory.after.tolist() == [110, 120, 1110, 0]


def test_static_bytes_count_every_copy_a_device_holds():
    shape = PipelineShape(2, 2, stages_per_device=2)
    costs = replace(costs_of(shape), static_bytes=np.array([1, 20, 300, 4000]))
    orders = [[Op(kind, stage, i) for kind in (Kind.F, Kind.B) for stage in (0, 1, 2, 3) for i in (d,)] for d in (0, 1)]
    plan = Plan.from_orders("two copies", shape, Placement.opposing_v(shape, np.array([0, 1], dtype=np.int8)), orders)
    assert memory_of(plan, costs).static_bytes.tolist() == [4321, 4321]
    looped = build_plan("interleaved", shape)
    assert memory_of(looped, costs).static_bytes.tolist() == [301, 4020]


def test_curve_is_a_step_function_with_the_static_part_below():
    shape = PipelineShape(2, 2)
    costs = replace(costs_of(shape, activation=10, times=(1, 2)), static_bytes=np.array([1000, 2000]))
    timeline = simulate(build_plan("1f1b", shape), costs, engine="reference")
    memory = memory_of(timeline.plan, costs)
    times, held = memory.curve(0, timeline)
    assert times.tolist() == [0, 1, 1, 2, 4, 6, 7, 9]
    assert held.tolist() == [1010, 1010, 1020, 1020, 1020, 1010, 1010, 1000]
    times, held = memory.curve(1, timeline)
    assert times.tolist() == [1, 2, 2, 4, 4, 5, 5, 7]
    assert held.tolist() == [2010, 2010, 2010, 2000, 2010, 2010, 2010, 2000]


def test_first_of_equal_peaks_is_named():
    shape = PipelineShape(1, 3)
    memory = memory_of(build_plan("1f1b", shape), costs_of(shape, activation=1))
    assert memory.peak_rows.tolist() == [0]


def test_device_without_ops_holds_its_static_bytes_only():
    shape = PipelineShape(2, 1)
    orders = [[Op(Kind.F, 0, 0), Op(Kind.F, 1, 0), Op(Kind.B, 1, 0), Op(Kind.B, 0, 0)], []]
    placement = Placement(np.array([[0, 0]], dtype=np.int32), np.zeros(1, dtype=np.int8))
    plan = Plan.from_orders("all on one", shape, placement, orders)
    memory = memory_of(plan, replace(costs_of(shape, activation=3), static_bytes=np.array([1, 1])))
    assert memory.peaks.tolist() == [6, 0]
    assert memory.static_bytes.tolist() == [2, 0]
    assert memory.curve(1, simulate(plan, costs_of(shape), engine="reference"))[0].tolist() == []


def replay(plan: Plan, costs, device: int) -> tuple[list[int], list[int]]:
    """The meaning of memory, spelled out: a bag of things held, op after op."""
    held: dict[tuple, int] = {}
    during, after = [], []
    ops = list(plan.order(device))
    for i, op in enumerate(ops):
        before, later = ops[:i], ops[i + 1 :]
        c = costs.class_of_microbatch[op.microbatch]
        unit, batch = (op.stage, op.microbatch, op.subsequence), (op.stage, op.microbatch)
        if op.kind == Kind.F:
            held["a", *unit] = int(costs.activation_bytes[c, op.stage, op.subsequence])
            if not among(before, op, "F"):
                held["kv", *batch] = int(costs.kv_bytes[c, op.stage])
        elif op.kind in (Kind.B, Kind.I) and not among(before, op, "BI"):
            held["kv gradient", *batch] = int(costs.kv_gradient_bytes[c, op.stage])
        during.append(sum(held.values()) + int(costs.transient_bytes[op.kind, c, op.stage, op.subsequence]))
        if op.kind == Kind.I:
            held["a", *unit] = int(costs.weight_activation_bytes[c, op.stage, op.subsequence])
        elif op.kind in (Kind.B, Kind.W):
            del held["a", *unit]
        if op.kind in (Kind.B, Kind.I) and not among(later, op, "BI"):
            del held["kv", *batch], held["kv gradient", *batch]
        after.append(sum(held.values()))
    return during, after


def among(ops: list[Op], op: Op, kinds: str) -> bool:
    """Whether one of these ops, of one of these kinds, belongs to the same stage and micro-batch."""
    return any(o.kind.name in kinds and (o.stage, o.microbatch) == (op.stage, op.microbatch) for o in ops)


def split_backwards(plan: Plan, delay: int) -> Plan:
    """The plan with every B cut in two, W running `delay` backwards later."""
    orders = []
    for device in range(plan.shape.devices):
        order: list[Op] = []
        waiting: list[Op] = []
        for op in plan.order(device):
            if op.kind != Kind.B:
                order.append(op)
                continue
            order.append(replace(op, kind=Kind.I))
            waiting.append(replace(op, kind=Kind.W))
            if len(waiting) > delay:
                order.append(waiting.pop(0))
        orders.append(order + waiting)
    return Plan.from_orders(plan.schedule, plan.shape, plan.placement, orders)


@st.composite
def plans(draw) -> Plan:
    schedule = draw(st.sampled_from(SCHEDULES))
    v = draw(st.integers(1, 3)) if "interleaved" in schedule else 1
    k = draw(st.integers(1, 4)) if "seq" in schedule else 1
    shape = PipelineShape(draw(st.integers(1, 4)), draw(st.integers(1, 5)), v, k)
    plan = build_plan(schedule, shape)
    return split_backwards(plan, draw(st.integers(0, 3))) if draw(st.booleans()) else plan


@settings(max_examples=60, deadline=None)
@given(plan=plans(), seed=st.integers(0, 10**6))
def test_memory_equals_a_replay_and_ends_where_it_began(plan, seed):
    rng = np.random.default_rng(seed)
    shape = plan.shape
    sizes = tuple(UnitCosts.of(1, 2).forward * int(size) for size in rng.integers(1, 3, shape.microbatches))
    costs = unit_costs(replace(UnitCosts.of(1, 2), microbatch_sizes=sizes), shape)[0]

    def random(like):
        return rng.integers(0, 100, like.shape)

    whole = random(costs.activation_bytes)
    costs = replace(
        costs,
        activation_bytes=whole,
        weight_activation_bytes=rng.integers(0, whole + 1),
        transient_bytes=random(costs.transient_bytes),
        kv_bytes=random(costs.kv_bytes),
        kv_gradient_bytes=random(costs.kv_gradient_bytes),
    )
    memory = memory_of(plan, costs)
    for device in range(shape.devices):
        rows = slice(plan.offsets[device], plan.offsets[device + 1])
        during, after = replay(plan, costs, device)
        assert memory.during[rows].tolist() == during
        assert memory.after[rows].tolist() == after
        assert after[-1] == 0


@settings(max_examples=40, deadline=None)
@given(plan=plans())
def test_in_flight_counts_units_between_forward_and_backward(plan):
    levels = in_flight(plan)
    for device in range(plan.shape.devices):
        live, seen = set(), []
        for op in plan.order(device):
            unit = (op.stage, op.microbatch, op.subsequence)
            if op.kind == Kind.F:
                live.add(unit)
            seen.append(len(live))
            if op.kind in (Kind.B, Kind.W):
                live.remove(unit)
        assert levels.during[plan.offsets[device] : plan.offsets[device + 1]].tolist() == seen
    share = plan.shape.stages_per_device * plan.shape.subsequences
    assert peak_in_flight(plan) == [peak / share for peak in levels.peaks.tolist()]


@pytest.mark.parametrize(
    ("schedule", "shape", "peaks"),
    [
        ("1f1b", PipelineShape(4, 8), [4, 3, 2, 1]),
        ("1f1b", PipelineShape(4, 2), [2, 2, 2, 1]),
        ("gpipe", PipelineShape(4, 8), [8, 8, 8, 8]),
        ("interleaved", PipelineShape(4, 8, 2), [5.5, 4.5, 3.5, 2.5]),
        ("seq1f1b", PipelineShape(4, 4, 1, 2), [2.5, 2, 1.5, 1]),
        ("seq1f1b-interleaved", PipelineShape(4, 8, 2, 2), [3, 2.5, 2, 1.5]),
    ],
)
def test_peak_in_flight_in_micro_batches_of_a_devices_share(schedule, shape, peaks):
    assert peak_in_flight(build_plan(schedule, shape)) == peaks
