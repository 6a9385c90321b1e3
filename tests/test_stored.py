"""Stored tensors and static bytes: Korthikanti's counts (O26), recompute (O27), stages (O23, O24)."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from pipesim import model
from pipesim.costs.static import PartParameters, gpu_parameters, stage_parameters, static_bytes
from pipesim.costs.stored import Layout, Stored, gradients_until_w, kept, layer_tensors, total
from pipesim.errors import InputError
from pipesim.partition import LayerPartition, even_layers

if TYPE_CHECKING:
    from collections.abc import Iterable

GPT3 = model.preset("gpt3-175b")
S, H, A = 2048, 12288, 96  # the sizes of field case O26, one sequence


def beyond_korthikanti(tensors: Iterable[Stored]) -> int:
    """Bytes of what their formula leaves out: statistics of norms and of flash attention."""
    return total([t for t in tensors if "statistics" in t.name or "log-sum-exp" in t.name], S, S)


@pytest.mark.parametrize(
    ("attention", "recompute", "expected"),
    [
        ("unfused", "none", 34 * S * H + 5 * A * S * S),
        ("unfused", "selective", 34 * S * H),
        ("flash", "none", 34 * S * H),
        ("flash", "selective", 34 * S * H),
        ("flash", "full", 2 * S * H),
        ("unfused", "full", 2 * S * H),
    ],
)
def test_bytes_of_a_gpt_layer(attention: str, recompute: str, expected: int) -> None:
    """Field case O26: selective recompute saves the square of scores, which flash attention never keeps."""
    layout = Layout(dropout=True, attention=attention)  # type: ignore[arg-type]
    tensors = kept(layer_tensors(GPT3, layout), recompute)  # type: ignore[arg-type]
    assert total(tensors, S, S) - beyond_korthikanti(tensors) == expected


def test_the_numbers_of_field_case_o26() -> None:
    assert 34 * S * H + 5 * A * S * S == 2_868_903_936
    assert 34 * S * H == 855_638_016
    assert 2 * S * H == 50_331_648


def test_what_korthikanti_leaves_out_is_small_and_known() -> None:
    tensors = layer_tensors(GPT3, Layout(dropout=True))
    norms, log_sum_exp = 2 * 2 * 4, 4 * A
    assert beyond_korthikanti(tensors) == S * (norms + log_sum_exp)
    assert beyond_korthikanti(tensors) < 0.001 * total(tensors, S, S)


def test_tensor_and_sequence_parallel_divide_as_published() -> None:
    """Korthikanti et al., equations 2 and 4: s·b·h(10 + 24/t), with sequence parallelism s·b·h·34/t."""
    for tp in (2, 8):
        for parallel, expected in ((False, S * H * 10 + S * H * 24 // tp), (True, S * H * 34 // tp)):
            tensors = layer_tensors(GPT3, Layout(tp, parallel, dropout=True))
            assert total(tensors, S) - beyond_korthikanti(tensors) == expected


def test_the_layer_of_llama3_8b() -> None:
    """Two norm inputs, two norm outputs, q, k, v, attention output, gate, up, product: 16-bit each."""
    spec = model.preset("llama3-8b")
    widths = 4 * 4096 + 4096 + 2 * 1024 + 4096 + 3 * 14336
    statistics = 2 * 4 + 32 * 4
    assert total(layer_tensors(spec, Layout()), 1) == 2 * widths + statistics


def test_experts_keep_what_their_tokens_keep() -> None:
    dense = model.preset("llama3-8b")
    sparse = replace(dense, experts=8, experts_per_token=2, expert_feedforward=1024, feedforward=2048)
    names = {t.name: t.per_token for t in layer_tensors(sparse, Layout())}
    assert names["expert gate and up"] == 2 * 2 * 2 * 1024
    assert names["expert inputs"] == names["expert outputs"] == 2 * 2 * 4096
    assert names["router logits"] == 4 * 8


def test_a_parallel_residual_keeps_its_input_once() -> None:
    spec = replace(GPT3, parallel_residual=True)
    assert total(layer_tensors(GPT3, Layout()), S) - total(layer_tensors(spec, Layout()), S) == 2 * S * H


def test_kept_until_w_is_what_the_zero_bubble_papers_count() -> None:
    """Inputs of the matrices and gradients of their outputs: 32·s·b·h of GPT's 34 (field case O25)."""
    inputs = sum(t.per_token for t in layer_tensors(GPT3, Layout()) if t.role in ("linear", "down"))
    assert inputs + gradients_until_w(GPT3, Layout()) == 32 * H


def test_more_gpus_than_key_heads_copy_them() -> None:
    spec = model.preset("llama3-8b")  # 8 key/value heads
    assert Layout(8).kv_width(spec) == 128
    assert Layout(16).kv_width(spec) == 128
    Layout(16).check(spec)


@pytest.mark.parametrize(
    ("tp", "message"),
    [(0, "tp: 0: must be at least 1"), (3, "tp: 3: must divide heads = 32"), (64, "tp: 64: must divide heads = 32")],
)
def test_tp_that_does_not_divide(tp: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Layout(tp).check(model.preset("llama3-8b"))
    with pytest.raises(InputError, match="tp: 4: must divide kv_heads = 6"):
        Layout(4).check(replace(model.preset("llama3-8b"), heads=24, kv_heads=6))


# Static bytes


def test_a_stage_holds_its_own_parts() -> None:
    """Field case O23: an even share of all parameters says 325 where the last stage holds 550."""
    parts = PartParameters(layer=100, embedding=250, head=250)
    counts = stage_parameters(LayerPartition((1, 2, 2, 3), 0, 3), parts)
    assert counts == (350, 200, 200, 550)
    assert static_bytes(counts[3]) == 9_900


def test_stages_of_llama3_8b_and_the_v_shape() -> None:
    """Field case O24: a V-shaped placement puts embedding and head on one device."""
    spec = model.preset("llama3-8b")
    parts = gpu_parameters(spec, Layout())
    counts = stage_parameters(even_layers(32, 4), parts)
    assert counts == (2_270_232_576, 1_744_896_000, 1_744_896_000, 2_270_236_672)
    assert sum(counts) == spec.parameters
    halves = stage_parameters(even_layers(32, 8), parts)
    v_shaped = [halves[device] + halves[7 - device] for device in range(4)]
    assert v_shaped == [2_795_573_248, 1_744_896_000, 1_744_896_000, 1_744_896_000]
    assert static_bytes(v_shaped[0]) - static_bytes(counts[0]) == 9_456_132_096


def test_optimizer_bytes() -> None:
    assert static_bytes(1000) == 18_000
    assert static_bytes(1000, gradient="bf16") == 16_000
    assert static_bytes(1000, dp=8) == 18_000  # replicas alone divide nothing
    assert static_bytes(1000, distributed_optimizer=True, dp=8) == 6_000 + 1_500
    assert static_bytes(1, distributed_optimizer=True, dp=8) == 6 + 2  # rounded up


@pytest.mark.parametrize("name", ["llama3-8b", "qwen3-8b", "seq1f1b-7b", "gpt3-175b"])
def test_parameters_on_one_gpu(name: str) -> None:
    spec = model.preset(name)
    whole = gpu_parameters(spec, Layout())
    assert whole.layer == spec.layer_parameters
    assert whole.embedding == spec.embedding_parameters
    part = gpu_parameters(spec, Layout(8))
    # Norms and biases after a reduction are on all 8, everything else once: 7 copies more in all.
    copied = 2 * spec.norm_parameters + (spec.output_bias + spec.mlp_bias) * spec.hidden
    copied += 2 * spec.head_size * spec.qk_norm
    assert 8 * part.layer == whole.layer + 7 * copied


def test_a_tied_head_is_a_copy_on_another_stage() -> None:
    parts = PartParameters(layer=10, embedding=100, head=100, tied=True)
    assert stage_parameters(even_layers(4, 2), parts) == (120, 120)
    assert stage_parameters(even_layers(4, 1), parts) == (140,)


def test_vocabulary_is_padded_to_tp() -> None:
    odd = replace(model.preset("llama3-8b"), vocab=50257)
    assert gpu_parameters(odd, Layout(8)).head == 6283 * 4096


def test_sizes_are_rounded_once() -> None:
    assert total([Stored("a", Fraction(1, 3)), Stored("b", Fraction(1, 3))], 2) == 2
    assert total([], 5) == 0
