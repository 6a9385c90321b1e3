"""Timelines as pandas tables, one row a thing: spans, transfers, devices; computes nothing new.

Times are floats in seconds, or in units under unit costs, as everywhere at the edges.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.errors import DependencyMissing, InputError
from pipesim.files import whole_file
from pipesim.plan import Kind
from pipesim.timeline import NOTHING_SENT
from pipesim.transfers import transfers_of

if TYPE_CHECKING:
    from pandas import DataFrame

    from pipesim.metrics import Metrics
    from pipesim.timeline import Timeline

_PER_DEVICE = (
    "busy_seconds",
    "idle_seconds",
    "utilisation",
    "span_seconds",
    "exposed_communication_seconds",
    "leading_forwards",
    "peak_in_flight",
    "peak_activation_bytes",
    "static_bytes",
    "peak_memory_bytes",
    "peak_memory_at_seconds",
)


def labels(timeline: Timeline) -> list[str]:
    """The name of every op, such as `2F0.3`, or `2F0` where micro-batches are not cut."""
    plan = timeline.plan
    names = [kind.name for kind in Kind]
    columns = (plan.stage.tolist(), plan.kind.tolist(), plan.microbatch.tolist())
    if plan.shape.subsequences == 1:
        return [f"{s}{names[k]}{i}" for s, k, i in zip(*columns, strict=True)]
    return [f"{s}{names[k]}{i}.{j}" for s, k, i, j in zip(*columns, plan.subsequence.tolist(), strict=True)]


def spans(timeline: Timeline) -> DataFrame:
    """One row an op, device by device in order: what it is, where it ran, from when to when."""
    import pandas as pd

    plan, unit = timeline.plan, timeline.unit_ns
    kinds = np.array([kind.name for kind in Kind])
    return pd.DataFrame(
        {
            "device": plan.device,
            "place": np.arange(len(plan)) - plan.offsets[plan.device],
            "op": labels(timeline),
            "kind": kinds[plan.kind],
            "stage": plan.stage,
            "microbatch": plan.microbatch,
            "subsequence": plan.subsequence,
            "direction": plan.direction,
            "start_seconds": timeline.start_ns / unit,
            "end_seconds": timeline.end_ns / unit,
            "duration_seconds": (timeline.end_ns - timeline.start_ns) / unit,
        }
    )


def transfers(timeline: Timeline) -> DataFrame:
    """One row a message between devices: asked for, its ports held from start to end, then on its way to arrival.

    Messages without times (a measured run that did not record them) are left out.
    """
    import pandas as pd

    plan, unit = timeline.plan, timeline.unit_ns
    found = transfers_of(plan)
    timed = timeline.arrival_ns[found.sender] != NOTHING_SENT
    sender, receiver = found.sender[timed], found.receiver[timed]
    names = np.array(labels(timeline), dtype=object)
    return pd.DataFrame(
        {
            "source_device": plan.device[sender],
            "destination_device": plan.device[receiver],
            "sender": names[sender],
            "receiver": names[receiver],
            "bytes": timeline.costs.messages(plan)[sender],
            "asked_seconds": timeline.end_ns[sender] / unit,
            "start_seconds": timeline.transfer_start_ns[sender] / unit,
            "end_seconds": timeline.transfer_end_ns[sender] / unit,
            "arrival_seconds": timeline.arrival_ns[sender] / unit,
        }
    )


def devices(metrics: Metrics) -> DataFrame:
    """One row a device: the per-device values of the metrics."""
    import pandas as pd

    columns: dict[str, Any] = {"device": range(metrics.devices)}
    return pd.DataFrame(columns | {name: getattr(metrics, name) for name in _PER_DEVICE})


def save_spans(timeline: Timeline, path: Path | str) -> None:
    """Writes the spans as .csv or .parquet, whole or not at all.

    Raises InputError on another ending, DependencyMissing where parquet's library is not installed.
    """
    save(spans(timeline), Path(path))


def save(table: DataFrame, path: Path) -> None:
    """Writes any of these tables as .csv or .parquet, whole or not at all; errors as `save_spans`."""
    if path.suffix == ".csv":
        with whole_file(path) as draft:
            table.to_csv(draft, index=False, lineterminator="\n")
    elif path.suffix == ".parquet":
        with whole_file(path) as draft:
            _write_parquet(table, draft)
    else:
        raise InputError("--spans", str(path), "unknown ending", "one of .csv, .parquet")


def _write_parquet(table: DataFrame, path: Path) -> None:
    try:
        table.to_parquet(path, index=False, engine="pyarrow")
    except ImportError:
        raise DependencyMissing("parquet files need pyarrow: pip install 'pipesim[parquet]', or write .csv") from None
