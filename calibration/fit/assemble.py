"""A CalibrationProfile out of everything one calibration measured; pure, no torch, reads no clock."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calibration.fit import fit_sizes, fit_times, rms, time_row, worst
from calibration.fit.statistics import Summary, summarise
from calibration.grid import Point
from pipesim.profile import SCHEMA_VERSION, CalibrationProfile
from pipesim.profile_records import HeldOut, Optimizer, Samples, Stability

if TYPE_CHECKING:
    from pipesim.model import ModelSpec
    from pipesim.profile_records import Fit, Grid, Links, MemoryRow, Provenance, TimeRow

HOST_BOUND_CLOCK = "CUDA events or host issue time, whichever is longer"
REFERENCE_WARM_UPS = 2


@dataclass(frozen=True)
class Measured:
    """Raw results: `visits` hold round, point, and seconds and host_seconds by op for each of two series."""

    provenance: Provenance
    clock: str
    model: ModelSpec
    sequence_length: int
    micro_batch_size: int
    grid: Grid
    visits: list[dict[str, Any]]
    sizes: list[MemoryRow]
    reference: list[list[float]]
    optimizer: dict[str, Any] | None
    notes: list[str]
    links: Links
    prefix_zero_apart: bool
    refuse_unstable: bool = True


def assemble(measured: Measured) -> CalibrationProfile:
    """Tables, fits and the verdict; InputError with the reason when no stable layer time is left."""
    m = measured
    samples = samples_of(m.visits)
    rows = [time_row(one, m.grid.warm_ups, m.clock == HOST_BOUND_CLOCK) for one in samples]
    sizes = sorted(m.sizes, key=lambda row: (row.tp, row.part, row.tokens, row.prefix))
    time_fits = fit_times(rows, apart=m.prefix_zero_apart, refuse=m.refuse_unstable)
    return CalibrationProfile.model_validate(
        {
            "schema_version": SCHEMA_VERSION,
            "time_unit": "s",
            "size_unit": "byte",
            "clock": m.clock,
            "provenance": m.provenance,
            "model": m.model,
            "sequence_length": m.sequence_length,
            "micro_batch_size": m.micro_batch_size,
            "grid": m.grid,
            "samples": samples,
            "times": rows,
            "memory": sizes,
            "fits": [*time_fits, *fit_sizes(sizes)],
            "held_out": held_out(time_fits, rows),
            "optimizer": _optimizer(m.optimizer, m.grid.warm_ups),
            "links": m.links,
            "stability": stability(m.reference, rows),
            "notes": m.notes,
        }
    )


def samples_of(visits: list[dict[str, Any]]) -> list[Samples]:
    """One record for each op at each point, its visits in the order of measuring."""
    seconds: dict[tuple[Point, str], list[list[float]]] = defaultdict(list)
    host: dict[tuple[Point, str], list[list[float]]] = defaultdict(list)
    for visit in visits:
        for device_series, host_series in zip(visit["seconds"], visit["host_seconds"], strict=True):
            for op in device_series:
                seconds[Point(*visit["point"]), op].append(device_series[op])
                host[Point(*visit["point"]), op].append(host_series[op])
    return [
        Samples.model_validate({**p._asdict(), "op": op, "seconds": lists, "host_seconds": host[p, op]})
        for (p, op), lists in sorted(seconds.items())
    ]


def held_out(fits: list[Fit], rows: list[TimeRow]) -> HeldOut | None:
    """Errors of the fits on the stable held-out times of layers; None without such times."""
    unseen = [row for row in rows if row.part == "layer" and row.held_out and row.stable]
    errors = [
        fit.value(row.tokens, row.prefix) / row.seconds - 1.0
        for row in unseen
        for fit in fits
        if (fit.tp, fit.part, fit.quantity) == (row.tp, row.part, row.op) and fit.covers(row.prefix)
    ]
    return HeldOut(op_times=len(errors), rms=rms(errors), worst=worst(errors)) if errors else None


def _optimizer(found: dict[str, Any] | None, warm_ups: int) -> Optimizer | None:
    if found is None:
        return None
    seconds = found["optimizer"]
    median = summarise([seconds], warm_ups, "the optimizer step").median
    count = found["parameters"]
    return Optimizer(name=found["name"], parameters=count, seconds=seconds, seconds_per_parameter=median / count)


def stability(reference: list[list[float]], rows: list[TimeRow]) -> Stability:
    """Whether the machine kept still, from a fixed product timed in each round and the spread of every point."""
    summary: Summary = summarise(reference, REFERENCE_WARM_UPS, "the reference product")
    spreads = [row.p90_seconds / row.seconds for row in rows]
    unstable = sum(not row.stable for row in rows)
    reasons = [f"reference product: {complaint}" for complaint in summary.complaints]
    if unstable:
        reasons.append(f"{unstable} of {len(rows)} points are unstable, worst spread {max(spreads):.2f}")
    return Stability(
        verdict="unstable" if reasons else "stable",
        drift=summary.drift,
        worst_spread=max(spreads),
        unstable_points=unstable,
        points=len(rows),
        reference_seconds=reference,
        reasons=reasons,
    )
