"""Comparing a measured timeline with a predicted one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from calibration.validate.compare import compare, order_violations
from pipesim.errors import InputError
from pipesim.plan import PipelineShape
from pipesim.schedules import build_plan
from tests.simulating import unit_timeline

if TYPE_CHECKING:
    from pipesim.timeline import Timeline

PLAN = build_plan("1f1b", PipelineShape(4, 8))


def stretched(timeline: Timeline, numerator: int, denominator: int = 1, later_ns: int = 0) -> Timeline:
    """All times scaled, then moved."""
    columns = ("start_ns", "end_ns", "transfer_start_ns", "transfer_end_ns", "arrival_ns")
    return replace(
        timeline,
        source="measured",
        **{name: getattr(timeline, name) * numerator // denominator + later_ns for name in columns},
    )


def test_a_timeline_is_itself_wherever_it_begins() -> None:
    predicted = unit_timeline(PLAN)
    found = compare(predicted, [stretched(predicted, 1, later_ns=5)], [7, 7, 7, 7])
    assert found.makespan_error == 0
    assert (found.start_error.median, found.start_error.p90) == (0, 0)
    assert (found.duration_error.median, found.duration_error.p90) == (0, 0)
    assert found.order_violations == ()
    assert found.bubble_fraction_predicted == found.bubble_fraction_measured == 3 / 11
    assert found.memory_errors == (-1, -1, -1, -1)


def test_errors_are_relative_to_what_was_measured_and_signed_for_the_step() -> None:
    predicted = unit_timeline(PLAN)
    found = compare(predicted, [stretched(predicted, 2)])
    assert found.makespan_error == -0.5
    assert (found.duration_error.median, found.duration_error.p90) == (0.5, 0.5)
    starts = predicted.start_ns / (2 * predicted.makespan_ns)
    assert found.start_error.median == pytest.approx(np.median(starts))
    assert found.start_error.p90 == pytest.approx(np.quantile(starts, 0.9))
    assert found.memory_errors == ()


def test_of_several_steps_the_median_counts() -> None:
    unit = unit_timeline(PLAN)
    steps = [stretched(unit, factor) for factor in (10, 50, 11, 12, 10)]
    found = compare(stretched(unit, 10), steps)
    assert found.steps == 5
    assert found.makespan_error == pytest.approx(1 / 1.1 - 1)
    assert found.makespans_measured_seconds == tuple(33.0 * n for n in (10, 50, 11, 12, 10))


def test_ops_out_of_order_are_named() -> None:
    predicted = unit_timeline(PLAN)
    assert order_violations(predicted) == []
    row = PLAN.rows(1)[0]
    early = predicted.start_ns.copy()
    early[row] = 0
    found = compare(predicted, [replace(predicted, start_ns=early)])
    assert found.order_violations == ("1F0 started before 0F0 had ended",)
    overlapping = predicted.start_ns.copy()
    overlapping[PLAN.rows(0)[1]] = 0
    assert order_violations(replace(predicted, start_ns=overlapping)) == ["0F1 started before 0F0 had ended"]


def test_timelines_of_other_plans_are_refused() -> None:
    predicted = unit_timeline(PLAN)
    with pytest.raises(InputError, match="must be of the plan that was predicted"):
        compare(predicted, [unit_timeline(build_plan("gpipe", PipelineShape(4, 8)))])
    with pytest.raises(InputError, match="no steps: must be at least one"):
        compare(predicted, [])


def test_replay_tells_the_rules_from_the_costs() -> None:
    """Ops twice as dear, run by the same rules: the replay is exact. A wait that no rule explains stays an error."""
    predicted = unit_timeline(PLAN)
    slow = stretched(predicted, 2)
    assert compare(predicted, [slow]).replay_error == 0
    held_up = replace(slow, start_ns=slow.start_ns + 22, end_ns=slow.end_ns + 22)
    held_up.start_ns[0], held_up.end_ns[0] = 0, 2
    assert compare(predicted, [held_up]).replay_error == pytest.approx(66 / 88 - 1)


def test_json_holds_everything() -> None:
    predicted = unit_timeline(PLAN)
    found = compare(predicted, [predicted], [1, 2, 3, 4]).as_json()
    assert found["start_error"] == {"median": 0.0, "p90": 0.0}
    assert set(found) >= {"makespan_error", "duration_error", "order_violations", "memory_errors"}
