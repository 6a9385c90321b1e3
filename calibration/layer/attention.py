"""Causal attention over retained keys and values; knows no layers, plans or timing.

Per (micro-batch, layer) there is one buffer for K, V and, once a backward pass has begun, one for dK, dV:

    F of subsequence j   writes its K, V at [start, stop)        and reads [0, stop)
    B of subsequence j   adds its dK, dV to [0, stop)            and takes [start, stop), now complete

Backward passes run j = k-1..0, so what B(j) takes has every later subsequence's share in it. The gradient
buffer is float32 where the model is narrower, because it sums k terms.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


def pinned(backend: str) -> AbstractContextManager[Any]:
    """One attention backend only, so that prefix 0 and later prefixes run the same kernels."""
    return sdpa_kernel(BACKENDS[backend])


@lru_cache(maxsize=16)
def causal_mask(length: int, stop: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[length, stop] to add to scores: -inf where a query would look ahead; shared by all layers."""
    ahead = torch.ones(length, stop, dtype=torch.bool, device=device).triu(stop - length + 1)
    return torch.zeros(length, stop, dtype=dtype, device=device).masked_fill_(ahead, float("-inf"))


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of the last s of n: q [batch, s, heads, size], k and v [batch, n, kv_heads, size]."""
    length, stop = q.shape[1], k.shape[1]
    grouped = q.shape[2] != k.shape[2]
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    if length == stop:  # the only place where is_causal means the right corner
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
    else:
        # torch's lower-right bias reaches flash on CUDA; elsewhere it would build a mask each time
        mask = causal_lower_right(length, stop) if q.is_cuda else causal_mask(length, stop, q.dtype, q.device)
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
    return out.transpose(1, 2).flatten(2)


class KeyValues:
    """Keys, values of one micro-batch in one layer, their gradients: [batch, sequence, kv_heads, size]."""

    def __init__(self, like: Tensor, sequence_length: int, gradient_dtype: torch.dtype | None = None) -> None:
        """Buffers for `sequence_length` positions, otherwise as `like`, some subsequence's keys."""
        self.keys, self.values = (
            torch.empty(like.shape[0], sequence_length, *like.shape[2:], dtype=like.dtype, device=like.device)
            for _ in range(2)
        )
        self.gradient_dtype = gradient_dtype or torch.promote_types(like.dtype, torch.float32)
        self.gradients: tuple[Tensor, Tensor] | None = None

    def append(self, k: Tensor, v: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Store one subsequence's keys and values; returns all up to its end, differentiable."""
        kept: tuple[Tensor, Tensor] = _Append.apply(k, v, self, start)
        return kept

    def add_gradients(self, dk: Tensor, dv: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Add gradients of [0, stop); returns the complete ones of [start, stop)."""
        stop, end = dk.shape[1], self.keys.shape[1]
        if start == 0 and stop == end:  # the sequence whole: nothing to sum
            return dk, dv
        if self.gradients is None:  # the last subsequence: its own gradients cover the whole buffer
            self.gradients = (dk.to(self.gradient_dtype, copy=True), dv.to(self.gradient_dtype, copy=True))
        else:
            self.gradients[0][:, :stop] += dk
            self.gradients[1][:, :stop] += dv
        own = self.gradients[0][:, start:stop].to(dk.dtype), self.gradients[1][:, start:stop].to(dv.dtype)
        if start == 0:
            self.gradients = None
        return own


class _Append(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, k: Tensor, v: Tensor, kept: KeyValues, start: int) -> tuple[Tensor, Tensor]:
        ctx.kept, ctx.start = kept, start
        stop = start + k.shape[1]
        kept.keys[:, start:stop], kept.values[:, start:stop] = k, v
        # .data: a later append writes behind `stop` only, which autograd's version counter cannot know
        return kept.keys[:, :stop].data, kept.values[:, :stop].data

    @staticmethod
    def backward(ctx: Any, dk: Tensor, dv: Tensor) -> tuple[Tensor, Tensor, None, None]:
        kept: KeyValues = ctx.kept
        return *kept.add_gradients(dk, dv, ctx.start), None, None
