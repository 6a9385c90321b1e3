"""One rank runs its row of a plan: waits, computes, sends, and writes down when; knows no other rank's order.

── wait ──┤ready   begun├── compute ──┤done   posted├── next op
          └───────────── the op in a timeline ──────┘
                   └── compute alone ─┘
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calibration.execute.clock import clock_of, offset_ns
from calibration.execute.gradients import sum_copies, sum_tied
from calibration.execute.mail import Mail
from calibration.execute.ops import OpRunner
from calibration.execute.ranks import NO_ROW, Phase
from calibration.execute.workload import DTYPES
from pipesim.dependencies import ABSENT, producers
from pipesim.plan import Kind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from calibration.execute.channels import Routes
    from calibration.execute.ranks import Rank
    from calibration.execute.workload import Workload
    from calibration.layer import Stage
    from pipesim.plan import Plan

READY, BEGUN, DONE, POSTED = range(4)


@dataclass(frozen=True, eq=False)
class StepRecord:
    """One step of one rank: moments int64 [ops of the rank, 4] (ready, begun, done, posted) in ns of rank 0's clock,
    this rank's share of the loss, and how long summing copies of gradients took."""

    moments: NDArray[np.int64]
    loss: float
    summing_ns: int


class RankStep:
    """Everything one rank keeps from step to step: its stages, its channels, what follows what."""

    def __init__(self, rank: Rank, plan: Plan, routes: Routes, workload: Workload) -> None:
        self.rank, self.plan, self.routes, self.workload = rank, plan, routes, workload
        self.rows = plan.rows(rank.number) if rank.number < plan.shape.devices else range(0)
        self.stages = self._build_stages()
        self.next_to = self._local_consumers()
        self.mail = Mail(rank, plan, workload, routes, DTYPES[workload.dtype])
        self.mail.agree_on_shapes()
        self.clock = clock_of(rank.device)
        self.offset_ns = offset_ns(rank)
        self.columns = [(Kind(int(plan.kind[r])), int(plan.stage[r]), int(plan.microbatch[r]), int(plan.subsequence[r]))
                        for r in self.rows]  # fmt: skip

    def _build_stages(self) -> dict[int, Stage]:
        built = {}
        for number, devices in enumerate(self.plan.placement.device_of.T.tolist()):
            if self.rank.number in devices:
                self.rank.at(Phase.PREPARING)
                built[number] = self.workload.stage(number, self.rank.device)
        return built

    def _local_consumers(self) -> dict[int, int]:
        """By row, the row of this device that reads its output without a message."""
        stage = producers(self.plan).stage
        device = self.plan.device
        return {int(stage[r]): r for r in self.rows if stage[r] != ABSENT and device[stage[r]] == self.rank.number}

    def run(self) -> StepRecord:
        """One step: gradients begin at zero and end summed over copies."""
        for stage in self.stages.values():
            stage.zero_grad(set_to_none=False)
        self.ops = OpRunner(self.workload, self.stages, self.rank.device)
        self.held: dict[int, Tensor | None] = {}
        self.clock.begin()  # waits for the device, so not once receives are posted: those wait for other ranks
        self.mail.post_receives()
        self.rank.barrier()
        marks = [self._run_op(row, *column) for row, column in zip(self.rows, self.columns, strict=True)]
        self.mail.finish()
        summing_ns = self._sum_gradients()
        moments = self.clock.nanoseconds([mark for marks_of_op in marks for mark in marks_of_op])
        return StepRecord(moments.reshape(-1, 4) + self.offset_ns, self.ops.loss, summing_ns)

    def _run_op(self, row: int, kind: Kind, stage: int, microbatch: int, subsequence: int) -> tuple[Any, Any, Any, Any]:
        mark, at = self.clock.mark, self.rank.at
        sender = self.routes.sender.get(row)
        if sender is None:
            given = self.held.pop(row, None)
        else:
            at(Phase.WAITING, row, sender)
            given = self.mail.take(sender)
        ready = mark()
        if sender is not None:
            self.mail.post_ahead(sender)
        at(Phase.COMPUTING, row)
        begun = mark()
        made = self.ops.compute(kind, stage, microbatch, subsequence, given)
        done = mark()
        if row in self.routes.receiver:
            assert made is not None, "an op that sends has made something"
            self.mail.send(row, made)
        elif row in self.next_to:
            self.held[self.next_to[row]] = made
        return ready, begun, done, mark()

    def _sum_gradients(self) -> int:
        self.rank.at(Phase.SUMMING)
        before = self.clock.mark()
        sum_copies(self.rank, self.plan, self.stages)
        sum_tied(self.rank, self.plan, self.workload, self.stages)
        begun, ended = self.clock.nanoseconds([before, self.clock.mark()])
        self.rank.at(Phase.SUMMING, NO_ROW)
        return int(ended - begun)
