"""Timelines as a trace for Perfetto and chrome://tracing; knows the format, computes nothing.

A timeline is a process, a device a thread of it. Times are microseconds from the first start; under unit costs a
unit shows as a millisecond. Ops are complete events (X), transfers flow arrows (s, f) from op to op, and what each
device holds is a counter (C). An op that takes no time is an instant (i): viewers drop empty slices.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.files import write_text
from pipesim.frame import labels
from pipesim.memory import in_flight, memory_of
from pipesim.plan import Kind
from pipesim.timeline import NOTHING_SENT
from pipesim.transfers import transfers_of
from pipesim.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from pipesim.memory import Memory
    from pipesim.timeline import Timeline

    Event = dict[str, Any]

_NS_OF_UNIT = 10**6  # a unit of unit costs shows as a millisecond
_CATEGORIES = {
    Kind.F: "forward",
    Kind.B: "backward",
    Kind.I: "input gradient",
    Kind.W: "weight gradient",
    Kind.R: "recompute",
}


def save_trace(timelines: Sequence[Timeline], path: Path | str) -> None:
    """Writes one trace with a process per timeline, whole or not at all. Raises FileError."""
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"generator": "pipesim", "costs": [timeline.costs.name for timeline in timelines]},
        "traceEvents": [event for pid, timeline in enumerate(timelines) for event in trace_events(timeline, pid)],
    }
    write_text(Path(path), json.dumps(document, separators=(",", ":"), allow_nan=False))


def trace_events(timeline: Timeline, pid: int = 0) -> Iterator[Event]:
    """The events of one timeline as the process `pid`; thread d is device d."""
    yield from _names(timeline, pid)
    yield from _ops(timeline, pid)
    yield from _synchronisation(timeline, pid)
    yield from _flows(timeline, pid)
    yield from _counters(timeline, pid)


def _names(timeline: Timeline, pid: int) -> Iterator[Event]:
    title = f"{timeline.plan.schedule} ({timeline.source})"
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": title}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    for device in range(timeline.plan.shape.devices):
        where = {"ph": "M", "pid": pid, "tid": device}
        yield where | {"name": "thread_name", "args": {"name": f"device {device}"}}
        yield where | {"name": "thread_sort_index", "args": {"sort_index": device}}


def _ops(timeline: Timeline, pid: int) -> Iterator[Event]:
    plan = timeline.plan
    start, end = _ns(timeline, timeline.start_ns), _ns(timeline, timeline.end_ns)
    columns = (
        labels(timeline), plan.device.tolist(), plan.kind.tolist(), plan.stage.tolist(), plan.microbatch.tolist(),
        plan.subsequence.tolist(), plan.direction.tolist(), start.tolist(), end.tolist(),
    )  # fmt: skip
    for name, device, kind, stage, microbatch, subsequence, direction, begin, stop in zip(*columns, strict=True):
        event: Event = {"name": name, "cat": _CATEGORIES[kind], "pid": pid, "tid": device, "ts": _us(begin)}
        event |= {"ph": "X", "dur": _us(stop - begin)} if stop > begin else {"ph": "i", "s": "t"}
        event["args"] = {"stage": stage, "microbatch": microbatch, "subsequence": subsequence}
        if plan.placement.directions > 1:
            event["args"]["direction"] = "up" if direction else "down"
        yield event


def _synchronisation(timeline: Timeline, pid: int) -> Iterator[Event]:
    """Sums of gradients, optimizer and parameters as asynchronous events: they run beside ops and each other."""
    for number, span in enumerate(timeline.synchronisation):
        begin, end = _ns(timeline, np.array([span.start_ns, span.end_ns])).tolist()
        event: Event = {"name": span.what, "cat": "synchronisation", "id": number, "pid": pid, "tid": span.device}
        yield event | {"ph": "b", "ts": _us(begin), "args": {"stage": span.stage, "bytes": span.bytes}}
        yield event | {"ph": "e", "ts": _us(end)}


def _flows(timeline: Timeline, pid: int) -> Iterator[Event]:
    """Arrows between slices; an arrow must begin and end inside a slice, so empty ops have none."""
    plan, messages = timeline.plan, transfers_of(timeline.plan)
    start, end = _ns(timeline, timeline.start_ns), _ns(timeline, timeline.end_ns)
    sender, receiver = messages.sender, messages.receiver
    drawn = (end > start)[sender] & (end > start)[receiver] & (timeline.arrival_ns[sender] != NOTHING_SENT)
    sender, receiver = sender[drawn], receiver[drawn]
    size = (
        timeline.costs.messages(plan)[sender] if timeline.costs.unit == "s" else np.zeros(len(sender), dtype=np.int64)
    )
    columns = (plan.device[sender], end[sender] - 1, plan.device[receiver], start[receiver], size)
    flows = zip(*(column.tolist() for column in columns), strict=True)
    for number, (source, begin, destination, stop, size_bytes) in enumerate(flows):
        event = {"name": "transfer", "cat": "transfer", "id": pid * 2**32 + number, "pid": pid}
        yield event | {"ph": "s", "tid": source, "ts": _us(begin), "args": {"bytes": size_bytes}}
        yield event | {"ph": "f", "bp": "e", "tid": destination, "ts": _us(stop)}


def _counters(timeline: Timeline, pid: int) -> Iterator[Event]:
    """Memory in GiB where costs have bytes, else micro-batches in flight."""
    memory = memory_of(timeline.plan, timeline.costs)
    name, series, scale = "memory", "GiB", GIB
    if not (memory.during.any() or memory.static_bytes.any()):
        memory = in_flight(timeline.plan)
        shape = timeline.plan.shape
        name, series, scale = "in flight", "micro-batches", shape.stages_per_device * shape.subsequences
    for device in range(timeline.plan.shape.devices):
        for begin, held in _steps(timeline, memory, device):
            yield {
                "ph": "C", "name": f"{name}, device {device}", "pid": pid, "tid": device,
                "ts": _us(begin), "args": {series: held / scale},
            }  # fmt: skip


def _steps(timeline: Timeline, memory: Memory, device: int) -> Iterator[tuple[int, int]]:
    """Moments at which a device begins to hold another amount; the last amount of a moment counts."""
    times, held = memory.curve(device, timeline)
    if not len(times):
        return
    last_of_moment = np.append(np.diff(times) > 0, True)
    times, held = _ns(timeline, times[last_of_moment]), held[last_of_moment]
    changes = np.insert(np.diff(held) != 0, 0, True)
    yield from zip(times[changes].tolist(), held[changes].tolist(), strict=True)


def _ns(timeline: Timeline, times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Nanoseconds of the trace: from the first start, a unit as a millisecond. Rounding keeps the order."""
    since: NDArray[np.int64] = times - timeline.start_ns.min(initial=0)
    if timeline.costs.unit == "s":
        return since
    whole, rest = np.divmod(since, timeline.unit_ns)
    scaled: NDArray[np.int64] = whole * _NS_OF_UNIT + rest * _NS_OF_UNIT // timeline.unit_ns
    return scaled


def _us(nanoseconds: int) -> int | float:
    return nanoseconds // 1000 if nanoseconds % 1000 == 0 else nanoseconds / 1000
