"""A grid of simulations, resumable, on one machine or many; knows neither what a point does nor how files look."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Any

from pipesim.errors import InputError
from pipesim.scenario import Scenario, load_cluster, load_model
from pipesim.schedules import all_schedules, schedule_named
from pipesim.sweep.point import key_of
from pipesim.sweep.store import journal_beside, table_of
from pipesim.sweep.workers import on_dask, on_processes, on_this_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pandas import DataFrame

    Make = Callable[[Mapping[str, Any], str], Scenario]
    Report = Callable[[int], None]

ENDINGS = (".csv", ".parquet")
_MOST_POINTS = 1_000_000


def _plain_scenario(values: Mapping[str, Any], schedule: str) -> Scenario:
    return Scenario(schedule=schedule, **values)


def grid(
    schedules: Iterable[str] | None, values: Mapping[str, Sequence[Any]], make: Make = _plain_scenario
) -> tuple[Scenario, ...]:
    """Every combination of the values of each Scenario field with each schedule (None: all), each once.

    A schedule that does not use a field appears once, however many values that field has. `make` turns one
    combination into a scenario. Raises InputError on an unknown schedule.
    """
    names = list(all_schedules()) if schedules is None else list(schedules)
    for name in names:
        schedule_named(name)
    points_at_most = len(names) * math.prod(map(len, values.values()))
    if points_at_most > _MOST_POINTS:
        raise InputError("sweep", f"{points_at_most} points", f"must be at most {_MOST_POINTS}", "take fewer values")
    combinations = [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]
    points = (make(combination, name).fitted(name) for name in names for combination in combinations)
    return tuple(dict.fromkeys(points))


def sweep(
    scenarios: Sequence[Scenario],
    out: Path | None = None,
    *,
    workers: int = 1,
    dask: str | None = None,
    report: Report | None = None,
) -> DataFrame:
    """Simulates scenarios: a row each, in their order, with the columns of `pipesim.sweep.point.COLUMNS`.

    With `out` (.csv or .parquet) the table is written there; a sweep that was interrupted or killed is resumed
    by calling again. workers: processes of this machine; dask: address of a scheduler to use instead. `report`
    is called with the number of points finished, first with those found from before. A point that fails is a
    row whose `failure` says why. Raises InputError, FileError on what no point could do.
    """
    _refuse(out, workers, scenarios)
    points = {key_of(scenario): scenario for scenario in scenarios}
    tell = report or (lambda count: None)
    with journal_beside(out) as journal:
        missing = [(key, scenario) for key, scenario in points.items() if key not in journal.rows]
        tell(len(points) - len(missing))
        for finished in _run(missing, workers, dask):
            journal.add(finished)
            tell(len(finished))
        table = table_of(journal.rows[key] for key in points)
        if out is not None:
            from pipesim.frame import save

            save(table, out)
    return table


def _run(points: list[tuple[str, Scenario]], workers: int, dask: str | None) -> Iterator[list[tuple[str, Any]]]:
    if not points:
        return iter(())
    if dask is not None:
        return on_dask(points, dask)
    return on_this_process(points) if workers == 1 else on_processes(points, workers)


def _refuse(out: Path | None, workers: int, scenarios: Sequence[Scenario]) -> None:
    """Refuses at once what would fail at every point."""
    if workers < 1:
        raise InputError("--workers", workers, "must be at least 1")
    if out is not None and out.suffix not in ENDINGS:
        raise InputError("--out", str(out), "unknown ending", f"one of {', '.join(ENDINGS)}")
    for scenario in scenarios:
        if scenario.unit_costs is None:
            load_model(scenario.model)
            load_cluster(scenario.cluster)
