"""Short ways for tests to plan and simulate with unit costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipesim.costs.unit import UnitCosts, unit_costs
from pipesim.engine import simulate
from pipesim.metrics import measure
from pipesim.plan import PipelineShape, Placement, Plan
from pipesim.schedules import build_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipesim.metrics import Metrics
    from pipesim.timeline import Timeline


def shape_of(p: int, m: int, v: int = 1, k: int = 1) -> PipelineShape:
    return PipelineShape(p, m, v, k)


def unit_timeline(plan: Plan, costs: UnitCosts | None = None, engine: Any = "reference") -> Timeline:
    table, network = unit_costs(costs or UnitCosts.of(1, 2), plan.shape)
    return simulate(plan, table, network, engine=engine)


def unit_metrics(
    schedule: str, p: int, m: int, v: int = 1, k: int = 1, costs: UnitCosts | None = None, **options: Any
) -> Metrics:
    """Metrics of a schedule with F = 1, B = 2 unless other costs are given."""
    return measure(unit_timeline(build_plan(schedule, shape_of(p, m, v, k), **options), costs))


def makespan(schedule: str, p: int, m: int, v: int = 1, k: int = 1, costs: UnitCosts | None = None) -> float:
    """Makespan in units with F = 1, B = 2 unless other costs are given."""
    timeline = unit_timeline(build_plan(schedule, shape_of(p, m, v, k)), costs)
    return timeline.in_units(timeline.makespan_ns)


def one_f_one_b_with_warmup(p: int, m: int, warmup: Sequence[int]) -> Plan:
    """A 1F1B plan whose warm-up is given per device, right or wrong."""
    from pipesim.schedules._order import one_stage_plan

    shape = shape_of(p, m)
    return one_stage_plan("warm-up by hand", shape, lambda device: warmup[device])


def hand_plan(rows: Sequence[str], p: int, m: int, v: int = 1, k: int = 1) -> Plan:
    """A plan from one text of ops per device, stages looped over the devices."""
    from pipesim.plan import Op

    shape = shape_of(p, m, v, k)
    orders = [[Op.parse(text) for text in row.split()] for row in rows]
    return Plan.from_orders("by hand", shape, Placement.looped(shape), orders)
