"""Short ways for tests to write lowered plans by hand and to run them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipesim.communication import Communication
from pipesim.costs.unit import UnitCosts, unit_costs
from pipesim.engine.lowered import simulate_lowered
from pipesim.lower.csv import lowered_of_cells
from pipesim.plan import Kind, Op, PipelineShape, Placement, Plan
from pipesim.plan_cells import cells_of_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipesim.lower import LoweredPlan
    from pipesim.timeline import Timeline

BLOCKING = Communication("blocking")
ENGINES = ("reference", "compiled")


def lowered_by_hand(rows: Sequence[str], shape: PipelineShape, placement: Placement | None = None) -> LoweredPlan:
    """A lowered plan, legal or not, from one text of steps per device."""
    where = Path("by hand")
    cells = [cells_of_row(where, row.split(), number) for number, row in enumerate(rows, 1)]
    orders = [[Op(Kind[c.action], *c[1:4]) for c in row if not c.communicates] for row in cells]
    plan = Plan.from_orders("by hand", shape, placement or Placement.looped(shape), orders)
    return lowered_of_cells(where, plan, cells)


def run_lowered(
    lowered: LoweredPlan,
    communication: Communication = BLOCKING,
    *,
    costs: UnitCosts | None = None,
    engine: str = "reference",
) -> Timeline:
    """One run with unit costs, F = 1 and B = 2 on a device's whole share unless others are given."""
    table, network = unit_costs(costs or UnitCosts.of(1, 2), lowered.plan.shape)
    return simulate_lowered(lowered, table, network, communication, engine=engine)  # type: ignore[arg-type]


def starts(timeline: Timeline, stage: int) -> list[float]:
    """Start of every forward of a stage, in units, in order of micro-batches."""
    plan = timeline.plan
    rows = np.flatnonzero((plan.kind == Kind.F) & (plan.stage == stage))
    rows = rows[np.argsort(plan.microbatch[rows])]
    return [timeline.in_units(int(start)) for start in timeline.start_ns[rows]]


def makespan(timeline: Timeline) -> float:
    return timeline.in_units(timeline.makespan_ns)
