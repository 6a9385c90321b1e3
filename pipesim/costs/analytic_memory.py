"""Activation, transient and key/value bytes of each stage on one GPU; knows no order of ops and no time."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

from pipesim.costs.stored import (
    BF16,
    FP32,
    INT64,
    Layout,
    Recompute,
    Stored,
    gradients_until_w,
    kept,
    layer_tensors,
    total,
)

if TYPE_CHECKING:
    from pipesim.model import ModelSpec
    from pipesim.partition import StageContents


@dataclass(frozen=True)
class MemoryModel:
    """What a model keeps under a layout and a recompute mode.

    logits_chunk: tokens of a chunk of logits that exists at a time, 0 keeps all of them (FP32, as Megatron's
    cross entropy does). retained_kv: keys/values are counted apart, as they outlive their subsequence.
    """

    model: ModelSpec
    layout: Layout
    recompute: Recompute
    logits_chunk: int
    retained_kv: bool

    @cached_property
    def layer(self) -> tuple[Stored, ...]:
        """Tensors of one layer without recompute, without keys/values where those are counted apart."""
        tensors = layer_tensors(self.model, self.layout)
        return tuple(t for t in tensors if not (self.retained_kv and t.role == "kv"))

    def activations(self, stage: StageContents, tokens: int, keys: int) -> int:
        """Bytes kept from F to B for `tokens` tokens that attend to up to `keys` keys."""
        layers = stage.layers * total(kept(self.layer, self.recompute), tokens, keys)
        ends = self._embedding_tensors() * stage.has_embedding + self._head_tensors() * stage.has_head
        return layers + total(ends, tokens)

    def weight_activations(self, stage: StageContents, tokens: int) -> int:
        """Bytes kept from I to W: inputs of the layers' matrices and the gradients of their outputs.

        With full recompute this is more than what is kept from F to I, and appears when I ends.
        """
        inputs = sum((t.per_token for t in self.layer if t.role in ("linear", "down")), Fraction(0))
        per_layer = Stored("until W", inputs + gradients_until_w(self.model, self.layout))
        ends = list(self._embedding_tensors()) if stage.has_embedding else []
        if stage.has_head and not self.logits_chunk:
            ends.append(Stored("head input", BF16 * self.model.hidden * self.layout.sequence))
            ends.append(Stored("gradient of the logits", BF16 * self._gpu_vocab))
        return stage.layers * total([per_layer], tokens) + total(ends, tokens)

    def forward_transient(self, stage: StageContents, tokens: int) -> int:
        """Bytes only while F runs: the inside of an MLP that recompute will not keep, or the logits."""
        of_layer = 0
        if self.recompute == "full" and stage.layers:
            of_layer = total([t for t in self.layer if t.role in ("inner", "down")], tokens)
        return max(of_layer, self._logits(stage, tokens, BF16 + FP32))

    def backward_transient(self, stage: StageContents, tokens: int, keys: int) -> int:
        """Bytes only while B, I or R runs: one layer recomputed, the widest gradients; or logits' gradients.

        All of a recomputed layer is there at once, its input counted again with it.
        """
        again = {"none": 0, "selective": self._scores(tokens, keys), "full": total(self.layer, tokens, keys)}
        of_layer = again[self.recompute] + total([self.widest_gradients], tokens) if stage.layers else 0
        return max(of_layer, self._logits(stage, tokens, 2 * BF16 + FP32))

    @cached_property
    def widest_gradients(self) -> Stored:
        """Gradients alive at the widest place of a layer's backward: of the residual and inside the MLP."""
        inside = sum((t.per_token for t in self.layer if t.role in ("inner", "down")), Fraction(0))
        return Stored("gradients", BF16 * self.model.hidden * self.layout.sequence + inside)

    def kv(self, stage: StageContents, tokens: int) -> int:
        """Bytes of the keys and values of `tokens` tokens, 0 where they are ordinary activations."""
        return stage.layers * tokens * 2 * BF16 * self.layout.kv_width(self.model) * self.retained_kv

    def kv_gradients(self, stage: StageContents, tokens: int) -> int:
        """Bytes of their gradients, which are summed over later subsequences in FP32."""
        return stage.layers * tokens * 2 * FP32 * self.layout.kv_width(self.model) * self.retained_kv

    def message(self, tokens: int) -> int:
        """Bytes of the boundary tensor that a whole device sends: all GPUs send all of it unless it is divided."""
        copies = 1 if self.layout.sequence_parallel else self.layout.tp
        return copies * BF16 * tokens * self.model.hidden

    @property
    def _gpu_vocab(self) -> Fraction:
        return Fraction(-(-self.model.vocab // self.layout.tp))

    def _embedding_tensors(self) -> tuple[Stored, ...]:
        dropout = [Stored("embedding dropout mask", self.model.hidden * self.layout.sequence)]
        return (Stored("token numbers", Fraction(INT64)), *(dropout if self.layout.dropout else []))

    def _head_tensors(self) -> tuple[Stored, ...]:
        hidden = BF16 * self.model.hidden * self.layout.sequence
        statistics = 2 if self.model.norm == "layernorm" else 1
        loss = Stored("softmax of the logits", FP32 * self._gpu_vocab)
        if self.logits_chunk:
            loss = Stored("log-sum-exp of the logits", Fraction(FP32))
        return (
            Stored("final norm input", hidden),
            Stored("final norm statistics", FP32 * statistics * self.layout.sequence),
            Stored("head input", hidden),
            loss,
        )

    def _scores(self, tokens: int, keys: int) -> int:
        return total([t for t in self.layer if t.role == "scores"], tokens, keys)

    def _logits(self, stage: StageContents, tokens: int, chunk_bytes: int) -> int:
        """Bytes of the logits of one chunk, `chunk_bytes` an element; or of all, in BF16 beside their softmax."""
        if not stage.has_head:
            return 0
        if self.logits_chunk:
            return int(min(tokens, self.logits_chunk) * chunk_bytes * self._gpu_vocab)
        return int(tokens * BF16 * self._gpu_vocab)
