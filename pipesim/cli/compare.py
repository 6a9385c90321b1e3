"""`pipesim compare [SCHEDULE...]`: a table, and which is fastest and fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pipesim.cli.options import parse_values, scenario_from, takes_scenario
from pipesim.cli.outputs import (
    Explain,
    Gantt,
    Json,
    Memory,
    Trace,
    refuse_unwritable,
    write_pictures,
    write_trace,
)

if TYPE_CHECKING:
    from pipesim.scenario import Scenario


@takes_scenario()
def compare(
    options: dict[str, str | None],
    schedules: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SCHEDULE]...", help="Names from `pipesim schedules`. [all]"),
    ] = None,
    as_json: Json = False,
    explain: Explain = False,
    gantt: Gantt = None,
    memory: Memory = None,
    trace: Trace = None,
) -> None:
    """Compares schedules on the same model, cluster and batch. With no option: llama3-8b at 64k on 8 H100.

    Examples:

      pipesim compare

      pipesim compare 1f1b seq1f1b bsipipe --model llama3-8b --cluster h100 --seq-len 128k -p 8 -m 16 -k 4

      pipesim compare --unit-costs 1,2 -p 4 -m 8 --gantt all.png
    """
    from pipesim.compare import compare_schedules
    from pipesim.report import print_comparison, print_explanation, print_json

    refuse_unwritable(gantt=gantt, memory=memory, trace=trace)
    comparison = compare_schedules(_scenario(options), schedules or None)
    write_pictures(comparison.outcomes, gantt=gantt, memory=memory)
    write_trace([outcome.timeline for outcome in comparison.outcomes], trace)
    if as_json:
        print_json({"rows": [outcome.metrics.as_json() for outcome in comparison.outcomes]})
    else:
        print_comparison(comparison)
    if explain:
        print_explanation(comparison.outcomes[0].case.costs, to_stderr=as_json)


def _scenario(options: dict[str, str | None]) -> Scenario:
    return scenario_from(parse_values(options))
