"""The SimPy engine: latency once, ports one at a time, exact scaling."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesim.costs.unit import UnitCosts, unit_costs
from pipesim.engine import simulate
from pipesim.errors import InputError
from pipesim.network import Network
from pipesim.plan import PipelineShape
from pipesim.schedules import all_schedules, build_plan
from tests.simulating import shape_of, unit_timeline


def test_latency_is_counted_once_and_does_not_hold_the_port() -> None:
    costs = UnitCosts.of(1, 2, latency=5, transfer=3)
    timeline = unit_timeline(build_plan("gpipe", shape_of(2, 2)), costs)
    first = timeline.plan.rows(0)[0]
    assert (timeline.transfer_start_ns[first], timeline.transfer_end_ns[first]) == (1, 4)
    assert timeline.arrival_ns[first] == 9
    second = first + 1
    assert timeline.transfer_start_ns[second] == 4  # asked at 2, waits for the port, not for the latency
    assert timeline.arrival_ns[second] == 12


def test_two_equal_messages_through_one_card_arrive_one_transfer_apart() -> None:
    shape = PipelineShape(4, 2)
    plan = build_plan("gpipe", shape)
    costs, network = unit_costs(UnitCosts.of(1, 2, transfer=4), shape)
    card = np.where(np.arange(4) % 2 == 0, 0, network.out_port[:, 0])
    shared = Network(
        network.latency_ns, network.bytes_per_second,
        np.broadcast_to(card[:, np.newaxis], (4, 4)).astype(np.int32), network.in_port + 0,
    )  # fmt: skip
    timeline = simulate(plan, costs, shared, engine="reference")
    used = [(timeline.transfer_start_ns[r], timeline.transfer_end_ns[r]) for r in range(len(plan))
            if timeline.arrival_ns[r] >= 0 and plan.device[r] in (0, 2)]  # fmt: skip
    used.sort()
    for (_, end), (start, _) in pairwise(used):
        assert start >= end


@given(
    schedule=st.sampled_from(["gpipe", "1f1b", "interleaved", "seq1f1b", "seq1f1b-interleaved"]),
    p=st.integers(1, 5), m=st.integers(1, 6), factor=st.integers(2, 9),
    latency=st.fractions(0, 2, max_denominator=4), transfer=st.fractions(0, 2, max_denominator=4),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_scaling_all_costs_scales_the_makespan(
    schedule: str, p: int, m: int, factor: int, latency: Fraction, transfer: Fraction
) -> None:
    shape = all_schedules()[schedule].fit(PipelineShape(p, m, 2, 3))
    plan = build_plan(schedule, shape)
    one = unit_timeline(plan, UnitCosts.of(1, 2, latency=latency, transfer=transfer))
    more = unit_timeline(plan, UnitCosts.of(factor, 2 * factor, latency=latency * factor, transfer=transfer * factor))
    assert Fraction(one.makespan_ns, one.unit_ns) * factor == Fraction(more.makespan_ns, more.unit_ns)


@given(
    p=st.integers(1, 4),
    m=st.integers(1, 5),
    stage=st.integers(0, 3),
    extra=st.fractions(0, 3, max_denominator=8),
)
@settings(deadline=None, max_examples=60)
def test_a_dearer_stage_never_shortens_the_step(p: int, m: int, stage: int, extra: Fraction) -> None:
    plan = build_plan("1f1b", shape_of(p, m))
    weights = [Fraction(1)] * p
    base = unit_timeline(plan, UnitCosts(Fraction(1), Fraction(1), Fraction(1), stage_weights=tuple(weights)))
    weights[stage % p] += extra
    dear = unit_timeline(plan, UnitCosts(Fraction(1), Fraction(1), Fraction(1), stage_weights=tuple(weights)))
    assert Fraction(dear.makespan_ns, dear.unit_ns) >= Fraction(base.makespan_ns, base.unit_ns)


def test_costs_of_another_shape_are_refused() -> None:
    costs, network = unit_costs(UnitCosts.of(1, 2), shape_of(4, 8))
    with pytest.raises(InputError, match="costs: 4 stages: must be 2"):
        simulate(build_plan("1f1b", shape_of(2, 8)), costs, network, engine="reference")


def test_unknown_engine() -> None:
    costs, network = unit_costs(UnitCosts.of(1, 2), shape_of(2, 2))
    with pytest.raises(InputError, match="--engine: warp: no such engine; one of compiled, reference"):
        simulate(build_plan("1f1b", shape_of(2, 2)), costs, network, engine="warp")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["1", "1,2,3,4", "a,b", "1,-2", ""])
def test_wrong_unit_costs(text: str) -> None:
    with pytest.raises(InputError):
        UnitCosts.parse(text, Fraction(0), Fraction(0))


@pytest.mark.parametrize("engine", ["reference", "compiled"])
def test_a_bus_that_is_both_ends_is_held_once(engine: Any) -> None:
    shape = shape_of(2, 3)
    costs, network = unit_costs(UnitCosts.of(1, 2, transfer=3), shape)
    bus = np.zeros((2, 2), dtype=np.int32)
    shared = Network(network.latency_ns, network.bytes_per_second, bus, bus)
    timeline = simulate(build_plan("1f1b", shape), costs, shared, engine=engine)
    held = sorted(
        (start, end)
        for start, end in zip(timeline.transfer_start_ns, timeline.transfer_end_ns, strict=True)
        if start >= 0
    )
    assert len(held) == 6
    assert all(start >= end for (_, end), (start, _) in pairwise(held))
