"""Traces: what viewers need holds in every file written, and reading keeps every nanosecond."""

from __future__ import annotations

import json
from collections import defaultdict
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings

from pipesim.costs.unit import UnitCosts
from pipesim.engine import simulate
from pipesim.errors import FileError
from pipesim.schedules import build_plan
from pipesim.trace import save_trace, trace_events
from pipesim.trace_read import read_trace
from tests.simulating import shape_of, unit_timeline
from tests.strategies import cases


def timeline_of(schedule="1f1b", p=2, m=2, v=1, k=1, costs=None):
    return unit_timeline(build_plan(schedule, shape_of(p, m, v, k)), costs)


def saved(tmp_path, *timelines):
    path = tmp_path / "trace.json"
    save_trace(timelines, path)
    return json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal), path


def check_for_viewers(events) -> None:
    """Numbers are numbers, ids integers, time starts at 0, slices of a thread do not overlap, arrows have ends."""
    slices, flows = defaultdict(list), defaultdict(list)
    for event in events:
        numbers = [event[key] for key in ("ts", "dur") if key in event]
        numbers += event["args"].values() if event["ph"] == "C" else []
        assert all(isinstance(number, int | Decimal) and number >= 0 for number in numbers)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert ("ts" in event) == (event["ph"] != "M")
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] in "sf":
            flows[event["id"]].append(event)
    check_slices_and_flows(slices, flows)


def check_slices_and_flows(slices, flows) -> None:
    for spans in slices.values():
        assert all(start < end for start, end in spans)
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(spans)))
    for begin, end in flows.values():
        assert (begin["ph"], end["ph"]) == ("s", "f")
        assert begin["ts"] <= end["ts"]
        for event in (begin, end):
            assert any(a <= event["ts"] < b for a, b in slices[event["pid"], event["tid"]])


def test_o30_export_of_the_smallest_pipeline(tmp_path):
    """Field case O30: texts for times, stamps since 1970, empty and overlapping slices broke viewers."""
    document, _ = saved(tmp_path, timeline_of())
    events = document["traceEvents"]
    check_for_viewers(events)
    spans = [event for event in events if event["ph"] == "X"]
    assert [(event["name"], event["tid"], event["ts"], event["dur"]) for event in spans] == [
        ("0F0", 0, 0, 1000), ("0F1", 0, 1000, 1000), ("0B0", 0, 4000, 2000), ("0B1", 0, 7000, 2000),
        ("1F0", 1, 1000, 1000), ("1B0", 1, 2000, 2000), ("1F1", 1, 4000, 1000), ("1B1", 1, 5000, 2000),
    ]  # fmt: skip
    assert spans[0]["args"] == {"stage": 0, "microbatch": 0, "subsequence": 0}
    assert min(event["ts"] for event in spans) == 0


def test_flows_are_the_transfers():
    events = list(trace_events(timeline_of()))
    begins = [(event["tid"], event["ts"]) for event in events if event["ph"] == "s"]
    ends = [(event["tid"], event["ts"]) for event in events if event["ph"] == "f"]
    assert sorted(ends) == [(0, 4000), (0, 7000), (1, 1000), (1, 4000)]
    assert sorted(begins) == [(0, 999.999), (0, 1999.999), (1, 3999.999), (1, 6999.999)]


def test_counters_show_what_each_device_holds():
    events = [event for event in trace_events(timeline_of(p=2, m=2)) if event["ph"] == "C"]
    first = [(event["ts"], event["args"]["micro-batches"]) for event in events if event["tid"] == 0]
    assert first == [(0, 1), (1000, 2), (6000, 1), (9000, 0)]
    assert {event["name"] for event in events} == {"in flight, device 0", "in flight, device 1"}


def test_bytes_are_counted_in_gib_where_there_are_bytes():
    costs = UnitCosts(*(UnitCosts.of(1, 1, 1).forward,) * 3, activation_bytes=2**30)
    events = [event for event in trace_events(timeline_of(p=1, m=1, costs=costs)) if event["ph"] == "C"]
    assert [event["args"] for event in events] == [{"GiB": 1}, {"GiB": 0}]
    assert events[0]["name"] == "memory, device 0"


def test_timelines_are_processes_of_one_trace(tmp_path):
    document, _ = saved(tmp_path, timeline_of(), timeline_of("seq1f1b", 2, 2, 1, 3))
    check_for_viewers(document["traceEvents"])
    names = {e["pid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"}
    assert names == {0: "1f1b (simulated)", 1: "seq1f1b (simulated)"}
    assert any(event["name"] == "0F1.2" for event in document["traceEvents"])


def test_an_op_without_duration_is_an_instant():
    events = list(trace_events(timeline_of(p=1, m=1, costs=UnitCosts.of(0, 1))))
    assert [(event["ph"], event["name"]) for event in events if event["ph"] in "Xi"] == [("i", "0F0"), ("X", "0B0")]


@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_any_timeline_makes_a_trace_that_viewers_take(case):
    timeline = simulate(case.plan, case.costs, case.network, engine="reference")
    events = json.loads(json.dumps(list(trace_events(timeline))), parse_float=Decimal)
    check_for_viewers(events)
    assert sum(event["ph"] in "Xi" for event in events) == len(case.plan)


def test_reading_a_trace_back_gives_the_ops(tmp_path):
    timeline = timeline_of("seq1f1b-interleaved", 2, 2, 2, 3, UnitCosts.of("0.1", "0.2"))
    _, path = saved(tmp_path, timeline)
    found = read_trace(path)
    assert found.names == tuple(timeline.plan.label(row) for row in range(len(timeline.plan)))
    assert found.tids == tuple(timeline.plan.device.tolist())
    start_ms = timeline.start_ns / timeline.unit_ns
    assert np.abs(found.start_ns / 10**6 - start_ms).max() <= 1e-6
    assert (found.empty, found.args[1]["microbatch"]) == (0, 0)


def test_o30_reading_accepts_a_text_as_a_time(tmp_path):
    """Field case O30: some writers quote their stamps."""
    path = tmp_path / "x.json"
    path.write_text('{"traceEvents": [{"ph":"X","ts":"1700000000000000.001","dur":500}]}')
    found = read_trace(path)
    assert found.start_ns.tolist() == [1700000000000000001]
    assert found.duration_ns.tolist() == [500000]


def test_o30_reading_keeps_half_a_microsecond_since_1970(tmp_path):
    """Field case O30: stamps since 1970 lost their last digits; 64-bit floats are a quarter apart at 1.7e15."""
    path = tmp_path / "x.json"
    event = '{"ph":"X","pid":1,"tid":1,"dur":0.25,"ts":%s}'
    stamps = ("1700000000000000.0", "1700000000000000.5", "1700000000000000.501")
    path.write_text("[" + ",".join(event % stamp for stamp in stamps) + "]")
    assert np.diff(read_trace(path).start_ns).tolist() == [500, 1]


def test_o30_events_of_no_duration_are_counted_not_kept(tmp_path):
    """Field case O30: profilers write events with ts 0 and dur 0."""
    path = tmp_path / "x.json"
    path.write_text(
        '[{"ph":"X","ts":0,"dur":0,"name":"a"},{"ph":"X","ts":5,"dur":1,"name":"b"},{"ph":"X","ts":7},{"ph":"M"}]'
    )
    found = read_trace(path)
    assert (found.names, found.empty, found.others) == (("b",), 2, 1)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('[{"ph":"X","ts":"soon","dur":1}]', r"traceEvents\[0\]\.ts: soon: must be a number of microseconds"),
        ('[{"ph":"X","dur":1}]', r"traceEvents\[0\]\.ts: missing"),
        ('[{"ph":"X","ts":1,"dur":-1}]', r"traceEvents\[0\]\.dur: -1: must not be negative"),
        ('[{"ph":"X","ts":NaN,"dur":1}]', "NaN: is not a JSON number"),
        ('[{"ph":"X","ts":"NaN","dur":1}]', r"\.ts: NaN: must be a number"),
        ('[{"ph":"X","ts":1e400,"dur":1}]', r"\.ts: 1E\+400: must be a number"),
        ('[{"ph":"X","ts":true,"dur":1}]', r"\.ts: True: must be a number"),
        ('[{"ph":"X","name":"a"b"}]', "line 1 column 22: must be JSON"),
        ('{"events": []}', "traceEvents: NoneType: must be a list of events"),
        ("[1]", r"traceEvents\[0\]: int: must be an object"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(tmp_path, content, says):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(FileError, match=says) as refused:
        read_trace(path)
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(FileError, match="must be a readable file"):
        read_trace(tmp_path / "absent.json")
