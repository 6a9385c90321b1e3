"""A search on the terminal and as JSON: the best, what limits them, the front, and why others were refused."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pipesim.search.space import described
from pipesim.units import format_count, format_gib, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from pipesim.search import Configuration, Found

_WIDTH_OF_FILES = 160
_INPUTS = ("schedule", "tp", "devices", "dp", "microbatches", "micro_batch_size", "stages_per_device", "subsequences",
           "recompute", "in_flight", "memory_limit_bytes")  # fmt: skip
_RESULTS = ("makespan_seconds", "bubble_fraction", "bubble_over_ideal", "peak_memory_bytes", "peak_in_flight",
            "tokens_per_second", "tflops_per_gpu", "mfu")  # fmt: skip


def limits(found: Found, configuration: Configuration) -> str:
    """What keeps a configuration from being faster, in words."""
    parts = ", ".join(f"{name} {100 * share:.1f}%" for name, share in configuration.shares.items())
    wanted = found.beyond(configuration)
    if wanted is None:
        return parts
    gain = configuration.seconds / wanted.seconds
    need = format_gib(wanted.memory_bytes)
    return f"{parts}; memory: {_tuning(wanted)} would be {gain:.2f}x as fast but needs {need}"


def print_found(found: Found) -> None:
    """The best ten, the front and the refusals as tables."""
    from rich.console import Console
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES)
    best = found.best()
    for line in (_headline(found), "", _verdict(found)):
        console.print(Text(line), soft_wrap=True)
    if best:
        console.print(_table_of(found, best))
    for place, configuration in enumerate(best, 1):
        console.print(Text(f"{place:2}  {limits(found, configuration)}"), soft_wrap=True)
    console.print(Text("\nfront of time and memory: nothing tried is at once faster and smaller"), soft_wrap=True)
    console.print(_table_of(found, found.front()))
    console.print(Text("refused or set aside"))
    console.print(_refusals(found))


def as_json(found: Found) -> dict[str, Any]:
    """The search as one JSON document."""
    space = found.space
    return {
        "model": space.base.model,
        "cluster": space.base.cluster,
        "gpus": space.gpus,
        "seq_len": space.base.seq_len,
        "global_batch": space.global_batch,
        "memory_limit_bytes": found.memory_limit_bytes,
        "considered": found.considered,
        "simulated": len(found.configurations),
        "feasible": sum(c.fits for c in found.configurations),
        "best": [_json_of(c) | {"limits": limits(found, c)} for c in found.best()],
        "front": [_json_of(c) for c in found.front()],
        "refused": [{"reason": reason, "count": count, "example": e} for reason, count, e in found.refusals],
    }


def _json_of(configuration: Configuration) -> dict[str, Any]:
    return {name: configuration.row[name] for name in (*_INPUTS, *_RESULTS)} | {"fits": configuration.fits}


def _headline(found: Found) -> str:
    base, space = found.space.base, found.space
    return (
        f"{base.model} on {space.gpus} GPUs of {base.cluster}, {format_count(base.seq_len)} tokens, "
        f"{space.global_batch} sequences a step, at most {format_gib(found.memory_limit_bytes)} a GPU: "
        f"{found.considered} configurations, {len(found.configurations)} of them simulated"
    )


def _verdict(found: Found) -> str:
    best = found.best(1)
    if best:
        return f"fastest that fits: {described(best[0].scenario)}, {format_seconds(best[0].seconds)} a step"
    if not found.configurations:
        return "nothing fits: no configuration can hold even one micro-batch"
    least = min(found.configurations, key=lambda c: c.memory_bytes)
    return f"nothing fits: {described(least.scenario)} needs least, {format_gib(least.memory_bytes)}"


def _table_of(found: Found, shown: Sequence[Configuration]) -> Table:
    table = _table()
    for heading in ("", "schedule", "tp", "p", "dp", "m", "v", "k", "recompute", "step", "GiB", "fits", "bubble",
                    "tokens/s", "MFU"):  # fmt: skip
        table.add_column(heading, justify="left" if heading in ("schedule", "recompute") else "right", no_wrap=True)
    for place, configuration in enumerate(shown, 1):
        row = configuration.row
        names = ("schedule", "tp", "devices", "dp", "microbatches", "stages_per_device", "subsequences", "recompute")
        table.add_row(
            str(place),
            *(str(row[name]) for name in names),
            format_seconds(configuration.seconds),
            format_gib(configuration.memory_bytes).removesuffix(" GiB"),
            "yes" if configuration.fits else "no",
            f"{100 * row['bubble_fraction']:.1f}%",
            f"{row['tokens_per_second']:,.0f}",
            f"{100 * row['mfu']:.1f}%",
        )
    return table


def _refusals(found: Found) -> Table:
    from rich.text import Text

    table = _table()
    table.add_column("how many", justify="right")
    table.add_column("why", overflow="fold")
    table.add_column("for example", overflow="fold")
    for reason, count, example in found.refusals:
        table.add_row(str(count), Text(reason), Text(example))
    return table


def _table() -> Table:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))


def _tuning(configuration: Configuration) -> str:
    """What can be chosen on the same GPUs."""
    shape, scenario = configuration.scenario.shape(), configuration.scenario
    parts = [scenario.schedule]
    parts += [f"v {shape.stages_per_device}"] if shape.stages_per_device > 1 else []
    parts += [f"k {shape.subsequences}"] if shape.subsequences > 1 else []
    return " ".join([*parts, f"recompute {scenario.recompute}"])
