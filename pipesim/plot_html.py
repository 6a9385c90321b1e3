"""Gantt charts as one HTML file that zooms in any browser; needs no network and no library."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim import plot_style as style
from pipesim.frame import labels
from pipesim.plan import Kind
from pipesim.plot_gantt import panels_of
from pipesim.plot_lanes import times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipesim.plot_panel import Panel
    from pipesim.timeline import Timeline


def gantt_page(
    timelines: Sequence[Timeline],
    *,
    window: tuple[float, float] | None = None,
    stacked: Sequence[str] | None = None,
) -> str:
    """The page for timelines below each other, or with their lanes stacked; it opens on the window or on all."""
    unit = "s" if timelines[0].costs.unit == "s" else "units"
    longest = max(timeline.in_units(timeline.makespan_ns) for timeline in timelines) or 1.0
    palette = _Palette()
    document = {
        "panels": [_panel(panel, palette) for panel in panels_of(timelines, stacked)],
        "colours": palette.colours,
        "dark": palette.dark,
        "words": palette.words,
        "legend": _legend(timelines),
        "unit": unit,
        "longest": longest,
        "window": list(window or (0.0, longest)),
        "caption": "; ".join(dict.fromkeys(timeline.costs.name for timeline in timelines)),
    }
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    # A "</script>" inside a text would end the block it stands in.
    page = (files("pipesim") / "plot_gantt.html").read_text(encoding="utf-8")
    return page.replace("__DATA__", text.replace("<", "\\u003c"))


class _Palette:
    """Colours met so far, each once with its words; boxes name them by number."""

    def __init__(self) -> None:
        self.colours: list[str] = []
        self.dark: list[bool] = []
        self.words: list[str] = []
        self._number: dict[tuple[str, str], int] = {}

    def numbers(self, timeline: Timeline) -> np.ndarray:
        """int64 [ops]: the number of each op's colour."""
        plan = timeline.plan
        rgb = style.colours(plan)
        cells = np.stack([plan.direction, plan.kind, plan.stage, plan.subsequence], axis=1)
        _, first, of_row = np.unique(cells, axis=0, return_index=True, return_inverse=True)
        known = [self._add(rgb[row], self._describe(timeline, row)) for row in first.tolist()]
        found: np.ndarray = np.array(known, dtype=np.int64)[of_row.reshape(-1)]
        return found

    def _describe(self, timeline: Timeline, row: int) -> str:
        plan = timeline.plan
        words = f"{style.KIND_NAMES[Kind(int(plan.kind[row]))]} of stage {plan.stage[row]}"
        if plan.placement.directions > 1:
            words += ", going up" if plan.direction[row] else ", going down"
        return words

    def _add(self, rgb: np.ndarray, words: str) -> int:
        colour = style.hex_of(rgb)
        if (colour, words) not in self._number:
            self._number[colour, words] = len(self.colours)
            self.colours.append(colour)
            self.dark.append(bool(style.luminance(rgb) < style.DARK))
            self.words.append(words)
        return self._number[colour, words]


def _panel(panel: Panel, palette: _Palette) -> dict[str, Any]:
    per_timeline = [
        _lanes(timeline, name, palette) for timeline, name in zip(panel.timelines, panel.names, strict=True)
    ]
    lanes = [lanes[device] for device in range(panel.devices) for lanes in per_timeline]
    makespan = max(timeline.in_units(timeline.makespan_ns) for timeline in panel.timelines)
    return {"heading": panel.heading, "lanes": lanes, "makespan": makespan}


def _lanes(timeline: Timeline, name: str, palette: _Palette) -> list[dict[str, Any]]:
    start, end = times(timeline)
    columns = {
        "start": np.round(start, 9).tolist(),
        "end": np.round(end, 9).tolist(),
        "colour": palette.numbers(timeline).tolist(),
        "label": labels(timeline),
        "number": [str(i) for i in timeline.plan.microbatch.tolist()],
    }
    offsets = timeline.plan.offsets.tolist()
    return [
        {"name": f"{name} {device}".strip()}
        | {key: column[offsets[device] : offsets[device + 1]] for key, column in columns.items()}
        for device in range(timeline.plan.shape.devices)
    ]


def _legend(timelines: Sequence[Timeline]) -> list[tuple[str, str]]:
    return [*style.legend_entries([timeline.plan for timeline in timelines]), ("idle", style.IDLE)]
