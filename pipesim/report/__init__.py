"""Results on the terminal: tables of one run and of comparisons, JSON, explanations; computes nothing."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from pipesim.plot.text import text_gantt
from pipesim.report.catalog import catalog_of_clusters, catalog_of_models, catalog_of_schedules
from pipesim.report.words import (
    closing_sentence,
    comparison_columns,
    fits_text,
    gib,
    percent,
    shape_text,
    size_text,
    time_text,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from pipesim.compare import Comparison
    from pipesim.costs.table import CostTable
    from pipesim.metrics import Metrics
    from pipesim.plan import PipelineShape
    from pipesim.report.catalog import Catalog
    from pipesim.scenario import Outcome
    from pipesim.timeline import Timeline

__all__ = [
    "catalog_of_clusters",
    "catalog_of_models",
    "catalog_of_schedules",
    "print_comparison",
    "print_explanation",
    "print_json",
    "print_outcome",
    "show",
]

_WIDTH_OF_FILES = 120  # where the output goes to a file or a pipe, which have no width
_PICTURE_DEVICES = 16


def print_json(document: object) -> None:
    """One JSON document on stdout. Raises ValueError rather than writing NaN, which JSON does not have."""
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def print_outcome(outcome: Outcome) -> None:
    """One run: a headline, its totals, a row a device, and the order as a picture."""
    print_run(outcome.metrics, outcome.timeline)


def print_run(metrics: Metrics, timeline: Timeline) -> None:
    """As `print_outcome`, for a timeline from anywhere."""
    console = _console()
    console.print(f"[bold]{metrics.schedule}[/bold]  {shape_text(metrics)}", highlight=False, soft_wrap=True)
    made = f"{metrics.source}, engine {metrics.engine}, communication {metrics.communication}"
    console.print(f"{metrics.costs}; {made}", style="dim", highlight=False, soft_wrap=True)
    console.print(_totals(metrics))
    console.print(_per_device(metrics))
    if metrics.devices <= _PICTURE_DEVICES:
        _say(console, text_gantt(timeline, console.width))


def print_comparison(comparison: Comparison) -> None:
    """A row a schedule, notes below it, and one closing sentence: which is fastest and which fits."""
    rows = [outcome.metrics for outcome in comparison.outcomes]
    console = _console()
    first = rows[0]
    console.print(
        f"{first.costs}; p={first.devices} m={first.microbatches}", style="dim", highlight=False, soft_wrap=True
    )
    console.print(comparison_table(rows))
    for name, note in _notes(rows):
        _say(console, f": {note}", bold=name, style="dim")
    for name, reason in comparison.refused:
        _say(console, f" is left out: {reason}", bold=name, style="dim")
    _say(console, closing_sentence(rows))


def comparison_table(rows: list[Metrics]) -> Table:
    """The table of a comparison; the fastest row that fits, or the fastest without a limit, is bold."""
    columns = comparison_columns(rows)
    table = _table()
    for heading, _ in columns:
        table.add_column(heading, justify="left" if heading in ("schedule", "cut") else "right", no_wrap=True)
    candidates = [row for row in rows if row.fits is not False] or rows
    best = min(row.makespan_seconds for row in candidates)
    for row in rows:
        chosen = row in candidates and row.makespan_seconds == best
        table.add_row(*(cell(row) for _, cell in columns), style="bold" if chosen else None)
    return table


def print_explanation(costs: CostTable, *, to_stderr: bool = False) -> None:
    """Where each number of a cost table comes from."""
    from rich.text import Text

    table = _table()
    for heading in ("what", "value", "from"):
        table.add_column(heading, overflow="fold")
    for source in costs.sources:
        table.add_row(*(Text(text) for text in (source.what, source.value, source.origin)))
    _console(to_stderr=to_stderr).print(table)


def show(catalog: Catalog, *, as_json: bool = False) -> None:
    """Prints a catalog as a table, or as a JSON document of its rows under its name."""
    if as_json:
        print_json({catalog.name: catalog.rows})
        return
    table = _table()
    for column in catalog.columns:
        numeric = isinstance(catalog.rows[0][column.key], int | float) if catalog.rows else False
        table.add_column(column.heading, justify="right" if numeric else "left", overflow="fold")
    for row in catalog.rows:
        table.add_row(*(column.text(row[column.key]) for column in catalog.columns))
    _console().print(table)


def _totals(metrics: Metrics) -> Table:
    unit = metrics.unit
    rows = [
        ("makespan", f"{time_text(metrics.makespan_seconds, unit)}  (ideal {time_text(metrics.ideal_seconds, unit)})"),
        ("bubble", f"{percent(metrics.bubble_fraction)} of the time, "
                   f"{percent(metrics.bubble_over_ideal)} over ideal"),
    ]  # fmt: skip
    if metrics.lower_bound_seconds is not None:
        least = time_text(metrics.lower_bound_seconds, unit)
        rows.append(("bound", f"no order takes less than {least}: {percent(metrics.optimality_gap)} over it"))
    if metrics.throughput:
        t = metrics.throughput
        rows.append(
            ("throughput", f"{t.tokens_per_second:,.0f} tokens/s, {t.tokens_per_second_per_gpu:,.0f} per GPU; "
                           f"{t.tflops_per_gpu:.0f} TFLOP/s per GPU, MFU {percent(t.mfu)}")
        )  # fmt: skip
    if metrics.exposed_synchronisation_seconds:
        after = time_text(metrics.exposed_synchronisation_seconds, unit)
        rows.append(("synchronisation", f"{after} after the last op: sums of gradients, optimizer"))
    if any(metrics.peak_memory_bytes):
        rows.append(("memory", _memory_text(metrics)))
    table = _table(show_header=False)
    for row in rows:
        table.add_row(*row)
    return table


def _memory_text(metrics: Metrics) -> str:
    device = metrics.peak_memory_device
    at = time_text(metrics.peak_memory_at_seconds[device], metrics.unit)
    text = f"{size_text(metrics.peak_memory_bytes[device])} at most, on device {device} at {at}"
    if metrics.memory_limit_bytes is None:
        return text
    return f"{text}; fits in {size_text(metrics.memory_limit_bytes)}: {fits_text(metrics)}"


def _per_device(metrics: Metrics) -> Table:
    unit, with_bytes = metrics.unit, any(metrics.peak_memory_bytes)
    headings = ["device", "busy", "idle", "utilisation", "exposed\ncomm.", "leading\nforwards", "in flight\n(peak)"]
    table = _table()
    for heading in headings + ["static\n(GiB)", "activations\n(peak GiB)", "memory\n(peak GiB)"] * with_bytes:
        table.add_column(heading, justify="right")
    for d in range(metrics.devices):
        cells = [
            str(d),
            time_text(metrics.busy_seconds[d], unit),
            time_text(metrics.idle_seconds[d], unit),
            percent(metrics.utilisation[d]),
            time_text(metrics.exposed_communication_seconds[d], unit),
            str(metrics.leading_forwards[d]),
            f"{metrics.peak_in_flight[d]:.4g}",
        ]
        if with_bytes:
            held = (metrics.static_bytes[d], metrics.peak_activation_bytes[d], metrics.peak_memory_bytes[d])
            cells += map(gib, held)
        table.add_row(*cells)
    return table


def _notes(rows: list[Metrics]) -> list[tuple[str, str]]:
    from pipesim.schedules import all_schedules

    known = all_schedules()
    named = [(known[row.schedule], row) for row in rows if row.schedule in known]
    return [(s.name, s.note) for s, row in named if s.note and s.note_applies(_shape(row))]


def _shape(row: Metrics) -> PipelineShape:
    from pipesim.plan import PipelineShape

    return PipelineShape(row.devices, row.microbatches, row.stages_per_device, row.subsequences)


def _console(*, to_stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if to_stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else _WIDTH_OF_FILES)


def _say(console: Console, text: str, *, bold: str = "", style: str = "") -> None:
    """A line of plain text that no pipe wraps and in which brackets are brackets."""
    from rich.text import Text

    console.print(Text.assemble((bold, "bold"), text, style=style), soft_wrap=True)


def _table(**options: Any) -> Table:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), **options)
