"""Transformer layers in torch, whole or as subsequences with retained keys/values; knows no plans, no ranks.

A `Stage` is (embedding?) + layers + (final norm + head + loss?). Its parameters depend on the seed and the
layer's number only, so every partition of a model into stages holds the same model, under the same names
(`layers.3.qkv.weight`, `embedding.weight`, `head.weight`, ...).

    stage = Stage(model, range(4), has_embedding=True, has_head=False, device="cpu", seed=7)
    microbatch = stage.new_microbatch(batch=1, lengths=(100, 60, 40), valid_tokens=of_the_whole_batch)

    y = stage.forward(microbatch, j, x)              F  x: tokens [batch, s] or hidden [batch, s, hidden]
    loss = last.forward(microbatch, j, x, targets)      with a head: a share of the loss, sum / valid_tokens
    dx = stage.backward(microbatch, j, dy)           B  dy None where the head is, dx None at the embedding
    dx = stage.backward_input(microbatch, j, dy)     I  the same without the matrices' gradients ...
    stage.backward_weight(microbatch, j)             W  ... which follow here, any time later

F goes up, B or I goes down in j, each once (asserted). Gradients accumulate in `parameter.grad`. W holds the
gradients of all matrices, their biases and the embedding; those of norms are so small that they stay in I.
With tied embeddings a stage that has both ends holds one matrix (`embedding.weight`); where the ends are in
two stages each holds a copy, and whoever runs them adds the two gradients. Outputs and `dx` are detached;
nothing but the graph, the stage's input and keys/values stays alive between F and B.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional

from calibration.layer.attention import attend, pinned
from calibration.layer.microbatch import Microbatch, Saved
from calibration.layer.parts import Norm, Rotation, gated
from calibration.layer.weights import Embedding, Linear, WeightWork
from pipesim.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipesim.model import ModelSpec

IGNORED_TARGET = -100


class Layer(nn.Module):
    """Attention and feed-forward with their norms and residuals; sequential, or parallel as in NeoX."""

    def __init__(self, model: ModelSpec, work: WeightWork, **kind: Any) -> None:
        super().__init__()
        m = model
        self.heads, self.kv_heads, self.size = m.heads, m.kv_heads, m.head_size
        self.parallel, self.gated = m.parallel_residual, m.activation == "swiglu"
        wide, wide_kv = m.heads * m.head_size, m.kv_heads * m.head_size
        self.attention_norm, self.mlp_norm = (Norm(m.norm, m.hidden, **kind) for _ in range(2))
        self.qkv = Linear(m.hidden, wide + 2 * wide_kv, m.attention_bias, work, **kind)
        self.attention_out = Linear(wide, m.hidden, m.output_bias, work, **kind)
        self.up = Linear(m.hidden, (1 + self.gated) * m.feedforward, m.mlp_bias, work, **kind)
        self.down = Linear(m.feedforward, m.hidden, m.mlp_bias, work, **kind)
        self.q_norm, self.k_norm = (Norm("rmsnorm", m.head_size, **kind) if m.qk_norm else None for _ in range(2))

    def attention(self, x: Tensor, microbatch: Microbatch, place: int, start: int, rotation: Rotation | None) -> Tensor:
        """Attention over prefix and these tokens; `place` is the layer's number in its stage."""
        counts = [self.heads, self.kv_heads, self.kv_heads]
        q, k, v = self.qkv(x).unflatten(-1, (-1, self.size)).split(counts, dim=2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if rotation is not None:
            q, k = rotation(q, start), rotation(k, start)
        k, v = microbatch.append(place, k, v, start)
        return self.attention_out(attend(q, k, v))

    def mlp(self, x: Tensor) -> Tensor:
        """SwiGLU or GELU feed-forward."""
        wide = self.up(x)
        return self.down(gated(wide) if self.gated else functional.gelu(wide, approximate="tanh"))

    def forward(self, x: Tensor, microbatch: Microbatch, place: int, start: int, rotation: Rotation | None) -> Tensor:
        """[batch, s, hidden] -> the same."""
        attended = self.attention(self.attention_norm(x), microbatch, place, start, rotation)
        if self.parallel:
            return x + attended + self.mlp(self.mlp_norm(x))
        x = x + attended
        return x + self.mlp(self.mlp_norm(x))


class Stage(nn.Module):
    """Consecutive layers with the ops of a pipeline: see the top of this file."""

    def __init__(
        self,
        model: ModelSpec,
        layers: range,
        *,
        has_embedding: bool,
        has_head: bool,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        backend: str = "flash",
    ) -> None:
        """Parameters are drawn on `device` from `seed` and the layer's number; `backend` pins attention."""
        super().__init__()
        if model.experts:
            raise InputError("model", model.name, "has experts; only dense layers can be run", "use a dense model")
        self.model, self.seed, self.backend = model, seed, backend
        self.device, self.dtype = torch.device(device), dtype
        self.work = WeightWork()
        kind = {"device": self.device, "dtype": dtype}
        self.embedding = self._new_embedding(kind) if has_embedding else None
        self.layers = nn.ModuleDict({str(n): Layer(model, self.work, **kind) for n in layers})
        self.final_norm = Norm(model.norm, model.hidden, **kind) if has_head else None
        self.head = Linear(model.hidden, model.vocab, False, self.work, **kind) if has_head else None
        self.rotation = Rotation(model.head_size, model.rope_theta) if model.position == "rope" else None
        self._initialise(kind)

    def _new_embedding(self, kind: dict[str, Any]) -> Embedding:
        m = self.model
        positions = m.max_positions if m.position == "learned" else 0
        return Embedding(m.vocab, m.hidden, positions, self.work, **kind)

    def _initialise(self, kind: dict[str, Any]) -> None:
        parts = {-1: self.embedding, -2: self.final_norm, -3: self.head}
        for number, part in [*parts.items(), *((int(n), layer) for n, layer in self.layers.items())]:
            if part is not None:
                self._draw(part, number)
        if self.head is not None and self.model.tied_embeddings:
            self._tie(self.head, kind)

    def _tie(self, head: Linear, kind: dict[str, Any]) -> None:
        if self.embedding is not None:
            head.weight = self.embedding.weight
            return
        embedding = self._new_embedding(kind)  # drawn as the first stage draws it, then dropped
        self._draw(embedding, -1)
        head.weight = embedding.weight

    @torch.no_grad()
    def _draw(self, part: nn.Module, number: int) -> None:
        generator = torch.Generator(self.device).manual_seed(1_000_003 * (self.seed + 1) + number)
        for name, parameter in part.named_parameters():
            parameter.normal_(0.0, 0.02, generator=generator)
            if "norm" in name or isinstance(part, Norm):
                parameter.add_(0.0 if name.endswith("bias") else 1.0)

    def new_microbatch(self, batch: int, lengths: Sequence[int], valid_tokens: int | None = None) -> Microbatch:
        """A micro-batch of `batch` sequences cut into `lengths`; `valid_tokens` divide the loss."""
        return Microbatch.new(batch, lengths, valid_tokens, len(self.layers))

    def forward(self, microbatch: Microbatch, j: int, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """F of subsequence j; returns hidden [batch, s, hidden], or this subsequence's share of the loss."""
        microbatch.begin_forward(j)
        start = microbatch.start(j)
        assert x.shape[:2] == (microbatch.batch, microbatch.lengths[j]), f"input {tuple(x.shape)} of subsequence {j}"
        if self.embedding is None:
            x = x.detach().requires_grad_()
        with pinned(self.backend):
            out = x if self.embedding is None else self.embedding(x, start)
            for place, layer in enumerate(self.layers.values()):
                out = layer(out, microbatch, place, start, self.rotation)
            if self.head is not None:
                out = self._loss(out, targets, microbatch.valid_tokens)
        microbatch.saved[j] = Saved(x, get_gradient_edge(out))
        return out.detach()

    def _loss(self, x: Tensor, targets: Tensor | None, valid_tokens: int) -> Tensor:
        assert self.head is not None, "a stage without a head has no loss"
        assert self.final_norm is not None, "a stage without a head has no loss"
        assert targets is not None, "the stage with the head needs targets"
        logits = self.head(self.final_norm(x)).flatten(0, 1)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        total = functional.cross_entropy(wide, targets.flatten(), ignore_index=IGNORED_TARGET, reduction="sum")
        return total / valid_tokens

    def backward(self, microbatch: Microbatch, j: int, grad_out: Tensor | None = None) -> Tensor | None:
        """B of subsequence j; returns the gradient of the stage's input (None where the embedding is)."""
        saved = microbatch.begin_backward(j)
        assert (grad_out is None) == (self.head is not None), "a gradient comes in exactly where no head is"
        if grad_out is None:
            grad_out = torch.ones((), dtype=torch.promote_types(self.dtype, torch.float32), device=self.device)
        torch.autograd.backward(saved.root, grad_out)
        microbatch.end_backward(j)
        return saved.x.grad

    def backward_input(self, microbatch: Microbatch, j: int, grad_out: Tensor | None = None) -> Tensor | None:
        """I of subsequence j: B without the weight gradients, whose inputs wait in the micro-batch for W."""
        self.work.kept = []
        try:
            grad_in = self.backward(microbatch, j, grad_out)
            microbatch.waiting[j] = self.work.kept
        finally:
            self.work.kept = None
        return grad_in

    def backward_weight(self, microbatch: Microbatch, j: int) -> None:
        """W of subsequence j: the weight gradients that its I left."""
        pairs = microbatch.begin_weight(j)
        while pairs:  # popped, so that each pair's memory is free once it is used
            module, x, dy = pairs.pop()
            module.add_gradient(x, dy)
