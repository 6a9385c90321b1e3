"""The timeline: a plan with the time of every op and transfer, simulated or measured alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pipesim.costs.table import CostTable
    from pipesim.network import Network
    from pipesim.plan import Plan

NOTHING_SENT = -1


@dataclass(frozen=True)
class SyncSpan:
    """One piece of what follows the backwards of a stage, on one device, in nanoseconds.

    what: "replicas" (gradients summed over data-parallel replicas), "pair" (over the two copies of a stage of a
    bidirectional plan), "optimizer", "parameters" (spread again by a distributed optimizer); stage: -1 for what
    concerns the whole device; bytes: sent by the device, 0 for the optimizer.
    """

    what: str
    device: int
    stage: int
    start_ns: int
    end_ns: int
    bytes: int = 0


@dataclass(frozen=True, eq=False)
class Timeline:
    """When each op ran, in nanoseconds from the first start.

    start_ns, end_ns int64 [ops], in the rows of `plan`.
    transfer_start_ns, transfer_end_ns, arrival_ns int64 [ops]: of the message each op sends (asked for at the
    op's end; its ports are held from start to end), NOTHING_SENT where it sends none.
    source: "simulated", "measured" or "composed" (measured durations replayed through an engine).
    communication: how messages were sent, as in `Communication.name`.
    synchronisation: what follows the ops, in order of start; empty where the step ends with its last op.
    """

    plan: Plan
    costs: CostTable
    network: Network
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    transfer_start_ns: NDArray[np.int64]
    transfer_end_ns: NDArray[np.int64]
    arrival_ns: NDArray[np.int64]
    engine: str
    source: str = field(default="simulated")
    communication: str = "overlapped"
    synchronisation: tuple[SyncSpan, ...] = ()

    @property
    def makespan_ns(self) -> int:
        """First start to last end of the step, synchronisation and optimizer included where they are there."""
        if not len(self.plan):
            return 0
        last = max(self.end_ns.max(), *(span.end_ns for span in self.synchronisation), 0)
        return int(last - self.start_ns.min())

    @property
    def exposed_synchronisation_ns(self) -> int:
        """From the last end of an op to the end of the step."""
        return self.makespan_ns - int(self.end_ns.max() - self.start_ns.min()) if len(self.plan) else 0

    @property
    def unit_ns(self) -> int:
        """What one printed unit is, in nanoseconds."""
        return self.costs.unit_ns

    def in_units(self, time_ns: int) -> float:
        """A time as printed: seconds, or units where costs are unit costs."""
        return time_ns / self.costs.unit_ns
