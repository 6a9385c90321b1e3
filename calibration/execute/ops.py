"""Computes the ops of a plan with real stages, one call an op; knows no order, no messages and no time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pipesim.plan import Kind

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from calibration.execute.workload import Workload
    from calibration.layer import Stage
    from calibration.layer.microbatch import Microbatch


class OpRunner:
    """One step's work on some stages: its micro-batches and its loss; a new one begins a new step.

    stages: by number; a stage that two devices hold may be here once, its gradients then add up by themselves.
    """

    def __init__(self, workload: Workload, stages: dict[int, Stage], device: torch.device) -> None:
        self.workload, self.stages, self.device = workload, stages, device
        self._microbatches: dict[tuple[int, int], Microbatch] = {}
        self._losses: list[Tensor] = []

    @property
    def loss(self) -> float:
        """The share of the loss that came out of these stages so far; waits for the device."""
        return math.fsum(float(loss) for loss in self._losses)

    def compute(self, kind: Kind, stage: int, microbatch: int, j: int, given: Tensor | None) -> Tensor | None:
        """Runs one op; `given` is what the neighbour stage made, the result what the next one needs."""
        if kind == Kind.F:
            return self._forward(stage, microbatch, j, given)
        part, context = self.stages[stage], self._context(stage, microbatch)
        if kind == Kind.B:
            return part.backward(context, j, given)
        if kind == Kind.I:
            return part.backward_input(context, j, given)
        part.backward_weight(context, j)
        return None

    def _forward(self, stage: int, microbatch: int, j: int, given: Tensor | None) -> Tensor | None:
        part, context, workload = self.stages[stage], self._context(stage, microbatch), self.workload
        tokens, targets = workload.batch
        x = given if given is not None else workload.part(tokens, microbatch, j).to(self.device)
        if part.head is None:
            return part.forward(context, j, x)
        wanted = workload.part(targets, microbatch, j).to(self.device)
        self._losses.append(part.forward(context, j, x, wanted))
        return None

    def _context(self, stage: int, microbatch: int) -> Microbatch:
        key = (stage, microbatch)
        if key not in self._microbatches:
            workload = self.workload
            self._microbatches[key] = self.stages[stage].new_microbatch(
                workload.microbatch_sizes[microbatch], workload.lengths, workload.valid_tokens
            )
        return self._microbatches[key]
