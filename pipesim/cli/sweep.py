"""`pipesim sweep`: a grid of simulations into one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipesim.cli.lists import names_of, parse_lists
from pipesim.cli.options import scenario_from, takes_scenario
from pipesim.cli.outputs import refuse_targets

if TYPE_CHECKING:
    from pandas import DataFrame

_PICTURES = (".png", ".svg", ".pdf")


@takes_scenario(lists=True)
def sweep(
    options: dict[str, str | None],
    out: Annotated[Path, typer.Option("--out", "-o", help="The table: .csv or .parquet.", show_default=False)],
    schedule: Annotated[str, typer.Option("--schedule", metavar="NAME,…", help="Schedules, or all.")] = "all",
    workers: Annotated[int, typer.Option(help="Processes on this machine.")] = 1,
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Dask scheduler to use, e.g. tcp://10.0.0.1:8786.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Time, bubble and memory over what was swept: .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Simulates every combination of the given values: one row each, failures with their reason.

    Options take lists (4,8,16) and ranges (4:16, 8:64:8, 16k:128k:x2). A schedule that does not use an option
    appears once however many values that option has. Run again, an interrupted or killed sweep goes on where it
    stopped.

    Examples:

      pipesim sweep --unit-costs 1,2 --schedule 1f1b,seq1f1b -p 4,8 -m 32 -k 1,2,4,8 --out s.csv

      pipesim sweep --model llama3-8b --cluster h100 --seq-len 16k:128k:x2 -p 4,8 -k 4 --out s.parquet --plot s.png

      dask scheduler &  dask worker tcp://127.0.0.1:8786 &  pipesim sweep … --dask tcp://127.0.0.1:8786 --out s.csv
    """
    from pipesim.sweep import grid
    from pipesim.sweep import sweep as run_sweep
    from pipesim.sweep.progress import progress

    _refuse_unwritable(out, plot)
    scenarios = grid(names_of(schedule), parse_lists(options), scenario_from)
    try:
        with progress() as begin:
            table = run_sweep(scenarios, out, workers=workers, dask=dask, report=begin(len(scenarios)))
    except KeyboardInterrupt:
        typer.echo("pipesim: interrupted; the same command goes on where this stopped", err=True)
        raise SystemExit(130) from None
    _tell(table, out)
    if plot is not None:
        from pipesim.plot.sweep import save_sweep

        save_sweep(table, plot)


def _tell(table: DataFrame, out: Path) -> None:
    failed = table["failure"].notna().sum()
    reasons = f", {failed} of them failed, each with its reason" if failed else ""
    typer.echo(f"{out}: {len(table)} points{reasons}")


def _refuse_unwritable(out: Path, plot: Path | None) -> None:
    from pipesim.sweep import ENDINGS

    refuse_targets({"--out": out, "--plot": plot}, {"--out": ENDINGS, "--plot": _PICTURES})
