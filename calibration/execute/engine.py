"""Executes a plan on real ranks: the plan that is simulated, unchanged, on torch.distributed.

    with RankPool(4) as pool:
        execution = execute(plan, workload, pool)
    execution.timeline        the step of median makespan, as a Timeline
    execution.losses          one a step

Across nodes: `torchrun --nnodes N --nproc-per-node G -m calibration.execute SCHEDULE ...`, as `pipesim execute`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calibration.execute.channels import Routes, routes_of
from calibration.execute.record import Execution, gathered
from calibration.execute.run import Effort, refuse_unrunnable, run_on_rank
from pipesim.errors import InputError
from pipesim.lower import LoweredPlan, lower

if TYPE_CHECKING:
    from calibration.execute.faults import RankPool
    from calibration.execute.workload import Workload
    from pipesim.plan import Plan

__all__ = ["Effort", "Execution", "execute", "prepare"]


def prepare(lowered: LoweredPlan, workload: Workload) -> Routes:
    """Its channels; raises before any rank starts what would go wrong: PlanError, DeadlockError with every stuck op,
    or InputError."""
    refuse_unrunnable(lowered.plan, workload)
    return routes_of(lowered)


def execute(plan: Plan | LoweredPlan, workload: Workload, pool: RankPool, effort: Effort | None = None) -> Execution:
    """Runs a plan on the first `plan.shape.devices` ranks of a pool, with its messages in the order of their producers.

    Raises what `prepare` finds, and ExecutionError that names rank and op where a rank fails.
    """
    lowered = plan if isinstance(plan, LoweredPlan) else lower(plan)
    plan, effort = lowered.plan, effort or Effort()
    routes = prepare(lowered, workload)
    if pool.ranks < plan.shape.devices:
        raise InputError("ranks", pool.ranks, f"must be at least the plan's {plan.shape.devices} devices")
    reports = pool.run(run_on_rank, plan, routes, workload, effort, label=plan.label)
    return gathered(plan, workload, routes, reports[: plan.shape.devices], f"{pool.backend} ranks")
