"""Samples -> CalibrationProfile: medians into tables, fits for the gaps, residuals beside them; pure, no torch.

    time  = a + b·s + c·s·prefix + d·s²        layer F, B, I       (W, embedding and head: a + b·s)
    bytes = a + b·s + e·prefix

Least squares of the relative error, no coefficient negative. Where attention runs another kernel at prefix 0 those
points are fitted apart. Unstable points are left out; held-out points are only predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from calibration.fit.statistics import SPREAD_LIMIT, summarise
from pipesim.errors import InputError
from pipesim.profile_records import Fit, LinkFit, LinkRow, MemoryRow, Samples, TimeRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

TERMS = {
    "a": lambda s, prefix: np.ones_like(s),
    "b": lambda s, prefix: s,
    "c": lambda s, prefix: s * prefix,
    "d": lambda s, prefix: s * s,
    "e": lambda s, prefix: prefix,
}
# In order of importance: with too few points the last ones are dropped.
ATTENTION, FIRST, LINEAR, SIZES = "bacd", "bad", "ba", "bae"
NEGLIGIBLE = 1e-9  # of a value: what rounding leaves of a term that is not there
BYTES = ("activation", "weight_activation", "transient_f", "transient_b", "transient_i", "transient_w")


@dataclass(frozen=True)
class Point:
    """A value at (tokens, prefix), to fit on or (held out) to predict."""

    tokens: int
    prefix: int
    value: float
    held_out: bool = False


def time_row(samples: Samples, warm_ups: int, host_bound: bool) -> TimeRow:
    """Median and p90 of one op; with `host_bound` an op lasts as long as its issue on the host if that is longer."""
    what = f"{samples.part} {samples.op} at s={samples.tokens}, prefix={samples.prefix}"
    summary = summarise(samples.seconds, warm_ups, what)
    if host_bound:
        host = summarise(samples.host_seconds, warm_ups, what)
        summary = max(summary, host, key=lambda one: one.median)
    return TimeRow(
        tp=samples.tp,
        part=samples.part,
        op=samples.op,
        tokens=samples.tokens,
        prefix=samples.prefix,
        held_out=samples.held_out,
        seconds=summary.median,
        p90_seconds=summary.p90,
        stable=summary.spread <= SPREAD_LIMIT,  # a point's visits are too few to show a drift
    )


def fit_times(rows: Sequence[TimeRow], *, apart: bool = False, refuse: bool = True) -> list[Fit]:
    """A fit for every (tp, part, op); with `refuse` InputError when too few of a layer's F or B are stable."""
    fits: list[Fit] = []
    for tp, part, op in sorted({(r.tp, r.part, r.op) for r in rows}):
        ours = [r for r in rows if (r.tp, r.part, r.op) == (tp, part, op)]
        good = [r for r in ours if r.stable]
        stable = len({r.tokens for r in good if not r.held_out}) >= 2
        if not stable:  # a layer's times decide everything; the ends may rest on unstable ones, if they say so
            if refuse:
                _refuse_layer(ours, part, op)
            good = ours
        points = [Point(r.tokens, r.prefix, r.seconds, r.held_out) for r in good]
        attention = part == "layer" and op != "W"
        terms = ATTENTION if attention else LINEAR
        fits += _fits(tp, part, op, points, terms, apart=apart and attention, stable=stable)
    return fits


def _refuse_layer(rows: Sequence[TimeRow], part: str, op: str) -> None:
    if part != "layer" or op not in "FB":
        return
    worst = max(r.p90_seconds / r.seconds for r in rows)
    rule = f"fewer than 2 sizes of its {len(rows)} points are stable (worst spread {worst:.2f}): nothing left to fit"
    raise InputError("calibration", f"layer {op}", rule, "quiet the machine and calibrate again")


def fit_sizes(rows: Sequence[MemoryRow]) -> list[Fit]:
    """A fit for every (tp, part) and kind of bytes."""
    fits: list[Fit] = []
    for tp, part in sorted({(r.tp, r.part) for r in rows}):
        ours = [r for r in rows if (r.tp, r.part) == (tp, part)]
        for quantity in BYTES:
            points = [Point(r.tokens, r.prefix, float(getattr(r, quantity))) for r in ours]
            fits += _fits(tp, part, quantity, points, SIZES if quantity.startswith("t") else LINEAR)
    return fits


def _fits(
    tp: int, part: str, quantity: str, points: list[Point], terms: str, *, apart: bool = False, stable: bool = True
) -> list[Fit]:
    groups = {"any prefix": points}
    if apart and any(p.prefix and not p.held_out for p in points):
        groups = {
            "prefix 0": [p for p in points if not p.prefix],
            "prefix above 0": [p for p in points if p.prefix],
        }
    return [
        _fit(tp, part, quantity, where, group, FIRST if where == "prefix 0" else terms, stable)
        for where, group in groups.items()
        if any(not p.held_out for p in group)
    ]


def _fit(tp: int, part: str, quantity: str, where: str, points: list[Point], terms: str, stable: bool) -> Fit:
    used = [p for p in points if not p.held_out]
    found = relative_fit(used, terms[: len(used)])
    inside, outside = _errors(found, used), _errors(found, [p for p in points if p.held_out])
    tokens, prefixes = [p.tokens for p in used], [p.prefix for p in used]
    return Fit.model_validate(
        {
            "tp": tp,
            "part": part,
            "quantity": quantity,
            "where": where,
            **{name: found.get(name, 0.0) for name in TERMS},
            "points": len(used),
            "stable": stable,
            "tokens_range": (min(tokens), max(tokens)),
            "prefix_range": (min(prefixes), max(prefixes)),
            "rms": rms(inside),
            "worst": worst(inside),
            "held_out_points": len(outside),
            "held_out_rms": rms(outside) if outside else None,
            "held_out_worst": worst(outside) if outside else None,
        }
    )


def relative_fit(points: Sequence[Point], terms: str) -> dict[str, float]:
    """Non-negative coefficients by term that make Σ (fitted/value - 1)² least; values of 0 count as 1."""
    from scipy.optimize import nnls

    columns = _columns(points, terms) / _values(points)[:, np.newaxis]
    scale = np.linalg.norm(columns, axis=0)
    scale[scale == 0] = 1.0
    if not any(p.value for p in points):
        return dict.fromkeys(terms, 0.0)
    solution, _ = nnls(columns / scale, np.ones(len(points)))
    solution[solution < NEGLIGIBLE] = 0.0
    return dict(zip(terms, (solution / scale).tolist(), strict=True))


def _columns(points: Sequence[Point], terms: str) -> NDArray[np.float64]:
    s = np.array([p.tokens for p in points], dtype=np.float64)
    prefix = np.array([p.prefix for p in points], dtype=np.float64)
    return np.stack([TERMS[name](s, prefix) for name in terms], axis=1)


def _values(points: Sequence[Point]) -> NDArray[np.float64]:
    return np.array([p.value or 1.0 for p in points])


def _errors(found: dict[str, float], points: Sequence[Point]) -> list[float]:
    if not points:
        return []
    terms = "".join(found)
    fitted = _columns(points, terms) @ np.array([found[name] for name in terms])
    wanted = np.array([p.value for p in points])
    return [float(e) for e in (fitted - wanted) / _values(points)]


def rms(errors: Sequence[float]) -> float:
    """Root mean square of relative errors."""
    return float(np.sqrt(np.mean(np.square(errors))))


def worst(errors: Sequence[float]) -> float:
    """The largest relative error, without its sign."""
    return float(np.max(np.abs(errors)))


def fit_links(table: Sequence[LinkRow], warm_ups: int, both_ways: bool = False) -> LinkFit:
    """latency + bytes / rate on the 10 % quantiles; InputError when the rate cannot be seen in the sizes."""
    points = []
    for row in table:
        seconds = row.both_ways_seconds if both_ways else row.one_way_seconds
        low = summarise([seconds], warm_ups, f"messages of {row.size_bytes} bytes").p10
        points.append(Point(row.size_bytes, 0, low))
    found = relative_fit(points, LINEAR[: len(points)])
    if found["b"] <= 0:
        sizes = f"up to {max(p.tokens for p in points)} bytes"
        raise InputError("link fit", sizes, "time does not grow with size", "measure larger messages")
    errors = _errors(found, points)
    return LinkFit(
        latency_seconds=found.get("a", 0.0),
        bytes_per_second=1.0 / found["b"],
        rms=rms(errors),
        worst=worst(errors),
    )
