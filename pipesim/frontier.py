"""Time against peak memory: bsipipe over in-flight limits and subsequence counts, every other schedule beside it.

The question it answers: does bounded memory at the subsequence level buy time on this cluster, or does another
schedule reach the same time in less memory? Knows no schedule but bsipipe by name, and draws nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipesim.bounds import lower_bounds
from pipesim.errors import InputError, ShapeError
from pipesim.report.catalog import Catalog, Column
from pipesim.report.words import gib, listed, percent, size_text, time_text
from pipesim.scenario import run
from pipesim.schedules import all_schedules, schedule_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pipesim.metrics import Metrics
    from pipesim.scenario import Outcome, Scenario

TRACED = "bsipipe"
LIMITS = (1.5, 2.0, 3.0, 4.0, 6.0)
SUBSEQUENCES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, eq=False)
class FrontierPoint:
    """One simulated schedule. in_flight: the limit it was given, None where the schedule has its own rule;
    lower_bound_seconds, optimality_gap: see `pipesim.bounds`; recompute: "none", "full", ..., "" for unit costs;
    on_frontier: no other point takes less memory and no more time, or less time and no more memory."""

    metrics: Metrics
    in_flight: float | None
    recompute: str
    lower_bound_seconds: float
    optimality_gap: float | None
    on_frontier: bool = False

    @property
    def memory(self) -> float:
        """Most that any device holds: bytes with a model (weights included), else micro-batches in flight."""
        with_bytes = max(self.metrics.peak_memory_bytes)
        return float(with_bytes or max(self.metrics.peak_in_flight))

    def as_json(self) -> dict[str, Any]:
        """The metrics of the run and what the frontier adds."""
        return self.metrics.as_json() | {
            "in_flight_limit": self.in_flight,
            "recompute": self.recompute,
            "lower_bound_seconds": self.lower_bound_seconds,
            "optimality_gap": self.optimality_gap,
            "on_frontier": self.on_frontier,
        }


@dataclass(frozen=True, eq=False)
class Frontier:
    """All points of one scenario, and (schedule, reason) of those that cannot take it."""

    points: tuple[FrontierPoint, ...]
    refused: tuple[tuple[str, str], ...]

    @property
    def in_bytes(self) -> bool:
        """Whether memory is in bytes; in micro-batches in flight under unit costs."""
        return any(max(point.metrics.peak_memory_bytes) for point in self.points)

    @property
    def caption(self) -> str:
        """The costs and the shape that all points share."""
        first = self.points[0].metrics
        costs = first.costs.removesuffix(f", {self.points[0].recompute} recompute")
        return f"{costs}; p={first.devices} m={first.microbatches}"

    def catalog(self) -> Catalog:
        """Rows for a table or JSON, fastest first."""
        ordered = sorted(self.points, key=lambda point: (point.metrics.makespan_seconds, point.memory))
        return Catalog("rows", tuple(self._columns()), [point.as_json() for point in ordered])

    def closing_sentence(self) -> str:
        """Which point is fastest, which is fastest of those that fit, and how bsipipe compares with the rest."""
        fitting = [point for point in self.points if point.metrics.fits is not False]
        if not fitting:
            least = min(self.points, key=lambda point: point.memory)
            return f"nothing fits; {_named(least)} needs least, {self.memory_text(least.memory)}."
        best = min(fitting, key=_time_then_memory)
        others = [point for point in fitting if point.metrics.schedule != best.metrics.schedule]
        where = " that fits" if best.metrics.fits else ""
        sentence = f"fastest{where}: {_named(best)}, {self._time_text(best)} in {self.memory_text(best.memory)}"
        if not others:
            return f"{sentence}."
        rival = min(others, key=_time_then_memory)
        ratio = rival.metrics.makespan_seconds / best.metrics.makespan_seconds
        return (
            f"{sentence}; {ratio:.2f} times as fast as the best other schedule, {_named(rival)}, "
            f"{self._time_text(rival)} in {self.memory_text(rival.memory)}."
        )

    def memory_text(self, value: float) -> str:
        """A peak with its unit."""
        return size_text(value) if self.in_bytes else f"{value:.4g} micro-batches in flight"

    def _time_text(self, point: FrontierPoint) -> str:
        return time_text(point.metrics.makespan_seconds, point.metrics.unit)

    def _columns(self) -> Iterator[Column]:
        unit = self.points[0].metrics.unit
        yield Column("on_frontier", "", lambda best: "*" if best else "")
        yield Column("schedule", "schedule")
        yield Column("stages_per_device", "v")
        yield Column("subsequences", "k")
        yield Column("in_flight_limit", "limit", lambda limit: "-" if limit is None else f"{limit:g}")
        yield Column("makespan_seconds", "time", lambda seconds: time_text(seconds, unit))
        yield Column("optimality_gap", "over\nbound", percent)
        yield Column("peak_in_flight", "peak\nin flight", lambda peaks: f"{max(peaks):.4g}")
        if self.in_bytes:
            yield Column("recompute", "recompute")
            yield Column("peak_activation_bytes", "activations\nGiB", lambda peaks: gib(max(peaks)))
            yield Column("peak_memory_bytes", "peak\nGiB", lambda peaks: gib(max(peaks)))
            yield Column("fits", "fits", lambda fits: {True: "yes", False: "no", None: "-"}[fits])


def frontier(
    scenario: Scenario,
    limits: Sequence[float] = LIMITS,
    subsequences: Sequence[int] = SUBSEQUENCES,
    schedules: Sequence[str] | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> Frontier:
    """Simulates bsipipe at every limit and subsequence count, and the other schedules (all by default).

    A schedule that cuts sequences gets a point for every count. Larger limits are left out where a smaller one
    already reaches the lower bound. `report` is told how many points more are done. Raises ShapeError where
    bsipipe or a named schedule cannot take the scenario, InputError where a limit in bytes is given.
    """
    if scenario.memory_limit_bytes is not None:
        raise InputError("--memory-limit", scenario.memory_limit_bytes, "the frontier varies memory", "leave it out")
    points: list[FrontierPoint] = []
    for count in subsequences:
        points += _along_limits(replace(scenario.fitted(TRACED), subsequences=count), sorted(limits), report)
    others, refused = _others(scenario, subsequences, schedules, report)
    return Frontier(_with_frontier([*points, *others]), tuple(refused))


def points_at_most(limits: Sequence[float], subsequences: Sequence[int], schedules: Sequence[str] | None) -> int:
    """How many points `frontier` will report at most."""
    names = [name for name in (schedules or all_schedules()) if name != TRACED]
    cut = sum("subsequences" in schedule_named(name).defaults for name in names)
    return len(subsequences) * (len(limits) + cut) + len(names) - cut


def _along_limits(scenario: Scenario, limits: Sequence[float], report: Callable[[int], None]) -> list[FrontierPoint]:
    """One subsequence count, from the tightest limit on; if that does not fit without recomputation, no wider does."""
    points: list[FrontierPoint] = []
    for limit in limits:
        if not points or points[-1].optimality_gap != 0:
            points.append(_point(replace(scenario, in_flight=limit)))
            if scenario.unit_costs is None:
                scenario = replace(scenario, recompute=points[-1].recompute)
        report(1)
    return points


def _others(
    scenario: Scenario,
    subsequences: Sequence[int],
    schedules: Sequence[str] | None,
    report: Callable[[int], None],
) -> tuple[list[FrontierPoint], list[tuple[str, str]]]:
    points, refused = [], {}
    for name in schedules or all_schedules():
        if name == TRACED:
            continue
        for variant in _cut(scenario.fitted(name), subsequences):
            try:
                points.append(_point(replace(variant, in_flight=None)))
            except ShapeError as error:
                if schedules is not None:
                    raise
                refused[name] = str(error)
            report(1)
    return points, list(refused.items())


def _cut(scenario: Scenario, subsequences: Sequence[int]) -> Iterable[Scenario]:
    """The scenario at every subsequence count, or once if its schedule does not cut sequences."""
    if "subsequences" not in schedule_named(scenario.schedule).defaults:
        return [scenario]
    return [replace(scenario, subsequences=count) for count in subsequences]


def _point(scenario: Scenario) -> FrontierPoint:
    outcome = run(scenario)
    timeline = outcome.timeline
    lower = lower_bounds(timeline.plan, timeline.costs, timeline.network).lower_ns
    return FrontierPoint(
        metrics=outcome.metrics,
        in_flight=scenario.in_flight,
        recompute=_recompute(outcome),
        lower_bound_seconds=timeline.in_units(lower),
        optimality_gap=(timeline.makespan_ns - lower) / lower if lower else None,
    )


def _recompute(outcome: Outcome) -> str:
    """What was recomputed; "auto" was resolved where the costs were made, and their name tells."""
    if outcome.scenario.unit_costs is not None:
        return ""
    if outcome.scenario.recompute != "auto":
        return outcome.scenario.recompute
    return "full" if outcome.metrics.costs.endswith("full recompute") else "none"


def _with_frontier(points: Sequence[FrontierPoint]) -> tuple[FrontierPoint, ...]:
    """Marks the points that no other beats in one of time and memory and equals in the other."""
    marked, fastest = {}, float("inf")
    for index in sorted(range(len(points)), key=lambda i: (points[i].memory, points[i].metrics.makespan_seconds)):
        marked[index] = points[index].metrics.makespan_seconds < fastest
        fastest = min(fastest, points[index].metrics.makespan_seconds)
    return tuple(replace(point, on_frontier=marked[index]) for index, point in enumerate(points))


def _time_then_memory(point: FrontierPoint) -> tuple[float, float]:
    return point.metrics.makespan_seconds, point.memory


def _named(point: FrontierPoint) -> str:
    """`bsipipe k=8 within 3`."""
    parts = [point.metrics.schedule]
    if point.metrics.subsequences > 1:
        parts.append(f"k={point.metrics.subsequences}")
    if point.in_flight is not None:
        parts.append(f"within {point.in_flight:g}")
    return " ".join(parts)


def refusals(found: Frontier) -> list[str]:
    """A line per reason, naming the schedules left out for it."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in found.refused:
        by_reason.setdefault(reason, []).append(name)
    return [f"{listed(names)} left out: {reason}" for reason, names in by_reason.items()]
