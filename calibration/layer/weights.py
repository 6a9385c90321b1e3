"""Matrices whose weight gradient can wait: linear layers and embeddings; knows no layers, stages or plans.

A backward pass through `Linear` computes the gradient of its input at once and hands the pair (x, dy) to a
`WeightWork`. That either adds dyᵀx to the weight's gradient on the spot (full backward, B) or keeps the pair
until somebody asks for it (I now, W later). The pair is all that lives between I and W.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional


class HasWeights(Protocol):
    """A module that can add a weight gradient from its input and the gradient of its output."""

    def add_gradient(self, x: Tensor, dy: Tensor) -> None: ...


Pair = tuple[HasWeights, Tensor, Tensor]


class WeightWork:
    """Where backward passes hand in (module, x, dy); `kept` is None while nothing has to wait."""

    def __init__(self) -> None:
        self.kept: list[Pair] | None = None

    def hand_in(self, module: HasWeights, x: Tensor, dy: Tensor) -> None:
        """Add the gradient now, or keep the pair for W."""
        if self.kept is None:
            module.add_gradient(x, dy)
        else:
            self.kept.append((module, x, dy))


def add_to(parameter: nn.Parameter, gradient: Tensor) -> None:
    """Add into `parameter.grad`, which the first gradient becomes."""
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad += gradient


class Linear(nn.Module):
    """y = x Wᵀ + b over the last dimension; its weight gradient goes through `work`."""

    def __init__(self, inputs: int, outputs: int, bias: bool, work: WeightWork, **kind: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, **kind))
        self.bias = nn.Parameter(torch.empty(outputs, **kind)) if bias else None
        self.work = work

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        y: Tensor = _LinearFunction.apply(x, self.weight, self.bias, self)
        return y

    @torch.no_grad()
    def add_gradient(self, x: Tensor, dy: Tensor) -> None:
        """weight.grad += dyᵀ x, bias.grad += Σ dy, over all tokens."""
        x, dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        if self.weight.grad is None:
            self.weight.grad = dy.T @ x
        else:
            self.weight.grad.addmm_(dy.T, x)
        if self.bias is not None:
            add_to(self.bias, dy.sum(0))


class _LinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, module: Linear) -> Tensor:
        ctx.save_for_backward(x)
        ctx.module = module
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        (x,) = ctx.saved_tensors
        module: Linear = ctx.module
        module.work.hand_in(module, x, dy)
        return dy @ module.weight.detach(), None, None, None


class Embedding(nn.Module):
    """Rows of a table by token; with `positions` > 0 a learned row per position is added."""

    def __init__(self, vocab: int, hidden: int, positions: int, work: WeightWork, **kind: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, hidden, **kind))
        self.position = nn.Parameter(torch.empty(positions, hidden, **kind)) if positions else None
        self.work = work

    def forward(self, tokens: Tensor, start: int) -> Tensor:
        """Tokens [batch, s] at positions start..start+s-1 -> [batch, s, hidden]."""
        places = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        rows = torch.cat([tokens, places[None]])
        y: Tensor = _EmbeddingFunction.apply(self.weight, self.position, rows, self)
        return y

    @torch.no_grad()
    def add_gradient(self, x: Tensor, dy: Tensor) -> None:
        """Scatter dy into the rows that were read; `x` is tokens [batch, s] and positions as one more row."""
        tokens, places = x[:-1], x[-1]
        if self.weight.grad is None:
            self.weight.grad = torch.zeros_like(self.weight)
        self.weight.grad.index_add_(0, tokens.reshape(-1), dy.reshape(-1, dy.shape[-1]))
        if self.position is not None:
            if self.position.grad is None:
                self.position.grad = torch.zeros_like(self.position)
            self.position.grad.index_add_(0, places, dy.sum(0))


class _EmbeddingFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, position: Tensor | None, rows: Tensor, module: Embedding) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.module = module
        y = functional.embedding(rows[:-1], weight)
        return y if position is None else y + position[rows[-1]]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, None, None, None]:
        (rows,) = ctx.saved_tensors
        ctx.module.work.hand_in(ctx.module, rows, dy)
        return None, None, None, None
