"""A scenario: every choice of one simulation as a value; turns it into a plan, costs and links, and runs it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pipesim.communication import Communication
from pipesim.costs.unit import UnitCosts, unit_costs
from pipesim.engine import EngineName, simulate
from pipesim.errors import InputError, ShapeError
from pipesim.plan import PipelineShape
from pipesim.schedules import schedule_named
from pipesim.synchronisation import synchronise

if TYPE_CHECKING:
    from pipesim.cluster import ClusterSpec
    from pipesim.costs.table import CostTable
    from pipesim.metrics import Metrics, StepFacts
    from pipesim.model import ModelSpec
    from pipesim.network import Network
    from pipesim.plan import Plan
    from pipesim.timeline import Timeline
    from pipesim.topology import Topology

    _Inputs = tuple[CostTable, Network, StepFacts | None, Topology | None]

_LONGEST_NS = 2**62


@dataclass(frozen=True)
class Scenario:
    """One simulation. None means: the schedule's own default (see `pipesim schedules`).

    Costs are unit costs where given, else those of `model` on `cluster`, measured where `profile` has them.
    recompute "auto" is "none" where that fits the GPU's memory, "full" elsewhere.
    communication: a name of `Communication`. With a model: synchronisation "none", "eager" (the default) or "end"
    (see `synchronise`), mapping and rank_order of devices on GPUs (see `Topology`).
    """

    schedule: str = "1f1b"
    devices: int = 8
    microbatches: int = 16
    stages_per_device: int | None = None
    subsequences: int | None = None
    in_flight: float | None = None
    memory_limit_bytes: int | None = None
    variant: str | None = None
    unit_costs: UnitCosts | None = None
    model: str = "llama3-8b"
    cluster: str = "h100"
    seq_len: int = 64 * 1024
    micro_batch_size: int = 1
    tp: int = 1
    dp: int = 1
    partition: str = "flops"
    layers: str | None = None
    recompute: str = "auto"
    sequence_parallel: bool = True
    distributed_optimizer: bool = False
    profile: str | None = None
    efficiency: str | None = None
    engine: EngineName = "compiled"
    communication: str = "overlapped"
    synchronisation: str | None = None
    mapping: str = "linear"
    rank_order: str = "tp-dp-pp"

    def fitted(self, schedule: str) -> Scenario:
        """The same scenario for another schedule: what that schedule does not use is left out."""
        target = schedule_named(schedule)
        unused: dict[str, Any] = {
            name: None
            for name in ("stages_per_device", "subsequences", "in_flight")
            if name not in target.defaults or name in target.fixed
        }
        if "variant" not in target.options:
            unused["variant"] = None
        return replace(self, schedule=schedule, **unused)

    def shape(self) -> PipelineShape:
        """The pipeline's shape, with the schedule's defaults where nothing is given."""
        schedule = schedule_named(self.schedule)
        given = {
            "stages_per_device": self.stages_per_device,
            "subsequences": self.subsequences,
            "in_flight": self.in_flight,
        }
        neutral = {"stages_per_device": 1, "subsequences": 1, "in_flight": None}
        chosen: dict[str, Any] = {
            name: value if value is not None else schedule.fixed.get(name, schedule.defaults.get(name, neutral[name]))
            for name, value in given.items()
        }
        return PipelineShape(self.devices, self.microbatches, **chosen)

    def case(self) -> Case:
        """Plan, costs and links. Raises InputError (or ShapeError, FileError) with what would do."""
        if self.unit_costs is not None or self.recompute != "auto":
            return self._case()
        light = self._light_case()
        return light if light is not None and light.fits else replace(self, recompute="full")._case()

    def _light_case(self) -> Case | None:
        """Without recomputation; None where even one micro-batch is then over a limit in bytes."""
        try:
            return replace(self, recompute="none")._case()
        except ShapeError:
            if self.memory_limit_bytes is None:
                raise
            return None

    def _case(self) -> Case:
        shape = self.shape()
        costs, network, facts, topology = self._inputs(shape)
        plan = schedule_named(self.schedule).plan(
            shape,
            costs=costs,
            network=network,
            variant=self.variant,
            memory_limit_bytes=self.memory_limit_bytes,
        )
        if topology is None or self.mapping != "auto":
            return Case(plan, costs, network, facts, topology)
        mapped = self._best_topology(topology, plan, costs)
        return Case(plan, costs, mapped.network(), facts, mapped)

    def _best_topology(self, linear: Topology, plan: Plan, costs: CostTable) -> Topology:
        from pipesim.mapping import best_mapping

        def makespan_ns(topology: Topology) -> int:
            return self.timeline(Case(plan, costs, topology.network(), None, topology)).makespan_ns

        return best_mapping(linear.cluster, linear.ranks, makespan_ns)

    def timeline(self, case: Case) -> Timeline:
        """The run of this scenario on given inputs. Raises InputError, PlanError."""
        communication = Communication.named(self.communication)
        timeline = simulate(case.plan, case.costs, case.network, engine=self.engine, communication=communication)
        when = self.synchronisation or ("none" if self.unit_costs is not None else "eager")
        if when == "none":
            return timeline
        links = case.topology.replica_links(case.network) if case.topology else None
        shared = self.distributed_optimizer
        return synchronise(timeline, links, when, distributed_optimizer=shared)

    def _inputs(self, shape: PipelineShape) -> _Inputs:
        """Costs and links. Raises InputError where the step, run op after op, would not fit into 64-bit ns."""
        try:
            inputs = self._unit_inputs(shape) if self.unit_costs else self._model_inputs(shape)
        except OverflowError:
            raise self._too_long() from None
        costs, network = inputs[:2]
        ops = 2 * shape.units * shape.stages
        longest = int(costs.duration_ns.max()) + int(network.latency_ns.max()) + int(costs.boundary_bytes.max())
        if longest * ops > _LONGEST_NS:
            raise self._too_long()
        return inputs

    def _too_long(self) -> InputError:
        if self.unit_costs is not None:
            remedy = "take smaller numbers, or fewer digits"
            return InputError("--unit-costs", self.unit_costs.name, "the step must stay below 2^62 ticks", remedy)
        given = f"{self.seq_len} · {self.micro_batch_size}"
        rule = "the step must stay below 2^62 ns, its bytes below 2^63"
        return InputError("--seq-len · --micro-batch-size", given, rule, "take a shorter sequence")

    def _unit_inputs(self, shape: PipelineShape) -> _Inputs:
        if self.unit_costs is None:
            raise InputError("--unit-costs", "none", "must be given here")
        if self.profile is not None:
            raise InputError("--profile", self.profile, "does not go with --unit-costs", "leave one of them out")
        return *unit_costs(self.unit_costs, shape), None, None

    def _model_inputs(self, shape: PipelineShape) -> _Inputs:
        """With mapping "auto" the links are those of the linear one, which a plan is made for before it is mapped."""
        from pipesim.costs.from_model import model_costs, step_facts
        from pipesim.topology import RankOrder, Topology

        model, cluster = load_model(self.model), load_cluster(self.cluster)
        costs = model_costs(self, model, cluster, shape)
        ranks = RankOrder(self.devices, self.tp, self.dp, self.rank_order)
        topology = Topology.of(cluster, ranks, "linear" if self.mapping == "auto" else self.mapping)
        return costs, topology.network(), step_facts(self, model, cluster, shape), topology


@dataclass(frozen=True, eq=False)
class Case:
    """What an engine is given, and the facts of the step that turn times into throughput (None for unit costs)."""

    plan: Plan
    costs: CostTable
    network: Network
    facts: StepFacts | None
    topology: Topology | None = None

    @property
    def fits(self) -> bool:
        """Whether every device's peak is within the GPU's memory; without a model nothing is known to be short."""
        from pipesim.memory import memory_of

        limit = self.facts.memory_limit_bytes if self.facts else None
        if limit is None:
            return True
        memory = memory_of(self.plan, self.costs)
        return int((memory.peaks + memory.static_bytes).max()) <= limit


@dataclass(frozen=True, eq=False)
class Outcome:
    """One simulated scenario."""

    scenario: Scenario
    case: Case
    timeline: Timeline
    metrics: Metrics


def run(scenario: Scenario, *, bounded: bool = False) -> Outcome:
    """Simulates a scenario; `bounded` also finds the lower bound of its time, which costs as much again.

    Raises InputError on choices that cannot be, PlanError on a plan that cannot run.
    """
    from pipesim.bounds import lower_bounds
    from pipesim.metrics import measure

    case = scenario.case()
    timeline = scenario.timeline(case)
    bounds = lower_bounds(case.plan, case.costs, case.network) if bounded else None
    return Outcome(scenario, case, timeline, measure(timeline, case.facts, bounds=bounds))


@lru_cache(maxsize=64)
def load_model(name_or_path: str) -> ModelSpec:
    """A model by preset name or config.json path, read once per process."""
    from pipesim.model import load

    return load(name_or_path)


@lru_cache(maxsize=64)
def load_cluster(name_or_path: str) -> ClusterSpec:
    """A cluster by preset name or JSON path, read once per process."""
    from pipesim.cluster import load

    return load(name_or_path)
