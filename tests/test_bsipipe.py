"""BSIPipe: the properties that its abstract promises, each shown, and the times that are known to be reachable."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesim.bounds import opposing_bound, optimality_gap
from pipesim.check import check_plan
from pipesim.costs.unit import UnitCosts, unit_costs
from pipesim.engine import simulate
from pipesim.errors import ShapeError
from pipesim.lower import lower
from pipesim.memory import in_flight, memory_of, peak_in_flight
from pipesim.plan import Kind, PipelineShape, Plan
from pipesim.scenario import Scenario, run
from pipesim.schedules import build_plan
from pipesim.units import GIB
from tests.conftest import GOLDEN
from tests.simulating import unit_timeline
from tests.strategies import cost_tables, networks

if TYPE_CHECKING:
    from pipesim.costs.table import CostTable


def bsipipe(p: int, m: int, k: int, in_flight: float | None = None, **options: Any) -> Plan:
    return build_plan("bsipipe", PipelineShape(p, m, 2, k, in_flight), **options)


def small_units(plan: Plan) -> float:
    """Makespan where F = 1 and B = 2 of one stage and one subsequence."""
    timeline = unit_timeline(plan, engine="compiled")
    return timeline.in_units(timeline.makespan_ns) * 2 * plan.shape.subsequences


def _frontier() -> list[tuple[int, int, int, float, int]]:
    lines = (GOLDEN / "bsipipe_frontier.txt").read_text(encoding="utf-8").splitlines()[4:]
    rows = [[part.split() for part in line.split("|")] for line in lines]
    return [(*(int(n) for n in shape), float(limit[0]), int(best[0])) for shape, limit, best in rows]


@pytest.mark.parametrize(("p", "m", "k", "limit", "best"), _frontier())
def test_reaches_the_known_frontier(p: int, m: int, k: int, limit: float, best: int) -> None:
    plan = bsipipe(p, m, k, limit)
    assert max(peak_in_flight(plan)) <= limit
    assert opposing_bound(p, m, k, Fraction(1), Fraction(2)) * 2 * k <= small_units(plan) <= best


@pytest.mark.parametrize("k", [2, 4, 8])
def test_reaches_the_lower_bound(k: int) -> None:
    for p, m, limit in ((4, 8, 4), (8, 8, 7)):
        assert optimality_gap(unit_timeline(bsipipe(p, m, k, limit), engine="compiled")) == 0


def test_is_faster_than_seq1f1b_in_less_memory_than_1f1b() -> None:
    """p = 8, m = 8, k = 4: 25.125 where Seq1F1B takes 29.25, with 4.125 of 1F1B's 8 micro-batches."""
    plan = bsipipe(8, 8, 4, 4.125)
    timeline = unit_timeline(plan)
    assert timeline.in_units(timeline.makespan_ns) == 25.125
    assert max(peak_in_flight(plan)) <= 4.125


def test_memory_does_not_grow_with_the_subsequences_and_time_falls() -> None:
    """The second property: C = 4 of 16 micro-batches on 8 devices, however finely they are cut."""
    plans = [bsipipe(8, 16, k, 4) for k in (1, 2, 4, 8, 16)]
    assert all(max(peak_in_flight(plan)) <= 4 for plan in plans)
    times = [small_units(plan) / plan.shape.subsequences for plan in plans]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_default_limit_is_four() -> None:
    assert bsipipe(4, 12, 2).same_ops(bsipipe(4, 12, 2, 4))


def test_same_input_same_plan() -> None:
    assert bsipipe(8, 9, 3, 2.5) == bsipipe(8, 9, 3, 2.5)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_one_microbatch_in_flight_is_enough(k: int) -> None:
    plan = bsipipe(4, 6, k, 1)
    check_plan(plan)
    assert max(peak_in_flight(plan)) == 1


@pytest.mark.parametrize("limit", [0.5, 0.99])
def test_names_the_smallest_limit_that_works(limit: float) -> None:
    with pytest.raises(ShapeError, match=rf"--in-flight: {limit}: too small: .*; the smallest that works is 1$"):
        bsipipe(4, 4, 2, limit)


def test_needs_an_even_number_of_devices() -> None:
    with pytest.raises(ShapeError, match=r"--devices/-p: 5: bsipipe needs an even number; 6 would do$"):
        bsipipe(5, 4, 2)


@st.composite
def _shapes(draw: st.DrawFn) -> PipelineShape:
    limit = draw(st.sampled_from([1, 1.25, 1.5, 2, 3, 5]))
    return PipelineShape(2 * draw(st.integers(1, 3)), draw(st.integers(1, 6)), 2, draw(st.integers(1, 4)), limit)


@pytest.mark.slow
@given(shape=_shapes(), data=st.data())
@settings(deadline=None, max_examples=60)
def test_every_plan_is_legal_balanced_and_within_its_limit(shape: PipelineShape, data: st.DataObject) -> None:
    costs = data.draw(cost_tables(shape))
    network = data.draw(networks(shape.devices))
    plan = build_plan("bsipipe", shape, costs=costs, network=network)
    check_plan(plan)
    assert plan.placement.direction_of.tolist() == [i % 2 for i in range(shape.microbatches)]
    assert np.diff(plan.offsets).tolist() == [4 * shape.units] * shape.devices
    held = in_flight(plan)
    assert held.peaks.max() <= shape.in_flight * 2 * shape.subsequences
    assert not held.after[plan.offsets[1:] - 1].any()
    slow, fast = (simulate(plan, costs, network, engine=name) for name in ("reference", "compiled"))
    assert np.array_equal(slow.start_ns, fast.start_ns)
    assert np.array_equal(slow.end_ns, fast.end_ns)


@given(shape=_shapes())
@settings(deadline=None, max_examples=25)
def test_blocking_sends_in_lowered_order_do_not_deadlock(shape: PipelineShape) -> None:
    """The third property."""
    from pipesim.deadlock import check_deadlock

    check_deadlock(lower(build_plan("bsipipe", shape)))


def with_bytes(costs: CostTable) -> CostTable:
    """The same costs with activations that shrink from subsequence to subsequence, keys and values, transients."""
    _, stages, k = costs.activation_bytes.shape
    activation = np.broadcast_to(10 * np.arange(k, 0, -1), (1, stages, k)).astype(np.int64)
    transient = np.zeros_like(costs.transient_bytes)
    transient[Kind.B] = 7
    return replace(
        costs,
        activation_bytes=activation,
        transient_bytes=transient,
        kv_bytes=np.full((1, stages), 5, dtype=np.int64),
        kv_gradient_bytes=np.full((1, stages), 6, dtype=np.int64),
    )


@pytest.mark.parametrize("extra", [0, 40, 1000])
def test_limit_in_bytes(extra: int) -> None:
    """One micro-batch on a device: two stages of 10 + 20 + 30 bytes, 5 and 6 of keys and values, a transient of 7."""
    smallest = 2 * (60 + 5 + 6) + 7
    shape = PipelineShape(4, 8, 2, 3)
    costs, network = unit_costs(UnitCosts.of(1, 2), shape)
    costs = with_bytes(costs)
    plan = build_plan("bsipipe", shape, costs=costs, network=network, memory_limit_bytes=smallest + extra)
    check_plan(plan)
    assert memory_of(plan, costs).peaks.max() <= smallest + extra
    with pytest.raises(ShapeError, match=rf"one micro-batch; the smallest that works is {smallest} bytes"):
        build_plan("bsipipe", shape, costs=costs, network=network, memory_limit_bytes=smallest - 1)


def test_more_bytes_buy_time() -> None:
    shape = PipelineShape(4, 8, 2, 3)
    costs, network = unit_costs(UnitCosts.of(1, 2), shape)
    costs = with_bytes(costs)
    times = [
        simulate(
            build_plan("bsipipe", shape, costs=costs, network=network, memory_limit_bytes=limit), costs, network
        ).makespan_ns
        for limit in (149, 300, 600)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_a_limit_in_bytes_needs_bytes() -> None:
    shape = PipelineShape(4, 8, 2, 3)
    costs, network = unit_costs(UnitCosts.of(1, 2), shape)
    for given_costs in (None, costs):
        with pytest.raises(ShapeError, match="unit costs say nothing of bytes"):
            build_plan("bsipipe", shape, costs=given_costs, network=network, memory_limit_bytes=100)


@pytest.mark.parametrize("latency", ["0.02", "0.1"])
def test_plans_for_the_links_it_is_given(latency: str) -> None:
    """With a delay on each hop a plan made for it is faster than one made for free links."""
    shape = PipelineShape(8, 16, 2, 4, 4)
    costs, network = unit_costs(UnitCosts.of(1, 2, latency=latency), shape)
    aware = build_plan("bsipipe", shape, costs=costs, network=network)
    blind = build_plan("bsipipe", shape)
    assert simulate(aware, costs, network).makespan_ns < simulate(blind, costs, network).makespan_ns


def test_plans_for_uneven_stages_and_subsequences() -> None:
    shape = PipelineShape(4, 8, 2, 4, 3)
    weights = tuple(Fraction(w) for w in (2, 1, 1, 1, 1, 1, 1, 3))
    even, network = unit_costs(replace(UnitCosts.of(1, 2), stage_weights=weights), shape)
    costs = replace(even, duration_ns=even.duration_ns * np.array([4, 5, 6, 8]))
    aware = simulate(build_plan("bsipipe", shape, costs=costs, network=network), costs, network)
    blind = simulate(build_plan("bsipipe", shape), costs, network)
    assert aware.makespan_ns < blind.makespan_ns
    assert max(peak_in_flight(aware.plan)) <= 3


def test_a_limit_in_bytes_makes_auto_recompute() -> None:
    """Where one micro-batch without recomputation is over the limit, "auto" recomputes instead of refusing."""
    scenario = Scenario(
        schedule="bsipipe", devices=4, microbatches=4, subsequences=4, model="llama3-8b", seq_len=64 * 1024
    )
    with pytest.raises(ShapeError, match="--memory-limit"):
        replace(scenario, recompute="none", memory_limit_bytes=40 * GIB).case()
    outcome = run(replace(scenario, memory_limit_bytes=40 * GIB))
    assert max(outcome.metrics.peak_activation_bytes) <= 40 * GIB
    assert "full recompute" in outcome.metrics.costs
