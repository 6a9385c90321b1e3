"""Predicts a plan's step, then executes it on the same ranks, and compares the two."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from calibration.execute.calibrate import calibrated_costs, measured_network
from calibration.execute.engine import Effort, execute, prepare
from calibration.validate.compare import Comparison, compare
from pipesim.engine import simulate
from pipesim.lower import lower

if TYPE_CHECKING:
    from calibration.execute.faults import RankPool
    from calibration.execute.record import Execution
    from calibration.execute.workload import Workload
    from pipesim.costs.table import CostTable
    from pipesim.plan import Plan
    from pipesim.timeline import Timeline

REHEARSAL = Effort(steps=3, warm_ups=2, memory=False)


@dataclass(frozen=True, eq=False)
class Validation:
    """A prediction, the execution it is about, and how far they are apart."""

    predicted: Timeline
    execution: Execution
    comparison: Comparison


def validate(
    plan: Plan,
    workload: Workload,
    pool: RankPool,
    effort: Effort | None = None,
    given: CostTable | None = None,
) -> Validation:
    """Times every op of the plan alone (or takes `given` costs), and the links, simulates, then executes and compares.

    The host's overhead per op comes from a rehearsal: other steps than those that are compared. Raises InputError,
    PlanError or DeadlockError before anything starts, ExecutionError where a rank fails.
    """
    routes = prepare(lower(plan), workload)
    costs = given or calibrated_costs(plan, workload, pool)
    network = measured_network(plan, routes, costs, pool)
    rehearsal = execute(plan, workload, pool, REHEARSAL)
    costs = replace(costs, host_overhead_ns=rehearsal.host_overhead_ns)
    predicted = simulate(plan, costs, network)
    execution = execute(plan, workload, pool, effort or Effort())
    return Validation(predicted, execution, compared(predicted, execution))


def compared(predicted: Timeline, execution: Execution) -> Comparison:
    """A prediction against every step of an execution."""
    steps = [execution.timeline_of(step) for step in range(len(execution.losses))]
    return compare(predicted, steps, [memory.allocated_bytes for memory in execution.memory])
