"""What a search may choose from: every cut of the GPUs and the batch that the rules allow; simulates nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from pipesim.errors import InputError
from pipesim.scenario import Scenario, load_cluster, load_model
from pipesim.schedules import all_schedules, schedule_named

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_STAGES_PER_DEVICE = (2, 4, 8)
_SUBSEQUENCES = (2, 4, 8, 16)
_RECOMPUTE = ("none", "full")  # with flash attention there are no scores for "selective" to drop

_MOST = 10**6  # of GPUs, and of sequences: their divisors are tried one by one


@dataclass(frozen=True)
class Space:
    """A given number of GPUs and sequences a step, and what may be chosen.

    base: what is not searched (model, cluster, sequence length, ...). choices: allowed values by Scenario field
    (devices, tp, dp, stages_per_device, subsequences, recompute, micro_batch_size, ...); fields not named are
    searched, or kept as in base. schedules: names, None for all.
    """

    gpus: int
    global_batch: int
    base: Scenario = field(default_factory=Scenario)
    choices: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    schedules: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for option, value in (("--gpus", self.gpus), ("--global-batch", self.global_batch)):
            if not 1 <= value <= _MOST:
                raise InputError(option, value, f"must be at least 1, at most {_MOST}")
        if self.base.unit_costs is not None:
            raise InputError("--unit-costs", self.base.unit_costs.name, "say nothing of GPUs", "give a model")


class Refusals:
    """Why choices were set aside: how many for each reason, with one of them as an example."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, str] = {}

    def add(self, reason: str, example: str) -> None:
        """Counts one more choice set aside for this reason."""
        self.counts[reason] += 1
        self.examples.setdefault(reason, example)

    def __iter__(self) -> Iterator[tuple[str, int, str]]:
        """(reason, count, example), most frequent first."""
        return ((reason, count, self.examples[reason]) for reason, count in self.counts.most_common())


def candidates(space: Space, refusals: Refusals) -> list[Scenario]:
    """Every scenario of the space that no rule forbids, each once; the others are counted in `refusals`."""
    found: dict[Scenario, None] = {}
    names = list(all_schedules()) if space.schedules is None else list(space.schedules)
    for name in names:
        schedule_named(name)
    for layout in _layouts(space, refusals):
        for name in names:
            found.update(dict.fromkeys(_tuned(space, layout, name, refusals)))
    return list(found)


def _layouts(space: Space, refusals: Refusals) -> Iterator[Scenario]:
    """Every way to cut the GPUs into tp · p · dp and the batch into micro-batches."""
    tensor = _allowed(space, "tp", _divisors(space.gpus))
    devices = _allowed(space, "devices", _divisors(space.gpus))
    sizes = _allowed(space, "micro_batch_size", (space.base.micro_batch_size,))
    for tp, p, size in product(tensor, devices, sizes):
        reason = _refusal(space, tp, p, size)
        dp = space.gpus // (tp * p)
        if reason is not None:
            refusals.add(reason, f"tp {tp}, p {p}")
        elif dp in _allowed(space, "dp", (dp,)):
            microbatches = space.global_batch // (dp * size)
            yield replace(space.base, devices=p, tp=tp, dp=dp, micro_batch_size=size, microbatches=microbatches)


def _refusal(space: Space, tp: int, p: int, size: int) -> str | None:
    model, cluster = load_model(space.base.model), load_cluster(space.base.cluster)
    node = cluster.gpus_per_node
    broken = (
        (space.gpus % (tp * p) != 0, f"tp · p does not divide {space.gpus} GPUs"),
        (tp > node or node % tp != 0, f"tp must divide the {node} GPUs of a node"),
        (model.heads % tp != 0, f"tp must divide the {model.heads} attention heads"),
        (model.kv_heads % tp != 0, f"tp must divide the {model.kv_heads} key/value heads"),
        (p > model.layers, f"more devices than the {model.layers} layers"),
        (p == 1, "one device is no pipeline"),
        (
            space.global_batch * tp * p % (space.gpus * size) != 0,
            f"dp · micro-batch size does not divide the batch of {space.global_batch}",
        ),
    )
    return next((reason for breaks, reason in broken if breaks), None)


def _tuned(space: Space, layout: Scenario, name: str, refusals: Refusals) -> Iterator[Scenario]:
    """One layout under one schedule: every v, k and recomputation, and whatever else the caller listed."""
    layers = load_model(layout.model).layers
    placed = ("devices", "tp", "dp", "micro_batch_size", "microbatches")
    lists = {
        "stages_per_device": _STAGES_PER_DEVICE,
        "subsequences": _SUBSEQUENCES,
        "recompute": _RECOMPUTE if layout.recompute == "auto" else (layout.recompute,),
    } | {key: tuple(values) for key, values in space.choices.items() if key not in placed}
    for chosen in product(*lists.values()):
        scenario = replace(layout, **dict(zip(lists, chosen, strict=True))).fitted(name)
        if scenario.shape().stages > layers:
            refusals.add(f"more stages than the {layers} layers", described(scenario))
        else:
            yield scenario


def described(scenario: Scenario) -> str:
    """A configuration in a few words."""
    shape = scenario.shape()
    parts = [scenario.schedule, f"tp {scenario.tp}", f"p {shape.devices}", f"dp {scenario.dp}"]
    parts += [f"v {shape.stages_per_device}"] if shape.stages_per_device > 1 else []
    parts += [f"k {shape.subsequences}"] if shape.subsequences > 1 else []
    return ", ".join([*parts, f"recompute {scenario.recompute}"])


def _allowed(space: Space, name: str, otherwise: Iterable[int]) -> tuple[int, ...]:
    return tuple(space.choices.get(name, otherwise))


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
