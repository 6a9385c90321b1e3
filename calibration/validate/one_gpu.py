"""A plan on one device: every op alone, one after the other, with its true inputs; the times are put together after.

One GPU cannot hold two ranks that talk over NCCL, but it can run each op of a plan on the real prefix with the real
tensors. The measured durations, replayed through the engine with given links, make a timeline that is called composed:
its ops were measured, that they overlap was not.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from calibration.execute.bytes import byte_tables, sizes_of_stages
from calibration.execute.calibrate import medians, time_stages
from calibration.execute.clock import clock_of, longer_ns
from calibration.execute.costs import table, table_shape
from calibration.execute.gradients import sum_tied_here
from calibration.execute.ops import OpRunner
from calibration.execute.plain import agreement_of
from calibration.execute.run import Effort, gradients_of, refuse_unrunnable
from calibration.validate.compare import Comparison, compare
from calibration.validate.replay import costs_by_op
from pipesim.dependencies import ABSENT, producers
from pipesim.engine import simulate
from pipesim.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from calibration.execute.plain import Agreement, PlainRun
    from calibration.execute.workload import Workload
    from calibration.layer import Stage
    from pipesim.costs.table import CostTable
    from pipesim.network import Network
    from pipesim.plan import Plan
    from pipesim.timeline import Timeline


@dataclass(frozen=True, eq=False)
class SerialRun:
    """Ops of a plan that ran one by one on one device.

    durations_ns int64 [steps, ops]: the longer of the device's time and the host's time to issue it.
    loss and gradients (float64 by name, where asked for) of the last step. byte_tables: what ops keep, as columns of a
    cost table; allocated_bytes: peak of all devices' work together, 0 where nobody counts.
    """

    plan: Plan
    workload: Workload
    device_name: str
    durations_ns: NDArray[np.int64]
    loss: float
    gradients: dict[str, NDArray[np.float64]]
    byte_tables: dict[str, NDArray[np.int64]]
    allocated_bytes: int

    def costs(self) -> CostTable:
        """A cost table with a class for every micro-batch: each op of the plan at its own median duration."""
        name = f"{self.workload.model.name}, {self.workload.seq_len} tokens, each op measured on {self.device_name}"
        origin = f"median of {len(self.durations_ns)} serial steps"
        nothing = np.zeros(table_shape(self.plan, self.workload), dtype=np.int64)
        bytes_only = table(self.workload, nothing, name, origin, **self.byte_tables)
        return costs_by_op(self.plan, bytes_only, np.median(self.durations_ns, axis=0).astype(np.int64))

    def composed(self, network: Network | None = None) -> Timeline:
        """The measured durations replayed through the engine on given links (None: free ones)."""
        return replace(simulate(self.plan, self.costs(), network), source="composed")


def run_serially(plan: Plan, workload: Workload, device: str = "cpu", effort: Effort | None = None) -> SerialRun:
    """Runs the plan's ops in an order its dependencies allow. Raises PlanError, DeadlockError or InputError."""
    effort = effort or Effort()
    refuse_unrunnable(plan, workload)
    refuse_device(device)
    place = torch.device(device)
    stages = {number: workload.stage(number, place) for number in range(plan.shape.stages)}
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)
    durations, loss = zip(
        *(_step(plan, workload, stages, place) for _ in range(effort.warm_ups + effort.steps)), strict=True
    )
    peak = torch.cuda.max_memory_allocated(place) if place.type == "cuda" else 0
    return SerialRun(
        plan=plan,
        workload=workload,
        device_name=torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu",
        durations_ns=np.stack(durations[effort.warm_ups :]),
        loss=loss[-1],
        gradients=_gradients(workload, stages) if effort.gradients else {},
        byte_tables=byte_tables(sizes_of_stages(workload, stages), table_shape(plan, workload)),
        allocated_bytes=peak,
    )


def _step(
    plan: Plan, workload: Workload, stages: dict[int, Stage], place: torch.device
) -> tuple[NDArray[np.int64], float]:
    """Times of all ops of one step, and its loss; gradients begin at zero."""
    for stage in stages.values():
        stage.zero_grad(set_to_none=False)
    runner = OpRunner(workload, stages, place)
    return _timed(plan, serial_order(plan), runner), runner.loss


def _gradients(workload: Workload, stages: dict[int, Stage]) -> dict[str, NDArray[np.float64]]:
    if workload.model.tied_embeddings and len(stages) > 1:
        sum_tied_here(stages, workload)
    return {name: gradient for stage in stages.values() for name, gradient in gradients_of(stage).items()}


def agreement(run: SerialRun, plain: PlainRun) -> Agreement:
    """How far a serial run that kept its gradients is from the whole model."""
    return agreement_of([run.gradients], [run.loss], run.workload, plain)


def refuse_device(device: str) -> None:
    """Raises InputError where there is no such device."""
    if device.partition(":")[0] == "cuda" and not torch.cuda.is_available():
        raise InputError("--device", device, "torch sees no CUDA device here", "use --device cpu")


def serial_order(plan: Plan) -> list[int]:
    """All rows, each after what it needs: devices take turns, each runs on as far as it can."""
    needs = producers(plan)
    done = np.zeros(len(plan) + 1, dtype=bool)
    done[ABSENT] = True
    place = plan.offsets[:-1].copy()
    order: list[int] = []
    while len(order) < len(plan):
        for device in range(plan.shape.devices):
            while place[device] < plan.offsets[device + 1]:
                row = int(place[device])
                if not (done[needs.own[row]] and done[needs.stage[row]] and done[needs.sequence[row]]):
                    break
                done[row] = True
                order.append(row)
                place[device] += 1
    return order


def _timed(plan: Plan, rows: list[int], runner: OpRunner) -> NDArray[np.int64]:
    """int64 [ops]: the longer of device and host time of each; all are queued before one wait."""
    consumer = {int(p): row for row, p in enumerate(producers(plan).stage.tolist()) if p != ABSENT}
    clock = clock_of(runner.device)
    held: dict[int, Any] = {}
    marks = []
    clock.begin()
    for row in rows:
        op = plan.op(row)
        given = held.pop(row, None)
        marks.append((clock.mark(), time.perf_counter_ns()))
        made = runner.compute(op.kind, op.stage, op.microbatch, op.subsequence, given)
        marks.append((clock.mark(), time.perf_counter_ns()))
        if row in consumer:
            held[consumer[row]] = made
    took = np.zeros(len(plan), dtype=np.int64)
    took[rows] = longer_ns(clock, marks)[::2]
    return took


@dataclass(frozen=True, eq=False)
class OneGpuValidation:
    """A prediction from costs measured elsewhere, the composed timeline of this plan's own ops, their difference."""

    predicted: Timeline
    run: SerialRun
    composed: Timeline
    comparison: Comparison


def validate(
    plan: Plan,
    workload: Workload,
    device: str = "cuda",
    *,
    effort: Effort | None = None,
    given: CostTable | None = None,
    network: Network | None = None,
) -> OneGpuValidation:
    """Predicts with `given` costs (a profile's), or with each stage timed alone beforehand, then runs and compares.

    Links are given, the same on both sides: what is validated are the durations of ops in a real step and what they
    add up to. Raises what `run_serially` raises.
    """
    refuse_device(device)
    costs = given or timed_alone(plan, workload, device)
    predicted = simulate(plan, costs, network)
    run = run_serially(plan, workload, device, effort)
    composed = run.composed(network)
    return OneGpuValidation(predicted, run, composed, compare(predicted, [composed]))


def timed_alone(plan: Plan, workload: Workload, device: str) -> CostTable:
    """Costs of every stage and subsequence, each stage run by itself on one micro-batch: other data than the plan's."""
    place = torch.device(device)
    stages = {number: workload.stage(number, place) for number in range(plan.shape.stages)}
    shape = table_shape(plan, workload)
    duration = medians(time_stages(plan, workload, stages), shape)
    name = f"{workload.model.name}, {workload.seq_len} tokens, stages timed alone on {place}"
    sizes = sizes_of_stages(workload, stages)
    return table(workload, duration, name, "medians of rounds", **byte_tables(sizes, shape))
