"""Executions and comparisons as text on the terminal; computes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from pipesim.metrics import measure
from pipesim.report import print_run
from pipesim.units import format_gib, format_seconds

if TYPE_CHECKING:
    from calibration.execute.plain import Agreement
    from calibration.execute.record import Execution
    from calibration.validate.compare import Comparison
    from calibration.validate.one_gpu import SerialRun
    from pipesim.timeline import Timeline

_SHOWN_VIOLATIONS = 5


def print_execution(execution: Execution, timeline: Timeline, agrees: Agreement | None) -> None:
    """The step of median makespan as a simulated one is shown, then what only a real step has."""
    print_run(measure(timeline), timeline)
    makespans = ", ".join(format_seconds(int(ns) / 1e9) for ns in execution.makespans_ns)
    lines = [
        f"makespan of each step: {makespans}; the median one is shown",
        f"loss {execution.losses[-1]:.6f}, gradient norm {execution.gradient_norm:.6f}",
        f"gradient sum after the last op: {format_seconds(int(execution.summing_ns.max(axis=1).min()) / 1e9)}",
        f"host overhead: {format_seconds(execution.host_overhead_ns / 1e9)} an op",
    ]
    for device, memory in enumerate(execution.memory):
        lines.append(
            f"rank {device}: {format_gib(memory.allocated_bytes)} allocated at the peak, of which "
            f"{format_gib(memory.static_bytes)} static; {format_gib(memory.reserved_bytes)} {memory.reserved_is}"
        )
    _say(lines + _agreement_lines(agrees))


def print_serial(run: SerialRun, composed: Timeline, agrees: Agreement | None) -> None:
    """The composed timeline, and what it is made of."""
    print_run(measure(composed), composed)
    _say(
        [
            f"composed: each op measured alone on {run.device_name}, then replayed with given links",
            f"loss {run.loss:.6f}",
            *_agreement_lines(agrees),
        ]
    )


def _agreement_lines(agrees: Agreement | None) -> list[str]:
    if agrees is None:
        return []
    return [
        f"against the whole model in one process: loss differs by {agrees.loss:.1e}, gradients by at most "
        f"{agrees.gradient:.1e} ({agrees.parameter})"
    ]


def print_comparison(comparison: Comparison, predicted: Timeline, measured: Timeline) -> None:
    """A line for each thing compared."""
    c = comparison
    makespans = ", ".join(format_seconds(seconds) for seconds in c.makespans_measured_seconds)
    lines = [
        f"{c.schedule}: {predicted.costs.name}",
        f"makespan: predicted {format_seconds(c.makespan_predicted_seconds)}, {measured.source} "
        f"{format_seconds(c.makespan_measured_seconds)} (median of {makespans}): {c.makespan_error:+.1%}",
        f"the {measured.source} durations run again by the engine: {c.replay_error:+.1%} of the makespan",
        f"op starts: off by {c.start_error.median:.1%} of the makespan at the median, {c.start_error.p90:.1%} at p90",
        f"op durations: off by {c.duration_error.median:.1%} at the median, {c.duration_error.p90:.1%} at p90",
        f"bubble fraction: predicted {c.bubble_fraction_predicted:.1%}, "
        f"{measured.source} {c.bubble_fraction_measured:.1%}",
    ]
    pairs = zip(c.memory_predicted_bytes, c.memory_measured_bytes, strict=False)
    for device, (before, after) in enumerate(pairs):
        lines.append(
            f"memory of device {device}: predicted {format_gib(before)}, measured {format_gib(after)}: "
            f"{before / after - 1:+.1%}"
        )
    _say(lines + _order_lines(c))


def _order_lines(comparison: Comparison) -> list[str]:
    violations = comparison.order_violations
    if not violations:
        return ["order: no violation"]
    shown = [f"  {violation}" for violation in violations[:_SHOWN_VIOLATIONS]]
    return [f"order: {len(violations)} violations", *shown]


def _say(lines: list[str]) -> None:
    typer.echo("\n".join(lines))
