"""The registry: every module of this folder that has a SCHEDULE is a schedule; nothing else knows their names.

A schedule is a pure function PipelineShape -> Plan. To add one, put a file here with `SCHEDULE = Schedule(...)`,
or call `register` from your own code.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pipesim.errors import InputError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipesim.plan import PipelineShape, Plan

_OPTION_OF = {
    "stages_per_device": "--stages-per-device/-v",
    "subsequences": "--subsequences/-k",
    "in_flight": "--in-flight",
}
_UNUSED = {"stages_per_device": 1, "subsequences": 1, "in_flight": None}


@dataclass(frozen=True)
class Schedule:
    """A named algorithm that orders ops.

    generate(shape, **options) -> Plan. `defaults` are the shape fields it uses beside devices and micro-batches,
    with the value taken when the user gives none; `options` the keyword arguments `generate` also takes
    ("costs", "network", "memory_limit_bytes", "variant"); `fixed` shape fields it accepts at one value only; `note`
    is what a reader of results should know, shown where `note_applies(shape)`.
    """

    name: str
    title: str
    published: int
    source: str
    generate: Callable[..., Plan]
    defaults: dict[str, int | float | None] = field(default_factory=dict)
    fixed: dict[str, int] = field(default_factory=dict)
    options: frozenset[str] = frozenset()
    note: str = ""
    note_applies: Callable[[PipelineShape], bool] = lambda shape: True

    def fit(self, shape: PipelineShape) -> PipelineShape:
        """The nearest shape this schedule takes: fields it does not use at their neutral or fixed value."""
        changes: dict[str, Any] = {name: value for name, value in _UNUSED.items() if name not in self.defaults}
        return replace(shape, **(changes | self.fixed))

    def plan(self, shape: PipelineShape, **options: object) -> Plan:
        """Generates the plan; options it does not take are left out. Raises ShapeError on a shape it cannot take."""
        self._refuse_unused(shape)
        return self.generate(shape, **{k: v for k, v in options.items() if k in self.options and v is not None})

    def _refuse_unused(self, shape: PipelineShape) -> None:
        for name, neutral in _UNUSED.items():
            value, wanted = getattr(shape, name), self.fixed.get(name, neutral)
            if (name in self.fixed or name not in self.defaults) and value != wanted:
                raise ShapeError(
                    _OPTION_OF[name],
                    value,
                    f"{self.name} has no choice here" if wanted is None else f"{self.name} takes {wanted} only",
                    self._instead(name),
                )

    def _instead(self, name: str) -> str:
        users = ", ".join(s.name for s in all_schedules().values() if name in s.defaults)
        return f"leave the option out, or use {users}" if users else "leave the option out"


_registered: dict[str, Schedule] = {}
_discovered = False


def register(schedule: Schedule) -> Schedule:
    """Makes a schedule known by its name to the command line and the Python API."""
    _registered[schedule.name] = schedule
    return schedule


def all_schedules() -> dict[str, Schedule]:
    """Every known schedule by name, oldest first."""
    global _discovered  # noqa: PLW0603  (discovery happens once)
    if not _discovered:
        _discovered = True
        for module in pkgutil.iter_modules(__path__):
            if not module.name.startswith("_"):
                found = importlib.import_module(f"{__name__}.{module.name}")
                register(found.SCHEDULE)
    return dict(sorted(_registered.items(), key=lambda item: (item[1].published, item[0])))


def schedule_named(name: str) -> Schedule:
    """The schedule of that name. Raises InputError that lists the names there are."""
    known = all_schedules()
    if name not in known:
        raise InputError("SCHEDULE", name, "no such schedule", f"one of {', '.join(known)}")
    return known[name]


def build_plan(name: str, shape: PipelineShape, **options: object) -> Plan:
    """The plan of a named schedule for a shape. Raises InputError or ShapeError with what would do."""
    return schedule_named(name).plan(shape, **options)
