"""A profile for people: text tables, JSON without samples, a plot of times and residuals; measures nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.files import whole_file
from pipesim.profile import as_json
from pipesim.units import format_count, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pipesim.profile import CalibrationProfile
    from pipesim.profile_records import Links

OPS = ("F", "B", "I", "W")


def summary(profile: CalibrationProfile) -> str:
    """A few lines: where it is from, how good the fits are, whether the machine kept still."""
    p, s = profile.provenance, profile.stability
    lines = [
        f"{profile.model.name} on {p.device}: {p.dtype}, {p.attention_backend} attention, {p.threads} thread(s), "
        f"torch {p.torch}, {p.date}",
        f"a second is {profile.clock}; sequence {format_count(profile.sequence_length)}, "
        f"micro-batch of {profile.micro_batch_size}, tensor parallel {', '.join(map(str, profile.tensor_parallel))}",
        f"{s.verdict}: drift {s.drift:+.1%}, worst spread {s.worst_spread:.2f}, "
        f"{s.points - s.unstable_points} of {s.points} points stable",
        *(f"  {reason}" for reason in s.reasons),
        *(f"  left out: {note}" for note in profile.notes),
        held_out(profile),
    ]
    return "\n".join(lines)


def held_out(profile: CalibrationProfile) -> str:
    """One line: error of the layer fits on points they never saw, all ops together."""
    h = profile.held_out
    if h is None:
        return "held-out points: none"
    return f"held-out points of a layer: rms error {h.rms:.1%}, worst {h.worst:.1%}, over {h.op_times} op times"


def shown(profile: CalibrationProfile) -> str:
    """Everything but the raw samples, as tables."""
    p = profile.provenance
    origin = [f"commit {p.git_commit or 'unknown'}", f"command {p.command}"]
    origin += [f"driver {p.driver}", f"clocks {p.clocks}"] if p.device_kind == "cuda" else []
    parts = [
        summary(profile),
        *origin,
        "",
        *_times(profile),
        "",
        *_fit_table(profile),
        "",
        *_sizes(profile),
        "",
        *_links(profile.links),
    ]
    if profile.optimizer is not None:
        o = profile.optimizer
        parts += ["", f"optimizer: {o.name}, {o.seconds_per_parameter * 1e12:.1f} ps a parameter"]
    return "\n".join(parts)


def _times(profile: CalibrationProfile) -> list[str]:
    """A row per point, a column per op; ~ unstable."""
    cells: dict[tuple[Any, ...], dict[str, str]] = {}
    for row in profile.times:
        key = (row.tp, row.part, row.tokens, row.prefix, "held out" if row.held_out else "")
        cells.setdefault(key, {})[row.op] = format_seconds(row.seconds) + ("" if row.stable else " ~")
    rows = [[*map(str, key[:4]), *(ops.get(op, "") for op in OPS), key[4]] for key, ops in sorted(cells.items())]
    return _aligned(["tp", "part", "tokens", "prefix", *OPS, ""], rows)


def _fit_table(profile: CalibrationProfile) -> list[str]:
    rows = []
    for f in profile.fits:
        unstable = "" if f.stable else ", unstable points"
        outside = "" if f.held_out_rms is None else f"{f.held_out_rms:.1%} ({f.held_out_points})"
        formula = " + ".join(
            f"{value:.3g}{name}"
            for value, name in zip((f.a, f.b, f.c, f.d, f.e), ("", "·s", "·s·c", "·s²", "·c"), strict=True)
            if value
        )
        rows.append(
            [
                str(f.tp),
                f.part,
                f.quantity,
                f.where + unstable,
                str(f.points),
                f"{f.rms:.1%}",
                f"{f.worst:.1%}",
                outside,
                formula,
            ]
        )
    head = ["tp", "part", "of", "where", "points", "rms", "worst", "held out rms", "fit (s tokens after c)"]
    return _aligned(head, rows)


def _sizes(profile: CalibrationProfile) -> list[str]:
    rows = [
        [
            str(r.tp),
            r.part,
            str(r.tokens),
            str(r.prefix),
            *(f"{size:,}" for size in (r.activation, r.weight_activation, r.transient_f, r.transient_b, r.transient_i)),
        ]
        for r in profile.memory
    ]
    head = ["tp", "part", "tokens", "prefix", "F to B bytes", "I to W bytes", "during F", "during B", "during I"]
    return _aligned(head, rows)


def _links(links: Links) -> list[str]:
    lines = [f"links {links.origin}: {links.note}" + (f", {links.backend}" if links.backend else "")]
    for name, fit in (("one way", links.one_way), ("both ways at once", links.both_ways)):
        if fit is not None:
            lines.append(
                f"  {name}: {format_seconds(fit.latency_seconds)} + bytes / {fit.bytes_per_second / 1e9:.3g} GB/s "
                f"(rms {fit.rms:.1%}, worst {fit.worst:.1%})"
            )
    return lines


def _aligned(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    table = [list(head), *map(list, rows)]
    widths = [max(len(row[n]) for row in table) for n in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def shown_json(profile: CalibrationProfile) -> str:
    """The profile without its samples, as JSON."""
    data = {key: value for key, value in as_json(profile).items() if key != "samples"}
    return json.dumps(data, allow_nan=False, indent=1)


def save_plot(profile: CalibrationProfile, path: Path) -> None:
    """Times of a layer against tokens, one colour a prefix, fits as lines; below, residuals of the fits."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    tp = profile.tensor_parallel[0]
    figure, axes = plt.subplots(2, len(OPS), figsize=(16, 8), sharex=True, squeeze=False, layout="constrained")
    try:
        for column, op in enumerate(OPS):
            _draw_op(profile, tp, op, axes[0][column], axes[1][column])
        axes[0][0].set_ylabel("ms per layer")
        axes[1][0].set_ylabel("fit / measured - 1, %")
        axes[0][-1].legend(title="prefix", fontsize="small")
        p = profile.provenance
        figure.suptitle(f"{profile.model.name} on {p.device}, {p.dtype}, tp {tp}, {profile.clock}, {p.date}")
        with whole_file(path) as scratch:
            figure.savefig(scratch, dpi=120)
    finally:
        plt.close(figure)


def _draw_op(profile: CalibrationProfile, tp: int, op: str, upper: Any, lower: Any) -> None:
    rows = [r for r in profile.times if (r.tp, r.part, r.op) == (tp, "layer", op)]
    fits = [f for f in profile.fits if (f.tp, f.part, f.quantity) == (tp, "layer", op)]
    prefixes = sorted({r.prefix for r in rows})
    for n, prefix in enumerate(prefixes):
        colour = f"C{n}" if len(prefixes) <= 10 else _shade(n / (len(prefixes) - 1))
        ours = [r for r in rows if r.prefix == prefix]
        fit = next((f for f in fits if f.covers(prefix)), None)
        for row in ours:
            style = {"marker": "x" if row.held_out else "o", "color": colour, "alpha": 1.0 if row.stable else 0.3}
            label = str(prefix) if row is ours[0] else None
            upper.plot([row.tokens], [row.seconds * 1e3], linestyle="", label=label, **style)
            if fit is not None:
                lower.plot([row.tokens], [100 * (fit.value(row.tokens, prefix) / row.seconds - 1)], **style)
        if fit is not None and len(ours) > 1:
            s = np.linspace(min(r.tokens for r in ours), max(r.tokens for r in ours), 50)
            upper.plot(s, [fit.value(int(x), prefix) * 1e3 for x in s], color=colour, linewidth=1)
    upper.set_title(f"{op}  (x: held out, faint: unstable)")
    lower.axhline(0, color="grey", linewidth=0.5)
    lower.set_xlabel("tokens")


def _shade(part: float) -> Any:
    from matplotlib import colormaps

    return colormaps["viridis"](part)
