"""One point of a sweep: a scenario becomes a row of plain values; a point that fails becomes its reason."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipesim.costs.unit import UnitCosts
from pipesim.errors import PipesimError, ShapeError
from pipesim.scenario import Scenario, run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipesim.metrics import Metrics

    Row = dict[str, Any]

INPUTS = tuple(field.name for field in fields(Scenario))
_SHAPE = ("devices", "microbatches", "stages_per_device", "subsequences", "in_flight")
_MODEL_INPUTS = (
    "model", "cluster", "seq_len", "micro_batch_size", "tp", "dp", "partition", "layers", "recompute",
    "sequence_parallel", "distributed_optimizer", "profile", "efficiency", "mapping", "rank_order",
)  # fmt: skip
_TIMES = ("makespan_seconds", "ideal_seconds", "bubble_fraction", "bubble_over_ideal")
_LARGEST = (
    "exposed_communication_seconds",
    "peak_in_flight",
    "peak_activation_bytes",
    "static_bytes",
    "peak_memory_bytes",
)
_THROUGHPUT = ("tokens_per_second", "tflops_per_gpu", "mfu")
RESULTS = ("costs", *_TIMES, *_LARGEST, "device_memory_bytes", "fits", *_THROUGHPUT, "failure")
COLUMNS = (*INPUTS, *RESULTS)


def row_of(scenario: Scenario) -> Row:
    """Simulates one scenario: its inputs, and its results or the reason why there are none.

    Values that differ by device are those of the device that has most. Times are in seconds, or in units under
    unit costs.
    """
    row: Row = dict.fromkeys(COLUMNS) | inputs_of(scenario)
    try:
        return row | _results(run(scenario).metrics)
    except PipesimError as error:
        reason = "; ".join(str(error).splitlines())
    except Exception as error:  # a fault in one point must not cost the thousands beside it
        reason = f"{type(error).__name__}: {error}"
    return row | {"failure": reason}


def inputs_of(scenario: Scenario) -> Row:
    """The choices of a scenario as plain values, with the schedule's defaults filled in."""
    row = {name: _plain(getattr(scenario, name)) for name in INPUTS}
    if scenario.unit_costs is not None:
        row |= dict.fromkeys(_MODEL_INPUTS)
    try:
        shape = scenario.shape()
    except ShapeError:  # the run will say so
        return row
    return row | {name: getattr(shape, name) for name in _SHAPE}


def key_of(scenario: Scenario) -> str:
    """Names a point for ever: its choices and the content of the files they name."""
    digest = hashlib.sha256(repr(scenario).encode())
    for name in INPUTS:
        value = getattr(scenario, name)
        if isinstance(value, str):
            with suppress(OSError):  # no file, or one that the run will complain of
                digest.update(Path(value).read_bytes())
    return digest.hexdigest()[:24]


def rows_of(points: Iterable[tuple[str, Scenario]]) -> list[tuple[str, Row]]:
    """Simulates a batch of points: (key, row) of each."""
    return [(key, row_of(scenario)) for key, scenario in points]


def _results(metrics: Metrics) -> Row:
    row: Row = {name: getattr(metrics, name) for name in ("costs", *_TIMES)}
    row |= {name: max(getattr(metrics, name)) for name in _LARGEST}
    row |= {"device_memory_bytes": metrics.memory_limit_bytes, "fits": metrics.fits}
    if metrics.throughput is not None:
        row |= {name: getattr(metrics.throughput, name) for name in _THROUGHPUT}
    return row


def _plain(value: object) -> object:
    if isinstance(value, UnitCosts):
        return value.name
    if isinstance(value, Fraction):
        return float(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
