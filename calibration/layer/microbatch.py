"""What one stage keeps of a micro-batch between its ops, and the order they must keep; does no arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from calibration.layer.attention import KeyValues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.autograd.graph import GradientEdge

    from calibration.layer.weights import Pair


@dataclass
class Saved:
    """Kept from F to B of one subsequence: the stage's input and the root of its graph (not its output)."""

    x: Tensor
    root: GradientEdge


@dataclass
class Microbatch:
    """One micro-batch in one stage: lengths, keys and values per layer, open graphs, waiting weight work.

    Forward passes go up, backward passes down, each once; anything else is an AssertionError that says so.
    """

    batch: int
    lengths: tuple[int, ...]
    valid_tokens: int
    kept: list[KeyValues | None]
    saved: dict[int, Saved] = field(default_factory=dict)
    waiting: dict[int, list[Pair]] = field(default_factory=dict)
    next_forward: int = 0
    next_backward: int = -1

    @classmethod
    def new(cls, batch: int, lengths: Sequence[int], valid_tokens: int | None, layers: int) -> Microbatch:
        """An untouched micro-batch of `batch` sequences, cut into `lengths` tokens each."""
        assert min(lengths) > 0, f"subsequence lengths must be positive: {lengths}"
        total = batch * sum(lengths) if valid_tokens is None else valid_tokens
        made = cls(batch, tuple(lengths), total, [None] * layers)
        made.next_backward = len(made.lengths) - 1
        return made

    @property
    def sequence_length(self) -> int:
        """Tokens of one sequence."""
        return sum(self.lengths)

    def start(self, j: int) -> int:
        """Prefix length of subsequence j: the tokens before it."""
        return sum(self.lengths[:j])

    def append(self, layer: int, k: Tensor, v: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Retain one subsequence's keys and values of a layer; returns the whole prefix with them."""
        buffer = self.kept[layer]
        if buffer is None:
            buffer = self.kept[layer] = KeyValues(k, self.sequence_length)
        return buffer.append(k, v, start)

    def begin_forward(self, j: int) -> None:
        """F must come in rising order of subsequences."""
        assert j == self.next_forward, f"forward of subsequence {j}, but {self.next_forward} is next"
        self.next_forward += 1

    def begin_backward(self, j: int) -> Saved:
        """B or I must come in falling order of subsequences, after the last forward."""
        assert j == self.next_backward, f"backward of subsequence {j}, but {self.next_backward} is next"
        assert j in self.saved, f"backward of subsequence {j} before its forward"
        self.next_backward -= 1
        return self.saved.pop(j)

    def begin_weight(self, j: int) -> list[Pair]:
        """W comes once, after its I."""
        assert j in self.waiting, f"weight gradient of subsequence {j}: its I has not run, or its W already has"
        return self.waiting.pop(j)

    def end_backward(self, j: int) -> None:
        """After the first subsequence's B or I nobody reads the keys and values any more."""
        if j == 0:
            self.kept = [None] * len(self.kept)
