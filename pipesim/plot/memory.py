"""What each device holds over time, as matplotlib figures: a panel a timeline, the fullest device filled in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.memory import in_flight, memory_of
from pipesim.plot import style
from pipesim.plot.gantt import rc_settings
from pipesim.report.words import shape_text_of, size_text, time_text
from pipesim.units import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pipesim.memory import Memory
    from pipesim.timeline import Timeline

_WIDTH, _LEFT, _RIGHT, _TOP, _TITLE, _BOTTOM = 11.0, 0.82, 0.25, 0.1, 0.38, 0.98  # inches
_PANEL_HEIGHTS = (3.0, 1.9, 1.6)  # inches, with one, two or more timelines
_MOST_LINES = 16  # devices that get a line of their own
_FILL, _STATIC_FILL, _PEAK = "#dbe7f3", "#d9d7cf", "#1d4d85"


@dataclass(frozen=True)
class _Held:
    """What a panel draws: bytes, or micro-batches in flight where costs have no bytes."""

    timeline: Timeline
    memory: Memory
    scale: float

    @property
    def in_bytes(self) -> bool:
        return self.scale == GIB

    @property
    def peak_device(self) -> int:
        return int((self.memory.peaks + self.memory.static_bytes).argmax())

    def curve(self, device: int) -> tuple[np.ndarray, np.ndarray]:
        """Times in seconds or units and what is held from each on, from the start of the step to its end."""
        times, held = self.memory.curve(device, self.timeline)
        begin, end = int(self.timeline.start_ns.min(initial=0)), int(self.timeline.end_ns.max(initial=0))
        static = int(self.memory.static_bytes[device])
        times = np.concatenate([[begin], times, [end]]) - begin
        held = np.concatenate([[static], held, [static]])
        # Between two ops that touch, what the first frees and the second adds is no dip of any length.
        last_of_moment = np.append(np.diff(times) > 0, True)
        times, held = times[last_of_moment], held[last_of_moment]
        return times / self.timeline.unit_ns, held / self.scale


def memory_figure(timelines: Sequence[Timeline], *, limit_bytes: int | None = None) -> Figure:
    """A panel per timeline on shared axes, in GiB over seconds or units, with the limit of a device's memory.

    Where costs have no bytes (unit costs) it shows micro-batches in flight instead.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    held = [_held(timeline) for timeline in timelines]
    limit = limit_bytes / GIB if limit_bytes is not None and held[0].in_bytes else None
    tall = _PANEL_HEIGHTS[min(len(held), len(_PANEL_HEIGHTS)) - 1]
    height = _TOP + (tall + _TITLE) * len(held) + _BOTTOM
    with rc_context(rc_settings()):
        figure = Figure(figsize=(_WIDTH, height), dpi=style.DPI, facecolor="white")
        for i, one in enumerate(held):
            bottom = height - _TOP - (tall + _TITLE) * (i + 1)
            place = (_LEFT / _WIDTH, bottom / height, (_WIDTH - _LEFT - _RIGHT) / _WIDTH, tall / height)
            axes = figure.add_axes(place)
            _draw(axes, one, limit)
            axes.tick_params(labelbottom=i == len(held) - 1)
        _share_axes(figure, held, limit)
        figure.axes[-1].set_xlabel(f"time ({'s' if timelines[0].costs.unit == 's' else 'units'})")
        figure.legend(
            handles=_legend_handles(held, limit), loc="lower left",
            bbox_to_anchor=((_LEFT - 0.06) / _WIDTH, 0.24 / height), ncols=6, frameon=False, fontsize=8.5,
            handlelength=1.5, columnspacing=1.5, borderpad=0,
        )  # fmt: skip
        caption = "; ".join(dict.fromkeys(timeline.costs.name for timeline in timelines))
        figure.text(_LEFT / _WIDTH, 0.1 / height, caption, fontsize=8, color=style.QUIET)
    return figure


def _held(timeline: Timeline) -> _Held:
    memory = memory_of(timeline.plan, timeline.costs)
    if memory.during.any() or memory.static_bytes.any():
        return _Held(timeline, memory, GIB)
    shape = timeline.plan.shape
    return _Held(timeline, in_flight(timeline.plan), shape.stages_per_device * shape.subsequences)


def _draw(axes: Axes, held: _Held, limit: float | None) -> None:
    from matplotlib.ticker import MaxNLocator

    peak = held.peak_device
    for device in _drawn_devices(held):
        if device != peak:
            colour = _line_colour(device, held)
            axes.step(*held.curve(device), where="post", color=colour, linewidth=0.8, alpha=0.75, zorder=2)
    times, amounts = held.curve(peak)
    static = float(held.memory.static_bytes[peak]) / held.scale
    axes.fill_between(times, static, amounts, step="post", color=_FILL, linewidth=0, zorder=1)
    axes.fill_between([times[0], times[-1]], 0, static, color=_STATIC_FILL, linewidth=0, zorder=1)
    axes.step(times, amounts, where="post", color=_PEAK, linewidth=1.8, zorder=3)
    if limit is not None:
        axes.axhline(limit, color=style.LIMIT, linewidth=1.3, linestyle=(0, (5, 3)), zorder=4)
    _mark_peak(axes, held, peak)
    title = axes.set_title(held.timeline.plan.schedule, loc="left", fontsize=11, fontweight="bold", pad=6)
    axes.annotate(
        shape_text_of(held.timeline.plan.shape), (1, 0), (8, 2.6), xycoords=title, textcoords="offset points",
        fontsize=9, color=style.QUIET, va="baseline", annotation_clip=False,
    )  # fmt: skip
    axes.set_ylabel("memory (GiB)" if held.in_bytes else "in flight\n(micro-batches)")
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color=style.GRID, linewidth=0.6)
    axes.set_axisbelow(True)


def _mark_peak(axes: Axes, held: _Held, device: int) -> None:
    row = int(held.memory.peak_rows[device])
    if row < 0:
        return
    amount = int(held.memory.peaks[device] + held.memory.static_bytes[device])
    at = (int(held.timeline.start_ns[row]) - int(held.timeline.start_ns.min())) / held.timeline.unit_ns
    words = size_text(amount) if held.in_bytes else f"{amount / held.scale:.4g} micro-batches"
    when = time_text(at, held.timeline.costs.unit)
    axes.plot([at], [amount / held.scale], "o", color=_PEAK, markersize=4.5, zorder=5)
    axes.set_title(f"peak {words}, on device {device} from {when}", loc="right", fontsize=9, color=style.QUIET, pad=6)


def _drawn_devices(held: _Held) -> list[int]:
    """All devices, or evenly chosen ones with the first and the last among them."""
    devices = held.timeline.plan.shape.devices
    return sorted({round(d) for d in np.linspace(0, devices - 1, min(devices, _MOST_LINES)).tolist()})


def _line_colour(device: int, held: _Held) -> tuple[float, float, float]:
    """From a dark first to a light last device."""
    part = device / max(1, held.timeline.plan.shape.devices - 1)
    first, last = np.array((0.33, 0.36, 0.40)), np.array((0.93, 0.60, 0.33))
    red, green, blue = (first + (last - first) * part).tolist()
    return red, green, blue


def _share_axes(figure: Figure, held: Sequence[_Held], limit: float | None) -> None:
    longest = max(one.timeline.in_units(one.timeline.makespan_ns) for one in held)
    highest = max(float((one.memory.peaks + one.memory.static_bytes).max()) / one.scale for one in held)
    for axes in figure.axes:
        axes.set_xlim(0, longest * 1.004 or 1)
        axes.set_ylim(0, max(highest, limit or 0) * 1.09 or 1)


def _legend_handles(held: Sequence[_Held], limit: float | None) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Line2D([], [], color=_PEAK, linewidth=1.8, label="device with the highest peak")]
    first = held[0]
    devices = first.timeline.plan.shape.devices
    for device in sorted({0, devices - 1}):
        colour = _line_colour(device, first)
        handles.append(Line2D([], [], color=colour, linewidth=1.2, label=f"device {device}"))
    if devices > 2:
        handles[-1].set_label(f"to device {devices - 1}")
    if any(one.memory.static_bytes.any() for one in held):
        handles.append(Patch(facecolor=_STATIC_FILL, label="its weights, gradients, optimizer"))
    handles.append(Patch(facecolor=_FILL, label="its activations" if first.in_bytes else "its micro-batches"))
    if limit is not None:
        label = f"memory of a device, {limit:.1f} GiB"
        handles.append(Line2D([], [], color=style.LIMIT, linewidth=1.3, linestyle=(0, (5, 3)), label=label))
    return handles
