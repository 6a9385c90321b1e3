"""Deadlocks: the cycle is named, found without a clock as by the engines, and known for every schedule and policy."""

from __future__ import annotations

import itertools
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipesim.communication import QUEUES, Communication
from pipesim.deadlock import check_deadlock, find_cycles, run_untimed
from pipesim.engine import simulate
from pipesim.errors import DeadlockError, ShapeError
from pipesim.lower import lower
from pipesim.lower.policies import POLICIES
from pipesim.plan import PipelineShape, Placement
from pipesim.program import program_of
from pipesim.schedules import all_schedules, schedule_named
from tests.lowering import BLOCKING, lowered_by_hand, run_lowered
from tests.strategies import Case, cases, legal_plans

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipesim.plan import Plan

EVERY_QUEUE = [BLOCKING, *(Communication("overlapped", queues=queues) for queues in QUEUES)]
STUCK = ["0F0 0SEND_F0 0F1 0SEND_F1 2RECV_F0 2F0", "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1"]
SHAPE = PipelineShape(2, 2, 2)


@pytest.mark.parametrize("engine", ["static", "reference", "compiled"])
def test_two_ops_that_wait_for_each_other_are_named(engine: str) -> None:
    """Field case O12: two blocking sends meet; each peer's receive stands behind its own send."""
    lowered = lowered_by_hand(STUCK, SHAPE)
    with pytest.raises(DeadlockError) as caught:
        check_deadlock(lowered) if engine == "static" else run_lowered(lowered, engine=engine)
    assert str(caught.value).splitlines() == [
        "deadlock: 2 devices wait for ever",
        "device 0 waits at 0SEND_F1 for 1RECV_F1 of device 1, which stands behind 1SEND_F0",
        "device 1 waits at 1SEND_F0 for 2RECV_F0 of device 0, which stands behind 0SEND_F1",
        "cycle: 0SEND_F1 (device 0) <- 1SEND_F0 (device 1) <- 0SEND_F1 (device 0)",
    ]


@pytest.mark.parametrize("engine", ["reference", "compiled"])
def test_receiving_before_sending_frees_them(engine: str) -> None:
    """Field case O12: device 1 takes 1RECV_F1 before its send, and all ends."""
    freed = [STUCK[0], "1RECV_F0 1F0 1RECV_F1 1SEND_F0 1F1"]
    lowered = lowered_by_hand(freed, SHAPE)
    check_deadlock(lowered)
    assert (run_lowered(lowered, engine=engine).end_ns > 0).all()


def test_1f1b_hangs_with_receives_right_before_their_use() -> None:
    """Field case O12: at S(f1) against S(b0); with R(f1) before S(b0) it completes."""
    plan = schedule_named("1f1b").plan(PipelineShape(2, 3))
    with pytest.raises(DeadlockError, match=r"cycle: 0SEND_F1 \(device 0\) <- 1SEND_B0 \(device 1\) <- 0SEND_F1"):
        check_deadlock(lower(plan, "just-in-time"))
    check_deadlock(lower(plan, "odd-even"))
    assert "1RECV_F1 1SEND_B0" in str(lower(plan, "odd-even"))


def test_shortest_cycle_comes_first() -> None:
    """Devices 0, 1, 2 hang in a circle of three messages, 3 and 4 in one of two."""
    rows = ["0F0 0SEND_F0 5RECV_F2 5F2", "1F1 1SEND_F1 1RECV_F0 1F0", "4F2 4SEND_F2 2RECV_F1 2F1"]
    device_of = np.array([[0, 1, 2, 3, 2, 0, 3, 4, 3, 4]], dtype=np.int32)
    placement = Placement(device_of, np.zeros(5, dtype=np.int8))
    rows += ["6F3 6SEND_F3 8RECV_F4 8F4", "7F4 7SEND_F4 7RECV_F3 7F3"]
    lowered = lowered_by_hand(rows, PipelineShape(5, 5, 2), placement)
    program = program_of(lowered, BLOCKING)
    cycles = find_cycles(program, run_untimed(program))
    assert [[lowered.label(step) for step in cycle] for cycle in cycles] == [
        ["6SEND_F3", "7SEND_F4"],
        ["0SEND_F0", "1SEND_F1", "4SEND_F2"],
    ]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases(), st.sampled_from(list(POLICIES)), st.sampled_from(QUEUES), st.booleans())
def test_found_without_a_clock_as_by_the_engine(case: Case, policy: str, queues: str, blocks: bool) -> None:
    communication = Communication("blocking", policy) if blocks else Communication("overlapped", policy, queues=queues)  # type: ignore[arg-type]
    texts = []
    for find in (
        lambda: check_deadlock(lower(case.plan, policy), communication),
        lambda: simulate(case.plan, case.costs, case.network, communication=communication),
    ):
        try:
            find()
        except DeadlockError as error:
            texts.append(str(error))
        else:
            texts.append("")
    assert texts[0] == texts[1]
    assert not texts[0] or "cycle: " in texts[0]


@settings(max_examples=200, deadline=None)
@given(legal_plans(), st.sampled_from(["producer-order", "fused"]), st.sampled_from(EVERY_QUEUE))
def test_producer_order_and_fused_never_hang(plan: Plan, policy: str, communication: Communication) -> None:
    """Any legal plan, any placement: one order of all messages cannot hang, nor can what starts together in it."""
    check_deadlock(lower(plan, policy), communication)


@settings(max_examples=200, deadline=None)
@given(legal_plans(), st.sampled_from(list(POLICIES)))
def test_without_queues_nothing_hangs(plan: Plan, policy: str) -> None:
    check_deadlock(lower(plan, policy), Communication("overlapped", policy, queues="none"))


# Which policies are free of deadlock with blocking sends and receives, for every shape; elsewhere some shape hangs.
BLOCKING_FREE = {
    "gpipe": {"producer-order", "fused", "just-in-time", "odd-even"},
    "1f1b": {"producer-order", "fused", "odd-even"},
    "seq1f1b": {"producer-order", "fused", "odd-even"},
    "interleaved": {"producer-order", "fused"},
    "seq1f1b-interleaved": {"producer-order", "fused"},
    "bitpipe": {"producer-order", "fused", "odd-even"},
    "bsipipe": {"producer-order", "fused"},
}
ALWAYS_FREE = {"producer-order", "fused"}


@cache
def plans_of(name: str) -> tuple[Plan, ...]:
    return tuple(_plans(name))


def _plans(name: str) -> Iterator[Plan]:
    """Plans of all small shapes that the schedule takes."""
    schedule = schedule_named(name)
    searched = "costs" in schedule.options  # a plan that is searched for takes longer
    sizes = ((2, 4), (1, 2, 4, 6)) if searched else ((1, 2, 3, 4), (1, 2, 3, 4, 8))
    shapes = {schedule.fit(PipelineShape(p, m, v, k)) for p, m, v, k in itertools.product(*sizes, (1, 2), (1, 2))}
    for shape in sorted(shapes, key=str):
        with suppress(ShapeError):
            yield schedule.plan(shape)


def hangs(plan: Plan, policy: str, communication: Communication) -> bool:
    try:
        check_deadlock(lower(plan, policy), communication)
    except DeadlockError:
        return True
    return False


@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize("schedule", sorted(BLOCKING_FREE))
def test_which_schedules_hang_under_which_policy(schedule: str, policy: str) -> None:
    found = [hangs(plan, policy, BLOCKING) for plan in plans_of(schedule)]
    assert any(found) == (policy not in BLOCKING_FREE[schedule])


@pytest.mark.parametrize("schedule", sorted(all_schedules()))
def test_every_schedule_has_policies_that_never_hang(schedule: str) -> None:
    """Whatever the queues, bsipipe's own policy (producer order) among them."""
    assert plans_of(schedule)
    for plan, policy, communication in itertools.product(plans_of(schedule), sorted(ALWAYS_FREE), EVERY_QUEUE):
        assert not hangs(plan, policy, communication)
