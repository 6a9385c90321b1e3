"""Chrome and Perfetto JSON traces read back as spans; knows no plans, ops or devices.

Times are read as decimals and kept as integer nanoseconds: a float loses the difference of two microsecond stamps
since 1970 that lie half a microsecond apart.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from pipesim.errors import FileError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LATEST_NS = 2**63 - 1


@dataclass(frozen=True, eq=False)
class TraceSpans:
    """The complete events (X) of a trace, in the order of the file.

    start_ns int64 [spans] as stamped, not moved to 0; duration_ns int64 [spans]; args as they stand.
    empty: how many events of no duration were left out; others: how many events of other kinds.
    """

    names: tuple[str, ...]
    pids: tuple[int | str, ...]
    tids: tuple[int | str, ...]
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    args: tuple[dict[str, Any], ...]
    empty: int
    others: int


def read_trace(path: Path | str) -> TraceSpans:
    """The spans of a trace file: {"traceEvents": [...]} or a bare list of events.

    Times may be numbers or their texts. Raises FileError that names the event and field.
    """
    events = _events(Path(path))
    complete = [(i, event) for i, event in enumerate(events) if event.get("ph") == "X"]
    spans, empty = [], 0
    for i, event in complete:
        where = f"{path}: traceEvents[{i}]"
        duration = _nanoseconds(event.get("dur", 0), f"{where}.dur")
        if duration < 0:
            raise FileError(f"{where}.dur", str(event["dur"]), "must not be negative")
        if duration == 0:
            empty += 1
            continue
        spans.append((event, _nanoseconds(event.get("ts"), f"{where}.ts"), duration))
    return TraceSpans(
        names=tuple(str(event.get("name", "")) for event, _, _ in spans),
        pids=tuple(event.get("pid", 0) for event, _, _ in spans),
        tids=tuple(event.get("tid", 0) for event, _, _ in spans),
        start_ns=np.array([start for _, start, _ in spans], dtype=np.int64),
        duration_ns=np.array([duration for _, _, duration in spans], dtype=np.int64),
        args=tuple(event.get("args", {}) for event, _, _ in spans),
        empty=empty,
        others=len(events) - len(complete),
    )


def _events(path: Path) -> list[dict[str, Any]]:
    def refuse(text: str) -> NoReturn:
        raise FileError(str(path), text, "is not a JSON number")

    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal, parse_constant=refuse)
    except OSError as error:
        raise FileError(str(path), error.strerror or "unreadable", "must be a readable file") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise FileError(str(path), place, f"must be JSON ({error.msg})") from None
    except (UnicodeDecodeError, RecursionError, InvalidOperation):
        raise FileError(str(path), "text", "must be plain JSON in UTF-8") from None
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise FileError(f"{path}: traceEvents", type(events).__name__, "must be a list of events")
    for i, event in enumerate(events):
        if not isinstance(event, dict):
            raise FileError(f"{path}: traceEvents[{i}]", type(event).__name__, "must be an object")
    return events


def _nanoseconds(microseconds: object, where: str) -> int:
    try:
        if isinstance(microseconds, bool) or not isinstance(microseconds, int | Decimal | str):
            raise InvalidOperation
        exact = Decimal(microseconds) * 1000
        if not exact.is_finite() or abs(exact) > _LATEST_NS:
            raise InvalidOperation
        return int(exact.to_integral_value())
    except InvalidOperation:
        shown = "missing" if microseconds is None else str(microseconds)
        raise FileError(where, shown, "must be a number of microseconds", 'write 12.5 or "12.5"') from None
