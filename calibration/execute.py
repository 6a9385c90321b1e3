"""Executes a plan on real ranks: the plan that is simulated, unchanged, on torch.distributed.

    with RankPool(4) as pool:
        execution = execute(plan, workload, pool)
    execution.timeline        the step of median makespan, as a Timeline
    execution.losses          one a step

Across nodes: `torchrun --nnodes N --nproc-per-node G -m calibration.execute SCHEDULE ...` (options of `pipesim execute`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calibration.execute_channels import check_order, routes_of
from calibration.execute_record import Execution, gathered
from calibration.execute_run import Effort, run_on_rank
from pipesim.check import check
from pipesim.errors import InputError
from pipesim.plan import Kind

if TYPE_CHECKING:
    from calibration.execute_faults import RankPool
    from calibration.execute_workload import Workload
    from pipesim.plan import Plan

__all__ = ["Effort", "Execution", "execute", "refuse_unrunnable"]


def refuse_unrunnable(plan: Plan, workload: Workload) -> None:
    """Raises what is wrong before any rank starts: PlanError, DeadlockError with every stuck op, or InputError."""
    check(plan)
    workload.refuse_other_shape(plan.shape)
    if (plan.kind == Kind.R).any():
        raise InputError("plan", plan.schedule, "has recomputation ops, which cannot be executed")
    routes = routes_of(plan)
    check_order(plan, routes.messages, routes.messages)


def execute(plan: Plan, workload: Workload, pool: RankPool, effort: Effort | None = None) -> Execution:
    """Runs the plan on the first `plan.shape.devices` ranks of a pool.

    Raises what `refuse_unrunnable` finds, and ExecutionError that names rank and op where a rank fails.
    """
    refuse_unrunnable(plan, workload)
    if pool.ranks < plan.shape.devices:
        raise InputError("ranks", pool.ranks, f"must be at least the plan's {plan.shape.devices} devices")
    effort = effort or Effort()
    reports = pool.run(run_on_rank, plan, workload, effort, label=plan.label)
    backend = "nccl" if pool.device == "cuda" else "gloo"
    return gathered(plan, workload, reports[: plan.shape.devices], f"{backend} ranks")
