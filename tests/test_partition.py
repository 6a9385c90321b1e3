"""Layers over stages (field cases O18-O21), samples over micro-batches (O17)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import flops, model
from pipesim.errors import InputError
from pipesim.partition import (
    LayerPartition,
    check_partition,
    even_layers,
    layers_with_ends,
    layout_partition,
    listed_layers,
    microbatch_sizes,
    weighted_layers,
)


def first_layers(partition: LayerPartition) -> list[int]:
    return [partition.first_layer(stage) for stage in range(partition.stages)]


# Samples over micro-batches


@pytest.mark.parametrize(
    ("samples", "microbatches", "sizes"),
    [(10, 6, (2, 2, 2, 2, 1, 1)), (5, 4, (2, 1, 1, 1)), (8, 3, (3, 3, 2))],
)
def test_exactly_m_microbatches(samples: int, microbatches: int, sizes: tuple[int, ...]) -> None:
    """Field case O17: cutting by rounded-up sizes gave fewer pieces than asked for."""
    assert microbatch_sizes(samples, microbatches) == sizes


def test_more_microbatches_than_samples_are_refused() -> None:
    with pytest.raises(InputError, match="microbatches: 4: must be at most the number of samples = 3"):
        microbatch_sizes(3, 4)
    with pytest.raises(InputError, match="microbatches: 0: must be at least 1"):
        microbatch_sizes(3, 0)


@given(st.integers(1, 500), st.integers(1, 64))
def test_microbatch_sizes_add_up_and_differ_by_at_most_one(samples: int, microbatches: int) -> None:
    if samples >= microbatches:
        sizes = microbatch_sizes(samples, microbatches)
        assert (len(sizes), sum(sizes)) == (microbatches, samples)
        assert max(sizes) - min(sizes) <= 1


# Layers over stages


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [
        (30, 4, (8, 8, 7, 7)),
        (27, 2, (14, 13)),
        (61, 16, (4,) * 13 + (3,) * 3),
        (64, 6, (11, 11, 11, 11, 10, 10)),  # field case O22: the heaviest has 11, not 10.667
    ],
)
def test_even_layers_keep_the_remainder(layers: int, stages: int, expected: tuple[int, ...]) -> None:
    """Field case O18: 30 layers on 4 stages became 7, 7, 7, 7 and two layers were lost."""
    assert even_layers(layers, stages) == LayerPartition(expected, 0, stages - 1)


def test_fewer_layers_than_stages_are_refused_unless_allowed() -> None:
    with pytest.raises(InputError, match="stages: 4: must be at most layers = 3"):
        even_layers(3, 4)
    assert even_layers(3, 4, allow_empty=True).layers_per_stage == (1, 1, 1, 0)


@given(st.integers(1, 300), st.integers(1, 64))
def test_even_layers_hold_every_layer(layers: int, stages: int) -> None:
    partition = even_layers(layers, stages, allow_empty=True)
    assert partition.layers == layers
    assert list(partition.layers_per_stage) == sorted(partition.layers_per_stage, reverse=True)
    assert partition.layers_per_stage[0] - partition.layers_per_stage[-1] <= 1


def test_counts_of_first_and_last_device() -> None:
    """Field case O19: the counts are of the whole device, spread over its stages; offsets must follow."""
    assert layers_with_ends(9, 4, first=2, last=1).layers_per_stage == (2, 3, 3, 1)
    only_last = layers_with_ends(22, 4, 2, last=4)
    assert only_last.layers_per_stage == (3, 3, 3, 2) * 2
    assert first_layers(only_last) == [0, 3, 6, 9, 11, 14, 17, 20]
    only_first = layers_with_ends(20, 4, 2, first=2)
    assert first_layers(only_first) == [0, 1, 4, 7, 10, 11, 14, 17]
    assert layers_with_ends(6, 2, first=4, last=2).layers_per_stage == (4, 2)
    assert layers_with_ends(4, 3, first=0).layers_per_stage == (0, 2, 2)  # a stage with just the embedding


@pytest.mark.parametrize(
    ("layers", "devices_and_stages", "first", "last", "message"),
    [
        (10, (4, 1), 2, 1, "layers: 10: leaves 7 layers for 2 other stages"),
        (22, (4, 2), None, 3, "last layers: 3: must be a multiple of stages per device = 2"),
        (9, (4, 1), 10, None, "first layers: 10: must be from 0 to layers = 9"),
        (4, (4, 1), 2, 2, "leaves 0 layers for 2 other stages"),
        (9, (4, 1), 6, 5, "leaves -2 layers"),
        (9, (2, 1), 4, 4, "leaves 1 layers for 0 other stages"),
        (9, (1, 1), 9, None, "need at least 2 devices"),
    ],
)
def test_end_counts_that_cannot_be(
    layers: int, devices_and_stages: tuple[int, int], first: int | None, last: int | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        layers_with_ends(layers, *devices_and_stages, first=first, last=last)


@pytest.mark.parametrize(("weight", "expected"), [(1, (1, 2, 2, 1)), (3, (0, 3, 3, 0))])
def test_embedding_and_head_count_as_layers(weight: int, expected: tuple[int, ...]) -> None:
    """Field case O20, 6 layers on 4 stages."""
    partition = weighted_layers(6, 4, embedding_weight=weight, head_weight=weight)
    assert partition.layers_per_stage == expected


def test_a_weight_that_would_leave_a_negative_stage_is_refused() -> None:
    """Field case O20: effective 16 layers, 4 a stage, so the first would hold -1."""
    with pytest.raises(InputError, match="embedding weight: 5: must be at most a stage's fair share of 4 layers"):
        weighted_layers(6, 4, embedding_weight=5, head_weight=5)
    with pytest.raises(InputError, match="head weight: -1: must be at least 0"):
        weighted_layers(6, 4, head_weight=-1)
    with pytest.raises(InputError, match="head weight: nan: must be at least 0"):
        weighted_layers(6, 4, head_weight=float("nan"))
    with pytest.raises(InputError, match="stages: 6: are too many for 3 layers"):
        weighted_layers(3, 6)


def test_a_heavy_head_takes_layers_off_the_last_stage() -> None:
    spec = model.preset("llama3-8b")
    weight = flops.head_in_layers(spec, 8192)
    counts = weighted_layers(spec.layers, 8, head_weight=weight).layers_per_stage
    # The head weighs 2.09 layers: 7 stages of 4 and one of 2 + 2.09, then the last two layers from the front.
    assert counts == (5, 5, 4, 4, 4, 4, 4, 2)


@given(st.integers(8, 100), st.integers(1, 8), st.integers(0, 4), st.integers(0, 4))
def test_weighted_layers_are_balanced_to_one_layer(layers: int, stages: int, w_in: int, w_out: int) -> None:
    share = (layers + w_in + w_out) / stages
    if stages > 1 and max(w_in, w_out) > share:
        return
    counts = list(weighted_layers(layers, stages, embedding_weight=w_in, head_weight=w_out).layers_per_stage)
    assert sum(counts) == layers
    counts[0] += w_in
    counts[-1] += w_out
    assert max(counts) - min(counts) <= 1


# Layout strings


def test_layout_string() -> None:
    """Field case O21."""
    partition = layout_partition("Et|(tt|)*6,tL", devices=4)
    assert partition.layers_per_stage == (1, 2, 2, 2, 2, 2, 2, 1)
    assert (partition.layers, partition.embedding_stage, partition.head_stage) == (14, 0, 7)
    per_device = [partition.layers_per_stage[d] + partition.layers_per_stage[d + 4] for d in range(4)]
    assert per_device == [3, 4, 4, 3]
    assert partition.contents(0) == (1, True, False)
    assert partition.contents(7) == (1, False, True)


@pytest.mark.parametrize(
    ("text", "layers", "mtp", "embedding", "head"),
    [
        ("EtL", (1,), (), 0, 0),
        ("E|t*3|t|L", (0, 3, 1, 0), (), 0, 3),
        ("Ett|ttm|mL", (2, 2, 0), (0, 1, 1), 0, 2),
        ("E t, (t (t|)*2 t|)*2 t L", (3, 1, 1, 2, 1, 1, 1), (), 0, 6),
        ("Et" + "|t*8" * 9 + "|t*7L", (1,) + (8,) * 9 + (7,), (), 0, 10),
    ],
)
def test_layout_grammar(text: str, layers: tuple[int, ...], mtp: tuple[int, ...], embedding: int, head: int) -> None:
    assert layout_partition(text) == LayerPartition(layers, embedding, head, mtp)


@pytest.mark.parametrize(
    ("text", "devices", "message"),
    [
        ("Et|(tt|)*6,tL", 3, "has 8 stages, must be a multiple of 3 devices"),
        ("(t|", None, r"position 1: \(t\|: opens a bracket that is not closed"),
        ("Et|t)L", None, "position 5: .*closes a bracket that was not opened"),
        ("Et|x|L", None, "position 4: .*'x' is none of E t m L"),
        ("Et*|tL", None, "position 3: .*a star must be followed by a count of at least 1"),
        ("Et*0|tL", None, "position 3: .*a star must be followed by a count of at least 1"),
        ("*3EtL", None, r"position 1: .*'\*' is none of"),
        ("Et*999999999999L", None, "position 3: .*at most 100000 parts"),
        ("E(((t*99)*99)*99)*99L", None, "at most 100000 parts"),
        ("(" * 200, None, "must have at most 100 brackets"),
        ("", None, "must have one embedding E, has 0"),
        ("tt|tL", None, "must have one embedding E, has 0"),
        ("Et|Et|tL", None, "must have one embedding E, has 2"),
        ("Et|t", None, "must have one head L, has 0"),
        ("E|L", None, "must have at least one layer t"),
        ("Et|Lt", None, "must be in model order"),
        ("Em|tL", None, "must be in model order"),
    ],
)
def test_layouts_that_cannot_be(text: str, devices: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        layout_partition(text, devices)
    assert "\n" not in str(caught.value)


def test_listed_layers_and_the_check_against_the_model() -> None:
    partition = listed_layers("8, 8,7,7")
    assert partition == even_layers(30, 4)
    check_partition(partition, 30, 4)
    check_partition(partition, 30, 2, 2)
    with pytest.raises(InputError, match="must hold the model's 32 layers, holds 30"):
        check_partition(partition, 32, 4)
    with pytest.raises(InputError, match=r"= 3 stages, has 4, not a multiple of 3 devices"):
        check_partition(partition, 30, 3)
    for text in ("8,x", "8,,7", "", "8,-1", "²"):
        with pytest.raises(InputError, match="must be whole numbers with commas"):
            listed_layers(text)
