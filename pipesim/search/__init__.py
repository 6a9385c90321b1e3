"""The fastest configuration under a memory limit: enumerates, sets aside what cannot fit, simulates the rest, ranks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipesim.errors import InputError
from pipesim.scenario import load_cluster, load_model
from pipesim.search.bounds import least_memory, within
from pipesim.search.space import Refusals, candidates, described
from pipesim.sweep.point import key_of
from pipesim.sweep.workers import on_processes, on_this_process
from pipesim.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pipesim.scenario import Scenario
    from pipesim.search.space import Space

    Report = Callable[[int], None]

_TOO_MUCH = "needs more memory than the limit"
_NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True, eq=False)
class Configuration:
    """A simulated configuration; `row` has the columns of a sweep."""

    scenario: Scenario
    row: dict[str, Any]
    fits: bool

    @property
    def seconds(self) -> float:
        """Time of a step."""
        return float(self.row["makespan_seconds"])

    @property
    def memory_bytes(self) -> int:
        """Peak of the device that needs most, static bytes included."""
        return int(self.row["peak_memory_bytes"])

    @property
    def shares(self) -> dict[str, float]:
        """Parts of a step: computing on the device that has most to do, waiting for links, other idle time."""
        compute = self.row["ideal_seconds"] / self.seconds
        links = min(self.row["exposed_communication_seconds"] / self.seconds, 1 - compute)
        return {"compute": compute, "bubble": 1 - compute - links, "links": links}


@dataclass(frozen=True, eq=False)
class Found:
    """The result of a search.

    configurations: all that were simulated, fastest first. considered: how many the rules allow, of which those
    not simulated were known to need more memory. refusals: (reason, count, example), most frequent first.
    """

    space: Space
    memory_limit_bytes: int
    configurations: tuple[Configuration, ...]
    considered: int
    refusals: tuple[tuple[str, int, str], ...]

    def best(self, count: int = 10) -> tuple[Configuration, ...]:
        """The fastest that fit, fastest first."""
        return tuple(c for c in self.configurations if c.fits)[:count]

    def front(self) -> tuple[Configuration, ...]:
        """Those of which no other is at once as fast and as small, fastest first, whether they fit or not."""
        kept: list[Configuration] = []
        for configuration in self.configurations:
            if not kept or configuration.memory_bytes < kept[-1].memory_bytes:
                kept.append(configuration)
        return tuple(kept)

    def beyond(self, configuration: Configuration) -> Configuration | None:
        """The fastest on the same tp, p and dp that only memory forbids; None where nothing faster is forbidden."""
        faster = self.configurations[: self.configurations.index(configuration)]
        return next((c for c in faster if not c.fits and _layout(c) == _layout(configuration)), None)


def search(
    space: Space,
    memory_limit_bytes: int | None = None,
    *,
    workers: int = 1,
    report: Callable[[int], Report] | None = None,
) -> Found:
    """Simulates every configuration of a space that may fit, on `workers` processes.

    memory_limit_bytes is that of one GPU (None: what the cluster's have). `report(total)` is asked, once the
    total is known, for a function to be told of each batch done. Raises InputError where the rules leave nothing
    to try.
    """
    limit = load_cluster(space.base.cluster).memory_bytes if memory_limit_bytes is None else memory_limit_bytes
    if limit < 1:
        raise InputError("--memory", limit, "must be at least 1 byte")
    if workers < 1:
        raise InputError("--workers", workers, "must be at least 1")
    load_model(space.base.model)
    refusals = Refusals()
    allowed = candidates(space, refusals)
    if not allowed:
        raise InputError("search", f"{space.gpus} GPUs", _nothing(refusals), "change one of these")
    points = {key_of(scenario): scenario for scenario in _that_may_fit(allowed, limit, refusals)}
    tell = report(len(points)) if report else lambda count: None
    simulated = list(_simulate(points, limit, refusals, workers, tell))
    ordered = sorted(simulated, key=lambda c: (c.seconds, c.memory_bytes))
    return Found(space, limit, tuple(ordered), len(allowed), tuple(refusals))


def _that_may_fit(scenarios: Iterable[Scenario], limit: int, refusals: Refusals) -> list[Scenario]:
    kept = []
    for scenario in scenarios:
        try:
            static, least = least_memory(scenario)
        except InputError as error:
            refusals.add(f"{error.where}: {_NUMBER.sub('…', error.rule)}", f"{described(scenario)}: {error}")
            continue
        if least > limit:
            refusals.add(f"{_TOO_MUCH} in any order", f"{described(scenario)}: at least {format_gib(least)}")
        else:
            kept.append(within(scenario, limit, static))
    return kept


def _simulate(
    points: dict[str, Scenario], limit: int, refusals: Refusals, workers: int, tell: Report
) -> Iterable[Configuration]:
    todo = list(points.items())
    for finished in on_this_process(todo) if workers == 1 else on_processes(todo, workers):
        for key, row in finished:
            scenario = points[key]
            if row["failure"] is not None:
                reason = str(row["failure"])
                refusals.add(_NUMBER.sub("…", reason.partition(";")[0]), f"{described(scenario)}: {reason}")
                continue
            fits = row["peak_memory_bytes"] <= limit
            configuration = Configuration(scenario, row | {"device_memory_bytes": limit, "fits": fits}, fits)
            if not configuration.fits:
                refusals.add(_TOO_MUCH, f"{described(scenario)}: {format_gib(configuration.memory_bytes)}")
            yield configuration
        tell(len(finished))


def _layout(configuration: Configuration) -> tuple[int, int, int]:
    scenario = configuration.scenario
    return scenario.tp, scenario.devices, scenario.micro_batch_size


def _nothing(refusals: Sequence[tuple[str, int, str]] | Refusals) -> str:
    return "leave nothing to try: " + "; ".join(reason for reason, _, _ in refusals)
