"""`pipesim simulate SCHEDULE`: one run."""

from __future__ import annotations

from typing import Annotated

import typer

from pipesim.cli.options import parse_values, scenario_from, takes_scenario
from pipesim.cli.outputs import (
    Explain,
    Gantt,
    Json,
    Memory,
    PlanFile,
    Spans,
    Trace,
    refuse_unwritable,
    write_pictures,
    write_tables,
    write_trace,
)


@takes_scenario()
def simulate(
    options: dict[str, str | None],
    schedule: Annotated[str, typer.Argument(metavar="SCHEDULE", help="A name from `pipesim schedules`.")],
    as_json: Json = False,
    explain: Explain = False,
    gantt: Gantt = None,
    memory: Memory = None,
    trace: Trace = None,
    spans: Spans = None,
    plan: PlanFile = None,
) -> None:
    """Simulates one schedule.

    Examples:

      pipesim simulate 1f1b -p 4 -m 8 --unit-costs 1,2

      pipesim simulate seq1f1b -p 8 -m 16 -k 4 --model llama3-8b --cluster h100 --seq-len 128k --gantt out.png
    """
    from pipesim.report import print_explanation, print_json, print_outcome
    from pipesim.scenario import run

    refuse_unwritable(gantt=gantt, memory=memory, trace=trace, spans=spans, plan=plan)
    outcome = run(scenario_from(parse_values(options), schedule), bounded=True)
    write_pictures([outcome], gantt=gantt, memory=memory)
    write_trace([outcome.timeline], trace)
    write_tables(outcome, spans=spans, plan=plan)
    if as_json:
        print_json(outcome.metrics.as_json())
    else:
        print_outcome(outcome)
    if explain:
        print_explanation(outcome.case.costs, to_stderr=as_json)
