"""How far a sweep is: a bar with rate and time left on a terminal, a line now and then elsewhere; on stderr."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BETWEEN_LINES_SECONDS = 20.0


@contextmanager
def progress(total: int) -> Iterator[Callable[[int], None]]:
    """Yields a function to be told how many more of `total` points are done, first those done already."""
    if sys.stderr.isatty():
        with _bar(total) as advance:
            yield advance
    else:
        yield _Lines(total)


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task("", total=total, rate="")
        pace = _Pace(total)

        def advance(count: int) -> None:
            pace.advance(count)
            shown.update(task, advance=count, rate=f"{pace.rate:.1f}/s")

        yield advance


class _Pace:
    """Points done, and how many a second since those found from before."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self._found, self._began = -1, time.monotonic()

    def advance(self, count: int) -> None:
        """Counts finished points."""
        self.done += count
        if self._found < 0:
            self._found = count

    @property
    def rate(self) -> float:
        """Points a second."""
        return (self.done - self._found) / max(time.monotonic() - self._began, 1e-9)


class _Lines(_Pace):
    def __init__(self, total: int) -> None:
        super().__init__(total)
        self._told = time.monotonic()

    def __call__(self, count: int) -> None:
        self.advance(count)
        now = time.monotonic()
        if self.done < self.total and now - self._told >= _BETWEEN_LINES_SECONDS:
            self._told = now
            left = (self.total - self.done) / max(self.rate, 1e-9)
            sys.stderr.write(f"pipesim: {self.done} of {self.total} points, {self.rate:.1f}/s, {left:.0f} s left\n")
            sys.stderr.flush()
