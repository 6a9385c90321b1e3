"""What one step computes: model, cuts, batch and seed; knows no ranks, no order and no time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from calibration.layer import IGNORED_TARGET, Stage
from pipesim.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from pipesim.model import ModelSpec
    from pipesim.partition import LayerPartition
    from pipesim.plan import PipelineShape

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Workload:
    """A step's computation, the same however it is run.

    partition: layers of each stage. lengths: tokens of each subsequence of every sequence. microbatch_sizes:
    sequences of each micro-batch; together they are the batch. Tokens come from `seed`; the last 1 to 3 targets
    of a sequence are padding, so micro-batches differ in valid tokens. dtype: a key of DTYPES.
    Raises InputError on a dtype or a model it cannot run.
    """

    model: ModelSpec
    partition: LayerPartition
    lengths: tuple[int, ...]
    microbatch_sizes: tuple[int, ...]
    dtype: str = "float32"
    seed: int = 0
    backend: str = "flash"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError("--dtype", self.dtype, "no such type", f"one of {', '.join(DTYPES)}")
        if self.model.experts:
            raise InputError("--model", self.model.name, "has experts; only dense models can be run")
        if self.model.position == "learned" and self.model.max_positions < self.seq_len:
            rule = f"must be at most the model's {self.model.max_positions} positions"
            raise InputError("--seq-len", self.seq_len, rule)
        if (self.partition.embedding_stage, self.partition.head_stage) != (0, self.partition.stages - 1):
            held = f"stages {self.partition.embedding_stage} and {self.partition.head_stage}"
            raise InputError("--layer-split", held, "embedding and head must be on the first and last stage to be run")
        if self.partition.mtp_layers_per_stage:
            raise InputError("--layer-split", "m", "multi-token-prediction layers cannot be run")

    @property
    def seq_len(self) -> int:
        """Tokens of a sequence."""
        return sum(self.lengths)

    @property
    def sequences(self) -> int:
        """Sequences of the batch."""
        return sum(self.microbatch_sizes)

    def refuse_other_shape(self, shape: PipelineShape) -> None:
        """Raises InputError unless cuts and batch are those of the plan's shape."""
        have = (self.partition.stages, len(self.lengths), len(self.microbatch_sizes))
        want = (shape.stages, shape.subsequences, shape.microbatches)
        for name, given, wanted in zip(("stages", "subsequences", "micro-batches"), have, want, strict=True):
            if given != wanted:
                raise InputError("workload", f"{given} {name}", f"must be {wanted}, as the plan has")

    def whole(self) -> Workload:
        """The same computation in one stage, uncut, as one micro-batch."""
        from pipesim.partition import LayerPartition

        partition = LayerPartition.of([self.model.layers])
        return replace(self, partition=partition, lengths=(self.seq_len,), microbatch_sizes=(self.sequences,))

    def stage(self, number: int, device: str | torch.device) -> Stage:
        """The layers of one stage; its parameters do not depend on the partition."""
        first = self.partition.first_layer(number)
        return Stage(
            self.model,
            range(first, first + self.partition.layers_per_stage[number]),
            has_embedding=number == self.partition.embedding_stage,
            has_head=number == self.partition.head_stage,
            device=device,
            dtype=DTYPES[self.dtype],
            seed=self.seed,
            backend=self.backend,
        )

    def message_shape(self, microbatch: int, subsequence: int) -> tuple[int, int, int]:
        """The tensor between two stages, forward or backward: [sequences, tokens, hidden]."""
        return self.microbatch_sizes[microbatch], self.lengths[subsequence], self.model.hidden

    @cached_property
    def batch(self) -> tuple[Tensor, Tensor]:
        """Tokens and targets [sequences, seq_len]; the same for every cut of the same batch."""
        generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.randint(self.model.vocab, (self.sequences, self.seq_len + 1), generator=generator)
        tokens, targets = drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()
        for sequence in range(self.sequences):
            padding = min(1 + sequence % 3, self.seq_len - 1)
            targets[sequence, self.seq_len - padding :] = IGNORED_TARGET
        return tokens, targets

    @cached_property
    def valid_tokens(self) -> int:
        """Targets of the whole batch that count: the divisor of every loss."""
        return int((self.batch[1] != IGNORED_TARGET).sum())

    def part(self, of: Tensor, microbatch: int, subsequence: int) -> Tensor:
        """The rows of one micro-batch and the columns of one subsequence of tokens or targets."""
        first, start = sum(self.microbatch_sizes[:microbatch]), sum(self.lengths[:subsequence])
        rows = slice(first, first + self.microbatch_sizes[microbatch])
        return of[rows, start : start + self.lengths[subsequence]]


def stage_data(stage: Stage, size: int, length: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Random input, gradient of the output and targets of one subsequence, as the stage takes them."""
    model, kind = stage.model, {"device": stage.device}
    hidden = torch.randn(size, length, model.hidden, dtype=stage.dtype, **kind)
    tokens = torch.randint(model.vocab, (size, length), **kind)
    x = tokens if stage.embedding is not None else hidden
    return (x, None, tokens) if stage.head is not None else (x, torch.randn_like(hidden), None)
