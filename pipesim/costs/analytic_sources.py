"""Where the numbers of analytic costs come from, as lines for `--explain`; computes no costs itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipesim import flops
from pipesim.costs.static import gpu_parameters
from pipesim.costs.stored import kept
from pipesim.costs.table import Source

if TYPE_CHECKING:
    from fractions import Fraction

    from pipesim.cluster import ClusterSpec
    from pipesim.costs.analytic import AnalyticOptions
    from pipesim.costs.analytic_memory import MemoryModel
    from pipesim.model import ModelSpec
    from pipesim.partition import LayerPartition

_CLUSTER_FIELDS = {
    "peak_flops": "dense BF16 operations/s of a GPU",
    "memory_bytes": "bytes of GPU memory",
    "memory_bandwidth": "bytes/s of GPU memory",
    "intra_bandwidth": "bytes/s of a GPU inside its node, one direction",
    "intra_pair_bandwidth": "bytes/s between two GPUs of a node, one direction",
    "intra_latency_seconds": "seconds of latency inside a node",
    "inter_bandwidth": "bytes/s of a network card, one direction",
    "inter_latency_seconds": "seconds of latency between nodes",
}


def analytic_sources(
    model: ModelSpec,
    cluster: ClusterSpec,
    memory: MemoryModel,
    options: AnalyticOptions,
    partition: LayerPartition,
    lengths: tuple[int, ...],
) -> tuple[Source, ...]:
    """A line for each input: model, cuts, hardware, efficiency, operations, bytes."""
    cuts = (
        Source("layers per stage", str(list(partition.layers_per_stage)), "the layer partition"),
        Source("tokens per subsequence", str(list(lengths)), "the sequence partition"),
    )
    hardware = tuple(
        Source(f"{cluster.name}: {text}", f"{getattr(cluster, name):g}", cluster.source_of(name))
        for name, text in _CLUSTER_FIELDS.items()
        if getattr(cluster, name)
    )
    return (
        *_model_sources(model, sum(lengths)),
        *cuts,
        *hardware,
        *options.efficiency.sources(),
        *_time_sources(model, options),
        *_memory_sources(memory),
        *_static_sources(memory, options, sum(lengths)),
    )


def _model_sources(model: ModelSpec, seq_len: int) -> tuple[Source, ...]:
    found = [
        Source(f"{model.name}: parameters", f"{model.parameters:,}", model.source),
        Source("parameters of a layer, embedding, head", _parts(model), "counted from the model's sizes"),
    ]
    if model.position == "learned" and seq_len > model.max_positions:
        origin = f"the model has {model.max_positions}; the table is counted as if it were long enough"
        found.append(Source("learned positions", str(seq_len), origin))
    return tuple(found)


def _parts(model: ModelSpec) -> str:
    return f"{model.layer_parameters:,}, {model.embedding_parameters:,}, {model.head_parameters:,}"


def _time_sources(model: ModelSpec, options: AnalyticOptions) -> tuple[Source, ...]:
    attention = 4 * model.query_width
    head = "kept" if options.loss == "stored" else f"computed {options.logits_chunk} tokens at a time, twice"
    recompute = {
        "none": "nothing is computed again",
        "selective": "attention scores only, which flash attention never keeps: saves and costs nothing here",
        "full": "B and I include each layer's forward again",
    }
    return (
        Source(
            "forward FLOPs of a layer per token", f"{2 * model.linear_parameters:,} + {attention:,} per key", "counted"
        ),
        Source("backward over forward, matrices", f"{flops.LINEAR_BACKWARD:g}", "half in I, half in W"),
        Source(
            "backward over forward, attention",
            f"{flops.ATTENTION_BACKWARD:g}",
            "flash attention: 5 products for 2; in I",
        ),
        Source("logits", head, f"loss = {options.loss}"),
        Source("recompute", options.recompute, recompute[options.recompute]),
        Source("tensor parallelism", str(options.tp), "collectives inside a node are part of F, I and W"),
    )


def _memory_sources(memory: MemoryModel) -> tuple[Source, ...]:
    shown = [
        Source(f"kept per token and layer: {t.name}", f"{_number(t.per_token)} bytes", "the list of stored tensors")
        for t in kept(memory.layer, memory.recompute)
    ]
    if memory.retained_kv:
        width = memory.layout.kv_width(memory.model)
        shown.append(
            Source("keys and values per token and layer", f"{4 * width} bytes", "BF16, until the last backward")
        )
        shown.append(Source("their gradients", f"{8 * width} bytes", "FP32, from the first backward to the last"))
    return tuple(shown)


def _static_sources(memory: MemoryModel, options: AnalyticOptions, seq_len: int) -> tuple[Source, ...]:
    per_gpu = gpu_parameters(memory.model, memory.layout, seq_len)
    sizes = f"{per_gpu.layer:,}, {per_gpu.embedding:,}, {per_gpu.head:,}"
    divided = f", divided over dp = {options.dp}" if options.distributed_optimizer else ""
    return (
        Source("parameters of a layer, embedding, head on one GPU", sizes, f"divided over tp = {options.tp}"),
        Source(
            "bytes per parameter",
            f"2 + {4 if options.gradient == 'fp32' else 2} + 12",
            f"BF16 weights, {options.gradient.upper()} gradients, FP32 weights and two Adam moments{divided}",
        ),
    )


def _number(value: Fraction) -> str:
    return f"{float(value):g}"
