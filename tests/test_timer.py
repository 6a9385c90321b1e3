"""The timer: what is inside a span, what is not, and what becomes of samples."""

from __future__ import annotations

import gc
import time

import pytest

from calibration.fit.statistics import DRIFT_LIMIT, SPREAD_LIMIT, drift, summarise
from calibration.measure.timer import CpuClock, clock_of, time_spans
from pipesim.errors import InputError


class ManualClock:
    """Stands still between marks: time passes only where a test says so."""

    name = "manual"

    def __init__(self) -> None:
        self.now = 0
        self.waited = 0

    def work(self, microseconds: int) -> None:
        self.now += 1000 * microseconds

    def mark(self) -> tuple[int, int]:
        assert not self.waited, "a mark after the wait"
        return self.now, 2 * self.now

    def wait(self) -> None:
        self.waited += 1

    def seconds(self, begin: int, end: int) -> float:
        return (end - begin) * 1e-9


def test_field_case_o31_flush_is_outside_the_timed_span() -> None:
    """A 130 µs cache flush before a 50 µs kernel was once counted with it; the answer must be 50."""
    clock = ManualClock()
    times = time_spans(clock, lambda: clock.work(130), [("F", lambda: clock.work(50))], 7)
    assert times.seconds == {"F": [pytest.approx(50e-6)] * 7}
    assert clock.now == 7 * 180_000


def test_field_case_o31_warm_ups_do_not_count() -> None:
    """A first message of 90 ms among ones of 5 µs: the median after two warm-ups is 5, the mean of all 11256.25."""
    samples = [90000.0, 20.0, 5.0, 5.0, 4.0, 5.0, 6.0, 5.0]
    assert summarise([samples], 2, "ping-pong").median == 5.0
    with pytest.raises(InputError, match=r"samples of ping-pong: 2: must be more than the 2 warm-ups"):
        summarise([samples[:2]], 2, "ping-pong")


def test_each_visit_has_its_own_warm_ups() -> None:
    found = summarise([[900.0, 1.0, 2.0], [900.0, 3.0]], 1, "op")
    assert found.median == 2.0
    with pytest.raises(InputError, match="must be more"):
        summarise([[900.0, 1.0], [900.0]], 1, "op")


def test_field_case_o32_drift_is_reported_and_marks_unstable() -> None:
    """A GPU that throttles half-way: 50 samples of 1000 µs, then 50 of 1150."""
    found = summarise([[1000.0] * 50 + [1150.0] * 50], 0, "mm")
    assert found.drift == pytest.approx(0.15)
    assert found.complaints == ["drift +15.0% is beyond 5%"]
    assert summarise([[1000.0] * 50 + [1040.0] * 50], 0, "mm").complaints == []
    assert summarise([[1150.0] * 50 + [1000.0] * 50], 0, "mm").complaints == ["drift -13.0% is beyond 5%"]


def test_field_case_o32_nothing_left_is_an_error_with_its_reason() -> None:
    """A filter that threw all samples away once gave NaN in the result file."""
    with pytest.raises(InputError, match=r"samples of layer F: none: nothing is left"):
        summarise([], 2, "layer F")


def test_spread_above_the_limit_is_a_complaint() -> None:
    assert summarise([[1.0] * 8 + [SPREAD_LIMIT] * 2], 0, "op").complaints == []
    wide = summarise([[1.0] * 4 + [2.0] + [1.0] * 4 + [2.0]], 0, "op")
    assert wide.spread == 2.0
    assert wide.complaints == ["spread 2.00 is above 1.3"]
    assert DRIFT_LIMIT == 0.05


def test_drift_of_one_sample_is_nothing() -> None:
    assert drift([3.0]) == 0.0
    assert drift([1.0, 2.0]) == 1.0
    assert drift([1.0, 7.0, 2.0]) == 1.0


def test_spans_are_timed_apart_and_one_wait_ends_them() -> None:
    clock, done = ManualClock(), []

    def span(name: str, microseconds: int) -> tuple[str, object]:
        def run() -> None:
            done.append(name)
            clock.work(microseconds)

        return name, run

    times = time_spans(clock, lambda: done.append("prepare"), [span("F", 10), span("B", 20)], 2)
    assert done == ["prepare", "F", "B"] * 2
    assert times.seconds == {"F": [pytest.approx(10e-6)] * 2, "B": [pytest.approx(20e-6)] * 2}
    assert times.host_seconds == {"F": [pytest.approx(20e-6)] * 2, "B": [pytest.approx(40e-6)] * 2}
    assert clock.waited == 1


def test_no_garbage_is_collected_inside_a_span_and_collection_comes_back() -> None:
    clock, seen = ManualClock(), []

    def fails() -> None:
        seen.append(gc.isenabled())
        raise RuntimeError("a span that fails")

    with pytest.raises(RuntimeError, match="a span that fails"):
        time_spans(clock, lambda: None, [("F", fails)], 1)
    assert seen == [False]
    assert gc.isenabled()


def test_cuda_events_are_marked_in_order_and_read_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events count milliseconds; they may be read only after the one wait at the end."""
    torch = pytest.importorskip("torch")
    log: list[str] = []

    class Event:
        count = 0

        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing
            Event.count += 1
            self.at = Event.count

        def record(self) -> None:
            log.append("record")

        def elapsed_time(self, end: Event) -> float:
            assert log[-1] == "synchronize"
            return 2.0 * (end.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("synchronize"))
    clock = clock_of("cuda", 1)
    times = time_spans(clock, lambda: None, [("F", lambda: None), ("B", lambda: None)], 3)
    assert log == ["record"] * 9 + ["synchronize"]
    assert times.seconds == {"F": [pytest.approx(2e-3)] * 3, "B": [pytest.approx(2e-3)] * 3}
    assert "CUDA events" in clock.name


def test_one_thread_is_timed_by_its_own_cpu_time() -> None:
    """Sleeping takes wall time only: the CPU clock of one thread must hardly move, the wall clock must."""
    own, wall = clock_of("cpu", 1), clock_of("cpu", 2)
    assert (own.name, wall.name) == ("thread CPU time", "wall time")
    for clock, slept in ((own, False), (wall, True)):
        begin = clock.mark()
        time.sleep(0.05)
        end = clock.mark()
        assert (clock.seconds(begin[0], end[0]) >= 0.05) is slept
    assert isinstance(own, CpuClock)
