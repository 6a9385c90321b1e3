"""Counts the bytes of a stage's ops: what stays from F to B, from I to W, what each needs on top; times nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from calibration.execute.costs import classes_of
from calibration.execute.workload import stage_data
from calibration.layer.attention import KeyValues, causal_mask
from calibration.measure.memory import byte_meter, saved_storages, storages
from pipesim.plan import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from calibration.execute.workload import Workload
    from calibration.layer import Stage
    from calibration.layer.microbatch import Microbatch
    from calibration.measure.memory import CudaBytes, LiveBytes


@dataclass(frozen=True, eq=False)
class StageBytes:
    """Bytes of one stage and micro-batch size: activation, weight_activation int64 [k]; transient int64 [5, k];
    keys/values and their gradients of a whole micro-batch, which are part of the activations where k = 1."""

    activation: NDArray[np.int64]
    weight_activation: NDArray[np.int64]
    transient: NDArray[np.int64]
    kv: int
    kv_gradient: int


def bytes_of_stage(stage: Stage, lengths: Sequence[int], size: int) -> StageBytes:
    """Runs one micro-batch whole and one split, counting. Gradients of the parameters must exist."""
    k = len(lengths)
    found = StageBytes(*(np.zeros(k, dtype=np.int64) for _ in range(2)), np.zeros((len(Kind), k), dtype=np.int64), 0, 0)
    kv, kv_gradient = _kv_bytes(stage, lengths, size)
    for split in (False, True):
        with byte_meter(stage.device.type) as meter:
            microbatch, gradients = _forwards(stage, lengths, size, found, meter)
            for j in reversed(range(k)):
                _backward(stage, microbatch, j, gradients[j], found, meter, split=split)
    if k == 1:
        found.activation[0] += kv
        return found
    return StageBytes(found.activation, found.weight_activation, found.transient, kv, kv_gradient)


def sizes_of_stages(
    workload: Workload, stages: dict[int, Stage], beat: Callable[[], None] = lambda: None
) -> dict[tuple[int, int], StageBytes]:
    """By class of micro-batch size and stage; `beat` says that work goes on, once a stage."""
    found = {}
    for c, size in enumerate(classes_of(workload.microbatch_sizes)[0]):
        for number, stage in stages.items():
            beat()
            found[c, number] = bytes_of_stage(stage, workload.lengths, size)
    return found


def byte_tables(sizes: dict[tuple[int, int], StageBytes], shape: tuple[int, ...]) -> dict[str, Any]:
    """The byte columns of a cost table [5, C, S, k] from the bytes by (class, stage)."""
    per_unit, per_microbatch = shape[1:], shape[1:3]
    tables = {
        "activation_bytes": np.zeros(per_unit, dtype=np.int64),
        "weight_activation_bytes": np.zeros(per_unit, dtype=np.int64),
        "transient_bytes": np.zeros(shape, dtype=np.int64),
        "kv_bytes": np.zeros(per_microbatch, dtype=np.int64),
        "kv_gradient_bytes": np.zeros(per_microbatch, dtype=np.int64),
    }
    for (c, number), found in sizes.items():
        tables["activation_bytes"][c, number] = found.activation
        tables["weight_activation_bytes"][c, number] = found.weight_activation
        tables["transient_bytes"][:, c, number] = found.transient
        tables["kv_bytes"][c, number] = found.kv
        tables["kv_gradient_bytes"][c, number] = found.kv_gradient
    return tables


def _kv_bytes(stage: Stage, lengths: Sequence[int], size: int) -> tuple[int, int]:
    kept = _empty_kept(stage, lengths, size)
    elements = sum(t.numel() for kv in kept for t in (kv.keys, kv.values))
    return elements * stage.dtype.itemsize, elements * (kept[0].gradient_dtype.itemsize if kept else 0)


def _empty_kept(stage: Stage, lengths: Sequence[int], size: int) -> list[KeyValues]:
    like = torch.empty(size, 0, stage.model.kv_heads, stage.model.head_size, dtype=stage.dtype, device=stage.device)
    return [KeyValues(like, sum(lengths)) for _ in stage.layers]


def _forwards(
    stage: Stage, lengths: Sequence[int], size: int, found: StageBytes, meter: LiveBytes | CudaBytes
) -> tuple[Microbatch, list[Tensor | None]]:
    microbatch = stage.new_microbatch(size, lengths)
    microbatch.kept = list(_empty_kept(stage, lengths, size))
    gradients = []
    for j, length in enumerate(lengths):
        x, gradient, targets = stage_data(stage, size, length)
        gradients.append(gradient)
        not_counted = _not_counted(stage, microbatch, j)
        before = _begin(meter)
        with saved_storages(not_counted) as saved:
            x = x.clone()  # the message that came in is an activation
            stage.forward(microbatch, j, x, targets)
        found.activation[j] = sum(saved.values())
        found.transient[Kind.F, j] = max(0, meter.peak() - before - found.activation[j])
    return microbatch, gradients


def _backward(
    stage: Stage,
    microbatch: Microbatch,
    j: int,
    gradient: Tensor | None,
    found: StageBytes,
    meter: LiveBytes | CudaBytes,
    *,
    split: bool,
) -> None:
    before = _begin(meter)
    if not split:
        stage.backward(microbatch, j, gradient)
        found.transient[Kind.B, j] = max(0, meter.peak() - before)
        return
    stage.backward_input(microbatch, j, gradient)
    found.transient[Kind.I, j] = max(0, meter.peak() - before)
    pairs = microbatch.waiting[j]
    found.weight_activation[j] = sum(storages(t for _, x, dy in pairs for t in (x, dy)).values())
    before = _begin(meter)
    stage.backward_weight(microbatch, j)
    found.transient[Kind.W, j] = max(0, meter.peak() - before)


def _begin(meter: LiveBytes | CudaBytes) -> int:
    meter.reset()
    return meter.now()


def _not_counted(stage: Stage, microbatch: Microbatch, j: int) -> list[Tensor]:
    """Parameters, keys and values, rotation tables, a CPU's mask and the stage's own tokens: no activations."""
    kept = [kv for kv in microbatch.kept if kv is not None]
    tensors: list[Tensor] = [*stage.parameters(), *(t for kv in kept for t in (kv.keys, kv.values))]
    if stage.rotation is not None and kept:
        tensors += stage.rotation.prepare(microbatch.sequence_length, kept[0].keys)
    if stage.device.type != "cuda" and len(stage.layers):
        stop = microbatch.start(j) + microbatch.lengths[j]
        tensors.append(causal_mask(microbatch.lengths[j], stop, stage.dtype, stage.device))
    return tensors
