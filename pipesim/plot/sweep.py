"""Draws a sweep as small multiples: time, bubble and memory over what was swept, one line a schedule.

What tunes a schedule (k, v, variant, ...) is not drawn: each point is the fastest of its choices that fits, or the
smallest where none fits, which is then marked. What sets the task (model, micro-batches, ...) has a row each.
"""

from __future__ import annotations

import math
from numbers import Integral
from typing import TYPE_CHECKING, NamedTuple

from pipesim.plot.style import DPI, GRID, INK, LIMIT, QUIET
from pipesim.sweep.point import INPUTS
from pipesim.units import GIB, format_count

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
    from pandas import DataFrame, Series

_AXES = {
    "seq_len": "sequence length",
    "devices": "devices p",
    "microbatches": "micro-batches m",
    "subsequences": "subsequences k",
    "stages_per_device": "stages per device v",
    "tp": "tensor parallelism tp",
    "dp": "data parallelism dp",
    "micro_batch_size": "sequences a micro-batch",
}
_TUNED = ("subsequences", "stages_per_device", "in_flight", "memory_limit_bytes", "variant", "partition", "recompute")
_MOST_ROWS = 6
# Okabe and Ito's colours, told apart with every common kind of colour blindness; shapes tell them apart in grey.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


class _Panel(NamedTuple):
    column: str
    title: str
    scale: float


def schedule_style(index: int) -> dict[str, str]:
    """Colour and shape of the schedule at a place in the legend; together they repeat after 56."""
    times_round, place = divmod(index, len(_COLOURS))
    return {"color": _COLOURS[place], "marker": _MARKERS[(place + times_round) % len(_MARKERS)]}


def save_sweep(table: DataFrame, path: Path) -> None:
    """Draws a table of `sweep`; the ending of `path` decides the format (.png, .svg, .pdf)."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D as Line

    x = _swept(table)
    tasks, left_out = _tasks(table, x)
    panels, schedules = _panels(table), list(dict.fromkeys(table["schedule"]))
    figure = Figure(figsize=(11, 0.9 + 2.7 * len(tasks)), dpi=DPI, layout="constrained")
    grid = figure.subplots(len(tasks), len(panels), squeeze=False, sharex=True)
    for row, (name, task) in zip(grid, tasks, strict=True):
        for axes, panel in zip(row, panels, strict=True):
            _draw(axes, task, x, panel, schedules)
        row[0].set_title(name, fontsize=9, color=QUIET, loc="left")
    for axes, panel in zip(grid[0], panels, strict=True):
        axes.annotate(panel.title, (0.5, 1.12), xycoords="axes fraction", ha="center", fontsize=10, color=INK)
    for axes in grid[-1]:
        axes.set_xlabel(_AXES.get(x, x), fontsize=9)
    handles = [Line([], [], markersize=5, label=s, **schedule_style(i)) for i, s in enumerate(schedules)]  # type: ignore[arg-type]
    handles += _marks(table)
    figure.legend(handles=handles, loc="outside lower center", ncols=min(5, len(handles)), fontsize=8, frameon=False)
    figure.suptitle(_caption(table, x, left_out), fontsize=8, color=QUIET, x=0.01, ha="left")
    figure.savefig(path)


def _swept(table: DataFrame) -> str:
    varied = [name for name in _AXES if table[name].nunique() > 1]
    return varied[0] if varied else "devices"


def _tasks(table: DataFrame, x: str) -> tuple[list[tuple[str, DataFrame]], int]:
    """Each task with its name, and how many there was no room for."""
    others = [name for name in INPUTS if name not in (x, "schedule", *_TUNED)]
    # What follows from the place on the axis (such as m = 2p) is no task of its own.
    columns = [name for name in others if table.groupby(x)[name].nunique(dropna=False).max() > 1]
    if not columns:
        return [("", table)], 0
    groups = []
    for key, group in table.groupby(columns, dropna=False, sort=False):
        named = zip(columns, key, strict=True)
        groups.append((", ".join(f"{name.replace('_', ' ')} {_short(value)}" for name, value in named), group))
    return groups[:_MOST_ROWS], max(0, len(groups) - _MOST_ROWS)


def _short(value: object) -> str:
    return format_count(int(value)) if isinstance(value, Integral) and int(value) >= 1024 else str(value)


def _panels(table: DataFrame) -> list[_Panel]:
    unit = "units" if table["unit_costs"].notna().any() else "s"
    memory = _Panel("peak_memory_bytes", "peak memory of a device (GiB)", 1 / GIB)
    if not table["peak_memory_bytes"].fillna(0).any():
        memory = _Panel("peak_in_flight", "peak in flight (micro-batches)", 1)
    return [
        _Panel("makespan_seconds", f"time of a step ({unit})", 1),
        _Panel("bubble_fraction", "bubble (% of device time)", 100),
        memory,
    ]


def _draw(axes: Axes, task: DataFrame, x: str, panel: _Panel, schedules: Sequence[str]) -> None:
    for index, schedule in enumerate(schedules):
        chosen = _chosen(task[task["schedule"] == schedule], x)
        if chosen:
            style = schedule_style(index)
            across = [int(row[x]) for row in chosen]
            up = [float(row[panel.column]) * panel.scale for row in chosen]
            axes.plot(across, up, linewidth=1.3, markersize=4, **style)  # type: ignore[arg-type]
            bad = [place for place, row in enumerate(chosen) if row["fits"] is False]
            axes.plot([across[b] for b in bad], [up[b] for b in bad], "x", color=LIMIT, markersize=7, zorder=5)
    _draw_failures(axes, task, x)
    _tidy(axes, task, x, log=panel.column != "bubble_fraction")
    if panel.column == "peak_memory_bytes":
        for limit in task["device_memory_bytes"].dropna().unique():
            axes.axhline(int(limit) / GIB, color=LIMIT, linewidth=0.9, linestyle="--")


def _chosen(rows: DataFrame, x: str) -> list[Series]:
    """For each place on the axis the fastest that fits, else the one that needs least memory."""
    found = []
    for _, here in rows[rows["makespan_seconds"].notna()].groupby(x, sort=True):
        fitting = here[here["fits"].fillna(value=True).astype(bool)]
        best = fitting["makespan_seconds"].argmin() if len(fitting) else here["peak_memory_bytes"].argmin()
        row = (fitting if len(fitting) else here).iloc[int(best)].copy()
        row["fits"] = bool(len(fitting))
        found.append(row)
    return found


def _draw_failures(axes: Axes, task: DataFrame, x: str) -> None:
    """Places on the axis where a schedule has no point at all, by a tick on the axis."""
    alive = task[task["makespan_seconds"].notna()].groupby("schedule")[x].agg(set).to_dict()
    pairs = {(schedule, place) for schedule, place in zip(task["schedule"], task[x], strict=True)}
    dead = sorted({int(place) for schedule, place in pairs if place not in alive.get(schedule, set())})
    axes.plot(dead, [0.02] * len(dead), "|", color=LIMIT, markersize=9, transform=axes.get_xaxis_transform())


def _tidy(axes: Axes, task: DataFrame, x: str, *, log: bool) -> None:
    places = sorted({int(place) for place in task[x]})
    if places[-1] >= 4 * places[0]:
        axes.set_xscale("log", base=2)
    axes.set_xticks(places, [_short(place) for place in places])
    axes.minorticks_off()
    low, high = axes.dataLim.intervaly
    if log and 0 < 10 * low < high < math.inf:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _marks(table: DataFrame) -> list[Line2D]:
    from matplotlib.lines import Line2D as Line

    marks = []
    if (table["fits"] == False).any():  # noqa: E712  (a nullable column: absent is neither)
        marks.append(Line([], [], color=LIMIT, marker="x", linestyle="none", markersize=7, label="does not fit"))
    if table["failure"].notna().any():
        marks.append(Line([], [], color=LIMIT, marker="|", linestyle="none", markersize=8, label="failed"))
    return marks


def _caption(table: DataFrame, x: str, left_out: int) -> str:
    parts = [str(table["unit_costs"].iloc[0] if table["unit_costs"].notna().any() else _setting(table))]
    tuned = [n.replace("_", " ") for n in _TUNED if n != x and table[n].nunique() > 1]
    parts += [f"each point the fastest that fits of its {', '.join(tuned)}"] if tuned else []
    parts += [f"{left_out} more rows are not drawn"] if left_out else []
    return "; ".join(parts)


def _setting(table: DataFrame) -> str:
    names = [n for n in ("model", "cluster", "tp", "dp", "recompute") if table[n].nunique() == 1]
    return ", ".join(f"{table[n].iloc[0]}" if n in ("model", "cluster") else f"{n} {table[n].iloc[0]}" for n in names)
