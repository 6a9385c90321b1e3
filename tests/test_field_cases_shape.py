"""Public bug reports about warm-up counts, costs and stragglers, in small numbers with the right value."""

from __future__ import annotations

from fractions import Fraction

import pytest

from pipesim.check import check_plan
from pipesim.costs.unit import UnitCosts
from pipesim.errors import DeadlockError, InputError
from pipesim.metrics import measure
from pipesim.plan import PipelineShape, Placement, Plan
from pipesim.schedules import build_plan
from pipesim.schedules._order import interlace, looped_visits
from tests.simulating import makespan, shape_of, unit_metrics, unit_timeline


def leading(schedule: str, p: int, m: int, v: int = 1, k: int = 1) -> list[int]:
    return unit_metrics(schedule, p, m, v, k).as_json()["leading_forwards"]


def test_o1_interleaved_warmup_is_not_that_of_1f1b() -> None:
    found = unit_metrics("interleaved", 4, 8, 2).as_json()
    assert found["leading_forwards"] == [11, 9, 7, 5]
    assert leading("1f1b", 4, 8) == [4, 3, 2, 1]
    assert found["makespan_seconds"] == 28.5
    assert found["bubble_fraction"] == 4.5 / 28.5
    assert [peak * 2 for peak in found["peak_in_flight"]] == [11, 9, 7, 5]


def test_o2_warmup_is_clamped_when_there_are_fewer_microbatches_than_devices() -> None:
    plan = build_plan("1f1b", shape_of(4, 2))
    for device in range(4):
        assert [op.kind.name for op in plan.order(device)].count("F") == 2
        assert [op.kind.name for op in plan.order(device)].count("B") == 2
    found = unit_metrics("1f1b", 4, 2).as_json()
    assert found["leading_forwards"] == [2, 2, 2, 1]
    assert (found["makespan_seconds"], found["bubble_fraction"]) == (15, 0.6)
    assert found["peak_in_flight"] == [2, 2, 2, 1]


def test_o3_interleaved_warmup_larger_than_all_the_work() -> None:
    found = unit_metrics("interleaved", 4, 4, 4).as_json()
    assert found["leading_forwards"] == [16, 16, 15, 13]
    assert found["makespan_seconds"] == 14.25
    assert found["bubble_fraction"] == 2.25 / 14.25


@pytest.mark.parametrize(("m", "expected"), [(10, 34.5), (3, 15.0), (7, 25.5), (6, 22.5), (9, 31.5)])
def test_o4_interleaved_takes_any_number_of_microbatches(m: int, expected: float) -> None:
    assert makespan("interleaved", 4, m, 2) == expected


def test_o5_fewer_microbatches_than_devices_runs_and_nonsense_is_refused_readably() -> None:
    assert makespan("interleaved", 6, 3, 2) == 21.0
    assert makespan("1f1b", 6, 3) == 24.0
    with pytest.raises(InputError, match="microbatches: 0: must be at least 1"):
        shape_of(6, 0)
    with pytest.raises(InputError, match="stages_per_device: 0: must be at least 1"):
        shape_of(6, 3, 0)


def test_o6_seq1f1b_interleaved_counts_in_subsequences() -> None:
    assert leading("seq1f1b-interleaved", 4, 8, 2, 2) == [12, 10, 8, 6]
    assert makespan("seq1f1b-interleaved", 4, 4, 2, 2) == 14.25
    assert makespan("seq1f1b-interleaved", 4, 8, 2, 2) == 26.25
    assert makespan("seq1f1b-interleaved", 4, 3, 2, 2) == 11.25


def test_o6_groups_counted_in_microbatches_deadlock_and_are_detected() -> None:
    shape = shape_of(4, 4, 2, 2)
    forward, backward = looped_visits(PipelineShape(8, 4, 2, 2))  # groups of 8 subsequences = 4 micro-batches
    devices = []
    for device in range(4):
        here = [(visits[0] * 4 + device, visits[1], visits[2]) for visits in (forward, backward)]
        devices.append(interlace(here[0], here[1], 2 * (3 - device) + 4 + 1))
    plan = Plan.from_columns("groups of micro-batches", shape, Placement.looped(shape), devices)
    with pytest.raises(Exception, match=r"7B0\.1: comes before 7F0\.1, which it needs"):
        check_plan(plan)


def test_o7_seq1f1b_order_and_memory() -> None:
    found = unit_metrics("seq1f1b", 4, 4, 1, 2).as_json()
    assert [count - 1 for count in found["leading_forwards"]] == [4, 3, 2, 1]
    assert found["makespan_seconds"] == 16.5
    assert found["bubble_fraction"] == 4.5 / 16.5
    assert found["peak_in_flight"] == [2.5, 2, 1.5, 1]
    last = [str(op) for op in build_plan("seq1f1b", shape_of(4, 4, 1, 2)).order(3)][:8]
    assert last == ["3F0.0", "3F0.1", "3B0.1", "3F1.0", "3B0.0", "3F1.1", "3B1.1", "3F2.0"]
    assert makespan("seq1f1b", 4, 4, 1, 4) == 14.25
    assert makespan("1f1b", 4, 4) == 21


def test_o10_bubble_is_not_efficiency_and_both_definitions_have_names() -> None:
    found = unit_metrics("interleaved", 8, 16, 2).as_json()
    assert found["makespan_seconds"] == 58.5
    assert found["bubble_fraction"] == 10.5 / 58.5
    assert found["bubble_over_ideal"] == 10.5 / 48
    assert found["peak_in_flight"][0] == 11.5
    four = unit_metrics("interleaved", 8, 16, 4).as_json()
    assert (four["makespan_seconds"], four["bubble_fraction"]) == (53.25, 5.25 / 53.25)


@pytest.mark.parametrize(
    ("size", "forward", "m", "fraction", "time"),
    [(1, "1.0", 32, 3 / 35, 105.0), (2, "1.8", 16, 3 / 19, 102.6), (4, "3.4", 8, 3 / 11, 112.2)],
)
def test_o11_a_larger_microbatch_has_a_larger_bubble(
    size: int, forward: str, m: int, fraction: float, time: float
) -> None:
    assert 64 // (2 * size) == m
    found = unit_metrics("1f1b", 4, m, costs=UnitCosts.of(forward, 2 * Fraction(forward))).as_json()
    assert found["bubble_fraction"] == pytest.approx(fraction, rel=1e-12)
    assert found["makespan_seconds"] == time


def test_o16_microbatches_of_unequal_size() -> None:
    def sized(*sizes: int) -> UnitCosts:
        return UnitCosts(Fraction(1), Fraction(1), Fraction(1), microbatch_sizes=tuple(map(Fraction, sizes)))

    found = unit_metrics("1f1b", 3, 3, costs=sized(3, 3, 2)).as_json()
    assert (found["makespan_seconds"], found["busy_seconds"], found["bubble_fraction"]) == (40, [24] * 3, 0.4)
    assert makespan("gpipe", 3, 3, costs=sized(3, 3, 2)) == 42
    assert makespan("1f1b", 2, 4, costs=sized(1, 2, 3, 2)) == 29


def test_o16_messages_are_as_unequal_as_the_microbatches() -> None:
    sizes = (Fraction(3), Fraction(3), Fraction(2))
    costs = UnitCosts(Fraction(1), Fraction(1), Fraction(1), transfer=Fraction(1), microbatch_sizes=sizes)
    timeline = unit_timeline(build_plan("gpipe", shape_of(3, 3)), costs)
    sent = (timeline.transfer_end_ns - timeline.transfer_start_ns)[timeline.plan.rows(0)[:3]]
    assert sent.tolist() == [3 * timeline.unit_ns, 3 * timeline.unit_ns, 2 * timeline.unit_ns]


@pytest.mark.parametrize(
    ("weights", "expected"), [((1, 1, 1, "1.5"), 45), (("1.5", 1, 1, 1), 40.5), ((1, "1.5", 1, 1), 42)]
)
def test_o22_the_slowest_stage_sets_the_pace(weights: tuple[object, ...], expected: float) -> None:
    stages = tuple(Fraction(str(weight)) for weight in weights)
    costs = UnitCosts(Fraction(1), Fraction(1), Fraction(1), stage_weights=stages)
    found = unit_metrics("1f1b", 4, 8, costs=costs).as_json()
    assert found["makespan_seconds"] == expected
    if expected == 45:
        assert found["bubble_fraction"] == 0.4


def test_o22_forward_only_throughput_is_that_of_the_slowest_stage() -> None:
    costs = UnitCosts(
        Fraction(1), Fraction(0), Fraction(0), stage_weights=tuple(map(Fraction, ("1", "1", "1", "1.25")))
    )
    assert makespan("gpipe", 4, 8, costs=costs) == 13.0


@pytest.mark.parametrize(
    ("schedule", "shape", "latency", "expected"),
    [
        ("1f1b", (4, 8, 1), "0.1", 34.6),
        ("1f1b", (4, 8, 1), "0.5", 41.0),
        ("1f1b", (4, 8, 1), "1", 49.0),
        ("gpipe", (4, 8, 1), "0.1", 33.6),
        ("interleaved", (4, 8, 2), "0.1", 29.9),
        ("1f1b", (2, 4, 1), "0.1", 15.4),
    ],
)
def test_o34_exposed_latency_comes_from_events(
    schedule: str, shape: tuple[int, ...], latency: str, expected: float
) -> None:
    assert makespan(schedule, *shape, costs=UnitCosts.of(1, 2, latency=latency)) == expected


def test_o35_the_second_device_starts_when_the_first_forward_arrives() -> None:
    timeline = unit_timeline(build_plan("1f1b", shape_of(4, 8)))
    starts = [timeline.start_ns[timeline.plan.rows(device)[0]] for device in range(4)]
    assert starts == [device * timeline.unit_ns for device in range(4)]


def test_o36_utilisation_and_peak_memory_per_device() -> None:
    costs = UnitCosts(Fraction(1), Fraction(1), Fraction(1), activation_bytes=10**9)
    found = measure(unit_timeline(build_plan("1f1b", shape_of(4, 8)), costs)).as_json()
    assert found["busy_seconds"] == [24] * 4
    assert found["idle_seconds"] == [9] * 4
    assert found["utilisation"] == [24 / 33] * 4
    assert found["peak_activation_bytes"] == [4 * 10**9, 3 * 10**9, 2 * 10**9, 10**9]
    flat = measure(unit_timeline(build_plan("gpipe", shape_of(4, 8)), costs)).as_json()
    assert flat["peak_activation_bytes"] == [8 * 10**9] * 4
    assert flat["makespan_seconds"] == 33


def test_o38_a_stage_without_a_layer() -> None:
    light = tuple(map(Fraction, ("0.2", "1", "1", "1")))
    found = unit_metrics(
        "1f1b", 4, 8, costs=UnitCosts(Fraction(1), Fraction(1), Fraction(1), stage_weights=light)
    ).as_json()
    assert found["makespan_seconds"] == 30.6
    assert found["busy_seconds"] == [4.8, 24, 24, 24]
    assert found["bubble_fraction"] == pytest.approx(0.372549, abs=5e-7)
    empty = tuple(map(Fraction, ("0", "1", "1", "1")))
    free = unit_metrics("1f1b", 4, 8, costs=UnitCosts(Fraction(1), Fraction(1), Fraction(1), stage_weights=empty))
    assert free.as_json()["busy_seconds"][0] == 0


@pytest.mark.parametrize(("p", "m", "expected"), [(8, 16, 69), (8, 32, 117), (8, 64, 213), (8, 512, 1557), (1, 4, 12)])
def test_more_makespans(p: int, m: int, expected: int) -> None:
    assert makespan("1f1b", p, m) == expected


def test_reversed_backward_order_is_legal_and_a_single_reversed_device_is_slow() -> None:
    plan = build_plan("gpipe", shape_of(3, 4))

    def reverse(devices: set[int]) -> Plan:
        orders = []
        for device in range(3):
            order = list(plan.order(device))
            orders.append(order[:4] + order[4:][::-1] if device in devices else order)
        return Plan.from_orders("reversed", plan.shape, plan.placement, orders)

    everywhere, one = unit_timeline(reverse({0, 1, 2})), unit_timeline(reverse({1}))
    assert everywhere.in_units(everywhere.makespan_ns) == 18
    assert one.in_units(one.makespan_ns) == 30


def test_deadlock_names_every_stuck_device_and_the_ring() -> None:
    from tests.simulating import hand_plan

    plan = hand_plan(["0B0 0F0", "1F0 1B0"], 2, 1)
    with pytest.raises(Exception, match="0B0: comes before 0F0"):
        check_plan(plan)
    crossed = hand_plan(["0F0 0F1 0B1 0B0", "1F0 1B0 1F1 1B1"], 2, 2)
    with pytest.raises(DeadlockError) as caught:
        unit_timeline(hand_plan(["0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"], 2, 2))
    assert "device 0 waits at 0B0 for 1B0 of device 1" in str(caught.value)
    assert "device 1 waits at 1F1 for 0F1 of device 0" in str(caught.value)
    assert "cycle: 0B0 (device 0) <- 1F1 (device 1) <- 0B0 (device 0)" in str(caught.value)
    check_plan(crossed)
