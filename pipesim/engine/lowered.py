"""Simulation of lowered plans: checks, then one of two engines with one meaning."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pipesim.check import check_plan
from pipesim.engine import simulate
from pipesim.lower import lower
from pipesim.lower.check import check_lowered
from pipesim.program import program_of

if TYPE_CHECKING:
    from pipesim.communication import Communication
    from pipesim.costs.table import CostTable
    from pipesim.engine import EngineName
    from pipesim.lower import LoweredPlan
    from pipesim.network import Network
    from pipesim.plan import Plan
    from pipesim.timeline import Timeline


def lower_for(plan: Plan, costs: CostTable, network: Network, communication: Communication) -> LoweredPlan:
    """The lowered plan that `simulate` runs for a plan. Raises PlanError on an illegal plan."""
    check_plan(plan)
    # A queue holds up no op, so messages are queued in the order of a run without queues; devices that block
    # shift each other's times, and an order without times serves them better.
    times = simulate(plan, costs, network) if communication.queues else None
    return lower(plan, communication.placed, depth=communication.depth, timeline=times)


def simulate_lowered(
    lowered: LoweredPlan,
    costs: CostTable,
    network: Network,
    communication: Communication,
    *,
    engine: EngineName = "compiled",
) -> Timeline:
    """Runs a lowered plan as it stands; `communication.policy` is not asked.

    The plan itself must be legal, or a part of a legal one. Raises PlanError where a message lacks its send or
    receive, DeadlockError where devices wait for ever, with the cycle.
    """
    check_lowered(lowered)
    program = program_of(lowered, communication, costs.messages(lowered.plan))
    if engine == "reference":
        from pipesim.engine import reference_blocking

        timeline = reference_blocking.run(program, costs, network)
    else:
        from pipesim.engine import compiled_blocking

        timeline = compiled_blocking.run(program, costs, network)
    return replace(timeline, communication=communication.name)
