"""Draws a frontier: time against peak memory, bsipipe as lines over its limit, other schedules as points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pipesim.frontier import TRACED
from pipesim.units import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from pipesim.frontier import Frontier, FrontierPoint

# Okabe and Ito's colours, told apart with every common kind of colour blindness; shapes tell them apart in grey.
_COLOURS = ("#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000", "#F0E442")
_MARKERS = ("s", "^", "D", "v", "P", "X", "*")
_GREY = "#777777"
_DPI, _ROOM = 150, (34.0, 14.0)  # pixels between labels
_PIXELS_PER_POINT = _DPI / 72
_LONGEST = 1.7  # times the fastest: what is slower is counted below the picture, not drawn


class _Label(NamedTuple):
    """A text beside a point; offset in points of type."""

    text: str
    x: float
    y: float
    offset: tuple[float, float]
    colour: Any


def save_frontier(frontier: Frontier, path: Path) -> None:
    """Writes the picture; the ending of `path` decides the format (.png, .svg, .pdf)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 5.6), dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    shown, left_out = _in_view(frontier.points)
    _draw_frontier(axes, frontier, shown)
    labels = _draw_traced(axes, frontier, shown) + _draw_others(axes, frontier, shown)
    _draw_limit(axes, frontier)
    _label(axes, frontier)
    figure.suptitle("Step time against peak memory", fontsize=12, x=0.02, ha="left")
    note = f"; {left_out} points over {_LONGEST:g} times the fastest are not shown" if left_out else ""
    figure.supxlabel(f"{frontier.caption}{note}", fontsize=8, color=_GREY, x=0.02, ha="left")
    figure.draw_without_rendering()  # the layout decides where there is room
    _write_where_there_is_room(axes, labels)
    figure.savefig(path)


def _in_view(points: Sequence[FrontierPoint]) -> tuple[list[FrontierPoint], int]:
    most = _LONGEST * min(point.metrics.makespan_seconds for point in points)
    shown = [point for point in points if point.metrics.makespan_seconds <= most]
    return shown, len(points) - len(shown)


def _place(frontier: Frontier, points: Sequence[FrontierPoint]) -> tuple[list[float], list[float]]:
    scale = GIB if frontier.in_bytes else 1
    return [p.memory / scale for p in points], [p.metrics.makespan_seconds for p in points]


def _draw_frontier(axes: Axes, frontier: Frontier, shown: Sequence[FrontierPoint]) -> None:
    best = sorted((point for point in shown if point.on_frontier), key=lambda point: point.memory)
    x, y = _place(frontier, best)
    axes.step(x, y, where="post", color="#BBBBBB", linewidth=4, zorder=1, label="not beaten in both")


def _draw_traced(axes: Axes, frontier: Frontier, shown: Sequence[FrontierPoint]) -> list[_Label]:
    """One line a subsequence count, darker the finer; each point is labelled with its limit."""
    from matplotlib import colormaps

    traced = [point for point in shown if point.metrics.schedule == TRACED]
    counts = sorted({point.metrics.subsequences for point in traced})
    labels = []
    for index, count in enumerate(counts):
        line = sorted((p for p in traced if p.metrics.subsequences == count), key=lambda p: p.in_flight or 0)
        x, y = _place(frontier, line)
        colour = colormaps["Blues"](0.35 + 0.6 * (index + 1) / len(counts))
        axes.plot(x, y, "o-", color=colour, markersize=5, linewidth=1.4, zorder=3, label=f"{TRACED} k={count}")
        labels += [
            _Label(f"{p.in_flight:g}", across, up, (0, 5), colour) for p, across, up in zip(line, x, y, strict=True)
        ]
    return labels


def _draw_others(axes: Axes, frontier: Frontier, shown: Sequence[FrontierPoint]) -> list[_Label]:
    """A colour and shape a schedule, joined and labelled with k where it cuts sequences; rings where it does not,
    so that what lies beneath stays visible."""
    others = [point for point in shown if point.metrics.schedule != TRACED]
    labels = []
    for index, name in enumerate(dict.fromkeys(point.metrics.schedule for point in others)):
        mine = [point for point in others if point.metrics.schedule == name]
        x, y = _place(frontier, mine)
        colour = _COLOURS[index % len(_COLOURS)]
        marker = _MARKERS[(index + index // len(_COLOURS)) % len(_MARKERS)]
        cut = len({point.metrics.subsequences for point in mine}) > 1
        axes.plot(
            x, y, marker=marker, color=colour, linestyle=":" if cut else "none", linewidth=1,
            markersize=6 if cut else 10, markerfacecolor=colour if cut else "none", markeredgewidth=0.5 if cut else 1.6,
            zorder=4 if cut else 5, label=name,
        )  # fmt: skip
        if cut:
            labels += [
                _Label(f"k={point.metrics.subsequences}", across, up, (6, -8), "#333333")
                for point, across, up in zip(mine, x, y, strict=True)
            ]
    return labels


def _write_where_there_is_room(axes: Axes, labels: Sequence[_Label]) -> None:
    """Writes the labels in order, leaving out those that would lie on another."""
    taken: list[tuple[float, float]] = []
    for label in labels:
        across, up = axes.transData.transform((label.x, label.y)) + _PIXELS_PER_POINT * np.array(label.offset)
        if any(abs(across - a) < _ROOM[0] and abs(up - u) < _ROOM[1] for a, u in taken):
            continue
        taken.append((across, up))
        axes.annotate(
            label.text, (label.x, label.y), label.offset, textcoords="offset points", fontsize=7, color=label.colour
        )


def _draw_limit(axes: Axes, frontier: Frontier) -> None:
    limit = frontier.points[0].metrics.memory_limit_bytes
    if limit is not None:
        axes.axvline(
            limit / GIB,
            color=_GREY,
            linestyle="--",
            linewidth=1,
            zorder=2,
            label=f"memory of the GPU, {limit / GIB:.0f} GiB",
        )


def _label(axes: Axes, frontier: Frontier) -> None:
    unit = frontier.points[0].metrics.unit
    held = "weights and activations, GiB" if frontier.in_bytes else "activations, micro-batches in flight"
    axes.set_xlabel(f"peak memory of the fullest device ({held})")
    axes.set_ylabel(f"step time ({'seconds' if unit == 's' else 'units'})")
    axes.grid(visible=True, color="#E5E5E5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False,
                title=f"{TRACED}: each point\nat its in-flight limit", title_fontsize=8)  # fmt: skip
