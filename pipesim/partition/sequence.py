"""A sequence cut into subsequences, evenly or to equal cost; knows a cost only as two coefficients.

Later tokens attend to more, so subsequences of equal cost fall in length. The cost of tokens a..b is
linear × (b - a) + square × (b² - a²), whole numbers, so all cuts here are exact.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from pipesim.errors import InputError
from pipesim.flops import layer_coefficients, seq1f1b_coefficients
from pipesim.partition.layers import spread

if TYPE_CHECKING:
    from pipesim.model import ModelSpec


class SequenceCost(NamedTuple):
    """Cost of tokens a..b of a sequence: linear × (b - a) + square × (b² - a²)."""

    linear: int
    square: int

    @classmethod
    def of_layer(cls, model: ModelSpec) -> SequenceCost:
        """Forward FLOPs of one layer: what every stage does with a subsequence."""
        return cls(*layer_coefficients(model))

    @classmethod
    def of_seq1f1b(cls, model: ModelSpec) -> SequenceCost:
        """The Seq1F1B authors' count (twice, to stay whole): the model with head, embedding and softmax."""
        return cls(*seq1f1b_coefficients(model))

    def between(self, start: int, end: int) -> int:
        """Cost of tokens start..end-1."""
        return self.linear * (end - start) + self.square * (end * end - start * start)


def even_sequence(seq_len: int, subsequences: int, *, multiple_of: int = 1) -> tuple[int, ...]:
    """Lengths in tokens that differ by at most `multiple_of`, longer first; they sum to seq_len.

    Raises InputError when the sequence is too short or not a multiple of `multiple_of`.
    """
    _check(seq_len, subsequences, multiple_of)
    return tuple(size * multiple_of for size in spread(seq_len // multiple_of, subsequences))


def equal_cost_sequence(
    seq_len: int, subsequences: int, cost: SequenceCost, *, multiple_of: int = 1
) -> tuple[int, ...]:
    """Lengths in tokens that cost as nearly the same as whole multiples allow; never rising, sum seq_len.

    Each length is the exact one rounded down to the multiple, the remainder given out from the first on.
    Raises InputError when the sequence is too short or not a multiple of `multiple_of`.
    """
    _check(seq_len, subsequences, multiple_of)
    places = [_place(seq_len, j, subsequences, cost) for j in range(subsequences + 1)]
    # Places are whole tokens, so a length may come out one too short: sorted, they fall as the exact ones do.
    sizes = sorted((max(1, (b - a) // multiple_of) for a, b in pairwise(places)), reverse=True)
    spare = seq_len // multiple_of - sum(sizes)
    for j in range(spare):
        sizes[j % subsequences] += 1
    for _ in range(-spare):  # lengths below one multiple were raised to it; the longest pay
        longest = max(sizes)
        sizes[subsequences - 1 - sizes[::-1].index(longest)] -= 1
    return tuple(size * multiple_of for size in sizes)


def _place(seq_len: int, j: int, subsequences: int, cost: SequenceCost) -> int:
    """The last token count whose cost is at most j/k of the whole."""
    whole = cost.between(0, seq_len)
    return bisect_right(range(seq_len + 1), j * whole, key=lambda x: subsequences * cost.between(0, x)) - 1


def seq1f1b_sequence(seq_len: int, subsequences: int, cost: SequenceCost, *, multiple_of: int = 1) -> tuple[int, ...]:
    """Lengths in tokens as the Seq1F1B authors round them (split_solver.py, thunlp/Seq1F1B).

    From the last subsequence backwards: the length that costs a k-th of the whole, cut to an integer and then
    down to a multiple of `multiple_of` (their tensor-parallel size); the first takes what is left.
    """
    _check(seq_len, subsequences, 1)
    whole, end = cost.between(0, seq_len), seq_len
    sizes: list[int] = []
    for _ in range(subsequences - 1):
        size = _length_before(end, whole, subsequences, cost)
        size -= size % multiple_of
        if size < 1:
            rule = f"must leave every subsequence at least {multiple_of} tokens"
            raise InputError("subsequences", subsequences, rule, "use fewer of them or a longer sequence")
        sizes.append(size)
        end -= size
    return (end, *reversed(sizes))


def _length_before(end: int, whole: int, subsequences: int, cost: SequenceCost) -> int:
    """The most tokens before `end` that cost at most a k-th of the whole."""
    return bisect_right(range(end + 1), whole, key=lambda s: subsequences * cost.between(end - s, end)) - 1


def _check(seq_len: int, subsequences: int, multiple_of: int) -> None:
    if subsequences < 1:
        raise InputError("subsequences", subsequences, "must be at least 1")
    if multiple_of < 1:
        raise InputError("multiple of", multiple_of, "must be at least 1")
    if seq_len % multiple_of:
        raise InputError("sequence length", seq_len, f"must be a multiple of {multiple_of}")
    if seq_len < subsequences * multiple_of:
        rule = f"must be at least subsequences × {multiple_of} = {subsequences * multiple_of} tokens"
        raise InputError("sequence length", seq_len, rule, "use fewer subsequences")
