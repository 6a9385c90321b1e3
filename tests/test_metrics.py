"""What timelines amount to: closed forms with ==, cases from the field, and a replay as the oracle."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesim.costs.unit import UnitCosts, unit_costs
from pipesim.dependencies import ABSENT, producers, remote_producers
from pipesim.engine import simulate
from pipesim.metrics import StepFacts, measure
from pipesim.plan import PipelineShape
from pipesim.schedules import build_plan
from pipesim.units import parse_bytes


def run(schedule, shape, unit=None):
    costs, network = unit_costs(unit or UnitCosts.of(1, 2), shape)
    return simulate(build_plan(schedule, shape), costs, network, engine="reference")


def test_1f1b_in_exact_numbers():
    found = measure(run("1f1b", PipelineShape(4, 8)))
    assert found.makespan_seconds == 33
    assert found.ideal_seconds == 24
    assert found.bubble_fraction == 3 / 11
    assert found.bubble_over_ideal == 0.375
    assert found.leading_forwards == (4, 3, 2, 1)
    assert found.peak_in_flight == (4, 3, 2, 1)
    assert found.span_seconds == (33, 30, 27, 24)
    assert found.exposed_communication_seconds == (0, 0, 0, 0)


def test_latency_of_a_tenth_is_a_tenth():
    assert measure(run("1f1b", PipelineShape(4, 8), UnitCosts.of(1, 2, latency="0.1"))).makespan_seconds == 34.6


def test_o10_both_bubble_definitions_by_name():
    """Field case O10: an efficiency was quoted as a bubble rate, and two definitions were mixed."""
    found = measure(run("interleaved", PipelineShape(8, 16, 2)))
    assert found.makespan_seconds == 58.5
    assert found.bubble_fraction == 10.5 / 58.5
    assert found.bubble_over_ideal == 0.21875
    assert round(found.bubble_fraction, 6) == 0.179487
    assert found.peak_in_flight[0] == 11.5
    assert set(found.utilisation) == {48 / 58.5}
    assert round(measure(run("interleaved", PipelineShape(8, 16, 4))).bubble_fraction, 6) == 0.098592


@pytest.mark.parametrize(("schedule", "peaks"), [("1f1b", (4, 3, 2, 1)), ("gpipe", (8, 8, 8, 8))])
def test_o36_busy_idle_utilisation_and_peak_of_every_device(schedule, peaks):
    """Field case O36: utilisation and peak memory are wanted per rank."""
    unit = replace(UnitCosts.of(1, 2), activation_bytes=10**9)
    found = measure(run(schedule, PipelineShape(4, 8), unit))
    assert found.makespan_seconds == 33
    assert found.busy_seconds == (24,) * 4
    assert found.idle_seconds == (9,) * 4
    assert found.utilisation == (24 / 33,) * 4
    assert found.peak_activation_bytes == tuple(peak * 10**9 for peak in peaks)


@pytest.mark.parametrize(("limit", "fits"), [("80GiB", True), ("80GB", False), ("82000000000", True)])
def test_o37_gib_and_gb_are_different_limits(limit, fits):
    """Field case O37: 82 000 000 000 bytes fit 80 GiB and do not fit 80 GB."""
    timeline = run("1f1b", PipelineShape(2, 2), replace(UnitCosts.of(1, 2), activation_bytes=40 * 10**9))
    timeline = replace(timeline, costs=replace(timeline.costs, static_bytes=np.array([2 * 10**9, 0])))
    found = measure(timeline, StepFacts(1, 1, 1, 1, parse_bytes(limit, "limit")))
    assert found.peak_memory_bytes == (82 * 10**9, 40 * 10**9)
    assert found.peak_memory_device == 0
    assert found.static_bytes == (2 * 10**9, 0)
    assert found.fits is fits


def test_peak_is_reported_with_its_time():
    timeline = run("1f1b", PipelineShape(4, 8), replace(UnitCosts.of(1, 2), activation_bytes=1))
    # The p-r-th forward of a device brings it to its peak. Forwards arrive one unit apart.
    assert measure(timeline).peak_memory_at_seconds == (3, 3, 3, 3)


def test_o38_a_stage_with_less_work_or_none():
    """Field case O38: an embedding-only stage is allowed and nothing divides by zero."""
    light = replace(UnitCosts.of(1, 2), stage_weights=(Fraction(1, 5), Fraction(1), Fraction(1), Fraction(1)))
    found = measure(run("1f1b", PipelineShape(4, 8), light))
    assert found.makespan_seconds == 30.6
    assert found.busy_seconds == (4.8, 24, 24, 24)
    assert found.ideal_seconds == 24
    assert round(found.bubble_fraction, 6) == 0.372549
    empty = replace(light, stage_weights=(Fraction(0), Fraction(1), Fraction(1), Fraction(1)))
    found = measure(run("1f1b", PipelineShape(4, 8), empty))
    assert found.busy_seconds[0] == 0
    assert found.utilisation[0] == 0


def test_no_work_at_all_is_not_a_number_nowhere():
    found = measure(run("1f1b", PipelineShape(2, 2), UnitCosts.of(0, 0)), StepFacts(10, 1e12, 2, 1e12, 5))
    assert (found.makespan_seconds, found.bubble_fraction, found.bubble_over_ideal) == (0, 0, None)
    assert found.throughput is None
    json.dumps(found.as_json(), allow_nan=False)


def test_leading_forwards_of_devices_that_never_interleave():
    assert measure(run("gpipe", PipelineShape(4, 8))).leading_forwards == (8, 8, 8, 8)
    assert measure(run("interleaved", PipelineShape(4, 4, 4))).leading_forwards == (16, 16, 15, 13)
    assert measure(run("1f1b", PipelineShape(4, 2))).leading_forwards == (2, 2, 2, 1)


def test_exposed_communication_is_waiting_for_a_message_on_its_way():
    """Two devices, one micro-batch: each waits a latency of 3 for its only message."""
    found = measure(run("1f1b", PipelineShape(2, 1), UnitCosts.of(1, 2, latency=3)))
    assert found.makespan_seconds == 12
    assert found.exposed_communication_seconds == (3, 3)
    assert found.idle_seconds == (9, 9)


def test_hidden_communication_is_not_exposed():
    """GPipe with F = B = 2 and latency 1: all but the first message arrive while their receiver is busy."""
    found = measure(run("gpipe", PipelineShape(2, 3), UnitCosts.of(2, 2, latency=1)))
    assert found.exposed_communication_seconds == (1, 1)
    assert found.idle_seconds == (6, 6)


def test_throughput_and_mfu():
    facts = StepFacts(tokens=660, model_flops=66e12, gpus=4, peak_flops_per_gpu=1e12)
    found = measure(run("1f1b", PipelineShape(4, 8)), facts)
    values = found.as_json()
    assert values["tokens_per_second"] == 20
    assert values["tokens_per_second_per_gpu"] == 5
    assert values["tflops_per_gpu"] == 0.5
    assert values["mfu"] == 0.5
    assert values["fits"] is None


def test_json_has_the_promised_keys_and_plain_values():
    values = measure(run("seq1f1b", PipelineShape(4, 4, 1, 2))).as_json()
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    promised = (
        "schedule devices microbatches stages_per_device subsequences engine makespan_seconds ideal_seconds "
        "bubble_fraction bubble_over_ideal busy_seconds span_seconds peak_in_flight peak_activation_bytes "
        "static_bytes fits leading_forwards"
    )
    assert set(promised.split()) <= set(values)
    assert "mfu" not in values
    assert values["peak_in_flight"] == [2.5, 2, 1.5, 1]
    assert values["schedule"] == "seq1f1b"


def replay_exposed(timeline) -> list[int]:
    """For each op in turn: count the time free while the awaited message is on its way."""
    plan = timeline.plan
    remote = remote_producers(plan, producers(plan))
    totals = []
    for device in range(plan.shape.devices):
        free, total = int(timeline.start_ns.min()), 0
        for row in plan.rows(device):
            sender = remote[row]
            if sender != ABSENT:
                asked, arrived = int(timeline.end_ns[sender]), int(timeline.arrival_ns[sender])
                total += sum(asked <= t < arrived for t in range(free, int(timeline.start_ns[row])))
            free = int(timeline.end_ns[row])
        totals.append(total)
    return totals


@settings(max_examples=40, deadline=None)
@given(
    shape=st.builds(PipelineShape, st.integers(1, 4), st.integers(1, 4), st.integers(1, 2), st.integers(1, 3)),
    times=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    latency=st.integers(0, 2),
    transfer=st.integers(0, 4),
)
def test_times_add_up_and_exposed_equals_a_replay(shape, times, latency, transfer):
    timeline = run("seq1f1b-interleaved", shape, UnitCosts.of(*times, latency=latency, transfer=transfer))
    found = measure(timeline)
    p, makespan = shape.devices, timeline.makespan_ns
    busy = [round(b * timeline.unit_ns) for b in found.busy_seconds]
    assert busy == [int(timeline.costs.durations(timeline.plan)[list(timeline.plan.rows(d))].sum()) for d in range(p)]
    assert found.idle_seconds == tuple((makespan - b) / timeline.unit_ns for b in busy)
    if makespan:
        assert found.bubble_fraction == float(Fraction(p * makespan - sum(busy), p * makespan))
    exposed = replay_exposed(timeline)
    assert found.exposed_communication_seconds == tuple(e / timeline.unit_ns for e in exposed)
    assert all(e <= makespan - b for e, b in zip(exposed, busy, strict=True))


@settings(max_examples=25, deadline=None)
@given(shape=st.builds(PipelineShape, st.integers(1, 5), st.integers(1, 6)), scale=st.integers(1, 9))
def test_scaling_all_costs_scales_times_and_keeps_fractions(shape, scale):
    once = measure(run("1f1b", shape, UnitCosts.of(1, 2, latency=1)))
    scaled = measure(run("1f1b", shape, UnitCosts.of(scale, 2 * scale, latency=scale)))
    assert scaled.makespan_seconds == scale * once.makespan_seconds
    assert scaled.bubble_fraction == once.bubble_fraction
    assert scaled.bubble_over_ideal == once.bubble_over_ideal
