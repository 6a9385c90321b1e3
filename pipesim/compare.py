"""Runs one scenario under several schedules; schedules that cannot take it are set aside with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipesim.errors import InputError, ShapeError
from pipesim.scenario import run
from pipesim.schedules import all_schedules, schedule_named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipesim.scenario import Outcome, Scenario


@dataclass(frozen=True, eq=False)
class Comparison:
    """Outcomes in the order asked for, and (schedule, reason) of those that cannot take the scenario."""

    outcomes: tuple[Outcome, ...]
    refused: tuple[tuple[str, str], ...]


def compare_schedules(scenario: Scenario, schedules: Sequence[str] | None = None) -> Comparison:
    """Simulates the scenario under each schedule (all there are by default).

    A schedule that does not use v, k or an in-flight limit runs without it. Raises InputError when a schedule the
    caller named cannot take the scenario, or when none can.
    """
    names = list(schedules) if schedules is not None else list(all_schedules())
    for name in names:
        schedule_named(name)
    outcomes, refused = [], []
    for name in names:
        try:
            outcomes.append(run(scenario.fitted(name), bounded=True))
        except ShapeError as error:
            if schedules is not None:
                raise
            refused.append((name, str(error)))
    if not outcomes:
        raise InputError("compare", ", ".join(names), "no schedule can take this", refused[0][1])
    return Comparison(tuple(outcomes), tuple(refused))
