"""Lower bounds: equal to the closed forms, never above any plan's makespan, reached where a schedule is ideal."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings

from pipesim.bounds import chains, lower_bounds, op_tables, opposing_bound, optimality_gap
from pipesim.costs.unit import UnitCosts, unit_costs
from pipesim.engine import simulate
from pipesim.plan import PipelineShape
from pipesim.schedules import build_plan
from tests.simulating import hand_plan, shape_of, unit_timeline
from tests.strategies import Case, cases

if TYPE_CHECKING:
    from pipesim.bounds import Bounds


def bounds_in_units(schedule: str, shape: PipelineShape, costs: UnitCosts | None = None) -> tuple[Bounds, Fraction]:
    table, network = unit_costs(costs or UnitCosts.of(1, 2), shape)
    found = lower_bounds(build_plan(schedule, shape), table, network)
    return found, Fraction(found.lower_ns, table.unit_ns)


@given(case=cases())
@settings(deadline=None, max_examples=150)
def test_no_plan_is_faster(case: Case) -> None:
    timeline = simulate(case.plan, case.costs, case.network, engine="reference")
    assert lower_bounds(case.plan, case.costs, case.network).lower_ns <= timeline.makespan_ns


@pytest.mark.parametrize(("p", "m"), [(1, 3), (4, 8), (8, 3)])
def test_1f1b_reaches_its_bound(p: int, m: int) -> None:
    timeline = unit_timeline(build_plan("1f1b", shape_of(p, m)))
    assert optimality_gap(timeline) == 0
    assert bounds_in_units("1f1b", shape_of(p, m))[1] == 3 * (m + p - 1)


@pytest.mark.parametrize(("p", "m", "v", "k"), [(4, 8, 2, 1), (4, 8, 2, 2), (8, 8, 2, 4)])
def test_interleaved_subsequences_reach_their_bound(p: int, m: int, v: int, k: int) -> None:
    timeline = unit_timeline(build_plan("seq1f1b-interleaved", PipelineShape(p, m, v, k)))
    assert optimality_gap(timeline) == 0


@pytest.mark.parametrize(("p", "m", "k"), [(2, 4, 1), (4, 8, 2), (8, 8, 4), (16, 16, 8)])
@pytest.mark.parametrize("costs", [(1, 2), (2, 3)])
def test_two_opposing_pipelines(p: int, m: int, k: int, costs: tuple[int, int]) -> None:
    shape = PipelineShape(p, m, 2, k, 8)
    closed = opposing_bound(p, m, k, Fraction(costs[0]), Fraction(costs[1]))
    assert bounds_in_units("bsipipe", shape, UnitCosts.of(*costs))[1] == closed


def test_a_single_microbatch_is_bound_by_its_way() -> None:
    found, lower = bounds_in_units("1f1b", shape_of(4, 1), UnitCosts.of(1, 2, latency="0.5"))
    assert lower == 12 + 6 * Fraction(1, 2)
    assert found.critical_path_ns == found.lower_ns > found.device_ns - 1


def test_chains_by_hand() -> None:
    """p = 2, m = 1, F = 1, B = 2, a hop of one half: F F B B take 0-1, 1.5-2.5, 2.5-4.5, 5-7."""
    plan = hand_plan(["0F0 0B0", "1F0 1B0"], 2, 1)
    table, network = unit_costs(UnitCosts.of(1, 2, latency="0.5"), plan.shape)
    found = chains(op_tables(plan, table, network))
    halves = [part.ravel().tolist() for part in (found.before_forward, found.before_backward)]
    assert halves == [[0, 3], [10, 5]]
    assert found.after_forward.ravel().tolist() == [12, 9]
    assert found.after_backward.ravel().tolist() == [0, 5]


def test_a_slow_order_has_a_gap() -> None:
    """Two micro-batches on one after the other: 12 where 9 is enough."""
    one_by_one = hand_plan(["0F0 0B0 0F1 0B1", "1F0 1B0 1F1 1B1"], 2, 2)
    assert optimality_gap(unit_timeline(one_by_one)) == (12 - 9) / 9
