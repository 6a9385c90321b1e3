"""Two engines with one meaning: `reference` defines it with SimPy, `compiled` is fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pipesim.check import check_plan
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
        from pipesim.engine.lowered import lower_for, simulate_lowered

        lowered = lower_for(plan, costs, network, communication)
        return simulate_lowered(lowered, costs, network, communication, engine=engine)
    needs = check_plan(plan, deadlock=False)
    if engine == "reference":
        from pipesim.engine import reference

        return reference.run(plan, costs, network, needs)
    from pipesim.engine import compiled

    return compiled.run(plan, costs, network, needs)


def _refuse_mismatch(plan: Plan, costs: CostTable, network: Network) -> None:
    _, _, stages, subsequences = costs.duration_ns.shape
    have = (stages, subsequences, len(costs.class_of_microbatch), network.devices)
    shape = plan.shape
    want = (shape.stages, shape.subsequences, shape.microbatches, shape.devices)
    names = ("stages", "subsequences", "micro-batches", "devices")
    for name, given, wanted in zip(names, have, want, strict=True):
        if given != wanted:
            raise InputError("costs", f"{given} {name}", f"must be {wanted}, as the plan has")
