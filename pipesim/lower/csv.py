"""Files of lowered plans: a row per device with its sends and receives among its ops; knows no times."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipesim.dependencies import ABSENT, BACKWARD, FORWARD, row_tables, unit_keys
from pipesim.errors import FileError
from pipesim.files import write_text
from pipesim.lower import LoweredPlan
from pipesim.lower.steps import ALONE, Action
from pipesim.plan_cells import read_cells
from pipesim.plan_csv import plan_of_cells

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pipesim.plan import Plan
    from pipesim.plan_cells import Cell

    Entry = tuple[int, int, int, int]


def read_plan_or_lowered(path: Path | str) -> Plan | LoweredPlan:
    """The plan of a file, lowered where the file has sends or receives. Raises FileError as `read_plan` does."""
    rows = read_cells(Path(path))
    plan = plan_of_cells(Path(path), rows)
    if not any(cell.communicates for row in rows for cell in row):
        return plan
    return lowered_of_cells(Path(path), plan, rows)


def read_lowered(path: Path | str) -> LoweredPlan:
    """The lowered plan of a file. Raises FileError on cells that are no op and on a file without sends."""
    found = read_plan_or_lowered(path)
    if isinstance(found, LoweredPlan):
        return found
    raise FileError(str(path), "no SEND or RECV", "must place every send and receive", "write 0SEND_F0, 1RECV_F0")


def write_lowered(lowered: LoweredPlan, path: Path | str) -> None:
    """Writes a row per device; `read_lowered` gives the same steps back. Raises FileError."""
    rows = (",".join(lowered.cells(device)) for device in range(lowered.plan.shape.devices))
    write_text(Path(path), "\n".join(rows) + "\n")


def lowered_of_cells(path: Path, plan: Plan, rows: Sequence[Sequence[Cell]]) -> LoweredPlan:
    """The lowered plan of a file's cells, whose ops are those of the plan, in its order. Raises FileError."""
    reader = _Reader(path, plan)
    devices = [list(reader.entries(device, row)) for device, row in enumerate(rows)]
    table = np.array([entry for entries in devices for entry in entries], dtype=np.int64).reshape(-1, 4)
    offsets = np.concatenate([[0], np.cumsum([len(entries) for entries in devices])]).astype(np.int64)
    action, row, peer, group = table.T
    return LoweredPlan(
        plan, "as written", offsets, action.astype(np.int8), *(c.astype(np.int32) for c in (row, peer, group))
    )


class _Reader:
    """Finds the row of the op behind each cell."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path, self.plan = path, plan
        self.tables = row_tables(plan, unit_keys(plan))
        self.groups = 0

    def entries(self, device: int, row: Sequence[Cell]) -> Iterator[Entry]:
        """(action, plan row, peer, group) of each cell of one device."""
        place, last = int(self.plan.offsets[device]), ALONE
        for cell in row:
            self.groups += cell.group not in (ALONE, last)
            last = cell.group
            if not cell.communicates:
                yield Action.COMPUTE, place, ABSENT, ALONE
                place += 1
                continue
            group = self.groups if cell.group != ALONE else ALONE
            yield self._message(cell, group)

    def _message(self, cell: Cell, group: int) -> Entry:
        sends, forward = cell.action.startswith("SEND"), cell.action.endswith("F")
        onward = 1 if forward else -1
        source = cell.stage if sends else cell.stage - onward
        role = FORWARD if forward else BACKWARD
        row = self._row(role, source, cell)
        if row is None:
            what = f"sends what no {'F' if forward else 'B'} of stage {source} and micro-batch {cell.microbatch} makes"
            rule = what if sends else what.replace("sends", "receives")
            raise FileError(f"{self.path}: row {cell.row}, column {cell.column}", str(cell), rule)
        other = source + onward if sends else source
        peer = self.plan.placement.device_of[self.plan.placement.direction_of[cell.microbatch]]
        there = int(peer[other]) if 0 <= other < len(peer) else ABSENT
        return (Action.SEND if sends else Action.RECEIVE), row, there, group

    def _row(self, role: int, stage: int, cell: Cell) -> int | None:
        shape = self.plan.shape
        inside = 0 <= stage < shape.stages and cell.microbatch < shape.microbatches
        if not inside or cell.subsequence >= shape.subsequences:
            return None
        unit = (stage * shape.microbatches + cell.microbatch) * shape.subsequences + cell.subsequence
        row = int(self.tables[role][unit])
        return row if row != ABSENT else None
