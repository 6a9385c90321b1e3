"""Short ways for tests to execute plans of small models on ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pipesim.model import ModelSpec
from pipesim.partition import even_layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calibration.execute.faults import RankPool
    from calibration.execute.plain import Agreement
    from calibration.execute.workload import Workload
    from pipesim.plan import Plan

GQA = ModelSpec(
    name="small", layers=8, hidden=16, heads=4, kv_heads=2, head_size=4, feedforward=24, vocab=31,
    activation="swiglu", norm="rmsnorm", position="rope", tied_embeddings=False, source="made for tests",
)  # fmt: skip
MHA = replace(GQA, kv_heads=4, tied_embeddings=True)
UNEQUAL = (9, 5, 4, 1, 3, 2, 1, 2)


def lengths_of(k: int, *, equal: bool) -> tuple[int, ...]:
    """k subsequences of 6 tokens, or of lengths that rise and fall."""
    return (6,) * k if equal else UNEQUAL[:k]


def workload_of(
    plan: Plan,
    model: ModelSpec = GQA,
    *,
    equal: bool = False,
    sizes: Sequence[int] | None = None,
    dtype: str = "float64",
) -> Workload:
    """A small step for a plan; one sequence a micro-batch unless sizes are given."""
    from calibration.execute.workload import Workload

    shape = plan.shape
    return Workload(
        model,
        even_layers(model.layers, shape.stages),
        lengths_of(shape.subsequences, equal=equal),
        tuple(sizes or (1,) * shape.microbatches),
        dtype=dtype,
        seed=5,
    )


def agreement_of(plan: Plan, workload: Workload, pool: RankPool) -> Agreement:
    """How far one executed step is from the single-process model."""
    from calibration.execute.engine import Effort, execute
    from calibration.execute.plain import agreement, plain_run

    effort = Effort(steps=1, warm_ups=0, memory=False, gradients=True)
    return agreement(execute(plan, workload, pool, effort), plain_run(workload))
