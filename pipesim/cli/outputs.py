"""The outputs that `simulate` and `compare` share: pictures, traces and tables, each to a file of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipesim.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pipesim.scenario import Outcome
    from pipesim.timeline import Timeline

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")]
Gantt = Annotated[Path | None, typer.Option(help="Gantt chart: .png, .svg, .pdf or .html.")]
Memory = Annotated[Path | None, typer.Option(help="Memory over time: .png, .svg or .pdf.")]
Trace = Annotated[Path | None, typer.Option(help="Trace for Perfetto or chrome://tracing: .json.")]
Spans = Annotated[Path | None, typer.Option(help="Every op with its times: .csv or .parquet.")]
PlanFile = Annotated[Path | None, typer.Option("--plan", help="The plan, a row per device: .csv.")]
Explain = Annotated[bool, typer.Option("--explain", help="Say where each number comes from.")]

_PICTURES = (".png", ".svg", ".pdf")


def refuse_unwritable(**files: Path | None) -> None:
    """Raises InputError on a wrong ending or a missing folder, before anything is simulated."""
    endings = {
        "gantt": (*_PICTURES, ".html"),
        "memory": _PICTURES,
        "trace": (".json",),
        "spans": (".csv", ".parquet"),
        "plan": (".csv",),
    }
    refuse_targets({f"--{name}": path for name, path in files.items()}, {f"--{n}": e for n, e in endings.items()})


def refuse_targets(files: Mapping[str, Path | None], endings: Mapping[str, Sequence[str]]) -> None:
    """Raises InputError on what cannot be written; `endings` are those each option takes."""
    taken: dict[Path, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        if path.suffix not in endings[option]:
            raise InputError(option, str(path), "unknown ending", f"one of {', '.join(endings[option])}")
        if not os.path.isdir(path.parent):  # noqa: PTH112  (also where the name is too long to ask for)
            raise InputError(option, str(path), "its folder does not exist", f"make {path.parent} first")
        if os.path.isdir(path):  # noqa: PTH112
            raise InputError(option, str(path), "is a folder", "name a file in it")
        if not os.access(path.parent, os.W_OK):
            raise InputError(option, str(path), "its folder cannot be written to", "name another")
        if path.resolve() in taken:
            raise InputError(option, str(path), f"is also the file of {taken[path.resolve()]}", "name two files")
        taken[path.resolve()] = option


def write_pictures(outcomes: Sequence[Outcome], *, gantt: Path | None, memory: Path | None) -> None:
    """Draws the charts asked for, all outcomes in one figure."""
    timelines = [outcome.timeline for outcome in outcomes]
    if gantt is not None:
        from pipesim.plot import save_gantt

        save_gantt(timelines, gantt)
    if memory is not None:
        from pipesim.plot import save_memory

        facts = outcomes[0].case.facts
        save_memory(timelines, memory, limit_bytes=facts.memory_limit_bytes if facts else None)


def write_trace(timelines: Sequence[Timeline], trace: Path | None) -> None:
    """Writes one trace with a group of tracks per timeline."""
    if trace is not None:
        from pipesim.trace import save_trace

        save_trace(timelines, trace)


def write_tables(outcome: Outcome, *, spans: Path | None, plan: Path | None) -> None:
    """Writes the spans and the plan of one outcome."""
    if spans is not None:
        from pipesim.frame import save_spans

        save_spans(outcome.timeline, spans)
    if plan is not None:
        from pipesim.plan_csv import write_plan

        write_plan(outcome.case.plan, plan)
