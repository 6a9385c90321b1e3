"""Blocking and queued communication: what it costs, what hangs, and that both engines agree in every mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipesim.communication import MODES, QUEUES, Communication
from pipesim.costs.unit import UnitCosts, unit_costs
from pipesim.engine import simulate
from pipesim.engine.lowered import simulate_lowered
from pipesim.errors import DeadlockError, InputError, ShapeError
from pipesim.lower.policies import POLICIES
from pipesim.network import Network
from pipesim.plan import PipelineShape, Placement
from pipesim.schedules import all_schedules, build_plan, schedule_named
from tests.lowering import ENGINES, lowered_by_hand, makespan, run_lowered, starts
from tests.strategies import Case, cases

if TYPE_CHECKING:
    from pipesim.lower import LoweredPlan

TIMES = ("start_ns", "end_ns", "transfer_start_ns", "transfer_end_ns", "arrival_ns")
MANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
ONE_QUEUE = Communication("overlapped", queues="device")


def ring(p: int, m: int, *, deferred: bool = False) -> LoweredPlan:
    """Forwards only of p devices and 2p stages; device 0 posts a ring's receive with its send, or right before use."""
    rows = []
    for device in range(p):
        first, second = [], []
        for i in range(m):
            take = [f"{device}RECV_F{i}"] if device else []
            give = [f"{p + device}SEND_F{i}"] if device < p - 1 else []
            early = [f"{p}RECV_F{i}"] if device == 0 and not deferred else []
            late = [f"{p}RECV_F{i}"] if device == 0 and deferred else []
            first += [*take, f"{device}F{i}", f"{device}SEND_F{i}", *early]
            second += [*late, *([f"{p + device}RECV_F{i}"] if device else []), f"{p + device}F{i}", *give]
        rows.append(" ".join(first + second))
    return lowered_by_hand(rows, PipelineShape(p, m, 2))


FORWARD_OF_ONE = UnitCosts.of(2, 4)  # a device's share is two stages, each forward takes 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("p", "one_queue", "two_queues"), [(4, 19, 11), (8, 71, 23)])
def test_early_receive_holds_up_sends_of_one_queue(p: int, one_queue: int, two_queues: int, engine: str) -> None:
    """Field case O13: a receive posted early stands before the sends; every micro-batch waits for a trip round."""
    lowered = ring(p, p)
    slow = run_lowered(lowered, ONE_QUEUE, costs=FORWARD_OF_ONE, engine=engine)
    assert makespan(slow) == one_queue
    assert starts(slow, 1)[:4] == [1 + i * (p - 1) for i in range(4)]
    apart = Communication("overlapped", queues="direction")
    fast = run_lowered(lowered, apart, costs=FORWARD_OF_ONE, engine=engine)
    assert makespan(fast) == two_queues
    assert starts(fast, 1)[:4] == [1, 2, 3, 4]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("communication", [Communication("blocking"), ONE_QUEUE])
def test_receives_deferred_to_their_use_hang(communication: Communication, engine: str) -> None:
    """Field case O13: with blocking sends in order, device 0 is stuck at S(0,3), 1 at S(1,2), 2 at S(2,1)."""
    with pytest.raises(DeadlockError) as caught:
        run_lowered(ring(4, 4, deferred=True), communication, costs=FORWARD_OF_ONE, engine=engine)
    text = str(caught.value)
    cycle = "0SEND_F3 (device 0) <- 1SEND_F2 (device 1) <- 2SEND_F1 (device 2) <- 3SEND_F0 (device 3) <- 0SEND_F3"
    assert cycle in text


@pytest.mark.parametrize("engine", ENGINES)
def test_second_device_starts_when_the_first_forward_is_there(engine: str) -> None:
    """Field case O35: F(1,0) starts at F(0,0) + c; a model that waits for the next forward too gives 0, 2, 4, 6."""
    plan = build_plan("1f1b", PipelineShape(4, 8))
    for mode in MODES:
        costs, network = unit_costs(UnitCosts.of(1, 2), plan.shape)
        timeline = simulate(plan, costs, network, engine=engine, communication=Communication(mode))  # type: ignore[arg-type]
        assert [starts(timeline, stage)[0] for stage in range(4)] == [0, 1, 2, 3]


ADDITIONS = [
    ("1f1b", PipelineShape(4, 8), "0.1", 34.6),
    ("1f1b", PipelineShape(4, 8), "0.5", 41.0),
    ("1f1b", PipelineShape(4, 8), "1", 49.0),
    ("gpipe", PipelineShape(4, 8), "0.1", 33.6),
    ("interleaved", PipelineShape(4, 8, 2), "0.1", 29.9),
    ("1f1b", PipelineShape(2, 4), "0.1", 15.4),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("schedule", "shape", "latency", "expected"), ADDITIONS)
def test_latency_by_events_not_by_formula(
    schedule: str, shape: PipelineShape, latency: str, expected: float, engine: str
) -> None:
    """Field case O34: 2·v·m·c would add 1.6, 8, 16, 1.6, 3.2, 0.8."""
    costs, network = unit_costs(UnitCosts.of(1, 2, latency=latency), shape)
    plan = build_plan(schedule, shape)
    assert makespan(simulate(plan, costs, network, engine=engine)) == expected  # type: ignore[arg-type]
    free = Communication("overlapped", queues="none", eager_bytes=0)
    assert makespan(simulate(plan, costs, network, engine=engine, communication=free)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ENGINES)
def test_latency_counts_once_and_the_port_is_free_before(engine: str) -> None:
    """The sender is busy for bytes / bandwidth, the message arrives a latency after that."""
    lowered = lowered_by_hand(["0F0 0SEND_F0 0F1 0SEND_F1", "1RECV_F0 1F0 1RECV_F1 1F1"], PipelineShape(2, 2))
    timeline = run_lowered(lowered, costs=UnitCosts.of(1, 2, latency=3, transfer=2), engine=engine)
    assert timeline.end_ns.tolist() == [1, 4, 7, 13]
    assert timeline.transfer_start_ns.tolist()[:2] == [1, 7]  # the receiver computes until 7
    assert timeline.transfer_end_ns.tolist()[:2] == [3, 9]
    assert timeline.arrival_ns.tolist()[:2] == [6, 12]


@pytest.mark.parametrize("engine", ENGINES)
def test_two_equal_messages_through_one_card_arrive_one_transfer_apart(engine: str) -> None:
    """Devices 0 and 1 share the card through which both send at the same moment."""
    rows = ["0F0 0SEND_F0", "0F1 0SEND_F1", "1RECV_F0 1F0", "1RECV_F1 1F1"]
    placement = Placement(np.array([[0, 2], [1, 3]], dtype=np.int32), np.array([0, 1], dtype=np.int8))
    shape = PipelineShape(4, 2)
    lowered = lowered_by_hand(rows, shape, placement)
    costs, network = unit_costs(UnitCosts.of(1, 2, latency=5, transfer=2), shape)
    network.out_port[1] = network.out_port[0]
    timeline = simulate_lowered(lowered, costs, network, Communication("blocking"), engine=engine)  # type: ignore[arg-type]
    assert timeline.transfer_start_ns.tolist()[:2] == [1, 3]
    assert timeline.transfer_end_ns.tolist()[:2] == [3, 5]
    assert timeline.arrival_ns.tolist()[:2] == [8, 10]


@pytest.mark.parametrize("engine", ENGINES)
def test_grouped_steps_start_together(engine: str) -> None:
    """Two devices that exchange hang when both send first, and take one transfer when grouped."""
    apart = ["0F0 0SEND_F0 1RECV_F1 1F1", "0F1 0SEND_F1 1RECV_F0 1F0"]
    grouped = ["0F0 (0SEND_F0;1RECV_F1)GROUP 1F1", "0F1 (0SEND_F1;1RECV_F0)GROUP 1F0"]
    shape = PipelineShape(2, 2)
    placement = Placement(np.array([[0, 1], [1, 0]], dtype=np.int32), np.array([0, 1], dtype=np.int8))
    with pytest.raises(DeadlockError, match=r"0SEND_F0 \(device 0\) <- 0SEND_F1 \(device 1\) <- 0SEND_F0"):
        run_lowered(lowered_by_hand(apart, shape, placement), engine=engine)
    costs = UnitCosts.of(1, 2, transfer=2)
    timeline = run_lowered(lowered_by_hand(grouped, shape, placement), costs=costs, engine=engine)
    assert timeline.end_ns.tolist() == [1, 4, 1, 4]


@pytest.mark.parametrize("engine", ENGINES)
def test_eager_messages_do_not_wait_for_their_receive(engine: str) -> None:
    """Both send first: a deadlock above the eager threshold, one transfer at or below it."""
    lowered = ring(4, 4, deferred=True)
    costs, network = unit_costs(UnitCosts.of(2, 4, transfer=1), lowered.plan.shape)
    size = int(costs.boundary_bytes[0, 0])
    eager = Communication("blocking", eager_bytes=size)
    assert simulate_lowered(lowered, costs, network, eager, engine=engine).makespan_ns > 0  # type: ignore[arg-type]
    with pytest.raises(DeadlockError):
        simulate_lowered(lowered, costs, network, Communication("blocking", eager_bytes=size - 1), engine=engine)  # type: ignore[arg-type]


@st.composite
def communications(draw: st.DrawFn) -> Communication:
    """Any mode, policy, queues and eager threshold."""
    mode = draw(st.sampled_from(["overlapped", "blocking"]))
    return Communication(
        mode,
        draw(st.sampled_from(list(POLICIES))),
        draw(st.integers(0, 3)),
        draw(st.sampled_from(QUEUES)) if mode == "overlapped" else None,
        draw(st.sampled_from([None, 0, 1, 2, 10**9])),
    )


@MANY
@given(cases(), communications())
def test_engines_agree_in_every_mode(case: Case, communication: Communication) -> None:
    results = []
    for engine in ENGINES:
        try:
            timeline = simulate(case.plan, case.costs, case.network, engine=engine, communication=communication)  # type: ignore[arg-type]
        except DeadlockError as error:
            results.append(str(error))
        else:
            results.append({name: getattr(timeline, name).tolist() for name in TIMES})
    assert results[0] == results[1]


@MANY
@given(cases(), st.sampled_from(ENGINES), st.sampled_from(list(POLICIES)), st.sampled_from(["none", "channel"]))
def test_free_links_make_lowering_invisible(case: Case, engine: str, policy: str, queues: str) -> None:
    """With links that take no time, an overlapped run is unchanged by sends, receives and channel queues."""
    network = Network.uniform(case.plan.shape.devices)
    plain = simulate(case.plan, case.costs, network, engine=engine)  # type: ignore[arg-type]
    lowered = Communication("overlapped", policy, queues=queues, eager_bytes=10**18 if queues == "none" else None)  # type: ignore[arg-type]
    try:
        placed = simulate(case.plan, case.costs, network, engine=engine, communication=lowered)  # type: ignore[arg-type]
    except DeadlockError:
        assert queues == "channel"  # both ends of a channel may keep different orders under these policies
        assert policy not in ("producer-order",)
        return
    for name in ("start_ns", "end_ns"):
        assert getattr(plain, name).tolist() == getattr(placed, name).tolist()


@pytest.mark.parametrize("schedule", sorted(all_schedules()))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_free_links_make_lowering_invisible_for_every_schedule(schedule: str, data: st.DataObject) -> None:
    known = schedule_named(schedule)
    p = data.draw(st.integers(1, 6))
    m = data.draw(st.one_of(st.integers(1, 9), st.sampled_from([p, 2 * p])))
    shape = known.fit(PipelineShape(p, m, data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))))
    try:
        plan = known.plan(shape)
    except ShapeError:
        assume(condition=False)  # a shape the schedule does not take
    costs, network = unit_costs(UnitCosts.of(1, 2), shape)
    plain = simulate(plan, costs, network)
    placed = simulate(plan, costs, network, communication=Communication("overlapped", queues="channel"))
    assert plain.start_ns.tolist() == placed.start_ns.tolist()
    assert plain.end_ns.tolist() == placed.end_ns.tolist()


@MANY
@given(cases())
def test_sends_that_wait_for_nothing_are_the_overlapped_engine(case: Case) -> None:
    """Without queues and with every message eager, ports are asked at the same moments in the same order."""
    if (case.costs.duration_ns + case.costs.host_overhead_ns).min() == 0:
        return  # ops that take no time end together, and the engines order what they ask differently
    free = Communication("overlapped", queues="none", eager_bytes=10**18)
    plain = simulate(case.plan, case.costs, case.network)
    placed = simulate(case.plan, case.costs, case.network, communication=free)
    for name in TIMES:
        assert getattr(plain, name).tolist() == getattr(placed, name).tolist()


def test_queues_belong_to_overlapped_communication() -> None:
    with pytest.raises(InputError, match="do one thing at a time"):
        Communication("blocking", queues="device")
    with pytest.raises(InputError, match="one of overlapped, blocking, fused"):
        Communication("sometimes")  # type: ignore[arg-type]
