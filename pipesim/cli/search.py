"""`pipesim search`: the fastest configuration under a memory limit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from pipesim.cli.lists import names_of, parse_lists
from pipesim.cli.options import scenario_from, takes_scenario
from pipesim.cli.outputs import Json, refuse_targets
from pipesim.errors import InputError

_CHOICES = (
    "devices", "tp", "dp", "stages_per_device", "subsequences", "recompute", "micro_batch_size", "in_flight",
    "variant", "partition",
)  # fmt: skip
_PICTURES = (".png", ".svg", ".pdf")


@takes_scenario(lists=True)
def search(
    options: dict[str, str | None],
    gpus: Annotated[int, typer.Option(help="GPUs there are: tp · p · dp.", show_default=False)],
    global_batch: Annotated[int, typer.Option(help="Sequences of a step.", show_default=False)],
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of one GPU to stay within, e.g. 80GiB. [the cluster's]")
    ] = None,
    schedule: Annotated[str, typer.Option("--schedule", metavar="NAME,…", help="Schedules, or all.")] = "all",
    workers: Annotated[int | None, typer.Option(help="Processes on this machine. [all CPUs]")] = None,
    as_json: Json = False,
    plot: Annotated[
        Path | None, typer.Option(help="Time against memory of all that was tried: .png, .svg or .pdf.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="All that was tried: .csv or .parquet.")] = None,
) -> None:
    """Finds the fastest schedule, k, v and tp · p · dp for a number of GPUs and a batch.

    Values given for -v, -k, -p, --tp, --dp, --recompute, … (one, a list or a range) limit what is tried.

    Examples:

      pipesim search --model llama3-70b --cluster h100 --gpus 64 --seq-len 128k --global-batch 64 --memory 80GiB

      pipesim search --model llama3-8b --gpus 16 --seq-len 64k --global-batch 32 --tp 1,2,4 --schedule all --json
    """
    from pipesim.report import print_json
    from pipesim.report.search import as_json as json_of
    from pipesim.report.search import print_found
    from pipesim.search import search as run_search
    from pipesim.search.space import Space
    from pipesim.sweep.progress import progress
    from pipesim.units import parse_bytes

    _refuse_unwritable(plot, out)
    base, choices = _split(options)
    space = Space(gpus, global_batch, scenario_from(base), choices, names_of(schedule))
    limit = None if memory is None else parse_bytes(memory, "--memory")
    cpus = len(os.sched_getaffinity(0)) if workers is None else workers
    with progress() as report:
        found = run_search(space, limit, workers=cpus, report=report)
    if as_json:
        print_json(json_of(found))
    else:
        print_found(found)
    if out is not None:
        from pipesim.frame import save
        from pipesim.sweep.store import table_of

        save(table_of(c.row for c in found.configurations), out)
    if plot is not None:
        from pipesim.plot.search import save_search

        save_search(found, plot)


def _split(options: dict[str, str | None]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Values that all configurations share, and lists to choose from."""
    lists = parse_lists(options)
    choices = {name: lists.pop(name) for name in _CHOICES if name in lists}
    for name, values in lists.items():
        option = "--" + name.replace("_", "-")
        if name in ("microbatches", "unit_costs", "latency", "transfer"):
            raise InputError(option, str(options[name]), "is not for a search", "give --global-batch and a model")
        if name == "memory_limit_bytes":
            raise InputError("--memory-limit", str(options[name]), "is not for a search", "give --memory")
        if len(values) > 1:
            raise InputError(option, str(options[name]), "must be one value in a search")
    return {name: values[0] for name, values in lists.items()}, choices


def _refuse_unwritable(plot: Path | None, out: Path | None) -> None:
    from pipesim.sweep import ENDINGS

    refuse_targets({"--plot": plot, "--out": out}, {"--plot": _PICTURES, "--out": ENDINGS})
