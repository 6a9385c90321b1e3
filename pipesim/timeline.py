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


@dataclass(frozen=True, eq=False)
class Timeline:
    """When each op ran, in nanoseconds from the first start.

    start_ns, end_ns int64 [ops], in the rows of `plan`.
    transfer_start_ns, transfer_end_ns, arrival_ns int64 [ops]: of the message each op sends (asked for at the
    op's end; its ports are held from start to end), NOTHING_SENT where it sends none.
    source: "simulated", "measured" or "composed" (measured durations replayed through an engine).
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

    @property
    def makespan_ns(self) -> int:
        """First start to last end of the step."""
        return int(self.end_ns.max() - self.start_ns.min()) if len(self.plan) else 0

    @property
    def unit_ns(self) -> int:
        """What one printed unit is, in nanoseconds."""
        return self.costs.unit_ns

    def in_units(self, time_ns: int) -> float:
        """A time as printed: seconds, or units where costs are unit costs."""
        return time_ns / self.costs.unit_ns
