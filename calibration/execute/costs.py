"""The cost table of an executed plan: what its ops took and its messages weigh; knows no model of costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from calibration.execute.workload import DTYPES
from pipesim.costs.table import CostTable, Source
from pipesim.plan import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from calibration.execute.workload import Workload
    from pipesim.plan import Plan


def classes_of(sizes: tuple[int, ...]) -> tuple[list[int], NDArray[np.int32]]:
    """The distinct micro-batch sizes, and the class of each micro-batch."""
    distinct = sorted(set(sizes))
    return distinct, np.array([distinct.index(size) for size in sizes], dtype=np.int32)


def static_bytes(workload: Workload) -> NDArray[np.int64]:
    """int64 [stages]: parameters and their gradients; an executed step has no optimizer."""
    model, partition = workload.model, workload.partition
    ends = {partition.embedding_stage: model.embedding_parameters, partition.head_stage: 0}
    ends[partition.head_stage] += model.final_norm_parameters + model.head_parameters
    if model.tied_embeddings and partition.embedding_stage != partition.head_stage:
        ends[partition.head_stage] += model.vocab * model.hidden
    counts = [n * model.layer_parameters + ends.get(s, 0) for s, n in enumerate(partition.layers_per_stage)]
    return 2 * DTYPES[workload.dtype].itemsize * np.array(counts, dtype=np.int64)


def boundary_bytes(workload: Workload) -> NDArray[np.int64]:
    """int64 [classes, subsequences]: the message between two stages."""
    distinct, _ = classes_of(workload.microbatch_sizes)
    token_bytes = workload.model.hidden * DTYPES[workload.dtype].itemsize
    return np.outer(distinct, workload.lengths).astype(np.int64) * token_bytes


def table_shape(plan: Plan, workload: Workload) -> tuple[int, int, int, int]:
    """Kinds, classes of micro-batch size, stages, subsequences."""
    return len(Kind), len(set(workload.microbatch_sizes)), plan.shape.stages, plan.shape.subsequences


def table(
    workload: Workload,
    duration_ns: NDArray[np.int64],
    name: str,
    origin: str,
    **others: NDArray[np.int64],
) -> CostTable:
    """A cost table of given durations [5, C, S, k], a class for each micro-batch size; bytes that are not among
    `others` are zero or counted."""
    nothing = np.zeros(duration_ns.shape[1:], dtype=np.int64)
    given = {
        "activation_bytes": nothing,
        "weight_activation_bytes": nothing,
        "transient_bytes": np.zeros_like(duration_ns),
        "kv_bytes": nothing[..., 0],
        "kv_gradient_bytes": nothing[..., 0],
    } | others
    return CostTable(
        duration_ns=duration_ns,
        boundary_bytes=boundary_bytes(workload),
        static_bytes=static_bytes(workload),
        class_of_microbatch=classes_of(workload.microbatch_sizes)[1],
        name=name,
        sources=(Source("op times", name, origin),),
        **given,
    )


def measured_costs(
    plan: Plan, workload: Workload, took_ns: NDArray[np.int64], on: str, **bytes_: NDArray[np.int64]
) -> CostTable:
    """Durations are medians over steps and micro-batches of a size, from the times of ops int64 [steps, ops]."""
    _, class_of = classes_of(workload.microbatch_sizes)
    duration = np.zeros(table_shape(plan, workload), dtype=np.int64)
    cells: dict[tuple[int, int, int, int], list[int]] = {}
    columns = (plan.kind, class_of[plan.microbatch], plan.stage, plan.subsequence)
    for row, cell in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        cells.setdefault(cell, []).append(row)
    for cell, rows in cells.items():
        duration[cell] = round(float(np.median(took_ns[:, rows])))
    name = f"{workload.model.name}, {workload.seq_len} tokens, {workload.dtype}, measured on {on}"
    return table(workload, duration, name, f"median over {len(took_ns)} steps", **bytes_)
