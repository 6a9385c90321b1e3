"""Clocks and the timing of spans; knows nothing of what runs inside a span.

A repetition is: prepare (not timed), mark, span, mark, span, mark, ... On CUDA the marks are events in the stream, all
repetitions are queued before one wait, and the host's own time between marks is kept beside the device's. On one CPU
thread the clock is that thread's CPU time, which other processes disturb least; with more threads it is the wall.
"""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

Span = tuple[str, "Callable[[], object]"]
NS = 1e-9


class Clock(Protocol):
    """Marks moments; a mark is (on the device, on the host)."""

    name: str

    def mark(self) -> tuple[Any, int]: ...

    def wait(self) -> None: ...

    def seconds(self, begin: Any, end: Any) -> float: ...


class CpuClock:
    """CPU time of this thread if it does all the work, else wall time."""

    def __init__(self, threads: int) -> None:
        self.name = "thread CPU time" if threads == 1 else "wall time"
        self._now = time.thread_time_ns if threads == 1 else time.perf_counter_ns

    def mark(self) -> tuple[int, int]:
        """Now."""
        return self._now(), time.perf_counter_ns()

    def wait(self) -> None:
        """Nothing is pending on a CPU."""

    def seconds(self, begin: int, end: int) -> float:
        """Between two marks of the device."""
        return (end - begin) * NS


class CudaClock:
    """CUDA events in the current stream."""

    name = "CUDA events or host issue time, whichever is longer"

    def mark(self) -> tuple[torch.cuda.Event, int]:
        """An event behind everything queued so far."""
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event, time.perf_counter_ns()

    def wait(self) -> None:
        """Until all events have happened."""
        import torch

        torch.cuda.synchronize()

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Between two events that have happened."""
        return begin.elapsed_time(end) * 1e-3


def clock_of(device: str, threads: int) -> Clock:
    """The clock for `cpu` or `cuda`."""
    return CudaClock() if device.startswith("cuda") else CpuClock(threads)


@dataclass
class Times:
    """Seconds of each span by name, on the device and on the host, in the order of repetition."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    host_seconds: dict[str, list[float]] = field(default_factory=dict)


def time_spans(clock: Clock, prepare: Callable[[], object], spans: Sequence[Span], repetitions: int) -> Times:
    """Run all spans `repetitions` times, each timed alone; what `prepare` does (flushing caches) is in no span."""
    marks = []
    with _no_collection():
        for _ in range(repetitions):
            prepare()
            row = [clock.mark()]
            for _, run in spans:
                run()
                row.append(clock.mark())
            marks.append(row)
        clock.wait()
    found = Times({name: [] for name, _ in spans}, {name: [] for name, _ in spans})
    for row in marks:
        for (name, _), begin, end in zip(spans, row[:-1], row[1:], strict=True):
            found.seconds[name].append(clock.seconds(begin[0], end[0]))
            found.host_seconds[name].append((end[1] - begin[1]) * NS)
    return found


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage is collected inside a span; what a visit leaves is collected by whoever makes the next."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class CacheFlush:
    """Writes a buffer larger than the GPU's L2, so that a span does not find the last one's data; nothing on a CPU."""

    def __init__(self, device: str) -> None:
        import torch

        self.buffer = None
        if device.startswith("cuda"):
            size = 2 * torch.cuda.get_device_properties(device).L2_cache_size
            self.buffer = torch.empty(size, dtype=torch.int8, device=device)

    def __call__(self) -> None:
        """Flush; queued like any kernel."""
        if self.buffer is not None:
            self.buffer.zero_()
