"""`pipesim simulate SCHEDULE`: one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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
from pipesim.errors import InputError

if TYPE_CHECKING:
    from pipesim.jitter import Jitter
    from pipesim.scenario import Outcome


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
    jitter: Annotated[
        float | None, typer.Option(metavar="X", help="Relative standard deviation of each op's time: 0.05.")
    ] = None,
    slow: Annotated[str | None, typer.Option(metavar="D:X,…", help="Devices that take X times as long: 3:1.2.")] = None,
    trials: Annotated[int | None, typer.Option(metavar="N", help="Runs with --jitter or --slow. [200]")] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of the trials; the same seed gives the same. [0]")
    ] = None,
) -> None:
    """Simulates one schedule.

    Examples:

      pipesim simulate 1f1b -p 4 -m 8 --unit-costs 1,2

      pipesim simulate seq1f1b -p 8 -m 16 -k 4 --model llama3-8b --cluster h100 --seq-len 128k --gantt out.png

      pipesim simulate bsipipe -p 8 --jitter 0.05 --trials 200 --slow 3:1.2
    """
    from pipesim.jitter import Jitter, jitter_text
    from pipesim.report import print_explanation, print_json, print_outcome
    from pipesim.scenario import run

    disturbance = None
    if jitter is not None or slow is not None:
        disturbance = Jitter.of(jitter, trials, seed, slow)
    else:
        _refuse_unused(trials=trials, seed=seed)
    refuse_unwritable(gantt=gantt, memory=memory, trace=trace, spans=spans, plan=plan)
    outcome = run(scenario_from(parse_values(options), schedule), bounded=True)
    write_pictures([outcome], gantt=gantt, memory=memory)
    write_trace([outcome.timeline], trace)
    write_tables(outcome, spans=spans, plan=plan)
    extra = {} if disturbance is None else {"jitter": _trials(outcome, disturbance)}
    if as_json:
        print_json(outcome.metrics.as_json() | extra)
    else:
        print_outcome(outcome)
        if disturbance is not None:
            typer.echo(jitter_text(extra["jitter"], outcome.case.costs.unit))
    if explain:
        print_explanation(outcome.case.costs, to_stderr=as_json)


def _refuse_unused(**given: int | None) -> None:
    for name, value in given.items():
        if value is not None:
            raise InputError(f"--{name}", value, "needs --jitter or --slow", "add --jitter 0.05")


def _trials(outcome: Outcome, disturbance: Jitter) -> dict[str, float | int]:
    """The step lengths of all trials, with progress on stderr."""
    from pipesim.communication import Communication
    from pipesim.jitter import study
    from pipesim.sweep.progress import progress

    case, how = outcome.case, Communication.named(outcome.scenario.communication)
    with progress() as begin:
        tell = begin(disturbance.trials)
        return study(case.plan, case.costs, case.network, disturbance, communication=how, tell=tell).as_json()
