"""One rank of `torchrun -m calibration.execute`: the same run as `pipesim execute`, on ranks that torchrun started.

torchrun ends the other ranks when one ends badly. What it cannot see, a rank that stands still, a watchdog thread in
each rank ends: first the ranks that compute, some seconds later those that wait for another.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import typer
from torch import distributed

from calibration.cli_execute import Check, Schedule  # noqa: TC001  (typer reads annotations as it runs)
from calibration.execute.commands import Files, report_execution
from calibration.execute.engine import Effort, prepare
from calibration.execute.faults import place_of
from calibration.execute.launch import rank_of_environment
from calibration.execute.options import OFFERED, Choices
from calibration.execute.plain import agreement, plain_run
from calibration.execute.ranks import NOT_TO_BLAME, Phase
from calibration.execute.record import gathered
from calibration.execute.run import run_on_rank
from pipesim.cli.options import parse_values, takes_scenario
from pipesim.cli.outputs import Gantt, Json, PlanFile, Spans, Trace, refuse_unwritable
from pipesim.errors import InputError, PipesimError
from pipesim.lower import lower

if TYPE_CHECKING:
    from collections.abc import Callable

    from calibration.execute.ranks import Rank

_HEAD_START_S = 5.0  # of a rank that computes over those that wait, so that the culprit speaks first


@takes_scenario(offered=OFFERED)
def execute(
    options: dict[str, str | None],
    schedule: Schedule,
    check: Check = False,
    as_json: Json = False,
    gantt: Gantt = None,
    trace: Trace = None,
    spans: Spans = None,
    plan: PlanFile = None,
) -> None:
    """Runs a schedule's plan on the ranks that torchrun started, one a device; rank 0 writes and prints."""
    refuse_unwritable(gantt=gantt, trace=trace, spans=spans, plan=plan)
    choices = Choices.of(parse_values(options, OFFERED), schedule)
    rank = rank_of_environment(choices.device)
    try:
        files = Files(gantt=gantt, trace=trace, spans=spans, plan=plan)
        _run(rank, choices, files, check=check, as_json=as_json)
    finally:
        distributed.destroy_process_group()


def _run(rank: Rank, choices: Choices, files: Files, *, check: bool, as_json: bool) -> None:
    plan = choices.plan()
    workload = choices.workload(plan.shape)
    routes = prepare(lower(plan), workload)
    if plan.shape.devices != rank.world:
        raise InputError("--devices/-p", plan.shape.devices, f"must be the {rank.world} ranks torchrun started")
    watch(rank, choices.timeout, plan.label)
    try:
        report = run_on_rank(rank, plan, routes, workload, Effort(choices.steps, choices.warm_ups, gradients=check))
    except Exception as error:
        place = place_of(*rank.board.read(rank.number), plan.label)
        text = (str(error).strip().splitlines() or [""])[0]
        _end(f"rank {rank.number} raised {type(error).__name__} {place}: {text}")
    rank.at(Phase.IDLE)
    reports: list[Any] | None = [None] * rank.world if rank.number == 0 else None
    distributed.gather_object(report, reports, dst=0, group=rank.host_group)
    if reports is not None:
        execution = gathered(plan, workload, routes, reports, f"{rank.backend} ranks")
        agrees = agreement(execution, plain_run(workload, str(rank.device))) if check else None
        report_execution(execution, agrees, files, as_json=as_json)
    rank.barrier()


def watch(rank: Rank, timeout_s: float, label: Callable[[int], str]) -> None:
    """Starts the thread that ends this process where its rank stands still for so long."""
    threading.Thread(target=_watch, args=(rank, timeout_s, label), daemon=True).start()


def _watch(rank: Rank, timeout_s: float, label: Callable[[int], str]) -> None:
    seen, since = -1, time.monotonic()
    while True:
        time.sleep(0.2)
        progress = int(rank.board.progress[rank.number])
        phase, row, waits_for = rank.board.read(rank.number)
        if progress != seen or phase is Phase.IDLE:
            seen, since = progress, time.monotonic()
        patience = timeout_s + (_HEAD_START_S if phase in NOT_TO_BLAME else 0)
        if time.monotonic() - since > patience:
            place = place_of(phase, row, waits_for, label)
            _end(f"no progress for {patience:g} s (--timeout): rank {rank.number} {place}")


def _end(reason: str) -> None:
    """Ends this process at once, whatever its threads and connections are at."""
    os.write(2, f"pipesim: {reason}\n".encode())
    os._exit(1)


def main() -> int:
    """Exit status 0 done, 2 wrong input, 1 failed; wrong input is said once, by the first rank of each machine."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(execute)
    try:
        app(standalone_mode=False)
    except PipesimError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            typer.echo(f"pipesim: {error}", err=True)
        return 2 if isinstance(error, InputError) else 1
    except typer.BadParameter.__mro__[2] as error:  # click's ClickException, wherever typer keeps it
        if os.environ.get("LOCAL_RANK", "0") == "0":
            typer.echo(f"pipesim: {' '.join(error.format_message().split())}", err=True)  # type: ignore[attr-defined]
        return 2
    return 0
