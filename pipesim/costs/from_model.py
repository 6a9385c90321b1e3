"""From a scenario with a model and a cluster to its costs and the facts of its step; knows no links."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from pipesim.costs.analytic import AnalyticOptions, analytic_costs
from pipesim.costs.efficiency import Efficiency
from pipesim.errors import InputError
from pipesim.flops import head_in_layers, model_flops
from pipesim.partition import (
    LayerPartition,
    SequenceCost,
    check_partition,
    equal_cost_sequence,
    even_layers,
    even_sequence,
    layout_partition,
    listed_layers,
    seq1f1b_sequence,
    weighted_layers,
)

if TYPE_CHECKING:
    from pipesim.cluster import ClusterSpec
    from pipesim.costs.table import CostTable
    from pipesim.metrics import StepFacts
    from pipesim.model import ModelSpec
    from pipesim.plan import PipelineShape
    from pipesim.scenario import Scenario


def model_costs(scenario: Scenario, model: ModelSpec, cluster: ClusterSpec, shape: PipelineShape) -> CostTable:
    """Costs of a scenario's ops, measured where its profile has them.

    Raises InputError on a cut that model, sequence or cluster cannot take.
    """
    options = analytic_options(scenario)
    layers = layer_partition(scenario, model, shape)
    sequence = sequence_partition(scenario, model, shape)
    if scenario.profile is None:
        costs = analytic_costs(model, cluster, shape, layers, sequence, options)
    else:
        from pipesim.costs.calibrated import calibrated_costs
        from pipesim.profile import read_profile

        profile = read_profile(scenario.profile)
        costs = calibrated_costs(profile, model, cluster, shape, layers, sequence, options, where=scenario.profile)
    if scenario.recompute == "none":
        return costs
    return replace(costs, name=f"{costs.name}, {scenario.recompute} recompute")


def step_facts(scenario: Scenario, model: ModelSpec, cluster: ClusterSpec, shape: PipelineShape) -> StepFacts:
    """What turns the time of a scenario's step into throughput, and what its devices can hold."""
    from pipesim.metrics import StepFacts

    tokens = shape.microbatches * scenario.micro_batch_size * scenario.seq_len * scenario.dp
    return StepFacts(
        tokens=tokens,
        model_flops=model_flops(model, tokens, scenario.seq_len),
        gpus=shape.devices * scenario.tp * scenario.dp,
        peak_flops_per_gpu=cluster.peak_flops,
        memory_limit_bytes=cluster.memory_bytes,
    )


def analytic_options(scenario: Scenario) -> AnalyticOptions:
    """The training options of a scenario."""
    return AnalyticOptions(
        micro_batch_size=scenario.micro_batch_size,
        tp=scenario.tp,
        dp=scenario.dp,
        sequence_parallel=scenario.sequence_parallel,
        recompute=scenario.recompute,  # type: ignore[arg-type]  # checked there, with the choices in the message
        distributed_optimizer=scenario.distributed_optimizer,
        efficiency=_efficiency(scenario.efficiency),
    )


def layer_partition(scenario: Scenario, model: ModelSpec, shape: PipelineShape) -> LayerPartition:
    """Layers of each stage: even, balanced with the head's work, a layout string or a list of counts."""
    if scenario.layers is None or scenario.layers == "even":
        return even_layers(model.layers, shape.stages)
    if scenario.layers == "balanced":
        return weighted_layers(model.layers, shape.stages, head_weight=head_in_layers(model, scenario.seq_len))
    listed = scenario.layers.replace(",", "").replace(" ", "").isdigit()
    read = listed_layers(scenario.layers) if listed else layout_partition(scenario.layers, shape.devices)
    check_partition(read, model.layers, shape.devices, shape.stages_per_device)
    return read


def sequence_partition(scenario: Scenario, model: ModelSpec, shape: PipelineShape) -> tuple[int, ...]:
    """Tokens of each subsequence, in multiples of tp where sequence parallelism needs them."""
    length, count = scenario.seq_len, shape.subsequences
    multiple = scenario.tp if scenario.sequence_parallel else 1
    if scenario.partition == "even":
        return even_sequence(length, count, multiple_of=multiple)
    if scenario.partition == "flops":
        return equal_cost_sequence(length, count, SequenceCost.of_layer(model), multiple_of=multiple)
    if scenario.partition == "authors":
        return seq1f1b_sequence(length, count, SequenceCost.of_seq1f1b(model), multiple_of=scenario.tp)
    raise InputError("partition", scenario.partition, "no such choice", "one of even, flops, authors")


def _efficiency(text: str | None) -> Efficiency:
    """From `matmul_max=0.7,kernel_seconds=4e-6`; what is not given keeps its default."""
    if not text:
        return Efficiency()
    known = {field.name: field.default for field in fields(Efficiency)}
    given: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in known:
            raise InputError("--efficiency", part, "no such constant", f"one of {', '.join(known)}")
        try:
            given[name] = int(value) if isinstance(known[name], int) else float(value)
        except ValueError:
            raise InputError("--efficiency", part, "must be a number", f"write {name}={known[name]}") from None
    return Efficiency(**given)  # type: ignore[arg-type]
