"""Analytic costs: a model on a cluster, cut into stages and subsequences, as integer ns and bytes by formula."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from pipesim.cluster_network import check_tp
from pipesim.costs.analytic_memory import MemoryModel
from pipesim.costs.analytic_sources import analytic_sources
from pipesim.costs.efficiency import Efficiency
from pipesim.costs.parts import Machine, PartSeconds, embedding_seconds, head_seconds, layer_seconds
from pipesim.costs.static import (
    GRADIENT_BYTES,
    OPTIMIZER_BYTES,
    GradientType,
    gpu_parameters,
    stage_parameters,
    static_bytes,
)
from pipesim.costs.stored import BF16, Layout, Recompute
from pipesim.costs.table import CostTable, StepCosts
from pipesim.errors import InputError
from pipesim.partition import check_partition
from pipesim.plan import Kind
from pipesim.units import NS_PER_S, format_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from pipesim.cluster import ClusterSpec
    from pipesim.model import ModelSpec
    from pipesim.partition import LayerPartition, StageContents
    from pipesim.plan import PipelineShape


@dataclass(frozen=True)
class AnalyticOptions:
    """How the model is trained; sizes are sequences, tokens or GPUs.

    microbatch_sizes [m] gives micro-batches different numbers of sequences, else each has micro_batch_size.
    loss "chunked" computes logits logits_chunk tokens at a time and again in backward, "stored" keeps them all.
    Raises InputError on a value out of range.
    """

    micro_batch_size: int = 1
    microbatch_sizes: tuple[int, ...] = ()
    tp: int = 1
    dp: int = 1
    sequence_parallel: bool = True
    recompute: Recompute = "none"
    distributed_optimizer: bool = False
    gradient: GradientType = "fp32"
    dropout: bool = False
    loss: Literal["chunked", "stored"] = "chunked"
    logits_chunk: int = 4096
    efficiency: Efficiency = field(default_factory=Efficiency)

    def __post_init__(self) -> None:
        for name in ("micro_batch_size", "tp", "dp", "logits_chunk"):
            if getattr(self, name) < 1:
                raise InputError(name, getattr(self, name), "must be at least 1")
        for size in self.microbatch_sizes:
            if size < 1:
                raise InputError("microbatch_sizes", size, "must be at least 1")
        for name, known in (("recompute", Recompute), ("gradient", GradientType)):
            if getattr(self, name) not in get_args(known):
                raise InputError(name, getattr(self, name), f"must be one of {', '.join(get_args(known))}")
        if self.loss not in ("chunked", "stored"):
            raise InputError("loss", self.loss, "must be one of chunked, stored")

    @property
    def layout(self) -> Layout:
        """How a layer lies on its GPUs; one GPU has nothing to divide."""
        return Layout(self.tp, self.sequence_parallel and self.tp > 1, self.dropout)

    @property
    def kept_logits_chunk(self) -> int:
        """Tokens of a chunk of logits, 0 where all are kept."""
        return self.logits_chunk if self.loss == "chunked" else 0

    def sizes(self, microbatches: int) -> tuple[int, ...]:
        """Sequences of each micro-batch."""
        if self.microbatch_sizes and len(self.microbatch_sizes) != microbatches:
            rule = f"must be one for each of {microbatches} micro-batches"
            raise InputError("microbatch_sizes", f"{len(self.microbatch_sizes)} sizes", rule)
        return self.microbatch_sizes or (self.micro_batch_size,) * microbatches


def analytic_costs(
    model: ModelSpec,
    cluster: ClusterSpec,
    shape: PipelineShape,
    layer_partition: LayerPartition,
    sequence_partition: tuple[int, ...],
    options: AnalyticOptions | None = None,
) -> CostTable:
    """The cost table of training `model` on devices of options.tp GPUs of `cluster`.

    layer_partition has shape.stages stages (or 2p for two opposing pipelines of 2p stages each, where
    stages_per_device is 2); sequence_partition [k] holds tokens of each subsequence. Bytes are those on one
    GPU, messages those of a whole device (see cluster_network). B and I include recomputation and B = I + W.
    Raises InputError when partitions do not fit model or shape, or tp does not fit model or cluster.
    """
    options = options or AnalyticOptions()
    _check(model, cluster, shape, layer_partition, sequence_partition, options)
    sizes = options.sizes(shape.microbatches)
    classes = sorted(set(sizes))
    machine = Machine(cluster, options.layout, options.efficiency)
    memory = MemoryModel(model, options.layout, options.recompute, options.kept_logits_chunk, shape.subsequences > 1)
    build = _Table(model, machine, memory, options, layer_partition, sequence_partition, classes)
    return CostTable(
        duration_ns=build.durations(),
        activation_bytes=build.per_unit(memory.activations),
        weight_activation_bytes=build.per_unit(lambda stage, tokens, _: memory.weight_activations(stage, tokens)),
        transient_bytes=build.transients(),
        kv_bytes=build.per_microbatch(memory.kv),
        kv_gradient_bytes=build.per_microbatch(memory.kv_gradients),
        boundary_bytes=build.messages(),
        static_bytes=_static(model, options, layer_partition, sum(sequence_partition)),
        class_of_microbatch=np.array([classes.index(size) for size in sizes], dtype=np.int32),
        name=f"{model.name} on {cluster.name}, {format_count(sum(sequence_partition))} tokens, analytic",
        sources=analytic_sources(model, cluster, memory, options, layer_partition, sequence_partition),
        step=_step(model, machine, options, layer_partition, sum(sequence_partition)),
    )


def _step(
    model: ModelSpec, machine: Machine, options: AnalyticOptions, partition: LayerPartition, seq_len: int
) -> StepCosts:
    """Gradients and BF16 parameters of a whole device, and Adam limited by memory: it reads gradients and its state,
    writes its state and the weights."""
    counts = np.array(stage_parameters(partition, gpu_parameters(model, options.layout, seq_len)), dtype=np.int64)
    gradient = GRADIENT_BYTES[options.gradient]
    moved = gradient + 2 * OPTIMIZER_BYTES + BF16
    updates = [_ns(machine.moved(moved * int(count))) for count in counts]
    return StepCosts(counts * options.tp * gradient, counts * options.tp * BF16, np.array(updates, dtype=np.int64))


def _static(model: ModelSpec, options: AnalyticOptions, partition: LayerPartition, seq_len: int) -> NDArray[np.int64]:
    """[S] bytes of weights, gradients and optimizer state on one GPU."""
    counts = stage_parameters(partition, gpu_parameters(model, options.layout, seq_len))
    shared = options.distributed_optimizer
    held = [static_bytes(n, gradient=options.gradient, distributed_optimizer=shared, dp=options.dp) for n in counts]
    return np.array(held, dtype=np.int64)


@dataclass(frozen=True)
class _Table:
    """Arrays over (class, stage, subsequence); a class is a number of sequences, alike stages are counted once."""

    model: ModelSpec
    machine: Machine
    memory: MemoryModel
    options: AnalyticOptions
    partition: LayerPartition
    lengths: tuple[int, ...]
    classes: list[int]

    @property
    def ends(self) -> list[int]:
        """Tokens up to the end of each subsequence: the keys its last token attends to."""
        return list(accumulate(self.lengths))

    def per_unit(self, count: Callable[[StageContents, int, int], int]) -> NDArray[np.int64]:
        """[C, S, k] of count(stage, tokens of the op, keys)."""
        return self._spread(
            lambda stage: [
                [count(stage, length * size, keys) for length, keys in zip(self.lengths, self.ends, strict=True)]
                for size in self.classes
            ]
        )

    def per_microbatch(self, count: Callable[[StageContents, int], int]) -> NDArray[np.int64]:
        """[C, S] of count(stage, tokens of a micro-batch)."""
        return self._spread(lambda stage: [count(stage, self.ends[-1] * size) for size in self.classes])

    def messages(self) -> NDArray[np.int64]:
        """[C, k] bytes of a boundary tensor."""
        sizes = [[self.memory.message(length * size) for length in self.lengths] for size in self.classes]
        return np.array(sizes, dtype=np.int64)

    def transients(self) -> NDArray[np.int64]:
        """[5, C, S, k]; W adds its products to static buffers and needs none."""
        forward = self.per_unit(lambda stage, tokens, _: self.memory.forward_transient(stage, tokens))
        backward = self.per_unit(self.memory.backward_transient)
        by_kind = {
            Kind.F: forward,
            Kind.B: backward,
            Kind.I: backward,
            Kind.W: np.zeros_like(forward),
            Kind.R: backward,
        }
        return np.stack([by_kind[kind] for kind in Kind])

    def durations(self) -> NDArray[np.int64]:
        """[5, C, S, k] in ns; B is I + W to the nanosecond."""
        grid = [
            [_Parts.of(self, end - length, length, size) for length, end in zip(self.lengths, self.ends, strict=True)]
            for size in self.classes
        ]
        full = self.options.recompute == "full"

        def table(seconds: Callable[[_Parts, StageContents], float]) -> NDArray[np.int64]:
            return self._spread(lambda stage: [[_ns(seconds(parts, stage)) for parts in row] for row in grid])

        again = table(lambda parts, stage: stage.layers * parts.layer.forward)
        forward = table(lambda parts, stage: parts.of_stage(stage, 0))
        inputs = table(lambda parts, stage: parts.of_stage(stage, 1)) + (again if full else 0)
        weights = table(lambda parts, stage: parts.of_stage(stage, 2))
        by_kind = {Kind.F: forward, Kind.B: inputs + weights, Kind.I: inputs, Kind.W: weights, Kind.R: again}
        return np.stack([by_kind[kind] for kind in Kind])

    def _spread(self, value: Callable[[StageContents], object]) -> NDArray[np.int64]:
        """value(stage) of every stage, the stage as second axis."""
        contents = [self.partition.contents(stage) for stage in range(self.partition.stages)]
        known = {stage: np.array(value(stage), dtype=np.int64) for stage in set(contents)}
        return np.stack([known[stage] for stage in contents], axis=1)


@dataclass(frozen=True)
class _Parts:
    """Times of the parts of any stage for one class and subsequence."""

    layer: PartSeconds
    embedding: PartSeconds
    head: PartSeconds

    @classmethod
    def of(cls, table: _Table, prefix: int, length: int, sequences: int) -> _Parts:
        model, machine, tokens = table.model, table.machine, length * sequences
        return cls(
            layer_seconds(model, machine, length, prefix, sequences),
            embedding_seconds(model, machine, tokens),
            head_seconds(model, machine, tokens, table.memory.logits_chunk),
        )

    def of_stage(self, stage: StageContents, kind: int) -> float:
        """Seconds of F (0), I (1) or W (2) of a stage, recompute left out."""
        embedding = self.embedding[kind] if stage.has_embedding else 0.0
        return stage.layers * self.layer[kind] + embedding + (self.head[kind] if stage.has_head else 0.0)


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def _check(
    model: ModelSpec,
    cluster: ClusterSpec,
    shape: PipelineShape,
    partition: LayerPartition,
    lengths: tuple[int, ...],
    options: AnalyticOptions,
) -> None:
    check_tp(cluster, options.tp)
    options.layout.check(model)
    check_partition(partition, model.layers, shape.devices, shape.stages_per_device)
    if partition.mtp_layers_per_stage:
        raise InputError("layout", "m", "multi-token-prediction layers have no analytic costs", "leave them out")
    if len(lengths) != shape.subsequences:
        rule = f"must be subsequences = {shape.subsequences} lengths"
        raise InputError("sequence partition", str(list(lengths)), rule)
    for length in lengths:
        if length < 1:
            raise InputError("sequence partition", length, "must hold at least 1 token in each subsequence")
        if options.layout.sequence_parallel and length % options.tp:
            rule = f"must be a multiple of tp = {options.tp} with sequence parallelism"
            raise InputError("subsequence length", length, rule, "cut at multiples of tp")
