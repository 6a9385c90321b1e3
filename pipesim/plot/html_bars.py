"""The bars of Gantt pages as plotly reads them: idle time, phases, ops; knows no figure around them."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pipesim.frame import labels
from pipesim.plan import Kind
from pipesim.plot import style
from pipesim.plot.lanes import phases, pieces, times
from pipesim.report.words import time_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pipesim.timeline import Timeline

BOX, _STRIP = 0.86, 0.1  # heights of boxes and phase strips, in lanes
_STRIP_FROM = 20.0  # pixels of a lane


class Part(NamedTuple):
    """What of the step the page holds, in seconds or units, and how its boxes are drawn; border and lane in pixels."""

    begin: float
    end: float
    numbered: bool
    border: float
    lane: float

    @property
    def has_strips(self) -> bool:
        """Whether lanes are high enough for phase strips."""
        return self.lane >= _STRIP_FROM


def bars_of(timeline: Timeline, name: str, tops: NDArray[np.float64], part: Part) -> list[dict[str, Any]]:
    """The bar traces of a timeline whose lanes begin at `tops` [devices]; `name` tells it from those beside it."""
    bars = [_ground(timeline, tops, part), *(_strips(timeline, tops, part) if part.has_strips else ())]
    bars += _boxes(timeline, name, tops, part)
    bars += _synchronisation(timeline, name, tops, part)
    return [{"type": "bar", "orientation": "h", "showlegend": False} | bar for bar in bars]


def _ground(timeline: Timeline, tops: NDArray[np.float64], part: Part) -> dict[str, Any]:
    """Idle time: a box over each whole lane, below the others."""
    end = min(timeline.in_units(timeline.makespan_ns), part.end)
    return _bar(tops, BOX, np.full(len(tops), part.begin), np.full(len(tops), end)) | {
        "marker": {"color": style.IDLE, "line": {"width": 0}},
        "legendgroup": "idle",
        "hoverinfo": "skip",
    }


def _strips(timeline: Timeline, tops: NDArray[np.float64], part: Part) -> list[dict[str, Any]]:
    """The phases of each device, a thin box each below its ops."""
    bounds = np.clip(phases(timeline), part.begin, part.end)
    return [
        _bar(tops + BOX, _STRIP, bounds[:, column], bounds[:, column + 1])
        | {"marker": {"color": colour, "line": {"width": 0}}, "legendgroup": name, "hoverinfo": "skip"}
        for column, (name, colour) in enumerate(style.PHASES)
    ]


def _boxes(timeline: Timeline, name: str, tops: NDArray[np.float64], part: Part) -> list[dict[str, Any]]:
    """The ops of a timeline, a bar trace for each colour."""
    plan = timeline.plan
    start, end = times(timeline)
    places = style.stage_places(plan)[plan.direction, plan.stage]
    alike = np.stack([plan.direction, plan.kind, places, plan.subsequence], axis=1)
    seen = np.flatnonzero((end > part.begin) & (start < part.end) & (end > start))
    _, which = np.unique(alike[seen], axis=0, return_inverse=True)
    by_colour = np.split(seen[np.argsort(which.reshape(-1), kind="stable")], np.cumsum(np.bincount(which.reshape(-1))))
    names = np.array(labels(timeline), dtype=object)
    colours = style.colours(plan)
    traces = []
    for rows in by_colour[:-1]:
        device = plan.device[rows]
        trace = _bar(tops[device], BOX, start[rows], end[rows]) | _look(timeline, rows, colours[rows[0]], part)
        trace["customdata"] = _facts(timeline, device, start[rows], end[rows])
        trace["hovertext"] = names[rows].tolist()
        trace["hovertemplate"] = _hover_text(timeline, int(rows[0]), name)
        traces.append(trace)
    return traces


def _synchronisation(timeline: Timeline, name: str, tops: NDArray[np.float64], part: Part) -> list[dict[str, Any]]:
    """Sums of gradients low in their lanes, the optimizer as a box, a bar trace for each kind."""
    traces = []
    for kind in pieces(timeline):
        words, colour = style.SYNCHRONISATION[kind.what]
        seen = kind.start < part.end
        device, start, end = kind.device[seen], kind.start[seen], kind.end[seen]
        trace = _bar(tops[device] + (1 - kind.share) * BOX, kind.share * BOX, start, end)
        trace |= {"marker": {"color": colour, "line": {"width": 0}}, "legendgroup": words}
        trace["customdata"] = _facts(timeline, device, start, end)
        trace["hovertemplate"] = _hover_lines(timeline, f"<b>{words}</b>", name)
        traces.append(trace)
    return traces


def _bar(
    tops: NDArray[np.float64], height: float, start: NDArray[np.float64], end: NDArray[np.float64]
) -> dict[str, Any]:
    return {"base": start, "x": end - start, "y": tops + height / 2, "width": height}


def _look(timeline: Timeline, rows: NDArray[np.int64], rgb: NDArray[np.float64], part: Part) -> dict[str, Any]:
    """Colour, border and numbers of ops that have one colour."""
    plan = timeline.plan
    line = {"color": "white", "width": part.border}
    found: dict[str, Any] = {
        "marker": {"color": style.hex_of(rgb), "line": line},
        "legendgroup": _legend_name(timeline, int(rows[0])),
    }
    if part.numbered:
        texts = [str(i) for i in plan.microbatch[rows].tolist()]
        if plan.shape.subsequences > 1:
            texts = [f"{i}.{plan.subsequence[rows[0]]}" for i in texts]
        ink = "white" if style.luminance(rgb) < style.DARK else style.INK
        found |= {"text": texts, "textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
        found["insidetextfont"] = {"color": ink, "size": min(12.0, 0.6 * part.lane)}
    return found


def _legend_name(timeline: Timeline, row: int) -> str:
    plan = timeline.plan
    return style.legend_name(Kind(int(plan.kind[row])), int(plan.direction[row]), plan.placement.directions)


def _facts(
    timeline: Timeline, device: NDArray[np.integer], start: NDArray[np.float64], end: NDArray[np.float64]
) -> list[list[int | str]]:
    """Device, start, end and duration of ops as a hover shows them, moments as precise as they are known."""
    unit = timeline.costs.unit
    form = "{:.12g} s" if unit == "s" else "{:.7g}"
    return [
        [lane, form.format(a), form.format(b), time_text(b - a, unit)]
        for lane, a, b in zip(device.tolist(), start.tolist(), end.tolist(), strict=True)
    ]


def _hover_text(timeline: Timeline, row: int, name: str) -> str:
    """What plotly shows at a box, filled in from its hovertext and customdata."""
    return _hover_lines(timeline, f"<b>%{{hovertext}}</b>  {_legend_name(timeline, row)}", name)


def _hover_lines(timeline: Timeline, heading: str, name: str) -> str:
    unit = "" if timeline.costs.unit == "s" else " units"
    moments = [f"{word} %{{customdata[{at}]}}{unit}" for at, word in enumerate(("start", "end", "duration"), 1)]
    device = f"{escape(name)} device %{{customdata[0]}}".strip()
    return "<br>".join([heading, device, *moments]) + "<extra></extra>"
