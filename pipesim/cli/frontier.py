"""`pipesim frontier`: time against peak memory, bsipipe against all others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipesim.cli.lists import names_of, parse_lists
from pipesim.cli.options import by_name, scenario_from, takes_scenario
from pipesim.cli.outputs import Json, refuse_targets
from pipesim.errors import InputError

if TYPE_CHECKING:
    from pipesim.scenario import Scenario

_PICTURES = (".png", ".svg", ".pdf")
_LISTED = ("in_flight", "subsequences")


@takes_scenario()
def frontier(
    options: dict[str, str | None],
    schedule: Annotated[str, typer.Option("--schedule", metavar="NAME,…", help="Schedules beside bsipipe.")] = "all",
    as_json: Json = False,
    plot: Annotated[Path | None, typer.Option(help="The picture: .png, .svg or .pdf.")] = None,
) -> None:
    """Time against peak memory: bsipipe at each -k and --in-flight (lists), all other schedules as points.

    Examples:

      pipesim frontier --unit-costs 1,2 -p 8 -m 16 --plot frontier.png

      pipesim frontier --model llama3-8b --cluster h100 --seq-len 128k -p 8 -m 16 -k 1,2,4,8 --in-flight 2,3,4
    """
    from pipesim.frontier import LIMITS, SUBSEQUENCES, points_at_most, refusals
    from pipesim.frontier import frontier as trace_frontier
    from pipesim.report import show
    from pipesim.sweep.progress import progress

    _refuse_unwritable(plot)
    lists = parse_lists(options)
    limits, counts = lists.pop("in_flight", list(LIMITS)), lists.pop("subsequences", list(SUBSEQUENCES))
    names = names_of(schedule)
    with progress() as begin:
        report = begin(points_at_most(limits, counts, names))
        report(0)  # nothing is known from before
        found = trace_frontier(_single(lists), limits, counts, names, report)
    if plot is not None:
        from pipesim.plot.frontier import save_frontier

        save_frontier(found, plot)
    if not as_json:
        typer.echo(found.caption)
    show(found.catalog(), as_json=as_json)
    if not as_json:
        for line in [*refusals(found), found.closing_sentence()]:
            typer.echo(line)


def _single(lists: dict[str, list[Any]]) -> Scenario:
    """A scenario of options that take one value here."""
    flags = by_name()
    for name, values in lists.items():
        if len(values) > 1:
            lists_here = " and ".join(flags[other].flags[0] for other in _LISTED)
            text = ",".join(map(str, values))
            raise InputError(flags[name].flags[0], text, "takes one value here", f"lists are for {lists_here}")
    return scenario_from({name: values[0] for name, values in lists.items()})


def _refuse_unwritable(plot: Path | None) -> None:
    refuse_targets({"--plot": plot}, {"--plot": _PICTURES})
