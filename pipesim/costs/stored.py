"""Which tensors a layer, the embedding and the head keep from forward to backward; knows no stages and no time.

The list is that of a Megatron-like implementation in BF16: fused norms that keep their input and statistics, a
fused SwiGLU or GELU that keeps its input, flash attention that keeps its output and a log-sum-exp per head.
Sizes are bytes per token on one GPU. Tensor parallelism divides heads and MLP width; sequence parallelism also
divides what lies between them (Korthikanti et al., arXiv 2205.05198, section 4). For the GPT layer with dropout
and attention that is not fused this is their 34·s·b·h + 5·a·s²·b plus what they leave out: norm statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, NamedTuple

from pipesim.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipesim.model import ModelSpec

BF16, FP32, INT64, MASK = 2, 4, 8, 1  # bytes of one element
Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True)
class Layout:
    """How a layer lies on its `tp` GPUs and what it computes besides the model's own definition."""

    tp: int = 1
    sequence_parallel: bool = False
    dropout: bool = False
    attention: Literal["flash", "unfused"] = "flash"

    @property
    def sequence(self) -> Fraction:
        """The part of a tensor between the parallel regions that one GPU keeps."""
        return Fraction(1, self.tp if self.sequence_parallel else 1)

    def kv_heads(self, model: ModelSpec) -> int:
        """Key/value heads on one GPU: copied where there are fewer of them than GPUs."""
        return max(1, model.kv_heads // self.tp)

    def kv_width(self, model: ModelSpec) -> int:
        """Width of the keys, and of the values, on one GPU."""
        return self.kv_heads(model) * model.head_size

    def check(self, model: ModelSpec) -> None:
        """Raises InputError when tp does not divide what it must of this model."""
        if self.tp < 1:
            raise InputError("tp", self.tp, "must be at least 1")
        feedforward = model.expert_feedforward if model.experts else model.feedforward
        widths = {"heads": model.heads, "feedforward": feedforward}
        if model.shared_expert_feedforward:
            widths["shared_expert_feedforward"] = model.shared_expert_feedforward
        for name, width in widths.items():
            if width % self.tp:
                raise InputError("tp", self.tp, f"must divide {name} = {width} of {model.name}")
        if model.kv_heads % self.tp and self.tp % model.kv_heads:
            rule = f"must divide kv_heads = {model.kv_heads} of {model.name} or be a multiple of it"
            raise InputError("tp", self.tp, rule)


class Stored(NamedTuple):
    """One tensor kept from forward to backward: bytes per token, and per token and key, on one GPU.

    role: "input" is the layer's own input; "scores" are what selective recompute drops; "kv" are keys and
    values; "linear" feeds a weight gradient, "down" too, inside the MLP; "inner" is the rest of its inside.
    """

    name: str
    per_token: Fraction
    role: Literal["input", "scores", "kv", "linear", "inner", "down", "other"] = "other"
    per_token_and_key: Fraction = Fraction(0)

    def size(self, tokens: int, keys: int) -> Fraction:
        """Bytes for `tokens` tokens that attend to up to `keys` keys."""
        return tokens * (self.per_token + keys * self.per_token_and_key)


def layer_tensors(model: ModelSpec, layout: Layout) -> tuple[Stored, ...]:
    """Everything one layer keeps without recompute."""
    return (*_attention_tensors(model, layout), *_mlp_tensors(model, layout))


def _norm(model: ModelSpec, layout: Layout, where: str, role: Literal["input", "other"]) -> list[Stored]:
    statistics = 2 if model.norm == "layernorm" else 1
    return [
        Stored(f"{where} norm input", BF16 * model.hidden * layout.sequence, role),
        Stored(f"{where} norm statistics", FP32 * statistics * layout.sequence),
    ]


def _attention_tensors(model: ModelSpec, layout: Layout) -> list[Stored]:
    queries, keys = Fraction(model.query_width, layout.tp), layout.kv_width(model)
    heads = Fraction(model.heads, layout.tp)
    found = _norm(model, layout, "attention", "input")
    found.append(Stored("query, key, value input", BF16 * model.hidden * layout.sequence, "linear"))
    if model.qk_norm:
        found.append(Stored("queries and keys before their norms", BF16 * (queries + keys)))
        found.append(Stored("query and key norm statistics", FP32 * (heads + layout.kv_heads(model))))
    found.append(Stored("queries", BF16 * queries))
    found.append(Stored("keys and values", Fraction(BF16 * 2 * keys), "kv"))
    if layout.attention == "flash":
        found.append(Stored("attention log-sum-exp", FP32 * heads))
    else:
        found += _score_tensors(heads, layout)
    found.append(Stored("attention output", BF16 * queries, "linear"))
    if layout.dropout:
        found.append(Stored("attention dropout mask", MASK * model.hidden * layout.sequence))
    return found


def _score_tensors(heads: Fraction, layout: Layout) -> list[Stored]:
    """The square of attention that is not fused: probabilities, and with dropout their mask and result."""
    zero = Fraction(0)
    found = [Stored("attention probabilities", zero, "scores", BF16 * heads)]
    if layout.dropout:
        found.append(Stored("attention probability mask", zero, "scores", MASK * heads))
        found.append(Stored("dropped attention probabilities", zero, "scores", BF16 * heads))
    return found


def _mlp_tensors(model: ModelSpec, layout: Layout) -> list[Stored]:
    norm = _norm(model, layout, "MLP", "other")
    # A parallel residual feeds both norms from the layer's input, which is kept once.
    found = norm[1:] if model.parallel_residual else norm
    found.append(Stored("MLP input", BF16 * model.hidden * layout.sequence, "linear"))
    if model.experts:
        found += _expert_tensors(model, layout)
    else:
        found += _activation_tensors(model, layout, model.feedforward, "")
    if layout.dropout:
        found.append(Stored("MLP dropout mask", MASK * model.hidden * layout.sequence))
    return found


def _activation_tensors(model: ModelSpec, layout: Layout, width: int, prefix: str) -> list[Stored]:
    inner = Fraction(BF16 * width, layout.tp)
    name = "gate and up" if model.activation == "swiglu" else "GELU input"
    return [
        Stored(f"{prefix}{name}", (model.mlp_matrices - 1) * inner, "inner"),
        Stored(f"{prefix}down projection input", inner, "down"),
    ]


def _expert_tensors(model: ModelSpec, layout: Layout) -> list[Stored]:
    """Experts all on each device, routing taken as balanced."""
    used, part = model.experts_per_token, layout.sequence
    found = [
        Stored("router logits", FP32 * model.experts * part),
        Stored("routing weights and places", (FP32 + INT64) * used * part),
        Stored("expert inputs", BF16 * model.hidden * used * part, "linear"),
        *_activation_tensors(model, layout, used * model.expert_feedforward, "expert "),
        Stored("expert outputs", BF16 * model.hidden * used * part),
    ]
    if model.shared_expert_feedforward:
        found += _activation_tensors(model, layout, model.shared_expert_feedforward, "shared expert ")
    return found


def kept(tensors: Iterable[Stored], recompute: Recompute) -> tuple[Stored, ...]:
    """What of a layer's tensors is kept under a recompute mode: all, all but the scores, the input alone."""
    if recompute == "full":
        return tuple(tensor for tensor in tensors if tensor.role == "input")
    dropped = "scores" if recompute == "selective" else ""
    return tuple(tensor for tensor in tensors if tensor.role != dropped)


def total(tensors: Iterable[Stored], tokens: int, keys: int = 0) -> int:
    """Their bytes together, rounded up once."""
    sizes = [(tensor.per_token, tensor.per_token_and_key) for tensor in tensors]
    per_token = sum((fixed for fixed, _ in sizes), Fraction(0))
    per_key = sum((growing for _, growing in sizes if growing), Fraction(0))
    return -int(-tokens * (per_token + keys * per_key) // 1)


def gradients_until_w(model: ModelSpec, layout: Layout) -> Fraction:
    """Bytes per token of the output gradients of a layer's matrices, which its weight gradients need.

    The zero-bubble papers count the same (arXiv 2401.10241, section 2.2): with the inputs 32 of GPT's 34·s·b·h.
    """
    attention = Fraction(model.query_width, layout.tp) + 2 * layout.kv_width(model)
    outputs = 2 * model.hidden * layout.sequence
    if not model.experts:
        widths = Fraction(model.feedforward)
    else:
        widths = Fraction(model.experts_per_token * model.expert_feedforward + model.shared_expert_feedforward)
        outputs += model.hidden * (model.experts_per_token - 1) * layout.sequence
    return BF16 * (attention + outputs + (model.mlp_matrices - 1) * widths / layout.tp)
