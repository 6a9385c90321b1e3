"""`pipesim execute` and `pipesim validate`: parses, calls, prints; loads torch only when it runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from calibration.execute.options import OFFERED
from pipesim.cli.options import parse_values, takes_scenario
from pipesim.cli.outputs import Gantt, Json, PlanFile, Spans, Trace, refuse_unwritable
from pipesim.errors import DependencyMissing

Schedule = Annotated[str, typer.Argument(metavar="SCHEDULE", help="A name from `pipesim schedules`.")]
OneGpu = Annotated[
    bool,
    typer.Option("--one-gpu", help="All devices' ops one after the other on one device; times are then composed."),
]
Check = Annotated[
    bool, typer.Option("--check", help="Compare loss and every gradient with the model run whole in one process.")
]
Profile = Annotated[Path | None, typer.Option(help="Predict from a measured profile instead of timing the plan's ops.")]


@takes_scenario(offered=OFFERED)
def execute(
    options: dict[str, str | None],
    schedule: Schedule,
    check: Check = False,
    one_gpu: OneGpu = False,
    as_json: Json = False,
    gantt: Gantt = None,
    trace: Trace = None,
    spans: Spans = None,
    plan: PlanFile = None,
) -> None:
    """Runs a schedule's plan on real ranks of this machine: real layers, synthetic tokens. Needs torch.

    Examples:

      pipesim execute bsipipe --model tiny -p 4 -m 4 -k 2 --device cpu --gantt run.png --trace run.json

      pipesim execute seq1f1b -p 2 -m 4 -k 4 --dtype float64 --check
    """
    need_torch("execute")
    refuse_unwritable(gantt=gantt, trace=trace, spans=spans, plan=plan)
    from calibration.execute.commands import Files, run_execute

    files = Files(gantt=gantt, trace=trace, spans=spans, plan=plan)
    run_execute(parse_values(options, OFFERED), schedule, files, check=check, one_gpu=one_gpu, as_json=as_json)


@takes_scenario(offered=OFFERED)
def validate(
    options: dict[str, str | None],
    schedule: Schedule,
    profile: Profile = None,
    one_gpu: OneGpu = False,
    as_json: Json = False,
    gantt: Gantt = None,
    trace: Trace = None,
) -> None:
    """Predicts a schedule's step, then executes it on real ranks, and says how far they are apart. Needs torch.

    Every op of the plan is timed alone on the ranks (or looked up in --profile), the plan is simulated, then run.
    Example: pipesim validate seq1f1b --model tiny -p 2 -m 4 -k 4 --device cpu --gantt two.png
    """
    need_torch("validate")
    refuse_unwritable(gantt=gantt, trace=trace)
    from calibration.execute.commands import Files, run_validate

    files = Files(gantt=gantt, trace=trace)
    run_validate(parse_values(options, OFFERED), schedule, files, profile=profile, one_gpu=one_gpu, as_json=as_json)


def need_torch(command: str) -> None:
    """Raises DependencyMissing where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise DependencyMissing(f"{command} needs torch: pip install 'pipesim[torch]'")
