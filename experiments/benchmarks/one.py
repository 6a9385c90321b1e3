"""One measurement in a process of its own, so that its peak memory is its own; prints a line of JSON.

Run: python -m experiments.benchmarks.one SCHEDULE OPS WHAT
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pipesim.check import check_plan
from pipesim.costs.unit import UnitCosts, unit_costs
from pipesim.engine import compiled, reference, simulate
from pipesim.metrics import measure
from pipesim.plan import PipelineShape
from pipesim.schedules import build_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipesim.plan import Plan

DEVICES = 8
# Stages per device and subsequences of each schedule measured.
CUTS = {"1f1b": (1, 1), "interleaved": (2, 1), "seq1f1b": (1, 4)}
FREE, PORTS = UnitCosts.of(1, 2), UnitCosts.of(1, 2, latency="0.1", transfer="0.2")
_REPEATED_BELOW_SECONDS = 3.0


@dataclass(frozen=True)
class Measured:
    """Ops of the plan; wall and CPU seconds of the best of up to three runs; peak memory of the whole process."""

    ops: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int


def shape_of(schedule: str, ops: int) -> PipelineShape:
    """The shape on 8 devices whose plan has about `ops` ops."""
    v, k = CUTS[schedule]
    return PipelineShape(DEVICES, max(1, ops // (2 * DEVICES * v * k)), v, k)


def _engine(unit: UnitCosts, run: Callable[..., object]) -> Callable[[str, PipelineShape], Callable[[], object]]:
    def prepare(schedule: str, shape: PipelineShape) -> Callable[[], object]:
        costs, network = unit_costs(unit, shape)
        plan = build_plan(schedule, shape)
        needs = check_plan(plan, deadlock=False)
        return lambda: run(plan, costs, network, needs)

    return prepare


def _whole(schedule: str, shape: PipelineShape) -> Callable[[], object]:
    """Generate, check, simulate, measure."""
    costs, network = unit_costs(FREE, shape)
    return lambda: measure(simulate(build_plan(schedule, shape), costs, network))


def _torch(schedule: str, shape: PipelineShape) -> Callable[[], object]:
    """torch.distributed.pipelining: sends and receives put into the same plan, then its step-by-step simulation."""
    from torch.distributed.pipelining import schedules

    plan = build_plan(schedule, shape)

    def run() -> object:
        lowered = schedules._add_send_recv(_actions(plan, schedules), lambda stage: stage % DEVICES, shape.stages)
        return schedules._simulate_comms_compute(lowered, lambda stage: stage % DEVICES, shape.stages)

    return run


def _actions(plan: Plan, schedules: object) -> dict[int, list[object]]:
    forward, backward = schedules.F, schedules.FULL_BACKWARD  # type: ignore[attr-defined]
    action = schedules._Action  # type: ignore[attr-defined]
    return {
        device: [
            action(op.stage, forward if op.kind.name == "F" else backward, op.microbatch) for op in plan.order(device)
        ]
        for device in range(DEVICES)
    }


WHAT = {
    "compiled": _engine(FREE, compiled.run),
    "compiled with ports": _engine(PORTS, compiled.run),
    "whole path": _whole,
    "SimPy": _engine(FREE, reference.run),
    "SimPy with ports": _engine(PORTS, reference.run),
    "torch": _torch,
}


def measure_one(schedule: str, ops: int, what: str) -> Measured:
    """Measures once or, where that is short, up to three times; compiles what it needs before."""
    WHAT[what](schedule, shape_of(schedule, 200))()
    run = WHAT[what](schedule, shape_of(schedule, ops))
    times: list[tuple[float, float]] = []
    while len(times) < 3 and sum(wall for wall, _ in times) < _REPEATED_BELOW_SECONDS:
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    v, k = CUTS[schedule]
    done = 2 * DEVICES * v * k * shape_of(schedule, ops).microbatches
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Measured(done, *min(times), peak)


def main() -> None:
    """Prints one measurement."""
    schedule, ops, what = sys.argv[1:]
    sys.stdout.write(json.dumps(asdict(measure_one(schedule, int(ops), what))) + "\n")


if __name__ == "__main__":
    main()
