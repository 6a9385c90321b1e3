"""Analytic bytes: what stages keep, in flight (O27), keys and values, logits, messages, static."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipesim.costs.analytic import AnalyticOptions, analytic_costs
from pipesim.costs.stored import Layout, layer_tensors, total
from pipesim.memory import memory_of
from pipesim.partition import LayerPartition, even_layers
from pipesim.plan import Kind, PipelineShape
from pipesim.schedules import schedule_named
from tests.costing import H100, LLAMA, SEQ_LEN, table


def test_full_recompute_in_flight_and_one_layer_more() -> None:
    """Field case O27: in flight × layers × input + one layer's full activations (and its widest gradients)."""
    spec = replace(LLAMA, layers=24)
    shape, s = PipelineShape(4, 8), 8192
    options = AnalyticOptions(recompute="full")
    costs = analytic_costs(spec, H100, shape, even_layers(24, 4), (s,), options)
    peaks = memory_of(schedule_named("1f1b").plan(shape), costs).peaks
    layer_input = 2 * s * 4096
    one_layer = total(layer_tensors(spec, Layout()), s)
    gradients = 2 * s * (4096 + 3 * 14336)
    token_numbers = 8 * s
    assert peaks[0] == 4 * (6 * layer_input + token_numbers) + one_layer + gradients
    assert peaks[1] == 3 * 6 * layer_input + one_layer + gradients
    assert peaks[2] == 2 * 6 * layer_input + one_layer + gradients


def test_activation_bytes_of_a_stage_and_keys_and_values_apart() -> None:
    whole, cut = table(), table(4)
    per_token = total(layer_tensors(LLAMA, Layout()), 1)
    kv = 2 * 2 * 1024
    assert whole.activation_bytes[0, 3, 0] == 4 * per_token * SEQ_LEN
    assert whole.kv_bytes.sum() == whole.kv_gradient_bytes.sum() == 0
    assert (cut.activation_bytes[0, 3] == 4 * (per_token - kv) * SEQ_LEN // 4).all()
    assert cut.kv_bytes[0, 3] == 4 * kv * SEQ_LEN
    assert cut.kv_gradient_bytes[0, 3] == 2 * cut.kv_bytes[0, 3]  # FP32


def test_full_recompute_keeps_keys_and_values_of_subsequences() -> None:
    costs = table(4, recompute="full")
    assert (costs.activation_bytes[0, 3] == 4 * 2 * 4096 * SEQ_LEN // 4).all()
    np.testing.assert_array_equal(costs.kv_bytes, table(4).kv_bytes)


def test_logits_are_a_chunk_or_all_kept() -> None:
    chunked, stored = table(), table(loss="stored")
    norms = SEQ_LEN * (2 * 2 * 4096 + 4)
    assert chunked.activation_bytes[0, 7, 0] - chunked.activation_bytes[0, 3, 0] == norms + 4 * SEQ_LEN
    assert stored.activation_bytes[0, 7, 0] - stored.activation_bytes[0, 3, 0] == norms + 4 * 128256 * SEQ_LEN
    assert chunked.transient_bytes[Kind.F, 0, 7, 0] == 4096 * 128256 * (2 + 4)
    assert stored.transient_bytes[Kind.F, 0, 7, 0] == SEQ_LEN * 128256 * 2


def test_bytes_until_w() -> None:
    costs = table()
    inputs = 4096 + 4096 + 4096 + 14336
    gradients = 4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096
    assert costs.weight_activation_bytes[0, 3, 0] == 4 * 2 * (inputs + gradients) * SEQ_LEN
    assert costs.weight_activation_bytes[0, 3, 0] < costs.activation_bytes[0, 3, 0]


def test_messages_are_those_of_the_whole_device() -> None:
    assert table(4).boundary_bytes.tolist() == [[2 * 4096 * SEQ_LEN // 4] * 4]
    assert table(tp=8).boundary_bytes[0, 0] == 2 * 4096 * SEQ_LEN
    assert table(tp=8, sequence_parallel=False).boundary_bytes[0, 0] == 8 * 2 * 4096 * SEQ_LEN


def test_static_bytes_follow_the_partition() -> None:
    costs = table(layers=LayerPartition((3, 5, 4, 4, 4, 4, 5, 3), 0, 7))
    assert costs.static_bytes[0] == 18 * (3 * 218_112_000 + 525_336_576)
    assert costs.static_bytes[1] == 18 * 5 * 218_112_000
    assert costs.static_bytes[7] == 18 * (3 * 218_112_000 + 525_336_576 + 4096)
    shared = table(distributed_optimizer=True, dp=4)
    assert shared.static_bytes[1] == (6 + 3) * 4 * 218_112_000
