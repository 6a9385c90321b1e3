"""Draws a search: time against memory of all that was simulated, the front, and the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipesim.plot.style import DPI, GRID, INK, LIMIT, QUIET
from pipesim.plot.sweep import schedule_style
from pipesim.search.space import described
from pipesim.units import GIB, format_count

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from pipesim.search import Configuration, Found

_IN_VIEW = 1.7  # times the fastest that fits: slower and larger points are counted, not drawn


def save_search(found: Found, path: Path) -> None:
    """Draws what a search found; the ending of `path` decides the format (.png, .svg, .pdf)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    shown = _in_view(found)
    for index, schedule in enumerate(dict.fromkeys(c.scenario.schedule for c in shown)):
        mine = [c for c in shown if c.scenario.schedule == schedule]
        style = schedule_style(index)
        axes.plot(*_places(mine), linestyle="none", markersize=6, alpha=0.75, label=schedule, **style)  # type: ignore[arg-type]
    front = [c for c in found.front() if c in shown]
    axes.step(*_places(front), where="pre", color=QUIET, linewidth=1, zorder=1, label="front")
    axes.axvline(found.memory_limit_bytes / GIB, color=LIMIT, linestyle="--", linewidth=1, label="memory limit")
    _ring_best(axes, found)
    axes.set_xlabel("peak memory of a GPU (GiB)")
    axes.set_ylabel("time of a step (s)")
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(_caption(found, len(shown)), fontsize=8, color=QUIET, loc="left")
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    figure.savefig(path)


def _in_view(found: Found) -> list[Configuration]:
    best = found.best(1)
    seconds = best[0].seconds if best else min((c.seconds for c in found.configurations), default=0.0)
    return [
        c
        for c in found.configurations
        if c.seconds <= _IN_VIEW * seconds and c.memory_bytes <= 2 * found.memory_limit_bytes
    ]


def _places(configurations: Sequence[Configuration]) -> tuple[list[float], list[float]]:
    return [c.memory_bytes / GIB for c in configurations], [c.seconds for c in configurations]


def _ring_best(axes: Axes, found: Found) -> None:
    for best in found.best(1):
        axes.plot(best.memory_bytes / GIB, best.seconds, "o", markersize=13, markerfacecolor="none", color=INK)


def _caption(found: Found, shown: int) -> str:
    base, space = found.space.base, found.space
    length, hidden = format_count(base.seq_len), len(found.configurations) - shown
    text = f"{base.model} on {space.gpus} GPUs of {base.cluster}, {length} tokens, batch {space.global_batch}"
    text += f"; {hidden} slower or larger ones are not drawn" if hidden else ""
    best = [f"ring: fastest that fits, {described(c.scenario)}, {c.seconds:.4g} s" for c in found.best(1)]
    return "\n".join([text, *best])
