"""Which device holds which stage, told from the rows of a plan file; knows no schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipesim.errors import FileError
from pipesim.plan import Placement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from pipesim.plan import PipelineShape
    from pipesim.plan_cells import Cell

_UNKNOWN = -1


def infer_placement(path: Path, shape: PipelineShape, rows: Sequence[Sequence[Cell]]) -> Placement:
    """The stage map of the rows, one row per device.

    One direction where every stage stands on one row. Two where micro-batches fall in two groups, each with a
    map of its own, and the second map mirrors the first (device d against p-1-d); direction 0 is that of
    micro-batch 0.
    Raises FileError where neither holds.
    """
    directions = _Maps(path, shape)
    for device, row in enumerate(rows):
        for cell in row:
            directions.see(device, cell)
    return directions.placement()


class _Maps:
    """The maps seen so far: `home` of each (micro-batch, stage)."""

    def __init__(self, path: Path, shape: PipelineShape) -> None:
        self.path, self.shape = path, shape
        self.first: dict[int, tuple[int, Cell]] = {}
        self.moved: Cell | None = None
        self.home: dict[int, dict[int, tuple[int, Cell]]] = {}

    def see(self, device: int, cell: Cell) -> None:
        """Notes where one op stands. Raises FileError where its micro-batch has the stage elsewhere."""
        homes = self.home.setdefault(cell.microbatch, {})
        device_before, before = homes.setdefault(cell.stage, (device, cell))
        if device_before != device:
            raise self._on_two_rows(cell, before)
        if self.first.setdefault(cell.stage, (device, cell))[0] != device and self.moved is None:
            self.moved = cell

    def placement(self) -> Placement:
        """One direction, or two that mirror each other. Raises FileError on anything else."""
        if self.moved is None:
            device_of = self._filled(np.full(self.shape.stages, _UNKNOWN, dtype=np.int32), self.first)
            one_direction = np.zeros(self.shape.microbatches, dtype=np.int8)
            return Placement(self._complete(device_of)[np.newaxis, :], one_direction)
        down, direction_of = self._down_map()
        mirror = (self.shape.devices - 1 - down).astype(np.int32)
        return Placement(np.stack([down, mirror]), direction_of)

    def _down_map(self) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
        last = self.shape.devices - 1
        down = np.full(self.shape.stages, _UNKNOWN, dtype=np.int32)
        direction_of = np.zeros(self.shape.microbatches, dtype=np.int8)
        for microbatch, homes in sorted(self.home.items()):
            up = any(down[stage] not in (_UNKNOWN, device) for stage, (device, _) in homes.items())
            direction_of[microbatch] = up
            for stage, (device, _) in homes.items():
                mirrored = last - device if up else device
                if down[stage] not in (_UNKNOWN, mirrored) and self.moved is not None:
                    raise self._on_two_rows(self.moved, self.first[self.moved.stage][1])
                down[stage] = mirrored
        return self._complete(down), direction_of

    def _filled(self, device_of: NDArray[np.int32], homes: dict[int, tuple[int, Cell]]) -> NDArray[np.int32]:
        for stage, (device, _) in homes.items():
            device_of[stage] = device
        return device_of

    def _complete(self, device_of: NDArray[np.int32]) -> NDArray[np.int32]:
        missing = np.flatnonzero(device_of == _UNKNOWN)
        if len(missing):
            raise FileError(str(self.path), f"stage {missing[0]}", "stands on no row, a later stage does")
        held = np.bincount(device_of, minlength=self.shape.devices)
        uneven = np.flatnonzero(held != self.shape.stages_per_device)
        if len(uneven):
            where, rule = f"{self.path}: row {uneven[0] + 1}", f"must hold {self.shape.stages_per_device}"
            raise FileError(where, f"{held[uneven[0]]} stages", f"{rule}, as many as every other row")
        return device_of

    def _on_two_rows(self, cell: Cell, before: Cell) -> FileError:
        return FileError(
            f"{self.path}: row {cell.row}, column {cell.column}",
            str(cell),
            f"stage {cell.stage} stands on row {before.row} already ({before})",
            "two rows may hold a stage only where one direction mirrors the other",
        )
