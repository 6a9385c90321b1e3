"""The parts of a layer without matrices: norms, rotary positions, the gate; knows no subsequences."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

EPSILON = 1e-5


class Norm(nn.Module):
    """RMSNorm or LayerNorm (with bias) over the last dimension."""

    def __init__(self, name: str, size: int, **kind: Any) -> None:
        super().__init__()
        self.size = (size,)
        self.weight = nn.Parameter(torch.empty(size, **kind))
        self.bias = nn.Parameter(torch.empty(size, **kind)) if name == "layernorm" else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> the same."""
        if self.bias is None:
            return functional.rms_norm(x, self.size, self.weight, EPSILON)
        return functional.layer_norm(x, self.size, self.weight, self.bias, EPSILON)


class Rotation:
    """Rotary positions (RoFormer, arXiv 2104.09864), halves rotated against each other."""

    def __init__(self, size: int, theta: float) -> None:
        self.size, self.theta = size, theta
        self.table: tuple[Tensor, Tensor] | None = None

    def prepare(self, stop: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [at least stop, 1, size] in the dtype and on the device of `like`."""
        if self.table is None or self.table[0].shape[0] < stop:
            wide = torch.promote_types(like.dtype, torch.float32)
            rates = self.theta ** (-torch.arange(0, self.size, 2, dtype=wide, device=like.device) / self.size)
            angles = torch.outer(torch.arange(stop, dtype=wide, device=like.device), rates).repeat(1, 2)[:, None]
            self.table = angles.cos().to(like.dtype), angles.sin().to(like.dtype)
        return self.table

    def __call__(self, x: Tensor, start: int) -> Tensor:
        """Rotate x [batch, s, heads, size] at positions start..start+s-1."""
        stop = start + x.shape[1]
        cos, sin = self.prepare(stop, x)
        first, second = x.chunk(2, dim=-1)
        return x * cos[start:stop] + torch.cat([-second, first], dim=-1) * sin[start:stop]


def gated(wide: Tensor) -> Tensor:
    """SwiGLU: silu of the first half times the second; keeps its input only."""
    out: Tensor = _Gated.apply(wide)
    return out


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, wide: Tensor) -> Tensor:
        ctx.save_for_backward(wide)
        gate, up = wide.chunk(2, dim=-1)
        return functional.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (wide,) = ctx.saved_tensors
        gate, up = wide.chunk(2, dim=-1)
        grad = torch.empty_like(wide)
        d_gate, d_up = grad.chunk(2, dim=-1)
        torch.ops.aten.silu_backward.grad_input(dy * up, gate, grad_input=d_gate)
        torch.mul(dy, functional.silu(gate), out=d_up)
        return grad
