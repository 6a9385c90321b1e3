"""Cuts of a sequence into subsequences: even, of equal cost, and as the Seq1F1B authors round them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import model
from pipesim.errors import InputError
from pipesim.partition import SequenceCost, equal_cost_sequence, even_sequence, seq1f1b_sequence

AUTHORS = {
    ("2.7b", 16384): (5301, 4230, 3627, 3226),
    ("2.7b", 24576): (8549, 6276, 5205, 4546),
    ("2.7b", 32768): (12019, 8252, 6703, 5794),
    ("7b", 32768): (11080, 8408, 7064, 6216),
    ("7b", 65536): (25112, 16248, 13008, 11168),
    ("7b", 131072): (55880, 30816, 24008, 20368),
    ("13b", 32768): (10680, 8448, 7224, 6416),
    ("13b", 49152): (17216, 12528, 10368, 9040),
    ("13b", 65536): (24200, 16464, 13344, 11528),
    ("30b", 32768): (10376, 8472, 7344, 6576),
    ("30b", 49152): (16696, 12608, 10568, 9280),
    ("30b", 65536): (23464, 16616, 13624, 11832),
}


@pytest.mark.parametrize(("case", "expected"), AUTHORS.items(), ids=str)
def test_the_authors_cut(case: tuple[str, int], expected: tuple[int, ...]) -> None:
    """k = 4 with the Seq1F1B authors' FLOP count and rounding (tensor parallel 1 for 2.7b, else 8)."""
    size, seq_len = case
    cost = SequenceCost.of_seq1f1b(model.preset(f"seq1f1b-{size}"))
    assert seq1f1b_sequence(seq_len, 4, cost, multiple_of=1 if size == "2.7b" else 8) == expected


def test_even_sequence_keeps_the_remainder() -> None:
    assert even_sequence(10, 4) == (3, 3, 2, 2)
    assert even_sequence(40, 3, multiple_of=8) == (16, 16, 8)


COSTS = st.builds(SequenceCost, st.integers(0, 10**12), st.integers(1, 10**7))


@given(st.integers(1, 3000), st.integers(1, 24), st.integers(1, 8), COSTS)
def test_equal_cost_lengths_add_up_and_never_rise(length: int, k: int, multiple: int, cost: SequenceCost) -> None:
    if length < k:
        return
    sizes = equal_cost_sequence(length * multiple, k, cost, multiple_of=multiple)
    assert (len(sizes), sum(sizes)) == (k, length * multiple)
    assert list(sizes) == sorted(sizes, reverse=True)
    assert all(size >= multiple and size % multiple == 0 for size in sizes)


@pytest.mark.parametrize("multiple", [1, 8, 128])
def test_equal_cost_subsequences_cost_the_same(multiple: int) -> None:
    cost = SequenceCost.of_layer(model.preset("llama3-8b"))
    sizes = equal_cost_sequence(131072, 8, cost, multiple_of=multiple)
    starts = [sum(sizes[:j]) for j in range(9)]
    parts = [cost.between(starts[j], starts[j + 1]) for j in range(8)]
    # Places are off by under 8 multiples, and the last tokens are the dearest.
    dearest = cost.between(131072 - 8 * multiple, 131072)
    assert max(parts) - min(parts) <= 2 * dearest
    assert cost.between(0, 131072) == sum(parts)


def test_without_attention_equal_cost_is_even() -> None:
    assert equal_cost_sequence(1000, 8, SequenceCost(5, 0)) == even_sequence(1000, 8)


def test_sequences_that_cannot_be_cut() -> None:
    cost = SequenceCost(1, 1)
    with pytest.raises(InputError, match="sequence length: 3: must be at least subsequences × 1 = 4 tokens"):
        even_sequence(3, 4)
    with pytest.raises(InputError, match="sequence length: 100: must be a multiple of 8"):
        equal_cost_sequence(100, 4, cost, multiple_of=8)
    with pytest.raises(InputError, match="subsequences: 0: must be at least 1"):
        equal_cost_sequence(100, 0, cost)
    with pytest.raises(InputError, match="must leave every subsequence at least 64 tokens"):
        seq1f1b_sequence(128, 4, cost, multiple_of=64)
