"""Where things lie in a Gantt chart: boxes, phases, arrows and numbers as arrays; draws nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipesim.plan import Kind
from pipesim.plot.style import SYNCHRONISATION
from pipesim.timeline import NOTHING_SENT
from pipesim.transfers import transfers_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pipesim.timeline import Timeline

_LOW = 0.35  # share of a lane's height for what runs beside ops
_DIGIT = 0.64  # width of a digit, in font sizes
_PADDING = 0.45  # free space beside a number, in font sizes
_LARGEST, _SMALLEST, _SMALLEST_LONG = 9.0, 4.0, 5.0  # font sizes, in points


@dataclass(frozen=True)
class Numbers:
    """The numbers of some ops: their rows, texts, and one font size in points."""

    rows: NDArray[np.int64]
    texts: list[str]
    size: float


def times(timeline: Timeline) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Starts and ends [ops] in seconds or units, from the first start."""
    begin = timeline.start_ns.min(initial=0)
    return (timeline.start_ns - begin) / timeline.unit_ns, (timeline.end_ns - begin) / timeline.unit_ns


def phases(timeline: Timeline) -> NDArray[np.float64]:
    """[devices, 4]: where warm-up, steady and cool-down begin on each device, and where its last op ends.

    Steady begins with the first backward and ends with the last forward; gpipe has no steady phase.
    """
    start, end = times(timeline)
    kind, offsets = timeline.plan.kind, timeline.plan.offsets
    bounds = np.zeros((timeline.plan.shape.devices, 4))
    for device in range(timeline.plan.shape.devices):
        here = slice(int(offsets[device]), int(offsets[device + 1]))
        if here.start == here.stop:
            continue
        forward = kind[here] == Kind.F
        backward = (kind[here] == Kind.B) | (kind[here] == Kind.I)
        last = end[here][-1]
        steady = start[here][backward][0] if backward.any() else last
        cooling = max(end[here][forward][-1], steady) if forward.any() else steady
        bounds[device] = start[here][0], steady, cooling, last
    return bounds


def arrows(timeline: Timeline) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Devices [transfers, 2] and times [transfers, 2] of each message: sender and asking, receiver and arrival."""
    messages = transfers_of(timeline.plan)
    timed = timeline.arrival_ns[messages.sender] != NOTHING_SENT
    sender, receiver = messages.sender[timed], messages.receiver[timed]
    begin = timeline.start_ns.min(initial=0)
    moments = np.stack([timeline.end_ns[sender], timeline.arrival_ns[sender]], axis=1) - begin
    devices = np.stack([timeline.plan.device[sender], timeline.plan.device[receiver]], axis=1)
    return devices.astype(np.int64), moments / timeline.unit_ns


class Pieces(NamedTuple):
    """What follows the backwards, of one kind: devices, starts and ends [pieces] in seconds or units.

    share: the part of a lane's height it takes; sums run beside ops and are low.
    """

    what: str
    share: float
    device: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]


def pieces(timeline: Timeline) -> list[Pieces]:
    """The synchronisation of a timeline by kind, in the order of legends."""
    begin = timeline.start_ns.min(initial=0)
    found = []
    for what in SYNCHRONISATION:
        spans = [span for span in timeline.synchronisation if span.what == what]
        if spans:
            table = np.array([(span.device, span.start_ns, span.end_ns) for span in spans], dtype=np.int64)
            start, end = ((table[:, column] - begin) / timeline.unit_ns for column in (1, 2))
            found.append(Pieces(what, 1.0 if what == "optimizer" else _LOW, table[:, 0], start, end))
    return found


def numbers(timeline: Timeline, points_of_unit: float, height: float, most: int) -> Numbers | None:
    """Micro-batch numbers (with their subsequence where there is room) of the ops whose box can hold them.

    points_of_unit: width in points of a second or unit; height of a box in points. None where nothing can be read,
    or where there are more than `most`.
    """
    plan = timeline.plan
    width = (timeline.end_ns - timeline.start_ns) / timeline.unit_ns * points_of_unit
    if not len(width):
        return None
    typical = float(np.quantile(width, 0.2))
    digits = len(str(plan.shape.microbatches - 1))
    longer = digits + 0.55 + len(str(plan.shape.subsequences - 1))  # a dot is about half a digit
    tallest = min(_LARGEST, 0.7 * height)
    with_subsequence = plan.shape.subsequences > 1 and _fitting(typical, longer, tallest) >= _SMALLEST_LONG
    size = _fitting(typical, longer if with_subsequence else digits, tallest)
    if size < _SMALLEST:
        size = _fitting(float(np.quantile(width, 0.8)), digits, tallest)  # the backwards alone, then
    texts = [str(i) for i in plan.microbatch.tolist()]
    if with_subsequence:
        texts = [f"{text}.{j}" for text, j in zip(texts, plan.subsequence.tolist(), strict=True)]
    room = (width / size - _PADDING) / _DIGIT if size >= _SMALLEST else np.zeros(len(width))
    rows = np.flatnonzero(np.array([len(text) for text in texts]) - 0.45 * with_subsequence <= room + 1e-9)
    return Numbers(rows, [texts[row] for row in rows.tolist()], size) if 0 < len(rows) <= most else None


def _fitting(width: float, characters: float, tallest: float) -> float:
    """The font size at which so many digits fit a box of this width in points."""
    return min(tallest, width / (_DIGIT * characters + _PADDING))
