"""Gantt charts as matplotlib figures: panels below each other on one time axis, a legend and a caption."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.metrics import measure
from pipesim.plot import style
from pipesim.plot.lanes import pieces
from pipesim.plot.panel import Panel, Scale, draw_panel, numbers_that_fit
from pipesim.report.words import percent, shape_text, time_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from pipesim.timeline import Timeline

# Inches.
_WIDTH, _LEFT, _LEFT_STACKED, _RIGHT, _TOP, _TITLE, _BOTTOM = 13.0, 0.62, 1.15, 0.22, 0.1, 0.36, 0.98
_LANE_ROOM, _PANEL_ROOM, _LANE_LIMITS = 7.2, 1.7, (0.105, 0.36)
_LEGEND_ROW, _LEGEND_COLUMNS = 0.22, 10
_SMALLEST_BOX = 2.0  # pixels of a typical op, below which only the first part of a step is drawn


def gantt_figure(
    timelines: Sequence[Timeline],
    *,
    window: tuple[float, float] | None = None,
    transfers: bool = False,
    stacked: Sequence[str] | None = None,
) -> Figure:
    """A figure of timelines below each other on one time axis, in seconds or units.

    window: the part of the step to draw; by default all of it, or its first part where boxes would be too thin to
    see. transfers: draw each message as a thin line. stacked: names of the timelines, to put their lanes for each
    device directly above each other, such as ("predicted", "measured"); they must have the same devices.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    panels = panels_of(timelines, stacked)
    left = _LEFT_STACKED if stacked else _LEFT
    room = max(_LANE_ROOM, _PANEL_ROOM * len(panels))
    lane = float(np.clip(room / sum(panel.lanes for panel in panels), *_LANE_LIMITS))
    scale = Scale(*(window or _visible_window(timelines)), _WIDTH - left - _RIGHT, lane)
    handles = _legend_handles(timelines, scale)
    rows = -(-len(handles) // _LEGEND_COLUMNS)
    bottom = _BOTTOM + _LEGEND_ROW * (rows - 1)
    heights = [panel.lanes * lane for panel in panels]
    height = _TOP + sum(heights) + _TITLE * len(panels) + bottom
    with rc_context(rc_settings()):
        figure = Figure(figsize=(_WIDTH, height), dpi=style.DPI, facecolor="white")
        top = height - _TOP
        for panel, tall in zip(panels, heights, strict=True):
            top -= _TITLE + tall
            axes = figure.add_axes((left / _WIDTH, top / height, scale.inches / _WIDTH, tall / height))
            draw_panel(axes, panel, scale, transfers=transfers)
            axes.tick_params(labelbottom=panel is panels[-1])
        figure.axes[-1].set_xlabel(f"time ({'s' if timelines[0].costs.unit == 's' else 'units'})")
        _draw_legend(figure, handles, left, height)
        figure.text(left / _WIDTH, 0.1 / height, _caption(timelines, scale), fontsize=8, color=style.QUIET)
    return figure


def _draw_legend(figure: Figure, handles: list[Any], left: float, height: float) -> None:
    """Above the caption; left, height: of the axes and of the figure, in inches."""
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=((left - 0.06) / _WIDTH, 0.24 / height),
        ncols=min(len(handles), _LEGEND_COLUMNS), frameon=False, fontsize=8.5, handlelength=1.3,
        handleheight=1.0, columnspacing=1.5, borderpad=0,
    )  # fmt: skip


def rc_settings() -> Any:
    """What every figure sets: fonts and colours, and SVG files that come out the same each time."""
    return {
        "font.family": style.FONT,
        "font.size": 9,
        "text.color": style.INK,
        "axes.labelcolor": style.INK,
        "axes.edgecolor": style.QUIET,
        "xtick.color": style.QUIET,
        "ytick.color": style.QUIET,
        "svg.hashsalt": "pipesim",
    }


def panels_of(timelines: Sequence[Timeline], stacked: Sequence[str] | None = None) -> list[Panel]:
    """A panel per timeline, or one in which they are stacked under the given names."""
    if stacked:
        return _stacked_panel(timelines, stacked)
    panels = []
    for timeline in timelines:
        found = measure(timeline)
        bubble = f"bubble {percent(found.bubble_fraction)} of the time, {percent(found.bubble_over_ideal)} over ideal"
        heading = (found.schedule, shape_text(found), f"{_took(timeline)}  ·  {bubble}")
        panels.append(Panel((timeline,), ("",), heading))
    return panels


def _stacked_panel(timelines: Sequence[Timeline], names: Sequence[str]) -> list[Panel]:
    found = measure(timelines[0])
    results = [f"{name} {_took(timeline)}" for name, timeline in zip(names, timelines, strict=True)]
    for i, timeline in enumerate(timelines[1:], 1):
        if timelines[0].makespan_ns:
            results[i] += f" ({_relative(timeline, timelines[0]):+.1%})"
    return [Panel(tuple(timelines), tuple(names), (found.schedule, shape_text(found), "  ·  ".join(results)))]


def _relative(timeline: Timeline, base: Timeline) -> float:
    return timeline.in_units(timeline.makespan_ns) / base.in_units(base.makespan_ns) - 1


def _took(timeline: Timeline) -> str:
    unit = timeline.costs.unit
    return time_text(timeline.in_units(timeline.makespan_ns), unit) + (" units" if unit != "s" else "")


def _visible_window(timelines: Sequence[Timeline]) -> tuple[float, float]:
    """All of the longest step, or as much of it as keeps a typical op of each timeline wide enough to see."""
    longest = max(timeline.in_units(timeline.makespan_ns) for timeline in timelines)
    pixels = (_WIDTH - _LEFT - _RIGHT) * style.DPI
    typical = min(
        float(np.median((timeline.end_ns - timeline.start_ns) / timeline.unit_ns)) if len(timeline.plan) else longest
        for timeline in timelines
    )
    widest = typical * pixels / _SMALLEST_BOX
    return (0.0, min(longest, widest) if widest else longest) if longest else (0.0, 1.0)


def _caption(timelines: Sequence[Timeline], scale: Scale) -> str:
    numbered = any(numbers_that_fit(timeline, scale) for timeline in timelines)
    return caption(timelines, scale.begin, scale.end, numbered=numbered)


def caption(timelines: Sequence[Timeline], begin: float, end: float, *, numbered: bool) -> str:
    """The costs, what part of the step is shown where it is not all, and what numbers and shades mean."""
    parts = ["; ".join(dict.fromkeys(timeline.costs.name for timeline in timelines))]
    longest = max(timeline.in_units(timeline.makespan_ns) for timeline in timelines)
    if begin > 0 or end < longest * (1 - 1e-9):
        shown = [time_text(value, timelines[0].costs.unit) for value in (begin, end, longest)]
        parts.append(f"only {shown[0]} to {shown[1]} of {shown[2]} is shown")
    shapes = [timeline.plan.shape for timeline in timelines]
    deeper = []
    if any(shape.stages_per_device > 1 for shape in shapes):
        deeper.append("later stages of a device")
    if any(shape.subsequences > 1 for shape in shapes):
        deeper.append("later subsequences")
    if numbered:
        parts.append("numbers are micro-batches")
    if deeper:
        parts.append(f"deeper shades are {', in them '.join(deeper)}")
    return "  ·  ".join(parts)


def synchronisation_entries(timelines: Sequence[Timeline]) -> list[tuple[str, str]]:
    """Name and colour of what follows the backwards, as far as any timeline has it."""
    there = {kind.what for timeline in timelines for kind in pieces(timeline)}
    return [entry for what, entry in style.SYNCHRONISATION.items() if what in there]


def _legend_handles(timelines: Sequence[Timeline], scale: Scale) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries = style.legend_entries([timeline.plan for timeline in timelines]) + synchronisation_entries(timelines)
    handles: list[Any] = [Patch(facecolor=colour, edgecolor="none", label=name) for name, colour in entries]
    handles.append(Patch(facecolor=style.IDLE, edgecolor=style.GRID, linewidth=0.5, label="idle"))
    if scale.has_strips:
        return handles + [Patch(facecolor=colour, edgecolor="none", label=name) for name, colour in style.PHASES]
    return [*handles, Line2D([], [], color=style.INK, linewidth=1.1, label="steady phase begins, ends")]
