"""One set of axes of a Gantt chart: lanes, boxes, phases, messages and numbers; knows no figure around it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.plot import style
from pipesim.plot.lanes import arrows, numbers, phases, pieces, times

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from pipesim.plot.lanes import Numbers
    from pipesim.timeline import Timeline

_BOX, _STRIP = 0.86, 0.1  # heights of boxes and phase strips, in lanes
_STRIP_FROM_INCHES = 0.2  # thinner lanes have ticks between the phases instead of strips
_GAP = 0.45  # between devices where several timelines share a panel, in lanes
_LABEL_INCHES = 0.13
_MOST_NUMBERS = 4000


@dataclass(frozen=True)
class Panel:
    """The timelines whose lanes it stacks device by device, their names, and its heading: name, shape, results."""

    timelines: tuple[Timeline, ...]
    names: tuple[str, ...]
    heading: tuple[str, str, str]

    @cached_property
    def devices(self) -> int:
        """Devices of each of its timelines."""
        return self.timelines[0].plan.shape.devices

    @property
    def pitch(self) -> float:
        """Lanes from one device to the next."""
        return len(self.timelines) + (_GAP if len(self.timelines) > 1 else 0)

    @property
    def lanes(self) -> float:
        """Height in lanes."""
        return (self.devices - 1) * self.pitch + len(self.timelines)

    def tops(self, which: int) -> NDArray[np.float64]:
        """[devices]: where the lanes of one of its timelines begin."""
        return np.arange(self.devices, dtype=np.float64) * self.pitch + float(which)


@dataclass(frozen=True)
class Scale:
    """What part of the step is shown, how long it is drawn and how high a lane is, in inches."""

    begin: float
    end: float
    inches: float
    lane: float

    @property
    def inches_of_unit(self) -> float:
        """Inches of a second or unit."""
        return self.inches / (self.end - self.begin)

    @property
    def has_strips(self) -> bool:
        """Whether lanes are high enough for phase strips."""
        return self.lane >= _STRIP_FROM_INCHES


def draw_panel(axes: Axes, panel: Panel, scale: Scale, *, transfers: bool) -> None:
    """Draws a panel's timelines, its heading and its device labels."""
    axes.set_xlim(scale.begin, scale.end + 0.004 * (scale.end - scale.begin))
    axes.set_ylim(panel.lanes, 0)
    for which, timeline in enumerate(panel.timelines):
        tops = panel.tops(which)
        _draw_ground(axes, timeline, tops)
        _draw_phases(axes, timeline, tops, scale)
        _draw_boxes(axes, timeline, tops, scale)
        _draw_synchronisation(axes, timeline, tops)
        if transfers:
            _draw_transfers(axes, timeline, tops)
        _draw_numbers(axes, timeline, tops, scale)
    _draw_heading(axes, panel)
    _label_devices(axes, panel, scale)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=style.GRID, linewidth=0.6)
    axes.set_axisbelow(True)


def _draw_ground(axes: Axes, timeline: Timeline, tops: NDArray[np.float64]) -> None:
    end = timeline.in_units(timeline.makespan_ns)
    for top in tops.tolist():
        axes.broken_barh([(0, end)], (top, _BOX), facecolors=style.IDLE, linewidth=0, zorder=0.5)


def _draw_phases(axes: Axes, timeline: Timeline, tops: NDArray[np.float64], scale: Scale) -> None:
    """A strip below the boxes of each lane, or ticks where the phases meet on lanes too thin for strips."""
    bounds = phases(timeline)
    if scale.has_strips:
        shades = [colour for _, colour in style.PHASES]
        for begins, top in zip(bounds, tops.tolist(), strict=True):
            spans = [(a, b - a) for a, b in pairwise(begins.tolist())]
            axes.broken_barh(spans, (top + _BOX, _STRIP), facecolors=shades, linewidth=0, zorder=1)
        return
    for column in (1, 2):
        axes.vlines(bounds[:, column], tops, tops + 1, colors=style.INK, linewidth=1.1, zorder=3)


def _draw_synchronisation(axes: Axes, timeline: Timeline, tops: NDArray[np.float64]) -> None:
    """Sums of gradients low in their lanes, over the ops they run beside; the optimizer as a box."""
    for kind in pieces(timeline):
        colour = style.SYNCHRONISATION[kind.what][1]
        columns = (tops[kind.device].tolist(), kind.start.tolist(), (kind.end - kind.start).tolist())
        for top, start, took in zip(*columns, strict=True):
            low = top + (1 - kind.share) * _BOX
            axes.broken_barh([(start, took)], (low, kind.share * _BOX), facecolors=colour, linewidth=0, zorder=2.5)


def _draw_boxes(axes: Axes, timeline: Timeline, tops: NDArray[np.float64], scale: Scale) -> None:
    from matplotlib.collections import PolyCollection

    start, end = times(timeline)
    seen = np.flatnonzero((end > scale.begin) & (start < scale.end) & (end > start))
    if not len(seen):
        return
    left, right = start[seen], end[seen]
    top = tops[timeline.plan.device[seen]]
    x = np.stack([left, left, right, right], axis=1)
    y = np.stack([top, top + _BOX, top + _BOX, top], axis=1)
    pixels = float(np.median(right - left)) * scale.inches_of_unit * style.DPI
    # White borders tell neighbours apart where there is room for them; on thin boxes they would hide the colour.
    border = 0.7 if pixels > 12 else 0.3 if pixels > 5 else 0.0
    boxes = PolyCollection(
        list(np.stack([x, y], axis=2)),
        facecolors=style.colours(timeline.plan)[seen],
        edgecolors="white" if border else "face",
        linewidths=border or 0.1,
        zorder=2,
    )
    axes.add_collection(boxes, autolim=False)


def numbers_that_fit(timeline: Timeline, scale: Scale) -> Numbers | None:
    """The numbers to write into boxes at this scale, None where none would be readable."""
    return numbers(timeline, 72 * scale.inches_of_unit, 72 * scale.lane * _BOX, _MOST_NUMBERS)


def _draw_numbers(axes: Axes, timeline: Timeline, tops: NDArray[np.float64], scale: Scale) -> None:
    found = numbers_that_fit(timeline, scale)
    if found is None:
        return
    start, end = times(timeline)
    dark = style.luminance(style.colours(timeline.plan)) < style.DARK
    heights = tops[timeline.plan.device] + _BOX / 2
    for row, text in zip(found.rows.tolist(), found.texts, strict=True):
        if scale.begin <= start[row] and end[row] <= scale.end * (1 + 1e-9):
            axes.text(
                (start[row] + end[row]) / 2, heights[row], text, ha="center", va="center_baseline",
                fontsize=found.size, color="white" if dark[row] else style.INK, zorder=4, clip_on=True,
            )  # fmt: skip


def _draw_transfers(axes: Axes, timeline: Timeline, tops: NDArray[np.float64]) -> None:
    from matplotlib.collections import LineCollection

    devices, moments = arrows(timeline)
    if len(devices):
        lines = np.stack([moments, tops[devices] + _BOX / 2], axis=2)
        axes.add_collection(LineCollection(list(lines), colors=style.INK, linewidths=0.6, alpha=0.6, zorder=3))


def _draw_heading(axes: Axes, panel: Panel) -> None:
    name, shape, results = panel.heading
    title = axes.set_title(name, loc="left", fontsize=11, fontweight="bold", pad=5)
    beside: dict[str, Any] = {"xycoords": title, "textcoords": "offset points", "fontsize": 9, "color": style.QUIET}
    axes.annotate(shape, (1, 0), (8, 2.6), va="baseline", annotation_clip=False, **beside)
    axes.set_title(results, loc="right", fontsize=9, color=style.QUIET, pad=5)


def _label_devices(axes: Axes, panel: Panel, scale: Scale) -> None:
    needed = int(np.ceil(_LABEL_INCHES / (scale.lane * panel.pitch)))
    step = 1 << (needed - 1).bit_length()  # 1, 2, 4, 8, ...
    axes.set_ylabel("device")
    if len(panel.timelines) == 1 or scale.lane < _LABEL_INCHES:
        at = range(0, panel.devices, step)
        middle = (len(panel.timelines) - 1 + _BOX) / 2
        axes.set_yticks([device * panel.pitch + middle for device in at], [str(device) for device in at])
        return
    places = [top + _BOX / 2 for which in range(len(panel.names)) for top in panel.tops(which)]
    labels = [f"{name} {device}" for name in panel.names for device in range(panel.devices)]
    axes.set_yticks(places, labels, fontsize=8)
