"""What a run on ranks brought: timelines of its steps, losses, gradients, memory; knows not how it was run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from calibration.execute.bytes import byte_tables
from calibration.execute.costs import measured_costs, table_shape
from calibration.execute.rank import BEGUN, DONE, POSTED, READY
from pipesim.network import Network
from pipesim.timeline import NOTHING_SENT, Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from calibration.execute.channels import Routes
    from calibration.execute.memory import RankMemory
    from calibration.execute.run import RankReport
    from calibration.execute.workload import Workload
    from pipesim.plan import Plan


@dataclass(frozen=True, eq=False)
class Execution:
    """A plan that was executed.

    moments int64 [steps, ops, 4]: ready, begun, done, posted of each op, in ns from the first start of its step.
    losses: of each step. gradient_norm: of the whole model after the last step; gradients float64 by device and
    parameter name where they were asked for, so that copies can be compared.
    summing_ns int64 [steps, devices]: summing copies of gradients after the last op.
    memory: of each device's rank, in one step more; byte_tables: what its ops keep, as a cost table's columns; both
    empty where memory was not asked for.
    """

    plan: Plan
    workload: Workload
    routes: Routes
    backend: str
    moments: NDArray[np.int64]
    losses: tuple[float, ...]
    gradient_norm: float
    summing_ns: NDArray[np.int64]
    memory: tuple[RankMemory, ...]
    byte_tables: dict[str, NDArray[np.int64]]
    gradients: tuple[dict[str, NDArray[np.float64]], ...]

    @property
    def makespans_ns(self) -> NDArray[np.int64]:
        """int64 [steps]: first start to last end of each step."""
        return self.moments[:, :, POSTED].max(axis=1) - self.moments[:, :, READY].min(axis=1)

    @property
    def median_step(self) -> int:
        """The step of median makespan (the lower one of an even number)."""
        order = np.argsort(self.makespans_ns, kind="stable")
        return int(order[(len(order) - 1) // 2])

    @property
    def host_overhead_ns(self) -> int:
        """What an op costs beside its computation: bookkeeping, sending, posting receives; and getting to it from the
        op before where it waits for no message. Medians over all ops and steps."""
        outside = (self.moments[:, :, POSTED] - self.moments[:, :, READY]) - (
            self.moments[:, :, DONE] - self.moments[:, :, BEGUN]
        )
        waits = np.isin(np.arange(len(self.plan)), [*self.routes.sender, *self.plan.offsets[:-1].tolist()])
        at_once = np.flatnonzero(~waits)
        gaps = self.moments[:, at_once, READY] - self.moments[:, at_once - 1, POSTED]
        return int(np.median(outside)) + (int(np.median(gaps)) if len(at_once) else 0)

    @property
    def timeline(self) -> Timeline:
        """The step of median makespan."""
        return self.timeline_of(self.median_step)

    def timeline_of(self, step: int) -> Timeline:
        """One step as a timeline: an op from the end of its wait to its message being posted.

        A message starts when what it carries is made, a little before its op ends by having posted it, and has arrived
        when its receiver stopped waiting for it, which is late where the receiver was busy.
        """
        moments = self.moments[step]
        start, end = moments[:, READY], moments[:, POSTED]
        sent, arrival = (np.full(len(self.plan), NOTHING_SENT, dtype=np.int64) for _ in range(2))
        for sender, receiver in self.routes.receiver.items():
            arrival[sender] = start[receiver]
            sent[sender] = moments[sender, DONE]
        took = self.moments[:, :, DONE] - self.moments[:, :, BEGUN]
        costs = measured_costs(self.plan, self.workload, took, self.backend, **self.byte_tables)
        network = Network.uniform(self.plan.shape.devices)
        return Timeline(
            self.plan, costs, network, start.copy(), end.copy(), sent, arrival.copy(), arrival,
            engine=self.backend, source="measured",
        )  # fmt: skip


def gathered(plan: Plan, workload: Workload, routes: Routes, reports: Sequence[RankReport], backend: str) -> Execution:
    """Joins what the ranks of a plan reported, in order of devices."""
    steps = len(reports[0].steps)
    moments = np.stack([np.concatenate([r.steps[n].moments for r in reports]) for n in range(steps)])
    moments -= moments[:, :, READY].min(axis=1)[:, np.newaxis, np.newaxis]
    stages = {number: norm for r in reports for number, norm in r.squared_norms.items()}
    sizes = {cell: found for r in reports for cell, found in r.sizes.items()}
    return Execution(
        plan=plan,
        workload=workload,
        routes=routes,
        backend=backend,
        moments=moments,
        losses=tuple(math.fsum(r.steps[n].loss for r in reports) for n in range(steps)),
        gradient_norm=math.sqrt(math.fsum(stages.values())),
        summing_ns=np.array([[r.steps[n].summing_ns for r in reports] for n in range(steps)], dtype=np.int64),
        memory=tuple(r.memory for r in reports if r.memory is not None),
        byte_tables=byte_tables(sizes, table_shape(plan, workload)) if sizes else {},
        gradients=tuple(_of_device(r.gradients) for r in reports),
    )


def _of_device(by_stage: dict[int, dict[str, NDArray[np.float64]]]) -> dict[str, NDArray[np.float64]]:
    return {name: gradient for named in by_stage.values() for name, gradient in named.items()}
