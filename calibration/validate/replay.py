"""A timeline run again by the engine with its own durations: whatever differs then is not the ops' doing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pipesim.engine import simulate
from pipesim.plan import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pipesim.costs.table import CostTable
    from pipesim.network import Network
    from pipesim.plan import Plan
    from pipesim.timeline import Timeline


def replayed(timeline: Timeline, network: Network | None = None) -> Timeline:
    """The same ops with the same durations on given links (None: free ones), started by the engine's rules."""
    costs = costs_by_op(timeline.plan, timeline.costs, timeline.end_ns - timeline.start_ns)
    return replace(simulate(timeline.plan, costs, network), source="composed")


def costs_by_op(plan: Plan, costs: CostTable, duration_ns: NDArray[np.int64]) -> CostTable:
    """A cost table with a class for every micro-batch, so that each op has the duration int64 [ops] given for it.

    Bytes are those of `costs`; no host overhead is added, for the durations hold it.
    """
    shape, class_of = plan.shape, costs.class_of_microbatch
    by_op = np.zeros((len(Kind), shape.microbatches, shape.stages, shape.subsequences), dtype=np.int64)
    by_op[plan.kind, plan.microbatch, plan.stage, plan.subsequence] = duration_ns
    return replace(
        costs,
        duration_ns=by_op,
        activation_bytes=costs.activation_bytes[class_of],
        weight_activation_bytes=costs.weight_activation_bytes[class_of],
        transient_bytes=costs.transient_bytes[:, class_of],
        kv_bytes=costs.kv_bytes[class_of],
        kv_gradient_bytes=costs.kv_gradient_bytes[class_of],
        boundary_bytes=costs.boundary_bytes[class_of],
        class_of_microbatch=np.arange(shape.microbatches, dtype=np.int32),
        host_overhead_ns=0,
    )
