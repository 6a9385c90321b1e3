"""The most memory a rank held during one step: what was allocated, and what the process took for it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import nn


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank. static: parameters and their gradients. allocated: the most live tensors, static included.

    reserved: on a GPU what torch's allocator had taken from it; on a CPU the peak resident set of the whole process,
    torch's own code included.
    """

    static_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    reserved_is: str

    @property
    def step_bytes(self) -> int:
        """What a step adds to the static bytes at its peak."""
        return self.allocated_bytes - self.static_bytes


def measure_memory(step: Callable[[], object], parts: Iterable[nn.Module], device: torch.device) -> RankMemory:
    """Runs one step, slower than usual on a CPU (torch's profiler lists every allocation); gradients must exist."""
    static = sum(p.nbytes + (p.grad.nbytes if p.grad is not None else 0) for part in parts for p in part.parameters())
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        grown = torch.cuda.max_memory_allocated(device) - before
        return RankMemory(static, static + grown, torch.cuda.max_memory_reserved(device), "torch reserved")
    _reset_resident_peak()
    return RankMemory(static, static + _grown_on_cpu(step), _resident_peak(), "resident set")


def _grown_on_cpu(step: Callable[[], object]) -> int:
    from torch.profiler import ProfilerActivity, profile

    with _silent_stderr(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    found = profiled.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((e.start_ns(), e.nbytes()) for e in found if e.name() == "[memory]")
    return max(accumulate(bytes_ for _, bytes_ in changes), default=0)


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """The profiler's library writes notes of its own to the process's stderr."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _reset_resident_peak() -> None:
    reset = Path("/proc/self/clear_refs")
    if reset.exists():
        reset.write_text("5", encoding="ascii")


def _resident_peak() -> int:
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
