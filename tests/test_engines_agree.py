"""Both engines give the same time to every op and transfer, and the same words for a plan that cannot finish."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from pipesim.check import check_plan
from pipesim.costs.unit import UnitCosts, unit_costs
from pipesim.dependencies import producers
from pipesim.engine import compiled, reference, simulate
from pipesim.errors import DeadlockError
from pipesim.memory import memory_of
from pipesim.network import Network
from pipesim.plan import Op, PipelineShape, Placement, Plan
from pipesim.schedules import build_plan
from tests.strategies import Case, cases

TIMES = ("start_ns", "end_ns", "transfer_start_ns", "transfer_end_ns", "arrival_ns")
MANY = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def assert_engines_agree(case: Case) -> None:
    results: list[object] = []
    for engine in ("reference", "compiled"):
        try:
            timeline = simulate(case.plan, case.costs, case.network, engine=engine)
        except DeadlockError as error:
            results.append(str(error))
        else:
            memory = memory_of(case.plan, case.costs)
            curves = [memory.curve(device, timeline) for device in range(case.plan.shape.devices)]
            times = {name: getattr(timeline, name).tolist() for name in TIMES}
            results.append((times, [(at.tolist(), held.tolist()) for at, held in curves]))
    assert results[0] == results[1]


@pytest.mark.slow
@MANY
@given(cases())
def test_random_legal_plans(case: Case) -> None:
    check_plan(case.plan)
    assert_engines_agree(case)


@pytest.mark.slow
@MANY
@given(cases(tangled=True))
def test_random_plans_that_may_deadlock(case: Case) -> None:
    assert_engines_agree(case)


@pytest.mark.parametrize("transfer", ["0", "1/2"])
@pytest.mark.parametrize("latency", ["0", "1/10"])
@pytest.mark.parametrize(
    ("schedule", "shape"),
    [
        ("gpipe", PipelineShape(3, 5)),
        ("1f1b", PipelineShape(4, 9)),
        ("seq1f1b", PipelineShape(4, 5, subsequences=4)),
        ("interleaved", PipelineShape(4, 6, stages_per_device=2)),
        ("seq1f1b-interleaved", PipelineShape(3, 4, stages_per_device=2, subsequences=3)),
    ],
)
def test_named_schedules(schedule: str, shape: PipelineShape, latency: str, transfer: str) -> None:
    costs, network = unit_costs(UnitCosts.of(1, 2, latency=latency, transfer=transfer), shape)
    assert_engines_agree(Case(build_plan(schedule, shape), costs, network))


def test_a_deadlock_is_told_in_the_same_words() -> None:
    shape = PipelineShape(2, 2)
    orders = [
        [Op.parse(op) for op in ("0F0", "0B0", "0F1", "0B1")],
        [Op.parse(op) for op in ("1F0", "1F1", "1B1", "1B0")],
    ]
    plan = Plan.from_orders("crossed", shape, Placement.looped(shape), orders)
    costs, network = unit_costs(UnitCosts.of(1, 2), shape)
    for engine in ("reference", "compiled"):
        with pytest.raises(DeadlockError, match="device 0 waits at 0B0 for 1B0 of device 1"):
            simulate(plan, costs, network, engine=engine)


def test_engines_also_refuse_an_op_that_waits_for_a_later_one_of_its_own_device() -> None:
    """`simulate` refuses such plans before any engine sees them; an engine called directly must not run them."""
    shape = PipelineShape(2, 1, subsequences=2)
    first = [Op.parse(op) for op in ("0F0.0", "0F0.1", "0B0.0", "0B0.1")]
    second = [Op.parse(op) for op in ("1F0.1", "1F0.0", "1B0.1", "1B0.0")]
    costs, network = unit_costs(UnitCosts.of(1, 2), shape)
    plan = Plan.from_orders("backwards", shape, Placement.looped(shape), [first, second])
    told = []
    for engine in (reference, compiled):
        with pytest.raises(DeadlockError, match=r"device 1 waits at 1F0\.1 for 1F0\.0 of itself") as raised:
            engine.run(plan, costs, network, producers(plan))
        told.append(str(raised.value))
    assert told[0] == told[1]


def test_messages_that_meet_at_a_shared_port_queue_in_order_of_asking_then_of_device() -> None:
    """Two pipelines of one stage hop each: devices 0 and 1 end together and share one outgoing port."""
    shape = PipelineShape(4, 2, stages_per_device=1)
    placement = Placement(np.array([[0, 2, 2, 2], [1, 3, 3, 3]], dtype=np.int32), np.array([0, 1], dtype=np.int8))
    orders: list[list[Op]] = [[] for _ in range(4)]
    for microbatch in (0, 1):
        home = placement.device_of[microbatch]
        for kind, stages in (("F", range(4)), ("B", range(3, -1, -1))):
            for stage in stages:
                orders[home[stage]].append(Op.parse(f"{stage}{kind}{microbatch}"))
    plan = Plan.from_orders("two", shape, placement, orders)
    costs, network = unit_costs(UnitCosts.of(1, 1, transfer=5), shape)
    shared = network.out_port.copy()
    shared[:2] = 0
    network = Network(network.latency_ns, network.bytes_per_second, shared, network.in_port)
    assert_engines_agree(Case(plan, costs, network))
    timeline = simulate(plan, costs, network)
    first, second = plan.rows(0)[0], plan.rows(1)[0]
    assert timeline.end_ns[first] == timeline.end_ns[second] == costs.unit_ns
    assert timeline.transfer_start_ns[[first, second]].tolist() == [costs.unit_ns, 6 * costs.unit_ns]
