"""What a timeline amounts to: time, bubbles, memory, throughput; cannot tell simulated from measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.bounds import optimality_gap
from pipesim.memory import memory_of, peak_in_flight
from pipesim.plan import Kind
from pipesim.timeline import NOTHING_SENT
from pipesim.transfers import transfers_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pipesim.bounds import Bounds
    from pipesim.memory import Memory
    from pipesim.plan import Plan
    from pipesim.timeline import Timeline


@dataclass(frozen=True)
class StepFacts:
    """What a step does beside taking time: tokens and model FLOPs of one step over all replicas, on `gpus`
    GPUs of `peak_flops_per_gpu` FLOP/s each; memory_limit_bytes of one device (None: unlimited).

    Model FLOPs count forward and backward once each: recomputation is not useful work.
    """

    tokens: int
    model_flops: float
    gpus: int
    peak_flops_per_gpu: float
    memory_limit_bytes: int | None = None


@dataclass(frozen=True)
class Throughput:
    """Useful work per second; mfu is model FLOP/s over peak FLOP/s."""

    tokens_per_second: float
    tokens_per_second_per_gpu: float
    tflops_per_gpu: float
    mfu: float


@dataclass(frozen=True)
class Metrics:
    """Times in `unit` (seconds, or units under unit costs), bytes, fractions; tuples hold a value per device.

    ideal_seconds: the work of the device that has most of it, m(F+B) for equal costs; no order is faster.
    bubble_fraction: idle / (devices · makespan).
    bubble_over_ideal: (makespan - ideal) / ideal, None without work.
    busy: running ops; idle: makespan - busy; span: first start to last end of a device.
    exposed_communication: the part of idle in which the awaited message is in a port's queue or on its way.
    communication: how messages went; exposed_synchronisation: from the last op to the end of the step.
    peak_in_flight: micro-batches of one device's share whose forward has started and backward not ended.
    peak_activation_bytes: all but static bytes: activations, keys/values, their gradients, transients;
    peak_memory_bytes: with static bytes. peak_memory_at_seconds: when each device first holds its most.
    leading_forwards: forwards before a device's first backward.
    lower_bound: no order of the same ops on the same devices takes less (see `bounds`);
    optimality_gap: (makespan - lower bound) / lower bound.
    """

    schedule: str
    devices: int
    microbatches: int
    stages_per_device: int
    subsequences: int
    engine: str
    source: str
    costs: str
    unit: str
    makespan_seconds: float
    ideal_seconds: float
    bubble_fraction: float
    bubble_over_ideal: float | None
    busy_seconds: tuple[float, ...]
    idle_seconds: tuple[float, ...]
    utilisation: tuple[float, ...]
    span_seconds: tuple[float, ...]
    exposed_communication_seconds: tuple[float, ...]
    communication: str
    exposed_synchronisation_seconds: float
    peak_in_flight: tuple[float, ...]
    peak_activation_bytes: tuple[int, ...]
    static_bytes: tuple[int, ...]
    peak_memory_bytes: tuple[int, ...]
    peak_memory_at_seconds: tuple[float, ...]
    peak_memory_device: int
    memory_limit_bytes: int | None
    fits: bool | None
    leading_forwards: tuple[int, ...]
    throughput: Throughput | None
    lower_bound_seconds: float | None = None
    optimality_gap: float | None = None

    def as_json(self) -> dict[str, Any]:
        """One flat object of plain JSON values; the throughput keys are there only with a model."""
        values = asdict(self)
        throughput = values.pop("throughput")
        flat = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
        return flat | (throughput or {})


def measure(timeline: Timeline, facts: StepFacts | None = None, *, bounds: Bounds | None = None) -> Metrics:
    """The metrics of a timeline; throughput and `fits` need the facts of the step, the optimality gap its bounds."""
    plan, shape = timeline.plan, timeline.plan.shape
    makespan, busy, span = timeline.makespan_ns, _busy_ns(timeline), _span_ns(timeline)
    limit = facts.memory_limit_bytes if facts else None

    def in_units(times: list[int]) -> tuple[float, ...]:
        return tuple(timeline.in_units(time) for time in times)

    return Metrics(
        schedule=plan.schedule,
        devices=shape.devices,
        microbatches=shape.microbatches,
        stages_per_device=shape.stages_per_device,
        subsequences=shape.subsequences,
        engine=timeline.engine,
        source=timeline.source,
        costs=timeline.costs.name,
        unit=timeline.costs.unit,
        makespan_seconds=timeline.in_units(makespan),
        ideal_seconds=timeline.in_units(max(busy)),
        # Quotients of integers, so that three elevenths is exactly 3 / 11.
        bubble_fraction=_quotient(shape.devices * makespan - sum(busy), shape.devices * makespan, 0.0),
        bubble_over_ideal=(makespan - max(busy)) / max(busy) if max(busy) else None,
        busy_seconds=in_units(busy),
        idle_seconds=in_units([makespan - time for time in busy]),
        utilisation=tuple(_quotient(time, makespan, 1.0) for time in busy),
        span_seconds=in_units(span),
        exposed_communication_seconds=in_units(_exposed_ns(timeline)),
        communication=timeline.communication,
        exposed_synchronisation_seconds=timeline.in_units(timeline.exposed_synchronisation_ns),
        peak_in_flight=tuple(peak_in_flight(plan)),
        leading_forwards=tuple(_leading_forwards(plan)),
        throughput=_throughput(timeline, facts) if facts else None,
        lower_bound_seconds=timeline.in_units(bounds.lower_ns) if bounds else None,
        optimality_gap=optimality_gap(timeline, bounds) if bounds else None,
        **_memory_facts(timeline, memory_of(plan, timeline.costs), limit),
    )


def _memory_facts(timeline: Timeline, memory: Memory, limit: int | None) -> dict[str, Any]:
    peaks = memory.peaks.tolist()
    static = memory.static_bytes.tolist()
    held = [fixed + peak for fixed, peak in zip(static, peaks, strict=True)]
    begin = int(timeline.start_ns.min(initial=0))
    at = [int(timeline.start_ns[row]) - begin if row >= 0 else 0 for row in memory.peak_rows.tolist()]
    return {
        "peak_activation_bytes": tuple(peaks),
        "static_bytes": tuple(static),
        "peak_memory_bytes": tuple(held),
        "peak_memory_at_seconds": tuple(timeline.in_units(time) for time in at),
        "peak_memory_device": held.index(max(held)),
        "memory_limit_bytes": limit,
        "fits": None if limit is None else max(held) <= limit,
    }


def _quotient(part: int, whole: int, of_nothing: float) -> float:
    return part / whole if whole else of_nothing


def _busy_ns(timeline: Timeline) -> list[int]:
    ended = np.concatenate([[0], np.cumsum(timeline.end_ns - timeline.start_ns)])
    return [int(time) for time in np.diff(ended[timeline.plan.offsets])]


def _span_ns(timeline: Timeline) -> list[int]:
    bounds = timeline.plan.offsets.tolist()
    return [
        int(timeline.end_ns[stop - 1] - timeline.start_ns[start]) if stop > start else 0
        for start, stop in pairwise(bounds)
    ]


def _leading_forwards(plan: Plan) -> list[int]:
    kind, counts = plan.kind, []
    backward = (kind == Kind.B) | (kind == Kind.I)
    for device in range(plan.shape.devices):
        rows = slice(int(plan.offsets[device]), int(plan.offsets[device + 1]))
        here = backward[rows]
        first = int(here.argmax()) if here.any() else len(here)
        counts.append(int(np.count_nonzero(kind[rows][:first] == Kind.F)))
    return counts


def _exposed_ns(timeline: Timeline) -> list[int]:
    """Per device, the overlap of each wait with the time from asking for the awaited message to its arrival.

    All other inputs come from the device itself and are there when it is free: a wait is for one message.
    """
    plan = timeline.plan
    sent = timeline.arrival_ns != NOTHING_SENT
    if not (timeline.arrival_ns[sent] > timeline.end_ns[sent]).any():
        return [0] * plan.shape.devices
    messages = transfers_of(plan)
    receiver, sender = messages.receiver, messages.sender
    # The first op of a device waits from the start of the step.
    free = np.concatenate([[0], timeline.end_ns[:-1]])
    firsts = plan.offsets[:-1][np.diff(plan.offsets) > 0]
    free[firsts] = timeline.start_ns.min()
    waits_from = np.maximum(free[receiver], timeline.end_ns[sender])
    waits_to = np.minimum(timeline.start_ns[receiver], timeline.arrival_ns[sender])
    exposed: NDArray[np.int64] = np.zeros(len(plan) + 1, dtype=np.int64)
    exposed[receiver + 1] = np.maximum(waits_to - waits_from, 0)
    return [int(time) for time in np.diff(np.cumsum(exposed)[plan.offsets])]


def _throughput(timeline: Timeline, facts: StepFacts) -> Throughput | None:
    seconds = timeline.in_units(timeline.makespan_ns)
    if not seconds or not facts.gpus:
        return None
    flops_per_gpu = facts.model_flops / seconds / facts.gpus
    return Throughput(
        tokens_per_second=facts.tokens / seconds,
        tokens_per_second_per_gpu=facts.tokens / seconds / facts.gpus,
        tflops_per_gpu=flops_per_gpu / 1e12,
        mfu=flops_per_gpu / facts.peak_flops_per_gpu,
    )
