"""Plan files: a row per device, as torch.distributed.pipelining writes them; knows no times.

A file holds no stage map and no counts; both follow from its ops. What `B` means is decided per (stage,
micro-batch): where the file has its W and no I, B is the input-gradient part (the old form, with BW for a full
backward); elsewhere it is the full backward (the new form, with I and W for the halves).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipesim.errors import FileError
from pipesim.files import write_text
from pipesim.plan import Kind, PipelineShape, Plan
from pipesim.plan_cells import Cell, read_cells
from pipesim.plan_map import infer_placement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipesim.plan import Columns

_MOST_STAGES = 2**15 - 1
_SLACK = 1000


def read_plan(path: Path | str) -> Plan:
    """The plan of a file; sends and receives in it are left out. Its schedule is the file's name.

    A direction without micro-batches leaves no trace in a file: a bidirectional plan of one micro-batch comes back
    as one direction. The plan need not be legal: `check` tells. Raises FileError on a cell that is no op, on a
    stage that two rows hold (unless the second map mirrors the first: two directions), on counts that no shape has.
    """
    return plan_of_cells(Path(path), read_cells(Path(path)))


def write_plan(plan: Plan, path: Path | str) -> None:
    """Writes a row per device, ops in order; `read_plan` gives the same ops back. Raises FileError."""
    rows = (",".join(plan.label(row) for row in plan.rows(device)) for device in range(plan.shape.devices))
    write_text(Path(path), "\n".join(rows) + "\n")


def plan_of_cells(path: Path, rows: Sequence[Sequence[Cell]]) -> Plan:
    """The plan of a file's cells, sends and receives left out."""
    ops = [[cell for cell in row if not cell.communicates] for row in rows]
    shape = _shape(path, ops)
    meaning = _split_backwards(ops)
    placement = infer_placement(path, shape, ops)
    return Plan.from_columns(path.stem, shape, placement, [_columns(row, meaning) for row in ops])


def _shape(path: Path, rows: Sequence[Sequence[Cell]]) -> PipelineShape:
    cells = [cell for row in rows for cell in row]
    if not cells:
        raise FileError(str(path), "no op", "must hold ops to run", "write 0F0 for a forward of stage 0")
    stages, microbatches, subsequences = (
        1 + max(getattr(cell, name) for cell in cells) for name in ("stage", "microbatch", "subsequence")
    )
    devices = len(rows)
    if stages % devices:
        raise FileError(str(path), f"{stages} stages on {devices} rows", "every row must hold as many stages")
    spoken = stages * microbatches * subsequences
    if stages > _MOST_STAGES or spoken > 10 * len(cells) + _SLACK:
        counts = f"{stages} stages, {microbatches} micro-batches, {subsequences} subsequences"
        raise FileError(str(path), f"{counts} in {len(cells)} ops", "needs a forward and a backward of each")
    return PipelineShape(devices, microbatches, stages // devices, subsequences)


def _split_backwards(rows: Sequence[Sequence[Cell]]) -> set[tuple[int, int, int]]:
    """The (stage, micro-batch, subsequence) whose B is the input-gradient part."""
    units: dict[str, set[tuple[int, int, int]]] = {"I": set(), "W": set()}
    for row in rows:
        for cell in row:
            if cell.action in units:
                units[cell.action].add(cell[1:4])
    return units["W"] - units["I"]


def _columns(row: Sequence[Cell], split: set[tuple[int, int, int]]) -> Columns:
    table = np.array([(_kind(cell, split), *cell[1:4]) for cell in row], dtype=np.int64).reshape(-1, 4)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]


def _kind(cell: Cell, split: set[tuple[int, int, int]]) -> Kind:
    if cell.action == "BW":
        return Kind.B
    if cell.action == "B" and cell[1:4] in split:
        return Kind.I
    return Kind[cell.action]
