"""Two engines with one meaning: `reference` defines it with SimPy, `compiled` is fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pipesim.check import check
from pipesim.communication import OVERLAPPED, Communication
from pipesim.errors import InputError
from pipesim.network import Network

if TYPE_CHECKING:
    from pipesim.costs.table import CostTable
    from pipesim.plan import Plan
    from pipesim.timeline import Timeline

EngineName = Literal["compiled", "reference"]
ENGINES: tuple[EngineName, ...] = ("compiled", "reference")


def simulate(
    plan: Plan,
    costs: CostTable,
    network: Network | None = None,
    *,
    engine: EngineName = "compiled",
    communication: Communication = OVERLAPPED,
) -> Timeline:
    """Runs a plan on given costs and links; without a network, messages are free.

    Raises PlanError on an illegal plan, DeadlockError naming every stuck op, InputError where costs or network do
    not belong to the plan's shape.
    """
    network = network or Network.uniform(plan.shape.devices)
    _refuse_mismatch(plan, costs, network)
    if engine not in ENGINES:
        raise InputError("--engine", engine, "no such engine", f"one of {', '.join(ENGINES)}")
    if communication.lowers:
        return _simulate_lowered(plan, costs, network, engine, communication)
    needs = check(plan, deadlock=False)
    if engine == "reference":
        from pipesim.engine import reference

        return reference.run(plan, costs, network, needs)
    from pipesim.engine import compiled

    return compiled.run(plan, costs, network, needs)


def _simulate_lowered(
    plan: Plan, costs: CostTable, network: Network, engine: EngineName, communication: Communication
) -> Timeline:
    from pipesim.engine.lowered import simulate_lowered
    from pipesim.lower import lower

    check(plan)
    # A queue holds up no op, so messages are queued in the order of a run without queues; devices that block
    # shift each other's times, and an order without times serves them better.
    times = simulate(plan, costs, network, engine=engine) if communication.queues else None
    lowered = lower(plan, communication.placed, depth=communication.depth, timeline=times)
    return simulate_lowered(lowered, costs, network, communication, engine=engine)


def _refuse_mismatch(plan: Plan, costs: CostTable, network: Network) -> None:
    _, _, stages, subsequences = costs.duration_ns.shape
    have = (stages, subsequences, len(costs.class_of_microbatch), network.devices)
    shape = plan.shape
    want = (shape.stages, shape.subsequences, shape.microbatches, shape.devices)
    names = ("stages", "subsequences", "micro-batches", "devices")
    for name, given, wanted in zip(names, have, want, strict=True):
        if given != wanted:
            raise InputError("costs", f"{given} {name}", f"must be {wanted}, as the plan has")
