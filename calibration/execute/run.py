"""What a rank does with a plan from first to last: warm-up steps, timed steps, one step for memory; a pool's task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calibration.execute.bytes import StageBytes, sizes_of_stages
from calibration.execute.memory import RankMemory, measure_memory
from calibration.execute.rank import RankStep, StepRecord
from calibration.execute.ranks import Phase
from pipesim.check import check_plan
from pipesim.errors import InputError
from pipesim.plan import Kind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from calibration.execute.channels import Routes
    from calibration.execute.ranks import Rank
    from calibration.execute.workload import Workload
    from calibration.layer import Stage
    from pipesim.plan import Plan

WARM_UPS = 2


def refuse_unrunnable(plan: Plan, workload: Workload) -> None:
    """Raises PlanError on an illegal plan, DeadlockError with every stuck op, InputError on what cannot be computed."""
    check_plan(plan)
    workload.refuse_other_shape(plan.shape)
    if (plan.kind == Kind.R).any():
        raise InputError("plan", plan.schedule, "has recomputation ops, which cannot be executed")


@dataclass(frozen=True)
class Effort:
    """How much to run: warm-up steps (never counted), timed steps, a step for memory, gradients sent back."""

    steps: int = 5
    warm_ups: int = WARM_UPS
    memory: bool = True
    gradients: bool = False


@dataclass(frozen=True, eq=False)
class RankReport:
    """What one rank brings home: its timed steps, its gradients' squared norm by stage, memory, gradients.

    squared_norms and gradients are of the last step, summed over copies; keyed by stage. sizes: what its ops keep, by
    class of micro-batch size and stage, where memory was asked for.
    """

    steps: tuple[StepRecord, ...]
    squared_norms: dict[int, float]
    memory: RankMemory | None
    sizes: dict[tuple[int, int], StageBytes]
    gradients: dict[int, dict[str, NDArray[np.float64]]]


def run_on_rank(rank: Rank, plan: Plan, routes: Routes, workload: Workload, effort: Effort) -> RankReport:
    """The task of one rank; a rank without a device of the plan takes part in barriers only."""
    step = RankStep(rank, plan, routes, workload)
    for _ in range(effort.warm_ups):
        step.run()
    steps = tuple(step.run() for _ in range(effort.steps))
    norms = {number: _squared_norm(stage) for number, stage in step.stages.items()}
    gradients = {number: gradients_of(stage) for number, stage in step.stages.items()} if effort.gradients else {}
    memory = measure_memory(step.run, step.stages.values(), rank.device) if effort.memory else None
    sizes = sizes_of_stages(workload, step.stages, lambda: rank.at(Phase.PREPARING)) if effort.memory else {}
    return RankReport(steps, norms, memory, sizes, gradients)


def gradients_of(stage: Stage) -> dict[str, Any]:
    """Gradients by parameter name, float64; copies, for later steps write into the gradients."""
    return {name: p.grad.double().cpu().numpy().copy() for name, p in stage.named_parameters() if p.grad is not None}


def _squared_norm(stage: Stage) -> float:
    """Of the parameters this stage counts: a tied head that is a copy of the embedding is counted there."""
    copy = stage.head is not None and stage.embedding is None and stage.model.tied_embeddings
    return sum(
        float(p.grad.double().pow(2).sum())
        for name, p in stage.named_parameters()
        if p.grad is not None and not (copy and name == "head.weight")
    )
