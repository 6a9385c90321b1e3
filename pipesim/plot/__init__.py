"""Pictures of timelines as files: Gantt charts and memory over time; draws nothing itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pipesim.errors import InputError
from pipesim.files import whole_file, write_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from pipesim.timeline import Timeline

PICTURES = (".png", ".svg", ".pdf")


def save_gantt(
    timelines: Sequence[Timeline],
    path: Path | str,
    *,
    window: tuple[float, float] | None = None,
    transfers: bool = False,
    stacked: Sequence[str] | None = None,
) -> None:
    """Writes a Gantt chart of timelines below each other: .png, .svg, .pdf, or .html to zoom in a browser.

    window, transfers and stacked are those of `pipesim.plot.gantt.gantt_figure`; a page shows all, zoomed to the
    window. Raises InputError on another ending or a window that is none, FileError where it cannot be written.
    """
    path = Path(path)
    _refuse_ending(path, "--gantt", (*PICTURES, ".html"))
    if window is not None and not 0 <= window[0] < window[1]:
        raise InputError("window", f"{window[0]:g} to {window[1]:g}", "must begin at 0 or later and end after that")
    if path.suffix == ".html":
        from pipesim.plot.html import gantt_page

        write_text(path, gantt_page(timelines, window=window, stacked=stacked))
        return
    from pipesim.plot.gantt import gantt_figure

    _save(gantt_figure(timelines, window=window, transfers=transfers, stacked=stacked), path)


def save_memory(timelines: Sequence[Timeline], path: Path | str, *, limit_bytes: int | None = None) -> None:
    """Writes the memory of each device over time, a panel a timeline, with the limit where one is given.

    Raises InputError on an ending other than .png, .svg or .pdf, FileError where it cannot be written.
    """
    path = Path(path)
    _refuse_ending(path, "--memory", PICTURES)
    from pipesim.plot.memory import memory_figure

    _save(memory_figure(timelines, limit_bytes=limit_bytes), path)


def _refuse_ending(path: Path, option: str, endings: Sequence[str]) -> None:
    if path.suffix not in endings:
        raise InputError(option, str(path), "unknown ending", f"one of {', '.join(endings)}")


def _save(figure: Figure, path: Path) -> None:
    """Without a date, so that the same timeline gives the same file."""
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {})
    from matplotlib import rc_context

    from pipesim.plot.gantt import rc_settings

    with rc_context(rc_settings()), whole_file(path) as draft:
        figure.savefig(draft, metadata=undated)
