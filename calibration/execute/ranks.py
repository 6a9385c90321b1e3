"""What one rank has: its number, its device, its process groups and the board on which it says what it does."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Phase(IntEnum):
    """What a rank is at."""

    STARTING = 0
    IDLE = 1
    PREPARING = 2
    COMPUTING = 3
    WAITING = 4
    SUMMING = 5
    MEETING = 6


NOT_TO_BLAME = (Phase.WAITING, Phase.SUMMING, Phase.MEETING)
"""Phases in which a rank that stands still waits for another."""


BOARD_FIELDS = 4
_PROGRESS, _PHASE, _ROW, _FOR = range(BOARD_FIELDS)
NO_ROW = -1


class Board:
    """Shared memory in which every rank writes what it is at: int64 [ranks, 4] of progress, phase, op, awaited op.

    A handful of stores an op, no locks: the supervisor may read a row half new, which costs a word in a message.
    """

    def __init__(self, memory: Any, ranks: int) -> None:
        self.cells: NDArray[np.int64] = np.frombuffer(memory, dtype=np.int64).reshape(ranks, BOARD_FIELDS)

    @classmethod
    def private(cls, ranks: int) -> Board:
        """A board nobody else sees: for ranks started by torchrun, whose watchdog is a thread."""
        return cls(bytearray(8 * BOARD_FIELDS * ranks), ranks)

    def write(self, rank: int, phase: Phase, row: int = NO_ROW, waits_for: int = NO_ROW) -> None:
        """Says what a rank is at from now on."""
        cell = self.cells[rank]
        cell[_PHASE], cell[_ROW], cell[_FOR] = phase, row, waits_for
        cell[_PROGRESS] += 1

    def read(self, rank: int) -> tuple[Phase, int, int]:
        """Phase, row, awaited row of a rank."""
        cell = self.cells[rank]
        return Phase(int(cell[_PHASE])), int(cell[_ROW]), int(cell[_FOR])

    @property
    def progress(self) -> NDArray[np.int64]:
        """int64 [ranks]: how often each has written."""
        return self.cells[:, _PROGRESS].copy()


@dataclass(eq=False)
class Rank:
    """One rank's own view; `groups` are opened by all ranks in one order and kept for later runs."""

    number: int
    world: int
    device: torch.device
    board: Board
    groups: dict[Any, Any] = field(default_factory=dict)

    def at(self, phase: Phase, row: int = NO_ROW, waits_for: int = NO_ROW) -> None:
        """Writes on the board."""
        self.board.write(self.number, phase, row, waits_for)

    @property
    def backend(self) -> str:
        """Of messages between devices."""
        return backend_of(self.device.type)

    def open_group(self, key: Any, members: Sequence[int]) -> Any:
        """The process group of that key; every rank must open every key, in the same order."""
        if key not in self.groups:
            self.groups[key] = distributed.new_group(sorted(set(members)), backend=self.backend)
        return self.groups[key]

    def barrier(self) -> None:
        """Waits for all ranks, over gloo: a host matter."""
        self.at(Phase.MEETING)
        if self.world > 1:
            distributed.barrier(self.host_group)

    @property
    def host_group(self) -> Any:
        """All ranks over gloo, for clocks and barriers."""
        if "host" not in self.groups:
            self.groups["host"] = distributed.new_group(list(range(self.world)), backend="gloo")
        return self.groups["host"]


def backend_of(device_type: str) -> str:
    """The backend that carries tensors of a device."""
    return "nccl" if device_type == "cuda" else "gloo"


def host_name() -> str:
    """The same for all ranks of one machine and boot, whose monotonic clock is one."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123  (a kernel file)
            return f"{socket.gethostname()} {file.read().strip()}"
    except OSError:
        return socket.gethostname()


def cores_of(local: int, local_world: int, cores: Sequence[int]) -> Sequence[int]:
    """A rank's equal share of the cores, all of them where there are fewer than ranks."""
    if len(cores) < local_world:
        return cores
    return cores[local * len(cores) // local_world : (local + 1) * len(cores) // local_world]


def prepare_process(number: int, device: torch.device, local: int, local_world: int) -> None:
    """One thread a rank, cores or a GPU of its own, and a name that `ps` and `top` show.

    local: which of the local_world ranks of this machine it is. Kernels have been seen to leave two ranks on one core
    for seconds while another was free, which doubles every time; with fewer cores than ranks none is given away.
    """
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores_of(local, local_world, sorted(os.sched_getaffinity(0))))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    comm = f"/proc/{os.getpid()}/comm"
    if os.access(comm, os.W_OK):
        with open(comm, "w", encoding="ascii") as file:  # noqa: PTH123  (a kernel file)
            file.write(f"pipesim-rank{number}")
