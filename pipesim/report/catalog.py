"""What there is to choose from: schedules, models and clusters as rows; prints nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipesim.units import GIB

Text = Callable[[Any], str]


@dataclass(frozen=True)
class Column:
    """A key of the rows, the heading it has in a table, and how its values are written there."""

    key: str
    heading: str
    text: Text = str


@dataclass(frozen=True)
class Catalog:
    """Rows of plain JSON values, and the columns a table shows of them."""

    name: str
    columns: tuple[Column, ...]
    rows: list[dict[str, Any]]


def catalog_of_schedules() -> Catalog:
    """Every schedule, oldest first, with the options it uses and its source."""
    from pipesim.schedules import all_schedules

    rows = [
        {
            "name": schedule.name,
            "title": schedule.title,
            "published": schedule.published,
            "options": {**schedule.defaults, **schedule.fixed},
            "source": schedule.source,
            "note": schedule.note,
        }
        for schedule in all_schedules().values()
    ]
    columns = (
        Column("name", "schedule"),
        Column("title", "what it is"),
        Column("options", "also uses (default)", _options_text),
        Column("source", "source"),
    )
    return Catalog("schedules", columns, rows)


def catalog_of_models() -> Catalog:
    """The model presets with their sizes; the rows name their sources, the table is too narrow for them."""
    from pipesim.model import preset, preset_names

    fields = ("layers", "hidden", "heads", "kv_heads", "feedforward", "vocab", "experts", "parameters", "source")
    rows = [
        {"name": name, **{field: getattr(model, field) for field in fields}}
        for name, model in ((name, preset(name)) for name in preset_names())
    ]
    columns = (
        Column("name", "model"),
        Column("parameters", "parameters", _parameters_text),
        *(Column(field, field.replace("_", " ")) for field in fields[:6]),
    )
    return Catalog("models", columns, rows)


def catalog_of_clusters() -> Catalog:
    """The cluster presets with what their nodes are made of."""
    from pipesim.cluster import preset, preset_names

    fields = ("gpu", "gpus_per_node", "peak_flops", "memory_bytes", "memory_bandwidth", "intra_bandwidth",
              "inter_bandwidth", "cards_per_node", "intra_latency_seconds", "inter_latency_seconds")  # fmt: skip
    rows = [
        {"name": name, **{field: getattr(cluster, field) for field in fields}, "sources": dict(cluster.sources)}
        for name, cluster in ((name, preset(name)) for name in preset_names())
    ]
    columns = (
        Column("name", "cluster"),
        Column("gpu", "GPU"),
        Column("gpus_per_node", "a node"),
        Column("peak_flops", "BF16 TFLOP/s", lambda flops: f"{flops / 1e12:,.0f}"),
        Column("memory_bytes", "memory (GiB)", lambda size: f"{size / GIB:.0f}"),
        Column("intra_bandwidth", "in a node (GB/s)", _gigabytes),
        Column("inter_bandwidth", "a network card (GB/s)", _gigabytes),
        Column("cards_per_node", "cards a node"),
    )
    return Catalog("clusters", columns, rows)


def _parameters_text(count: int) -> str:
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.2f} M"


def _gigabytes(rate: float) -> str:
    return f"{rate / 1e9:,.4g}"


_FLAGS = {"stages_per_device": "-v", "subsequences": "-k", "in_flight": "--in-flight"}


def _options_text(options: dict[str, float | None]) -> str:
    texts = [f"{_FLAGS.get(name, name)} {'' if value is None else f'{value:g}'}" for name, value in options.items()]
    return " ".join(text.strip() for text in texts) or "-"
