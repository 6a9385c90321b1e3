"""Seconds of a layer, the embedding and the head, by formula; knows no stages, orders or bytes kept.

Each part has three times: forward F, input-gradient part I, weight-gradient part W. A product of t tokens with
a matrix takes the longer of its operations at the stated efficiency and the reading of its weights. Norms,
residuals, rotations and activations move bytes. Tensor-parallel collectives are part of F and I (and of W where
inputs are gathered again). All of it no shorter than the host needs to issue the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pipesim import flops
from pipesim.costs.stored import BF16, FP32

if TYPE_CHECKING:
    from pipesim.cluster import ClusterSpec
    from pipesim.costs.efficiency import Efficiency
    from pipesim.costs.stored import Layout
    from pipesim.model import ModelSpec


class PartSeconds(NamedTuple):
    """Seconds of one part of a stage by kind; B = I + W."""

    forward: float
    input_gradient: float
    weight_gradient: float


class Product(NamedTuple):
    """Matrix products of one layer with one efficiency: weights that a token meets and all weights, both of
    the whole layer; and the part of the tokens that each matrix sees (experts see few)."""

    met: int
    weights: int
    part_of_tokens: float


@dataclass(frozen=True)
class Machine:
    """One device (layout.tp GPUs of a cluster) with its stated efficiency."""

    cluster: ClusterSpec
    layout: Layout
    efficiency: Efficiency

    def product(self, operations: float, tokens: float, weights: float) -> float:
        """Seconds of matrix products with `weights` weights over `tokens` tokens, divided over the GPUs."""
        gpu = operations / self.layout.tp / self.cluster.peak_flops
        return max(gpu / self.efficiency.matmul(tokens), self.moved(BF16 * weights / self.layout.tp))

    def attention(self, operations: float, rows: float, *, backward: bool) -> float:
        """Seconds of attention over `rows` query tokens × heads of the whole device."""
        rate = self.cluster.peak_flops * self.efficiency.attention(rows / self.layout.tp, backward=backward)
        return operations / self.layout.tp / rate

    def moved(self, count: float) -> float:
        """Seconds to read and write `count` bytes of a GPU's memory in all."""
        return count / (self.cluster.memory_bandwidth * self.efficiency.memory_max)

    def collectives(self, number: int, size: float) -> float:
        """Seconds of `number` all-gathers or reduce-scatters of `size` bytes (an all-reduce is one of each)."""
        tp = self.layout.tp
        if tp == 1:
            return 0.0
        rate = self.cluster.group_bandwidth(tp) * self.efficiency.link_max
        each = size * (tp - 1) / tp / rate + self.cluster.intra_latency_seconds
        return number * each * self.efficiency.exposed_collectives

    def at_least(self, seconds: float, kernels: int) -> float:
        """The device's time or the host's time to issue its kernels, whichever is longer."""
        return max(seconds, kernels * self.efficiency.kernel_seconds)


def layer_seconds(model: ModelSpec, machine: Machine, tokens: int, attended: int, sequences: int) -> PartSeconds:
    """One layer over `tokens` tokens after `attended` ones, of each of `sequences` sequences."""
    many = tokens * sequences
    products = sum(machine.product(2 * many * p.met, many * p.part_of_tokens, p.weights) for p in layer_products(model))
    scores, rows = sequences * flops.attention_flops(model, tokens, attended), many * model.heads
    moved = machine.moved(many * moved_bytes_per_token(model, machine.layout))
    boundary = BF16 * many * model.hidden
    # Forward and its gradient gather before each of attention and MLP and scatter (or reduce) after it; with
    # sequence parallelism the weight gradients gather their inputs once more.
    around = machine.collectives(4, boundary)
    again = machine.collectives(2, boundary) if machine.layout.sequence_parallel else 0.0
    e = machine.efficiency
    forward = products + machine.attention(scores, rows, backward=False) + moved
    backward_scores = flops.ATTENTION_BACKWARD * scores
    input_gradient = products + machine.attention(backward_scores, rows, backward=True) + 2 * moved
    return PartSeconds(
        machine.at_least(forward, e.forward_kernels) + around,
        machine.at_least(input_gradient, e.input_gradient_kernels) + around,
        machine.at_least(products, e.weight_gradient_kernels) + again,
    )


def layer_products(model: ModelSpec) -> tuple[Product, ...]:
    """The matrix products of one layer; experts see experts_per_token / experts of the tokens each."""
    attention = Product(model.attention_matrix_parameters, model.attention_matrix_parameters, 1.0)
    if not model.experts:
        mlp = model.mlp_matrix_parameters()
        return attention, Product(mlp, mlp, 1.0)
    per_width = model.mlp_matrices * model.hidden
    always = per_width * model.shared_expert_feedforward + model.hidden * model.experts
    routed = per_width * model.expert_feedforward
    share = model.experts_per_token / model.experts
    expert = Product(routed * model.experts_per_token, routed * model.experts, share)
    return attention, Product(always, always, 1.0), expert


def moved_bytes_per_token(model: ModelSpec, layout: Layout) -> float:
    """Bytes that one layer's norms, residuals, rotation and activation read and write per token on one GPU.

    Two norms read and write the hidden state, two residual sums read two and write one: 4 + 6 hidden sizes.
    Rotation reads and writes queries and keys. SwiGLU reads two widths and writes one, GELU one and one. The
    backward moves twice as much.
    """
    between = BF16 * 10 * model.hidden * layout.sequence
    rotated = model.query_width / layout.tp + layout.kv_width(model)
    inside = BF16 * 2 * rotated * (model.position == "rope") + BF16 * 2 * rotated * model.qk_norm
    width = model.feedforward
    if model.experts:
        width = model.experts_per_token * model.expert_feedforward + model.shared_expert_feedforward
        # Tokens are copied to their experts and the results gathered and summed.
        between += BF16 * 4 * model.experts_per_token * model.hidden * layout.sequence
    return float(between + inside + BF16 * model.mlp_matrices * width / layout.tp)


def embedding_seconds(model: ModelSpec, machine: Machine, tokens: int) -> PartSeconds:
    """Looking up `tokens` rows; the gradient adds to the same rows in FP32. There is no input gradient."""
    size = BF16 * tokens * model.hidden
    forward = machine.moved(2 * size) + machine.collectives(1 if machine.layout.sequence_parallel else 2, size)
    gather = machine.collectives(1, size) if machine.layout.sequence_parallel else 0.0
    weight = machine.moved(size + 2 * FP32 * tokens * model.hidden) + gather
    return PartSeconds(machine.at_least(forward, 3), 0.0, machine.at_least(weight, 3))


def head_seconds(model: ModelSpec, machine: Machine, tokens: int, chunk: int) -> PartSeconds:
    """Final norm, output projection and cross entropy over `tokens` tokens.

    chunk 0 keeps all logits: forward writes them (BF16) and their softmax (FP32), backward reads it and writes
    the gradient. With chunks of that many tokens nothing is kept: backward computes the logits again and, as
    their gradient is not kept either, does the weight gradient at once, in I.
    """
    weights = model.hidden * model.vocab
    product = machine.product(flops.head_flops(model, tokens), min(tokens, chunk or tokens), weights)
    norm = machine.moved(BF16 * 2 * tokens * model.hidden * float(machine.layout.sequence))
    logits = BF16 * tokens * -(-model.vocab // machine.layout.tp)
    one = machine.collectives(1, BF16 * tokens * model.hidden)
    # Sequence parallelism gathers the input (again in backward) and scatters its gradient; else that is reduced.
    parallel = machine.layout.sequence_parallel
    gathers = one if parallel else 0.0
    if chunk:
        pieces = -(-tokens // chunk)
        forward = machine.at_least(product + norm + machine.moved(2 * logits), 4 * pieces)
        backward = machine.at_least(3 * product + 2 * norm + machine.moved(4 * logits), 8 * pieces)
        return PartSeconds(forward + gathers, backward + 2 * one, 0.0)
    forward = machine.at_least(product + norm + machine.moved(4 * logits), 6)
    input_gradient = machine.at_least(product + 2 * norm + machine.moved(3 * logits), 6)
    return PartSeconds(
        forward + gathers, input_gradient + (one if parallel else 2 * one), machine.at_least(product, 1) + gathers
    )
