"""The plan: which ops each device runs, in which order; knows no time, no cost and no schedule."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pipesim.errors import ShapeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Columns = tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.integer], NDArray[np.integer]]

# A simulation takes about 300 bytes a forward, and the table of links 24 bytes for each pair of devices.
_MOST_DEVICES, _MOST_FORWARDS = 10_000, 20_000_000


class Kind(IntEnum):
    """What an op computes. B is the full backward; I and W are its two halves (B = I + W)."""

    F = 0
    B = 1
    I = 2  # noqa: E741  (the field's own letter)
    W = 3
    R = 4


@dataclass(frozen=True)
class PipelineShape:
    """The size of a step: devices p, micro-batches m, stages per device v, subsequences per micro-batch k.

    `in_flight` limits the micro-batches whose activations a device may hold (None: the schedule's own rule).
    Raises ShapeError when a count is below 1, or the step larger than memory could hold.
    """

    devices: int
    microbatches: int
    stages_per_device: int = 1
    subsequences: int = 1
    in_flight: float | None = None

    def __post_init__(self) -> None:
        for name in ("devices", "microbatches", "stages_per_device", "subsequences"):
            if getattr(self, name) < 1:
                raise ShapeError(name, getattr(self, name), "must be at least 1")
        forwards = self.stages * self.units
        if self.devices > _MOST_DEVICES:
            raise ShapeError("devices", self.devices, f"must be at most {_MOST_DEVICES}", "simulate a part of them")
        if forwards > _MOST_FORWARDS:
            raise ShapeError(
                "devices · stages_per_device · microbatches · subsequences",
                f"{self.devices} · {self.stages_per_device} · {self.microbatches} · {self.subsequences}",
                f"must be at most {_MOST_FORWARDS} forwards",
                "fewer micro-batches show the same steady phase",
            )
        if self.in_flight is not None and not 0 < self.in_flight <= _MOST_FORWARDS:
            raise ShapeError("in_flight", self.in_flight, f"must be above 0, at most {_MOST_FORWARDS}")

    @property
    def stages(self) -> int:
        """Stages of one direction, in model order 0..stages-1."""
        return self.devices * self.stages_per_device

    @property
    def units(self) -> int:
        """(micro-batch, subsequence) pairs of a step."""
        return self.microbatches * self.subsequences


@dataclass(frozen=True)
class Op:
    """One op, printed as `2F0.3`: stage 2, forward, micro-batch 0, subsequence 3."""

    kind: Kind
    stage: int
    microbatch: int
    subsequence: int = 0

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.name}{self.microbatch}.{self.subsequence}"

    @classmethod
    def parse(cls, text: str) -> Op:
        """Reads `2F0.3`, or `2F0` for subsequence 0. Raises ValueError on anything else."""
        match = _OP.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not an op; write stage, kind (F B I W R), micro-batch: 2F0 or 2F0.3")
        return cls(Kind[match[2]], int(match[1]), int(match[3]), int(match[4] or 0))


_OP = re.compile(r"(\d+)([FBIWR])(\d+)(?:\.(\d+))?")


@dataclass(frozen=True, eq=False)
class Placement:
    """Where stages live.

    device_of: int32 [directions, stages]; direction_of: int8 [micro-batches], 0 = down, 1 = up.
    """

    device_of: NDArray[np.int32]
    direction_of: NDArray[np.int8]

    @property
    def directions(self) -> int:
        """1, or 2 where two opposing pipelines share the devices."""
        return int(self.device_of.shape[0])

    @classmethod
    def looped(cls, shape: PipelineShape) -> Placement:
        """Stage s on device s mod p: the placement of every one-directional schedule here."""
        stages = np.arange(shape.stages, dtype=np.int32) % shape.devices
        return cls(stages[np.newaxis, :], np.zeros(shape.microbatches, dtype=np.int8))

    @classmethod
    def opposing_v(cls, shape: PipelineShape, direction_of: NDArray[np.int8]) -> Placement:
        """Two V-shaped pipelines of 2p stages: down folds at device p-1, up is its mirror image."""
        down = np.concatenate([np.arange(shape.devices), np.arange(shape.devices)[::-1]]).astype(np.int32)
        return cls(np.stack([down, shape.devices - 1 - down]), direction_of)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Placement):
            return NotImplemented
        return np.array_equal(self.device_of, other.device_of) and np.array_equal(self.direction_of, other.direction_of)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class Plan:
    """The order of ops on each device, as columns.

    offsets: int64 [p+1]; rows offsets[d]:offsets[d+1] of the columns are device d's order.
    kind int8, stage int16, microbatch int32, subsequence int16: [ops]. 9 bytes an op.
    """

    schedule: str
    shape: PipelineShape
    placement: Placement
    offsets: NDArray[np.int64]
    kind: NDArray[np.int8]
    stage: NDArray[np.int16]
    microbatch: NDArray[np.int32]
    subsequence: NDArray[np.int16]

    @classmethod
    def from_columns(
        cls, schedule: str, shape: PipelineShape, placement: Placement, devices: Sequence[Columns]
    ) -> Plan:
        """Joins one (kind, stage, microbatch, subsequence) tuple of columns per device."""
        lengths = [len(columns[0]) for columns in devices]
        joined = [np.concatenate([columns[i] for columns in devices]) for i in range(4)]
        return cls(
            schedule,
            shape,
            placement,
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            joined[0].astype(np.int8),
            joined[1].astype(np.int16),
            joined[2].astype(np.int32),
            joined[3].astype(np.int16),
        )

    @classmethod
    def from_orders(
        cls, schedule: str, shape: PipelineShape, placement: Placement, orders: Sequence[Sequence[Op]]
    ) -> Plan:
        """Builds the columns from one sequence of ops per device."""

        def columns(order: Sequence[Op]) -> Columns:
            rows = np.array([(o.kind, o.stage, o.microbatch, o.subsequence) for o in order], dtype=np.int64)
            rows = rows.reshape(-1, 4)
            return rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3]

        return cls.from_columns(schedule, shape, placement, [columns(order) for order in orders])

    def __len__(self) -> int:
        return len(self.kind)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        return self.same_ops(other) and (self.schedule, self.shape) == (other.schedule, other.shape)

    __hash__ = None  # type: ignore[assignment]

    def same_ops(self, other: Plan) -> bool:
        """Whether both plans run the same ops in the same order on the same devices, whatever their names."""
        return self.placement == other.placement and all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in ("offsets", "kind", "stage", "microbatch", "subsequence")
        )

    @cached_property
    def device(self) -> NDArray[np.int32]:
        """int32 [ops]: the device of each row."""
        return np.repeat(np.arange(self.shape.devices, dtype=np.int32), np.diff(self.offsets))

    @property
    def direction(self) -> NDArray[np.int8]:
        """int8 [ops]: the direction of each row's micro-batch."""
        return self.placement.direction_of[self.microbatch]

    def rows(self, device: int) -> range:
        """The rows of one device, in its order."""
        return range(int(self.offsets[device]), int(self.offsets[device + 1]))

    def op(self, row: int) -> Op:
        """The op of one row, as a view for people."""
        return Op(
            Kind(int(self.kind[row])),
            int(self.stage[row]),
            int(self.microbatch[row]),
            int(self.subsequence[row]),
        )

    def order(self, device: int) -> Iterator[Op]:
        """The ops of one device, in order."""
        return (self.op(row) for row in self.rows(device))

    def label(self, row: int) -> str:
        """The text of one row's op: `2F0.3`, or `2F0` where micro-batches are not cut."""
        text = str(self.op(row))
        return text if self.shape.subsequences > 1 else text.partition(".")[0]

    def __str__(self) -> str:
        """A line per device, ops separated by spaces; `pipesim.plan_csv` reads and writes the file form."""
        return "\n".join(" ".join(self.label(row) for row in self.rows(device)) for device in range(self.shape.devices))
