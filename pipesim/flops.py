"""Counts of floating-point operations of a model; knows nothing of how fast or when they are done.

One multiply-add is two operations. Attention is causal: s tokens after a prefix of c see c + s/2 keys each
on average.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipesim.model import ModelSpec

# Backward over forward. A matrix product has two gradients of its own size; flash attention also recomputes
# the scores: five products for the two of forward (Dao, arXiv 2307.08691, section 3.1).
LINEAR_BACKWARD = 2.0
ATTENTION_BACKWARD = 2.5


def linear_flops(model: ModelSpec, tokens: int) -> int:
    """Forward operations of the weight matrices of one layer over `tokens` tokens; no attention scores."""
    return 2 * tokens * model.linear_parameters


def attention_flops(model: ModelSpec, tokens: int, prefix: int) -> int:
    """Forward operations of causal attention in one layer: 4 × query_width × s × (c + s/2)."""
    return 2 * model.query_width * tokens * (2 * prefix + tokens)


def head_flops(model: ModelSpec, tokens: int) -> int:
    """Forward operations of the output projection."""
    return 2 * tokens * model.hidden * model.vocab


def forward_flops(model: ModelSpec, seq_len: int) -> int:
    """Forward operations of the whole model over one sequence: layers, causal attention and head."""
    layer = linear_flops(model, seq_len) + attention_flops(model, seq_len, 0)
    return model.layers * layer + head_flops(model, seq_len)


def head_in_layers(model: ModelSpec, seq_len: int) -> Fraction:
    """How many layers the head weighs by forward operations over one sequence; for weighted_layers."""
    layer = linear_flops(model, seq_len) + attention_flops(model, seq_len, 0)
    return Fraction(head_flops(model, seq_len), layer)


def model_flops(model: ModelSpec, tokens: int, seq_len: int) -> int:
    """Operations that one step over `tokens` tokens in sequences of `seq_len` needs: the numerator of MFU.

    The usual convention (PaLM, arXiv 2204.02311, appendix B): 6 per active matrix weight, embedding lookup
    free, backward twice forward, nothing for recomputation; attention causal (PaLM counts the whole square).
    """
    return 3 * tokens * forward_flops(model, seq_len) // seq_len


def seq1f1b_forward_flops(model: ModelSpec, seq_len: int) -> int:
    """Forward operations of one sequence as the Seq1F1B authors count them, for their TFLOPS figures.

    4shV + L(8sh² + 4s·h·ffn + s²·H(4d + 3)/2): the embedding lookup counts as a product, the softmax counts
    3 operations a score (thunlp/Seq1F1B, megatron/training.py and sp_utils.py). For their GPT-like models.
    """
    linear, square = seq1f1b_coefficients(model)
    return (linear * seq_len + square * seq_len**2) // 2


def seq1f1b_coefficients(model: ModelSpec) -> tuple[int, int]:
    """(linear, square) with twice the authors' forward count = linear × s + square × s², both whole."""
    h, ffn, heads, size = model.hidden, model.feedforward, model.heads, model.head_size
    linear = 4 * h * model.vocab + model.layers * (8 * h * h + 4 * h * ffn)
    return 2 * linear, model.layers * heads * (4 * size + 3)


def layer_coefficients(model: ModelSpec) -> tuple[int, int]:
    """(linear, square): the forward count of one layer from token a to b is linear(b-a) + square(b²-a²)."""
    return 2 * model.linear_parameters, 2 * model.query_width


def seq1f1b_model_flops(model: ModelSpec, tokens: int, seq_len: int) -> int:
    """The authors' operations of one step: three times their forward count (backward twice forward)."""
    return 3 * tokens * seq1f1b_forward_flops(model, seq_len) // seq_len
