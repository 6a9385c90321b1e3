"""Analytic costs: times against FLOPs by hand, sums, classes (O16), empty stages (O38), refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pipesim import flops, model
from pipesim.cluster_network import cluster_network, rank_order
from pipesim.costs.analytic import AnalyticOptions, analytic_costs
from pipesim.costs.efficiency import Efficiency
from pipesim.engine import simulate
from pipesim.errors import InputError
from pipesim.partition import (
    LayerPartition,
    SequenceCost,
    equal_cost_sequence,
    even_layers,
    layout_partition,
)
from pipesim.plan import Kind, PipelineShape
from pipesim.schedules import schedule_named
from tests.costing import H100, LLAMA, SEQ_LEN, table

if TYPE_CHECKING:
    from pipesim.costs.table import CostTable

PERFECT = Efficiency(
    matmul_max=1, matmul_half_tokens=0, attention_forward_max=1, attention_backward_max=1, attention_half_rows=0,
    memory_max=1, link_max=1, kernel_seconds=0,
)  # fmt: skip


def seconds(costs: CostTable, kind: Kind, stage: int) -> float:
    return float(costs.duration_ns[kind, 0, stage].sum()) / 1e9


# Times


def test_times_of_a_middle_stage_by_hand() -> None:
    """4 layers, 65536 tokens: products at 0.75 of peak, attention at 0.55 and 0.45, the rest by memory."""
    peak, bandwidth, s = 989.4e12, 3.35e12, 65536
    attention_weights = 4096 * (4096 + 1024 + 1024 + 4096)
    mlp_weights = 3 * 4096 * 14336
    products = 2 * s * (attention_weights + mlp_weights) / (peak * 0.75 * s / (s + 256))
    scores = 4 * 4096 * s * s / 2
    fullness = s * 32 / (s * 32 + 4096)
    moved = 2 * s * (10 * 4096 + 2 * (4096 + 1024) + 3 * 14336) / (bandwidth * 0.8)
    forward = 4 * (products + scores / (peak * 0.55 * fullness) + moved)
    inputs = 4 * (products + 2.5 * scores / (peak * 0.45 * fullness) + 2 * moved)
    costs = table()
    assert seconds(costs, Kind.F, 3) == pytest.approx(forward, rel=1e-8)
    assert seconds(costs, Kind.I, 3) == pytest.approx(inputs, rel=1e-8)
    assert seconds(costs, Kind.W, 3) == pytest.approx(4 * products, rel=1e-8)
    assert 0.3 < forward < 0.6  # and sane: about half a second for 65536 tokens of 4 layers


def test_embedding_and_head_by_hand() -> None:
    """Head: logits once forward; backward again, and both gradients, in chunks of 4096 tokens."""
    costs, s = table(), SEQ_LEN
    product = 2 * s * 4096 * 128256 / (989.4e12 * 0.75 * 4096 / (4096 + 256))
    norm = 2 * 2 * s * 4096 / (3.35e12 * 0.8)
    logits = 2 * s * 128256 / (3.35e12 * 0.8)
    head = [seconds(costs, kind, 7) - seconds(costs, kind, 3) for kind in (Kind.F, Kind.I, Kind.W)]
    assert head == pytest.approx([product + norm + 2 * logits, 3 * product + 2 * norm + 4 * logits, 0], rel=1e-6)
    embedding = [seconds(costs, kind, 0) - seconds(costs, kind, 3) for kind in (Kind.F, Kind.I, Kind.W)]
    moved = s * 4096 / (3.35e12 * 0.8)
    assert embedding == pytest.approx([4 * moved, 0, 10 * moved], rel=1e-4)


def test_stored_logits_split_the_heads_backward() -> None:
    costs, s = table(loss="stored"), SEQ_LEN
    product = 2 * s * 4096 * 128256 / (989.4e12 * 0.75 * s / (s + 256))
    assert seconds(costs, Kind.W, 7) - seconds(costs, Kind.W, 3) == pytest.approx(product, rel=1e-6)


def test_a_perfect_gpu_does_the_models_flops_at_peak() -> None:
    """Without memory traffic or any loss, busy time × peak is FLOPs: 3.5 × attention, 3 × matrices."""
    infinite = replace(H100, memory_bandwidth=10**18)
    shape = PipelineShape(8, 1)
    options = AnalyticOptions(efficiency=PERFECT, loss="stored")
    costs = analytic_costs(LLAMA, infinite, shape, even_layers(32, 8), (SEQ_LEN,), options)
    done = float(costs.duration_ns[[Kind.F, Kind.B]].sum()) / 1e9 * H100.peak_flops
    attention = 32 * flops.attention_flops(LLAMA, SEQ_LEN, 0)
    matrices = 32 * flops.linear_flops(LLAMA, SEQ_LEN) + flops.head_flops(LLAMA, SEQ_LEN)
    assert done == pytest.approx(3 * matrices + 3.5 * attention, rel=1e-3)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("loss", ["chunked", "stored"])
def test_b_is_i_plus_w_to_the_nanosecond(recompute: str, loss: str) -> None:
    costs = table(5, lengths=(20001, 15000, 12000, 10000, 8535), recompute=recompute, loss=loss)
    split = costs.duration_ns[Kind.I] + costs.duration_ns[Kind.W]
    np.testing.assert_array_equal(costs.duration_ns[Kind.B], split)


def test_full_recompute_adds_the_layers_forward_to_backward() -> None:
    none, full, selective = (table(4, recompute=mode) for mode in ("none", "full", "selective"))
    added = full.duration_ns[Kind.B] - none.duration_ns[Kind.B]
    np.testing.assert_array_equal(added, full.duration_ns[Kind.R])
    np.testing.assert_array_equal(added[:, 1:7], full.duration_ns[Kind.F][:, 1:7])
    np.testing.assert_array_equal(selective.duration_ns, none.duration_ns)
    np.testing.assert_array_equal(selective.activation_bytes, none.activation_bytes)


def test_even_subsequences_get_dearer_and_equal_flops_ones_do_not() -> None:
    even = table(4).duration_ns[Kind.F, 0, 3]
    assert (np.diff(even) > 0).all()
    assert even[3] > 1.5 * even[0]
    lengths = equal_cost_sequence(SEQ_LEN, 4, SequenceCost.of_layer(LLAMA), multiple_of=8)
    equal = table(lengths=lengths).duration_ns[Kind.F, 0, 3]
    assert equal.max() / equal.min() < 1.1  # not 1: attention is less efficient than products


def test_short_subsequences_are_less_efficient() -> None:
    totals = [seconds(table(k), Kind.F, 3) for k in (1, 4, 16, 64, 256, 1024)]
    assert totals == sorted(totals)
    assert totals[-1] > 2 * totals[0]


def test_the_host_sets_a_floor() -> None:
    shape = PipelineShape(8, 1)
    tiny = analytic_costs(model.preset("tiny"), H100, shape, even_layers(8, 8), (8,))
    assert tiny.duration_ns[[Kind.F, Kind.I, Kind.W], 0, 3, 0].tolist() == [20 * 5000, 25 * 5000, 8 * 5000]
    slow = AnalyticOptions(efficiency=Efficiency(kernel_seconds=1e-3))
    costs = analytic_costs(LLAMA, H100, shape, even_layers(32, 8), (8,), slow)
    assert costs.duration_ns[Kind.W, 0, 3, 0] == 4 * 8 * 1_000_000


def test_tensor_parallelism_divides_work_and_adds_collectives() -> None:
    def middle(tp: int, *, links: bool = True, parallel: bool = True) -> Any:
        efficiency = Efficiency(exposed_collectives=1.0 if links else 0.0)
        options = AnalyticOptions(tp=tp, sequence_parallel=parallel, efficiency=efficiency)
        costs = analytic_costs(LLAMA, H100, PipelineShape(8, 1), even_layers(32, 8), (SEQ_LEN,), options)
        return costs.duration_ns[[Kind.F, Kind.I, Kind.W], 0, 3, 0]

    free = middle(8, links=False)
    assert middle(1) / free == pytest.approx(8, rel=0.1)  # efficiency falls a little on narrower parts
    one = 2 * SEQ_LEN * 4096 * 7 / 8 / (450e9 * 0.75) + 5e-6
    assert (middle(8) - free) / 1e9 == pytest.approx([4 * 4 * one, 4 * 4 * one, 4 * 2 * one], rel=1e-6)
    plain = middle(8, parallel=False) - middle(8, links=False, parallel=False)
    assert plain / 1e9 == pytest.approx([16 * one, 16 * one, 0], rel=1e-6)


def test_experts_see_few_tokens_each_and_are_less_efficient() -> None:
    dense = replace(LLAMA, feedforward=2048)
    sparse = replace(LLAMA, experts=64, experts_per_token=2, expert_feedforward=1024)
    shape, layers, lengths = PipelineShape(8, 1), even_layers(32, 8), (4096,)
    times = [
        analytic_costs(spec, H100, shape, layers, lengths).duration_ns[Kind.W, 0, 3, 0] for spec in (dense, sparse)
    ]
    assert times[1] > 1.5 * times[0]  # same FLOPs but for the router; 128 tokens an expert


# Whole steps


@pytest.mark.parametrize(("schedule", "k"), [("1f1b", 1), ("seq1f1b", 4)])
def test_a_step_of_llama3_8b_has_a_sane_mfu(schedule: str, k: int) -> None:
    """64k tokens on 8 H100: published runs reach 0.35 to 0.55; bubbles of m = 32 and an even cut cost some."""
    shape = PipelineShape(8, 32, 1, k)
    lengths = equal_cost_sequence(SEQ_LEN, k, SequenceCost.of_layer(LLAMA))
    costs = analytic_costs(LLAMA, H100, shape, even_layers(32, 8), lengths)
    plan = schedule_named(schedule).plan(shape)
    timeline = simulate(plan, costs, cluster_network(H100, rank_order(8)), engine="reference")
    useful = flops.model_flops(LLAMA, 32 * SEQ_LEN, SEQ_LEN)
    mfu = useful / (timeline.makespan_ns / 1e9) / (8 * H100.peak_flops)
    assert 0.30 < mfu < 0.55


# Micro-batches of different size, stages without layers


def test_microbatches_of_different_size_are_classes() -> None:
    """Field case O16: 3, 3, 2 samples; later stages must not take the first one's size."""
    options = AnalyticOptions(microbatch_sizes=(3, 3, 2))
    shape = PipelineShape(4, 3, 1, 2)
    costs = analytic_costs(LLAMA, H100, shape, even_layers(32, 4), (4096, 4096), options)
    assert costs.class_of_microbatch.tolist() == [1, 1, 0]
    assert costs.boundary_bytes[costs.class_of_microbatch, 0].tolist() == [2 * 4096 * 4096 * n for n in (3, 3, 2)]
    np.testing.assert_array_equal(2 * costs.kv_bytes[1], 3 * costs.kv_bytes[0])
    alone = analytic_costs(LLAMA, H100, shape, even_layers(32, 4), (4096, 4096), AnalyticOptions(micro_batch_size=2))
    np.testing.assert_array_equal(costs.duration_ns[:, 0], alone.duration_ns[:, 0])
    np.testing.assert_array_equal(costs.activation_bytes[0], alone.activation_bytes[0])
    two, three = costs.duration_ns[Kind.F, :, 1, 0]
    assert three / two == pytest.approx(1.5, rel=0.02)  # a little under: longer is more efficient
    assert three < 1.5 * two


def test_a_stage_may_hold_the_embedding_alone() -> None:
    """Field case O38: such a stage costs its embedding and runs."""
    layers = LayerPartition((0, 11, 11, 10), 0, 3)
    shape = PipelineShape(4, 8)
    costs = analytic_costs(LLAMA, H100, shape, layers, (4096,))
    forward = costs.duration_ns[Kind.F, 0, :, 0]
    assert 0 < forward[0] < forward[1] / 100
    assert costs.static_bytes[0] == 18 * 525_336_576
    timeline = simulate(schedule_named("1f1b").plan(shape), costs, engine="reference")
    assert timeline.makespan_ns > 8 * forward[1]


def test_a_stage_may_hold_nothing() -> None:
    layers = layout_partition("|" + "Et*16|" + "t*16|" + "L")
    costs = analytic_costs(LLAMA, H100, PipelineShape(4, 2), layers, (4096,))
    assert (costs.duration_ns[:, 0, 0] == 0).all()
    assert costs.activation_bytes[0, 0, 0] == costs.static_bytes[0] == 0
    assert costs.static_bytes[1] == 18 * (16 * 218_112_000 + 525_336_576)


# What is told, what is refused


def test_every_constant_is_explained_and_a_changed_one_says_so() -> None:
    found = {source.what: source for source in table().sources}
    for name in vars(Efficiency()):
        assert found[f"efficiency: {name}"].origin.startswith("assumed")
    assert "datasheet" in found["h100: dense BF16 operations/s of a GPU"].origin
    assert found["llama3-8b: parameters"].value == "8,030,261,248"
    changed = table(efficiency=Efficiency(matmul_max=0.5))
    assert Efficiency().matmul_max != 0.5
    line = next(source for source in changed.sources if source.what == "efficiency: matmul_max")
    assert (line.value, line.origin) == ("0.5", "given; the default is 0.75")


def test_learned_positions_longer_than_the_table_are_told() -> None:
    gpt = model.preset("gpt3-175b")
    costs = analytic_costs(gpt, H100, PipelineShape(8, 1), even_layers(96, 8), (8192,))
    line = next(source for source in costs.sources if source.what == "learned positions")
    assert line.value == "8192"
    longer = analytic_costs(gpt, H100, PipelineShape(8, 1), even_layers(96, 8), (16384,))
    assert longer.static_bytes[0] - costs.static_bytes[0] == 18 * 8192 * 12288


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 3}, "tp: 3: must divide gpus_per_node = 8 of h100"),
        ({"tp": 16}, "tp: 16: must divide gpus_per_node = 8"),
        ({"tp": 0}, "tp: 0: must be at least 1"),
        ({"micro_batch_size": 0}, "micro_batch_size: 0: must be at least 1"),
        ({"microbatch_sizes": (1, 2)}, "microbatch_sizes: 2 sizes: must be one for each of 16 micro-batches"),
        ({"microbatch_sizes": (0,) * 16}, "microbatch_sizes: 0: must be at least 1"),
        ({"recompute": "some"}, "recompute: some: must be one of none, selective, full"),
        ({"gradient": "fp8"}, "gradient: fp8: must be one of fp32, bf16"),
        ({"loss": "none"}, "loss: none: must be one of chunked, stored"),
        ({"layers": even_layers(32, 4)}, "must have devices × stages per device = 8 stages, has 4"),
        ({"layers": even_layers(30, 8)}, "must hold the model's 32 layers, holds 30"),
        ({"layers": layout_partition("E" + "t*4|" * 7 + "t*4mL")}, "multi-token-prediction layers have no analytic"),
        ({"lengths": (100, 0)}, "sequence partition: 0: must hold at least 1 token"),
        ({"lengths": (100, 60), "tp": 8}, "subsequence length: 100: must be a multiple of tp = 8 with sequence"),
    ],
)
def test_choices_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        table(**changes)
    assert "\n" not in str(caught.value)


def test_lengths_must_be_as_many_as_subsequences() -> None:
    with pytest.raises(InputError, match=r"sequence partition: \[4096\]: must be subsequences = 2 lengths"):
        analytic_costs(LLAMA, H100, PipelineShape(8, 1, 1, 2), even_layers(32, 8), (4096,))


@pytest.mark.parametrize(("name", "value"), [("matmul_max", 0), ("matmul_max", 1.5), ("kernel_seconds", -1)])
def test_efficiencies_out_of_range(name: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{name}: {value}: must be"):
        Efficiency(**{name: value})
