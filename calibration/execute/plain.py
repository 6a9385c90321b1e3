"""The same step in one process, in one stage, uncut: what every execution must agree with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from calibration.execute.run import gradients_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from calibration.execute.record import Execution
    from calibration.execute.workload import Workload


@dataclass(frozen=True, eq=False)
class PlainRun:
    """Loss and gradients by parameter name, float64, of a step nobody cut."""

    loss: float
    gradients: dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Agreement:
    """How far an execution is from the plain run: relative difference of the loss, and the largest of any gradient's
    (largest element's difference over that gradient's largest element), with the parameter's name."""

    loss: float
    gradient: float
    parameter: str


def plain_run(workload: Workload, device: str = "cpu") -> PlainRun:
    """Forward and backward of the whole batch by the whole model."""
    whole = workload.whole()
    stage = whole.stage(0, device)
    tokens, targets = (part.to(device) for part in whole.batch)
    microbatch = stage.new_microbatch(whole.sequences, whole.lengths, whole.valid_tokens)
    loss = stage.forward(microbatch, 0, tokens, targets)
    stage.backward(microbatch, 0)
    return PlainRun(float(loss), gradients_of(stage))


def agreement(execution: Execution, plain: PlainRun) -> Agreement:
    """Compares an execution that kept its gradients: every parameter, on every device that has a copy.

    Raises KeyError where a parameter of the model is on no device.
    """
    return agreement_of(execution.gradients, execution.losses, execution.workload, plain)


def agreement_of(
    gradients: Sequence[dict[str, NDArray[np.float64]]], losses: Sequence[float], workload: Workload, plain: PlainRun
) -> Agreement:
    """The same for gradients from anywhere, one dict a holder."""
    tied = workload.model.tied_embeddings
    found = [
        (_difference(gradient, plain.gradients["embedding.weight" if tied and name == "head.weight" else name]), name)
        for of_holder in gradients
        for name, gradient in of_holder.items()
    ]
    missing = plain.gradients.keys() - {name for _, name in found}
    if missing:
        raise KeyError(f"no device has {', '.join(sorted(missing))}")
    worst, name = max(found)
    return Agreement(max(abs(loss / plain.loss - 1) for loss in losses), worst, name)


def _difference(found: NDArray[np.float64], wanted: NDArray[np.float64]) -> float:
    largest = float(np.abs(wanted).max())
    difference = float(np.abs(found - wanted).max())
    return difference / largest if largest else difference
