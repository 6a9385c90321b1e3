"""The options of `execute` and `validate`, and what they make: a plan and a workload; runs nothing, loads no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipesim.cli.option_table import COSTS, RUN, ScenarioOption
from pipesim.cli.options import by_name
from pipesim.cli.parsers import one_of
from pipesim.errors import InputError

if TYPE_CHECKING:
    from calibration.execute.workload import Workload
    from pipesim.model import ModelSpec
    from pipesim.plan import PipelineShape, Plan
    from pipesim.scenario import Scenario

_SHARED = (
    "devices", "microbatches", "stages_per_device", "subsequences", "in_flight", "variant",
    "model", "seq_len", "micro_batch_size", "partition", "layers",
)  # fmt: skip


_DIGITS_OF_INT64 = 18


def _natural(text: str, where: str) -> int:
    if not text.isdecimal():
        raise InputError(where, text, "must be a whole number from 0", "write 0, 1, 2, …")
    if len(text) > _DIGITS_OF_INT64:
        raise InputError(where, text, "must be below 10^18")
    return int(text)


_positive, _above_zero = by_name()["devices"].parse, by_name()["in_flight"].parse

OWN: tuple[ScenarioOption, ...] = (
    ScenarioOption("model_layers", ("--layers",), "N", "Scale the model: its layers.", COSTS, _positive),
    ScenarioOption("hidden", ("--hidden",), "N", "Scale the model: its hidden size, all widths.", COSTS, _positive),
    ScenarioOption(
        "batch", ("--batch",), "N", "Sequences of a step, cut into m as evenly as can be; else m × micro-batch size.",
        COSTS, _positive,
    ),
    ScenarioOption("device", ("--device",), "NAME", "cpu (the default) or cuda.", RUN, one_of("cpu", "cuda")),
    ScenarioOption(
        "dtype", ("--dtype",), "NAME", "float64, float32 (the default on cpu) or bfloat16 (on cuda).", RUN,
        one_of("float64", "float32", "bfloat16"),
    ),
    ScenarioOption("seed", ("--seed",), "N", "Seed of weights and tokens. [0]", RUN, _natural),
    ScenarioOption("steps", ("--steps",), "N", "Steps that are timed. [5]", RUN, _positive),
    ScenarioOption("warm_ups", ("--warm-ups",), "N", "Steps before them. [2]", RUN, _natural),
    ScenarioOption(
        "timeout", ("--timeout",), "SECONDS", "A run that stands still for so long is ended. [20]", RUN, _above_zero
    ),
    ScenarioOption("port", ("--port",), "N", "Where the ranks meet on 127.0.0.1; else a free one.", RUN, _natural),
)  # fmt: skip

OFFERED = tuple(by_name()[name] for name in _SHARED) + OWN


@dataclass(frozen=True)
class Choices:
    """What is run, and how: the values of the options, defaults filled in."""

    scenario: Scenario
    model: ModelSpec
    batch: int
    device: str = "cpu"
    dtype: str = "float32"
    seed: int = 0
    steps: int = 5
    warm_ups: int = 2
    timeout: float = 20.0
    port: int = 0

    @classmethod
    def of(cls, values: dict[str, Any], schedule: str) -> Choices:
        """From parsed option values; absent means the default. Raises InputError."""
        from pipesim.model import load
        from pipesim.scenario import Scenario

        shared = {name: values[name] for name in _SHARED if name in values}
        defaults = {"devices": 2, "model": "tiny", "seq_len": 1024}
        chosen = defaults | shared
        chosen.setdefault("microbatches", 2 * chosen["devices"])
        scenario = Scenario(schedule=schedule, **chosen)
        model = scaled(load(scenario.model), values.get("model_layers"), values.get("hidden"))
        batch = values.get("batch", scenario.microbatches * scenario.micro_batch_size)
        rest = {
            name: values[name] for name in ("device", "seed", "steps", "warm_ups", "timeout", "port") if name in values
        }
        dtype = values.get("dtype", "bfloat16" if rest.get("device") == "cuda" else "float32")
        return cls(scenario, model, batch, dtype=dtype, **rest)

    def plan(self) -> Plan:
        """The schedule's plan for the shape."""
        from pipesim.schedules import schedule_named

        return schedule_named(self.scenario.schedule).plan(self.scenario.shape(), variant=self.scenario.variant)

    def workload(self, shape: PipelineShape) -> Workload:
        """What each step computes. Raises InputError where model, batch and shape do not go together."""
        from calibration.execute.workload import Workload
        from pipesim.costs.from_model import layer_partition, sequence_partition
        from pipesim.partition import microbatch_sizes

        return Workload(
            self.model,
            layer_partition(self.scenario, self.model, shape),
            sequence_partition(self.scenario, self.model, shape),
            microbatch_sizes(self.batch, shape.microbatches),
            dtype=self.dtype,
            seed=self.seed,
        )


def scaled(model: ModelSpec, layers: int | None, hidden: int | None) -> ModelSpec:
    """The model with other layers or another hidden size; heads keep their size, widths their proportion.

    Raises InputError where the hidden size is no whole number of key/value groups.
    """
    if layers is not None:
        model = replace(model, layers=layers, name=f"{model.name} with {layers} layers")
    if hidden is None or hidden == model.hidden:
        return model
    group = model.heads // model.kv_heads * model.hidden // model.heads
    if hidden % group:
        raise InputError("--hidden", hidden, f"must be a multiple of {group}, a group of heads of {model.name}")
    kv_heads = hidden // group
    return replace(
        model,
        name=f"{model.name}, hidden {hidden}",
        hidden=hidden,
        heads=kv_heads * (model.heads // model.kv_heads),
        kv_heads=kv_heads,
        feedforward=max(1, model.feedforward * hidden // model.hidden),
    )
