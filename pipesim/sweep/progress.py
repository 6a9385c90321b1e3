"""How far a sweep is: a bar with rate and time left on a terminal, a line now and then elsewhere; on stderr."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress

_BETWEEN_LINES_SECONDS = 20.0


@contextmanager
def progress() -> Iterator[Callable[[int], Callable[[int], None]]]:
    """Yields a function to be told the total once it is known; it gives back another, to be told how many more
    points are done, first those done already. At most one total."""
    if not sys.stderr.isatty():
        yield lambda total: _Lines(total).tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Shown

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Shown(*columns, console=Console(stderr=True)) as shown:
        yield lambda total: _bar(shown, total)


def _bar(shown: Progress, total: int) -> Callable[[int], None]:
    task, pace = shown.add_task("", total=total, rate=""), _Pace(total)

    def advance(count: int) -> None:
        pace.advance(count)
        shown.update(task, advance=count, rate=f"{pace.rate:.1f}/s")

    return advance


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

    def tell(self, count: int) -> None:
        """Counts finished points, and says so when the last line is some time ago."""
        self.advance(count)
        now = time.monotonic()
        if self.done < self.total and now - self._told >= _BETWEEN_LINES_SECONDS:
            self._told = now
            left = (self.total - self.done) / max(self.rate, 1e-9)
            sys.stderr.write(f"pipesim: {self.done} of {self.total} points, {self.rate:.1f}/s, {left:.0f} s left\n")
            sys.stderr.flush()
