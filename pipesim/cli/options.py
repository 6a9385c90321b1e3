"""The options that say which scenario to simulate, written once; every command that takes them shares these.

Values arrive as text and are parsed here, so that every wrong one is answered in the same single line.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipesim.cli.option_table import OPTIONS, ScenarioOption
from pipesim.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pipesim.scenario import Scenario

_MODEL_ONLY = ("model", "cluster", "seq_len", "micro_batch_size", "tp", "dp", "partition", "layers", "recompute",
               "sequence_parallel", "distributed_optimizer", "profile", "efficiency", "synchronisation", "mapping",
               "rank_order")  # fmt: skip


def by_name() -> dict[str, ScenarioOption]:
    """The options by the name of their field."""
    return {option.name: option for option in OPTIONS}


def scenario_from(values: Mapping[str, Any], schedule: str = "1f1b") -> Scenario:
    """A scenario from parsed values by field name; None and absent mean the default.

    Raises InputError where unit costs and a model are given at once.
    """
    from pipesim.costs.unit import UnitCosts
    from pipesim.scenario import Scenario

    given = {name: value for name, value in values.items() if value is not None}
    _refuse_mixed_costs(given)
    unit = given.pop("unit_costs", None)
    delays = {name: given.pop(name, Fraction(0)) for name in ("latency", "transfer")}
    if unit is not None:
        given["unit_costs"] = UnitCosts.parse(unit, **delays)
    given.setdefault("microbatches", 2 * given.get("devices", _default("devices")))
    return Scenario(schedule=schedule, **given)


def _default(name: str) -> int:
    from pipesim.scenario import Scenario

    return int(next(f.default for f in fields(Scenario) if f.name == name))  # type: ignore[arg-type]


def _refuse_mixed_costs(given: Mapping[str, Any]) -> None:
    known = by_name()
    if "unit_costs" in given:
        for name in _MODEL_ONLY:
            if name in given:
                raise InputError(
                    known[name].flags[0],
                    str(given[name]),
                    "does not go with --unit-costs",
                    "give unit costs or a model, not both",
                )
    for name in ("latency", "transfer"):
        if name in given and "unit_costs" not in given:
            raise InputError(known[name].flags[0], str(given[name]), "needs --unit-costs", "add --unit-costs 1,2")


def parse_values(texts: Mapping[str, str | None], offered: Sequence[ScenarioOption] = OPTIONS) -> dict[str, Any]:
    """Option texts to values, by field name. Raises InputError on the first wrong one."""
    known = {option.name: option for option in offered}
    return {name: known[name].parse(text, known[name].flags[0]) for name, text in texts.items() if text is not None}


def takes_scenario(
    *, lists: bool = False, offered: Sequence[ScenarioOption] = OPTIONS
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command the scenario options offered; it receives `options`, the texts given, by field name.

    With `lists` the help says that options take comma-separated lists.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())
        shared = [_parameter(option, lists=lists) for option in offered]

        @functools.wraps(command)
        def wrapper(**arguments: Any) -> Any:
            texts = {option.name: arguments.pop(option.name) for option in offered}
            return command(**arguments, options=texts)

        kept = [parameter for parameter in own if parameter.name != "options"]
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in [*kept, *shared]]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


def _parameter(option: ScenarioOption, *, lists: bool) -> inspect.Parameter:
    listed = lists and option.listable
    declared = typer.Option(
        *option.flags,
        metavar=f"{option.metavar},…" if listed else option.metavar,
        help=option.help,
        rich_help_panel=option.panel,
        show_default=False,
    )
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[str | None, declared],
    )
