"""A timeline as text: a row a device; for terminals and docstrings. Knows no colours.

Where times are multiples of one step and all fits, a column group is one step and each op shows its name:

    0 F0 F1 .  .  B0--- B1---
    1 .  F0 B0--- F1 B1---    .

Elsewhere a character shows what runs at its moment: ░ forward, █ backward, ▓ weight gradient, ▒ recompute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipesim.plan import Kind
from pipesim.plot.style import stage_places

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipesim.plan import Plan
    from pipesim.timeline import Timeline

_IDLE, _LASTING, _CELL_LIMIT = ".", "-", 6
_SHADES = {Kind.F: "░", Kind.B: "█", Kind.I: "█", Kind.W: "▓", Kind.R: "▒"}


def text_gantt(timeline: Timeline, width: int = 100) -> str:
    """One line a device, at most `width` characters wide.

    Ops are named by kind and unit (micro-batch · k + subsequence): F5. With two stages on a device (in each
    direction) the second stage's letters are small; with more, the stage comes first: 2F5. A dash is the op going
    on, a dot idle time.
    """
    margin = len(str(timeline.plan.shape.devices - 1)) + 1
    names, step = short_names(timeline.plan), _step_ns(timeline)
    columns = timeline.makespan_ns // step if step else 0
    shortest = int((timeline.end_ns - timeline.start_ns).min()) // step if step else 0
    cell = min((width - margin) // columns, _CELL_LIMIT) if columns else 0
    if shortest * cell > max(map(len, names), default=0):
        rows = _named_rows(timeline, names, step, cell)
    else:
        rows = _shaded_rows(timeline, width - margin)
    return "\n".join(f"{device:<{margin}}{row}".rstrip() for device, row in enumerate(rows))


def short_names(plan: Plan) -> list[str]:
    """Kind and unit of every op, with the stage told as `text_gantt` says."""
    places = stage_places(plan)
    most = int(places.max()) + 1
    units = plan.microbatch * plan.shape.subsequences + plan.subsequence
    place_of_op = places[plan.direction, plan.stage]
    columns = (plan.kind.tolist(), plan.stage.tolist(), place_of_op.tolist(), units.tolist())
    names = []
    for kind, stage, place, unit in zip(*columns, strict=True):
        letter = Kind(kind).name
        if most == 2 and place == 1:
            letter = letter.lower()
        names.append(f"{stage if most > 2 else ''}{letter}{unit}")
    return names


def _step_ns(timeline: Timeline) -> int:
    """The longest time of which all starts and ends are multiples, 0 where nothing takes time."""
    begin = timeline.start_ns.min(initial=0)
    return int(np.gcd(np.gcd.reduce(timeline.start_ns - begin), np.gcd.reduce(timeline.end_ns - begin)))


def _named_rows(timeline: Timeline, names: Sequence[str], step: int, cell: int) -> list[str]:
    begin, columns = int(timeline.start_ns.min()), timeline.makespan_ns // step
    rows = []
    for device in range(timeline.plan.shape.devices):
        row = list(_IDLE.ljust(cell) * columns)
        for index in timeline.plan.rows(device):
            first = (int(timeline.start_ns[index]) - begin) // step * cell
            room = (int(timeline.end_ns[index]) - begin) // step * cell - first
            row[first : first + room] = names[index].ljust(room - 1, _LASTING) + " "
        rows.append("".join(row))
    return rows


def _shaded_rows(timeline: Timeline, width: int) -> list[str]:
    shades = np.array([_SHADES[kind] for kind in Kind] + [_IDLE])
    idle = len(Kind)
    # The moments in the middle of each character.
    moments = timeline.start_ns.min(initial=0) + (np.arange(width) + 0.5) * timeline.makespan_ns / width
    rows = []
    for device in range(timeline.plan.shape.devices):
        here = slice(int(timeline.plan.offsets[device]), int(timeline.plan.offsets[device + 1]))
        kinds = np.append(timeline.plan.kind[here], idle)
        running = np.searchsorted(timeline.end_ns[here], moments, side="right")
        starts = np.append(timeline.start_ns[here], np.iinfo(np.int64).max)
        rows.append("".join(shades[np.where(starts[running] <= moments, kinds[running], idle)]))
    return rows
