"""Lays a measured timeline over a predicted one: step time, every op, order, bubble, memory; makes neither."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.validate.replay import replayed
from pipesim.dependencies import ABSENT, producers
from pipesim.errors import InputError
from pipesim.metrics import measure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pipesim.network import Network
    from pipesim.plan import Plan
    from pipesim.timeline import Timeline


@dataclass(frozen=True)
class Spread:
    """Median and 90th percentile of something over all ops."""

    median: float
    p90: float

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Spread:
        """Of a column; zeros where there is none."""
        if not len(values):
            return cls(0.0, 0.0)
        return cls(float(np.median(values)), float(np.quantile(values, 0.9)))


@dataclass(frozen=True)
class Comparison:
    """Predicted against measured. Errors are relative: (predicted - measured) / measured where signed.

    replay_error: the same for the measured durations run again by the engine on the predicted links, the median over
    steps: what the rules of simulation miss, whatever the costs.
    makespan_measured_seconds: the median of makespans_measured_seconds, all the steps there were.
    start_error: |difference of starts| / measured makespan, over ops. duration_error: |difference| / measured duration.
    Both per op, against its median over the steps. order_violations: texts, none where all is well.
    Memory is static and activations together, bytes by device; measured ones are () where nobody measured.
    """

    schedule: str
    steps: int
    makespan_predicted_seconds: float
    makespan_measured_seconds: float
    makespans_measured_seconds: tuple[float, ...]
    makespan_error: float
    replay_error: float
    start_error: Spread
    duration_error: Spread
    order_violations: tuple[str, ...]
    bubble_fraction_predicted: float
    bubble_fraction_measured: float
    memory_predicted_bytes: tuple[int, ...]
    memory_measured_bytes: tuple[int, ...]

    @property
    def memory_errors(self) -> tuple[float, ...]:
        """Relative, by device; () where nobody measured."""
        pairs = zip(self.memory_predicted_bytes, self.memory_measured_bytes, strict=False)
        return tuple(predicted / measured - 1 for predicted, measured in pairs)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        values = asdict(self) | {"memory_errors": self.memory_errors}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def compare(predicted: Timeline, measured: Sequence[Timeline], memory_bytes: Sequence[int] = ()) -> Comparison:
    """Compares a prediction with one or more measured steps of the same plan.

    memory_bytes: measured peak of each device. Raises InputError where the plans differ or nothing was measured.
    """
    if not measured:
        raise InputError("measured", "no steps", "must be at least one")
    if any(not predicted.plan.same_ops(step.plan) for step in measured):
        raise InputError("measured", measured[0].plan.schedule, "must be of the plan that was predicted")
    makespans = np.array([step.makespan_ns for step in measured])
    middle = measured[int(np.argsort(makespans, kind="stable")[(len(makespans) - 1) // 2])]
    before, after = measure(predicted), measure(middle)
    typical = float(np.median(makespans))
    start, duration = (np.median(np.stack(list(map(f, measured))), axis=0) for f in (_starts, _durations))
    return Comparison(
        schedule=predicted.plan.schedule,
        steps=len(measured),
        makespan_predicted_seconds=before.makespan_seconds,
        makespan_measured_seconds=middle.in_units(round(typical)),
        makespans_measured_seconds=tuple(middle.in_units(int(makespan)) for makespan in makespans),
        makespan_error=predicted.makespan_ns / typical - 1,
        replay_error=float(np.median([_replay_error(step, predicted.network) for step in measured])),
        start_error=Spread.of(np.abs(_starts(predicted) - start) / typical),
        duration_error=Spread.of(np.abs(_durations(predicted) - duration) / np.maximum(duration, 1)),
        order_violations=tuple(violation for step in measured for violation in order_violations(step)),
        bubble_fraction_predicted=before.bubble_fraction,
        bubble_fraction_measured=after.bubble_fraction,
        memory_predicted_bytes=before.peak_memory_bytes,
        memory_measured_bytes=tuple(memory_bytes),
    )


def order_violations(timeline: Timeline) -> list[str]:
    """Every op that started before one it needs had ended, or before its device was free."""
    plan, start, end = timeline.plan, timeline.start_ns, timeline.end_ns
    needs, found = producers(plan), []
    for producer in (needs.own, needs.stage, needs.sequence):
        rows = np.flatnonzero(producer != ABSENT)
        needed = producer[rows]
        remote = plan.device[needed] != plan.device[rows]
        # A message may be there before its sender has noted that it posted it; never before it was made.
        ready = np.where(remote, timeline.transfer_start_ns[needed], end[needed])
        found += [_before(plan, row, int(producer[row])) for row in rows[start[rows] < ready].tolist()]
    later = np.setdiff1d(np.arange(len(plan)), plan.offsets[:-1])
    found += [_before(plan, row, row - 1) for row in later[start[later] < end[later - 1]].tolist()]
    return found


def _replay_error(timeline: Timeline, network: Network) -> float:
    return replayed(timeline, network).makespan_ns / timeline.makespan_ns - 1


def _before(plan: Plan, row: int, needed: int) -> str:
    return f"{plan.label(row)} started before {plan.label(needed)} had ended"


def _starts(timeline: Timeline) -> NDArray[np.int64]:
    starts: NDArray[np.int64] = timeline.start_ns - timeline.start_ns.min()
    return starts


def _durations(timeline: Timeline) -> NDArray[np.int64]:
    return timeline.end_ns - timeline.start_ns
