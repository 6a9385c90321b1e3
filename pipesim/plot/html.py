"""Gantt charts as one HTML page to zoom in a browser, drawn by plotly; needs no network."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.errors import DependencyMissing
from pipesim.plot import style
from pipesim.plot.gantt import caption, panels_of, synchronisation_entries
from pipesim.plot.html_bars import BOX, Part, bars_of
from pipesim.plot.lanes import times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipesim.plot.panel import Panel
    from pipesim.timeline import Timeline

# A browser redraws every box of the page at each zoom: 20,000 take about a second, 100,000 more than ten.
MOST_BOXES = 20_000
_MOST_NUMBERS = 2000  # numbers cost far more than boxes
# Pixels.
_LANES_ROOM, _LANE_LIMITS, _LABEL = 560, (9.0, 36.0), 14.0
_TITLE, _BOTTOM, _LEGEND_ROW, _LEGEND_COLUMNS = 40, 116, 20, 10
_TYPICAL_WIDTH, _BORDERS = 1250, ((0.6, 4.0, 12.0), (0.0, 0.25, 0.7))  # width of the border by width of a box
_FONTS = f"{style.FONT}, Helvetica, Arial, sans-serif"
_HINT = "wheel: zoom · drag: move · double click: all · click or double click in the legend: hide, or show alone"
_CONFIG = {
    "scrollZoom": True,
    "displaylogo": False,
    "responsive": True,
    # Named one by one: by default there is one that sends the page to plotly's server.
    "modeBarButtons": [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]],
}
_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>pipesim</title></head>
<body>
{}
</body>
</html>
"""


def gantt_page(
    timelines: Sequence[Timeline],
    *,
    window: tuple[float, float] | None = None,
    stacked: Sequence[str] | None = None,
) -> str:
    """The page for timelines below each other on one time axis, or with their lanes stacked as in `gantt_figure`.

    It opens on the window, or on all. Of more than MOST_BOXES ops it holds only the first (of the window) and says
    so. Raises DependencyMissing where plotly is not installed.
    """
    try:
        from plotly.subplots import make_subplots
    except ImportError:
        raise DependencyMissing("HTML pages need plotly: pip install 'pipesim[html]', or write .png or .svg") from None
    panels = panels_of(timelines, stacked)
    part = _part(timelines, window, sum(panel.lanes for panel in panels))
    heights = [panel.lanes * part.lane for panel in panels]
    inner = sum(heights) + _TITLE * (len(panels) - 1)
    figure = make_subplots(
        rows=len(panels), shared_xaxes=True, row_heights=heights, vertical_spacing=_TITLE / inner if panels[1:] else 0
    )
    for row, panel in enumerate(panels, 1):
        _draw_panel(figure, panel, row, part)
    entries = _legend_entries(timelines, part)
    _draw_legend(figure, entries)
    _draw_time_axis(figure, timelines, part, window)
    _lay_out(figure, caption(timelines, part.begin, part.end, numbered=part.numbered), inner, len(entries))
    return _PAGE.format(figure.to_html(_CONFIG, include_plotlyjs=True, full_html=False, div_id="gantt"))


def _part(timelines: Sequence[Timeline], window: tuple[float, float] | None, lanes: float) -> Part:
    longest = max(timeline.in_units(timeline.makespan_ns) for timeline in timelines) or 1.0
    starts, ends = (np.concatenate(column) for column in zip(*map(times, timelines), strict=True))
    begin, end = 0.0, max(longest, window[1] if window else 0.0)
    if len(starts) > MOST_BOXES:
        begin, end = window or (begin, end)
        inside = np.sort(starts[(ends > begin) & (starts < end)])
        end = float(inside[MOST_BOXES]) if len(inside) > MOST_BOXES else end
    boxes = int(np.count_nonzero((ends > begin) & (starts < end)))
    opens_on = min(window[1], end) - window[0] if window else end - begin
    pixels = float(np.median(ends - starts)) / opens_on * _TYPICAL_WIDTH if len(starts) else 0.0
    lane = float(np.clip(_LANES_ROOM / lanes, *_LANE_LIMITS))
    return Part(begin, end, numbered=boxes <= _MOST_NUMBERS, border=float(np.interp(pixels, *_BORDERS)), lane=lane)


def _draw_panel(figure: Any, panel: Panel, row: int, part: Part) -> None:
    bars = []
    for which, (timeline, name) in enumerate(zip(panel.timelines, panel.names, strict=True)):
        bars += bars_of(timeline, name, panel.tops(which), part)
    figure.add_traces(bars, row, 1)
    places, words = _device_labels(panel, part.lane)
    figure.update_yaxes(
        title="device", range=(panel.lanes, 0), fixedrange=True, tickvals=places, ticktext=words,
        showgrid=False, zeroline=False, automargin=True, row=row,
    )  # fmt: skip
    name, shape, results = map(escape, panel.heading)
    quiet = f'<span style="font-size:12px;color:{style.QUIET}">'
    for text, x, anchor in (
        (f"<b>{name}</b>  {quiet}{shape}</span>", 0, "left"),
        (f"{quiet}{results}</span>", 1, "right"),
    ):
        figure.add_annotation(
            text=text, x=x, xref="x domain", xanchor=anchor, y=1, yref="y domain", yanchor="bottom",
            font_size=15, showarrow=False, row=row, col=1,
        )  # fmt: skip


def _device_labels(panel: Panel, lane: float) -> tuple[list[float], list[str]]:
    """Places and words of the ticks: every lane by name where timelines are stacked and there is room, else devices."""
    if len(panel.timelines) > 1 and lane >= _LABEL:
        named = list(enumerate(panel.names))
        places = [top + BOX / 2 for which, _ in named for top in panel.tops(which).tolist()]
        return places, [f"{escape(name)} {device}" for _, name in named for device in range(panel.devices)]
    needed = int(np.ceil(_LABEL / (lane * panel.pitch)))
    at = range(0, panel.devices, 1 << (needed - 1).bit_length())  # every one, every second, fourth, ...
    middle = (len(panel.timelines) - 1 + BOX) / 2
    return [device * panel.pitch + middle for device in at], [str(device) for device in at]


def _legend_entries(timelines: Sequence[Timeline], part: Part) -> list[tuple[str, str]]:
    kinds = style.legend_entries([timeline.plan for timeline in timelines])
    kinds += synchronisation_entries(timelines)
    return [*kinds, ("idle", style.IDLE), *(style.PHASES if part.has_strips else ())]


def _draw_legend(figure: Any, entries: Sequence[tuple[str, str]]) -> None:
    """Empty bars that stand for all bars of their group."""
    for name, colour in entries:
        marker = {"color": colour, "line": {"color": style.GRID, "width": 0.5}}
        figure.add_bar(x=[None], y=[None], name=name, legendgroup=name, marker=marker, orientation="h")


def _draw_time_axis(figure: Any, timelines: Sequence[Timeline], part: Part, window: tuple[float, float] | None) -> None:
    room = 0.005 * (part.end - part.begin)
    begin, end = window or (part.begin, part.end + room)
    figure.update_xaxes(
        range=(begin, min(end, part.end + room)), minallowed=part.begin - room, maxallowed=part.end + room,
        gridcolor=style.GRID, zeroline=False, exponentformat="none",
    )  # fmt: skip
    lowest = list(figure.select_xaxes())[-1]
    lowest.title = f"time ({'s' if timelines[0].costs.unit == 's' else 'units'})"


def _lay_out(figure: Any, words: str, inner: float, entries: int) -> None:
    """Sizes, legend and caption; `inner` is the height of all panels with the titles between them, in pixels."""
    bottom = _BOTTOM + _LEGEND_ROW * ((entries - 1) // _LEGEND_COLUMNS)
    figure.update_layout(
        barmode="overlay", dragmode="pan", hovermode="closest", plot_bgcolor="white", paper_bgcolor="white",
        height=inner + _TITLE + bottom, margin={"l": 60, "r": 24, "t": _TITLE, "b": bottom},
        font={"family": _FONTS, "size": 12, "color": style.INK},
        hoverlabel_font={"family": _FONTS, "size": 12}, uniformtext={"mode": "hide", "minsize": 9},
        legend={"orientation": "h", "x": 0, "y": -46 / inner, "yanchor": "top", "traceorder": "normal"},
    )  # fmt: skip
    figure.add_annotation(
        text=f"{escape(words)}<br>{_HINT}", x=0, xref="paper", xanchor="left", y=0, yref="paper", yanchor="bottom",
        yshift=6 - bottom, align="left", font={"size": 11, "color": style.QUIET}, showarrow=False,
    )  # fmt: skip
