"""Bytes of weights, gradients and optimizer state of each stage; knows no activations and no time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pipesim.costs.stored import BF16, FP32

if TYPE_CHECKING:
    from pipesim.costs.stored import Layout
    from pipesim.model import ModelSpec
    from pipesim.partition import LayerPartition

GradientType = Literal["fp32", "bf16"]
GRADIENT_BYTES: dict[GradientType, int] = {"fp32": FP32, "bf16": BF16}
# FP32 copy of the weights and Adam's two moments.
OPTIMIZER_BYTES = 3 * FP32


@dataclass(frozen=True)
class PartParameters:
    """Parameters of each part of a model; `tied` means that head and embedding are one matrix."""

    layer: int
    embedding: int
    head: int
    final_norm: int = 0
    tied: bool = False


def gpu_parameters(model: ModelSpec, layout: Layout, positions: int = 0) -> PartParameters:
    """Parameters of each part on one of its tp GPUs; the vocabulary is padded to a multiple of tp.

    Learned positions are counted for the longer of the model's table and `positions` tokens.
    """
    vocab = -(-model.vocab // layout.tp) * model.hidden
    table = max(model.max_positions, positions) if model.position == "learned" else 0
    return PartParameters(
        layer=_gpu_layer_parameters(model, layout),
        embedding=vocab + table * model.hidden,
        head=vocab,
        final_norm=model.final_norm_parameters,
        tied=model.tied_embeddings,
    )


def _gpu_layer_parameters(model: ModelSpec, layout: Layout) -> int:
    """Heads and MLP width are divided; norms, router, and biases added after a reduction are on every GPU."""
    queries, keys, hidden = model.query_width // layout.tp, layout.kv_width(model), model.hidden
    router = hidden * model.experts
    count = hidden * (2 * queries + 2 * keys) + (model.mlp_matrix_parameters() - router) // layout.tp + router
    count += 2 * model.norm_parameters
    if model.attention_bias:
        count += queries + 2 * keys
    if model.output_bias:
        count += hidden
    if model.mlp_bias:
        count += (model.mlp_matrices - 1) * model.feedforward // layout.tp + hidden
    if model.qk_norm:
        count += 2 * model.head_size
    return count


def stage_parameters(partition: LayerPartition, parts: PartParameters) -> tuple[int, ...]:
    """Parameters each stage holds; a tied head on another stage than the embedding is a copy of it."""
    counts = [layers * parts.layer for layers in partition.layers_per_stage]
    counts[partition.embedding_stage] += parts.embedding
    shared = parts.tied and partition.embedding_stage == partition.head_stage
    counts[partition.head_stage] += parts.final_norm + (0 if shared else parts.head)
    return tuple(counts)


def static_bytes(
    parameters: int, *, gradient: GradientType = "fp32", distributed_optimizer: bool = False, dp: int = 1
) -> int:
    """Bytes one GPU holds for `parameters`: BF16 weights, gradients, FP32 weights and two Adam moments.

    18 bytes a parameter with FP32 gradients; a distributed optimizer divides the last 12 over dp replicas
    (Rajbhandari et al., ZeRO, arXiv 1910.02054, stage 1).
    """
    replicas = dp if distributed_optimizer else 1
    return parameters * (BF16 + GRADIENT_BYTES[gradient]) + -(-parameters * OPTIMIZER_BYTES // replicas)
