"""What a report says in words: cells, captions and the closing sentence of a comparison; prints nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipesim.plan import PipelineShape
from pipesim.units import GIB, format_gib, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipesim.metrics import Metrics


def time_text(value: float, unit: str) -> str:
    """A time with its unit: `2.345 s`, or `28.5` under unit costs."""
    return format_seconds(value) if unit == "s" else f"{value:.6g}"


def percent(value: float | None) -> str:
    """A fraction as a percentage, a dash where there is none."""
    return "-" if value is None else f"{100 * value:.1f}%"


def gib(value: float) -> str:
    """Bytes in GiB without the unit, for columns that name it."""
    return f"{value / GIB:.1f}"


def size_text(value: float) -> str:
    """Bytes in GiB, or plain where there is less than a hundredth of one."""
    return format_gib(value) if value >= GIB / 100 else f"{int(value):,} bytes"


def shape_text(metrics: Metrics) -> str:
    """The shape as options are written: `p=8 m=16 v=2 k=4`; v and k only where they are not 1."""
    m = metrics
    return shape_text_of(PipelineShape(m.devices, m.microbatches, m.stages_per_device, m.subsequences))


def shape_text_of(shape: PipelineShape) -> str:
    """As `shape_text`, from a shape."""
    parts = {"p": shape.devices, "m": shape.microbatches}
    optional = {"v": shape.stages_per_device, "k": shape.subsequences}
    parts |= {name: value for name, value in optional.items() if value > 1}
    return " ".join(f"{name}={value}" for name, value in parts.items())


def cut_text(metrics: Metrics) -> str:
    """What differs between schedules of one scenario: `v=2 k=4`, empty where both are 1."""
    return " ".join(part for part in shape_text(metrics).split() if part[0] in "vk")


def fits_text(metrics: Metrics) -> str:
    """Whether the peak fits: `yes`, `no`, or a dash without a limit."""
    return {True: "yes", False: "no", None: "-"}[metrics.fits]


def closing_sentence(rows: Sequence[Metrics]) -> str:
    """One sentence: which schedule is fastest, and which fit in memory or, without a limit, hold least."""
    best = min(rows, key=lambda row: row.makespan_seconds)
    tied = [row.schedule for row in rows if row.makespan_seconds == best.makespan_seconds]
    fastest = f"{listed(tied)} {'is' if len(tied) == 1 else 'are'} fastest ({_step_time(best)})"
    if best.fits is None:
        return f"{fastest}; {_holds_least(rows)}."
    return f"{fastest} {_who_fits(rows, best, tied)}."


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _step_time(row: Metrics) -> str:
    return f"{time_text(row.makespan_seconds, row.unit)}{'' if row.unit == 's' else ' units'} a step"


def _holds_least(rows: Sequence[Metrics]) -> str:
    least = min(max(row.peak_in_flight) for row in rows)
    names = [row.schedule for row in rows if max(row.peak_in_flight) == least]
    verb = "holds" if len(names) == 1 else "hold"
    return f"{listed(names)} {verb} fewest activations ({least:.6g} micro-batches in flight at most)"


def _who_fits(rows: Sequence[Metrics], best: Metrics, tied: Sequence[str]) -> str:
    limit = size_text(best.memory_limit_bytes or 0)
    fitting = [row for row in rows if row.fits]
    if not fitting:
        least = min(rows, key=_need)
        needs = f"{least.schedule} needs least, {size_text(_need(least))}"
        return f"but does not fit in {limit}, nor does any other: {needs}" if len(rows) > 1 else (
            f"but does not fit in {limit}: it needs {size_text(_need(best))}"
        )  # fmt: skip
    if not best.fits:
        return f"but needs {size_text(_need(best))}, more than the {limit} there are; {_fastest_that_fits(fitting)}"
    others = [row for row in rows if row.schedule not in tied]
    return f"and {'fits' if len(tied) == 1 else 'fit'} in {limit}{_others_that_fit(others)}"


def _fastest_that_fits(fitting: Sequence[Metrics]) -> str:
    first = min(fitting, key=lambda row: row.makespan_seconds)
    if len(fitting) == 1:
        return f"only {first.schedule} fits ({_step_time(first)})"
    names = listed([row.schedule for row in fitting])
    return f"{names} fit, and of these {first.schedule} is fastest ({_step_time(first)})"


def _others_that_fit(others: Sequence[Metrics]) -> str:
    fit, fail = [r.schedule for r in others if r.fits], [r.schedule for r in others if not r.fits]
    if not others:
        return ""
    if not fit:
        return f"; {listed(fail)} {'does' if len(fail) == 1 else 'do'} not"
    if not fail:
        return "; so do all the others" if len(fit) > 1 else f"; so does {fit[0]}"
    return (
        f"; so do all the others but {listed(fail)}" if len(fail) < len(fit) else f"; of the others only {listed(fit)}"
    )


def _need(row: Metrics) -> int:
    return max(row.peak_memory_bytes)


def comparison_columns(rows: Sequence[Metrics]) -> list[tuple[str, Callable[[Metrics], str]]]:
    """Headings and cell texts of a comparison; throughput and memory columns where there is a model."""
    unit = rows[0].unit
    columns: list[tuple[str, Callable[[Metrics], str]]] = [
        ("schedule", lambda row: row.schedule),
        ("cut", cut_text),
        ("time" if unit == "s" else "time\n(units)", lambda row: time_text(row.makespan_seconds, unit)),
    ]
    if any(row.throughput for row in rows):
        columns += [
            ("tokens/s\nper GPU", lambda row: _of_throughput(row, "tokens_per_second_per_gpu", ",.0f")),
            ("MFU", lambda row: percent(row.throughput.mfu if row.throughput else None)),
        ]
    columns += [
        ("bubble\nof time", lambda row: percent(row.bubble_fraction)),
        ("bubble\nover ideal", lambda row: percent(row.bubble_over_ideal)),
    ]
    if any(row.optimality_gap is not None for row in rows):
        columns.append(("over lower\nbound", lambda row: percent(row.optimality_gap)))
    if any(max(row.peak_memory_bytes) for row in rows):
        columns.append(("peak\nGiB", lambda row: gib(_need(row))))
    else:
        columns.append(("peak\nin flight", lambda row: f"{max(row.peak_in_flight):.4g}"))
    if any(row.fits is not None for row in rows):
        columns.append(("fits", fits_text))
    return columns


def _of_throughput(row: Metrics, name: str, form: str) -> str:
    return format(getattr(row.throughput, name), form) if row.throughput else "-"
