"""Which (tokens, prefix) points to measure; knows no torch and no device."""

from __future__ import annotations

import random
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from pipesim.errors import InputError
from pipesim.partition.sequence import SequenceCost, equal_cost_sequence, even_sequence

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipesim.model import ModelSpec
    from pipesim.profile_records import Part

SIZES = 4
SMALLEST = 16


class Point(NamedTuple):
    """One visit's work: `tokens` after `prefix` through one part of a tensor-parallel share."""

    tp: int
    part: Part
    tokens: int
    prefix: int
    held_out: bool = False


def planned_pairs(
    model: ModelSpec, seq_len: int, subsequences: Iterable[int], cuts: Iterable[str], tp: int
) -> list[tuple[int, int]]:
    """(tokens, prefix) of every subsequence of every plan asked for; `cuts` from even, flops."""
    pairs: set[tuple[int, int]] = set()
    for k in subsequences:
        for cut in cuts:
            lengths = _cut(model, seq_len, k, cut, tp)
            pairs |= set(zip(lengths, accumulate(lengths, initial=0), strict=False))
    return sorted(pairs)


def _cut(model: ModelSpec, seq_len: int, k: int, cut: str, tp: int) -> tuple[int, ...]:
    if cut == "even":
        return even_sequence(seq_len, k, multiple_of=tp)
    if cut == "flops":
        return equal_cost_sequence(seq_len, k, SequenceCost.of_layer(model), multiple_of=tp)
    raise InputError("--partition", cut, "must be even, flops or both")


def _sizes(seq_len: int, most: int) -> list[int]:
    """Token counts from half the shortest subsequence to the whole sequence, evenly spaced by ratio."""
    low = min(seq_len, max(SMALLEST, seq_len // (2 * most)))
    ratio = (seq_len / low) ** (1 / (SIZES - 1))
    return sorted({round(low * ratio**n) for n in range(SIZES)})


def gap_pairs(seq_len: int, most: int) -> list[tuple[int, int]]:
    """(tokens, prefix) for the fit: each size after no prefix, half of the longest possible and the longest."""
    pairs: set[tuple[int, int]] = set()
    for s in _sizes(seq_len, most):
        pairs |= {(s, prefix) for prefix in (0, (seq_len - s) // 2, seq_len - s)}
    return sorted(pairs)


def held_out_pairs(seq_len: int, most: int, seed: int) -> list[tuple[int, int]]:
    """(tokens, prefix) between the sizes of the fit, at prefix 0 and at a random prefix; never fitted on."""
    draw = random.Random(seed)
    sizes = _sizes(seq_len, most)
    pairs: list[tuple[int, int]] = []
    for low, high in pairwise(sizes):
        s = round((low * high) ** 0.5)
        pairs += [(s, 0), (s, draw.randint(1, max(1, seq_len - s)))]
    return pairs


def grid(
    model: ModelSpec,
    seq_len: int,
    subsequences: tuple[int, ...],
    *,
    cuts: tuple[str, ...] = ("even", "flops"),
    tps: tuple[int, ...] = (1,),
    seed: int = 0,
) -> list[Point]:
    """All points: exact pairs of the plans, pairs for the fit, held-out pairs; embedding and head at even sizes."""
    points: list[Point] = []
    for tp in tps:
        most = max(subsequences)
        fitted = set(planned_pairs(model, seq_len, subsequences, cuts, tp)) | set(gap_pairs(seq_len, most))
        held_out = set(held_out_pairs(seq_len, most, seed)) - fitted
        # embedding and head are linear in their tokens: a few sizes and the fit will do
        sizes = {s for s, _ in [*gap_pairs(seq_len, most), *planned_pairs(model, seq_len, subsequences, ("even",), tp)]}
        points += [Point(tp, "layer", s, prefix) for s, prefix in sorted(fitted)]
        points += [Point(tp, "layer", s, prefix, True) for s, prefix in sorted(held_out)]
        for part in ("embedding", "head"):
            points += [Point(tp, part, s, 0) for s in sorted(sizes)]
            points += [Point(tp, part, s, 0, True) for s in sorted({s for s, _ in held_out} - sizes)]
    return points
