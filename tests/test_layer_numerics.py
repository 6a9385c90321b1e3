"""Layers run as subsequences give loss and gradients of the whole sequence, checked against plain torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402  (torch may be missing)

from calibration.layer import IGNORED_TARGET, Stage  # noqa: E402
from calibration.layer.attention import KeyValues, attend  # noqa: E402
from pipesim.errors import InputError  # noqa: E402
from pipesim.model import ModelSpec  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

pytestmark = pytest.mark.torch

LENGTH, BATCH, LAYERS = 24, 2, 3
LLAMA = ModelSpec(
    name="numerics", layers=LAYERS, hidden=32, heads=4, kv_heads=2, head_size=8, feedforward=48, vocab=40,
    activation="swiglu", norm="rmsnorm", position="rope", tied_embeddings=False, max_positions=0,
    attention_bias=False, output_bias=False, mlp_bias=False, qk_norm=False, source="made for this test",
)  # fmt: skip
GPT = replace(
    LLAMA, kv_heads=4, activation="gelu", norm="layernorm", position="learned", max_positions=LENGTH,
    tied_embeddings=True, attention_bias=True, output_bias=True, mlp_bias=True,
)  # fmt: skip
MODELS = {
    "mha": replace(LLAMA, kv_heads=4),
    "gqa": LLAMA,
    "mqa": replace(LLAMA, kv_heads=1),
    "gpt2": GPT,
    "qwen3": replace(LLAMA, qk_norm=True, head_size=16),
    "neox": replace(GPT, parallel_residual=True, position="rope", max_positions=0, tied_embeddings=False),
}
CUTS = {
    "whole": (24,),
    "even": (6, 6, 6, 6),
    "unequal": (11, 7, 4, 2),
    "ones": (1,) * 24,
    "end in one": (23, 1),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Several threads wait for each other where the machine has other work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def batch(model: ModelSpec) -> tuple[Tensor, Tensor]:
    """Tokens and targets [BATCH, LENGTH], some targets ignored."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(model.vocab, (BATCH, LENGTH), generator=generator)
    targets = torch.randint(model.vocab, (BATCH, LENGTH), generator=generator)
    targets[0, 5:9] = IGNORED_TARGET
    return tokens, targets


def whole_model(model: ModelSpec, **kind: object) -> Stage:
    return Stage(model, range(model.layers), has_embedding=True, has_head=True, seed=7, **kind)


def plain_layer(model: ModelSpec, layer: torch.nn.Module, x: Tensor) -> Tensor:  # noqa: C901 (one place)
    """The layer again, from torch's own operations and a built mask; shares no code with calibration."""

    def norm(part: torch.nn.Module, y: Tensor) -> Tensor:
        if part.bias is not None:
            return functional.layer_norm(y, (y.shape[-1],), part.weight, part.bias, 1e-5)
        return y / (y.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * part.weight

    def rotate(y: Tensor) -> Tensor:
        half = model.head_size // 2
        angles = torch.arange(LENGTH, dtype=y.dtype)[:, None] * model.rope_theta ** (
            -torch.arange(half, dtype=y.dtype) / half
        )
        turn = torch.polar(torch.ones_like(angles), angles)[None, :, None]
        turned = torch.complex(y[..., :half], y[..., half:]) * turn
        return torch.cat([turned.real, turned.imag], -1)

    def linear(part: torch.nn.Module, y: Tensor) -> Tensor:
        return functional.linear(y, part.weight, part.bias)

    def attention(y: Tensor) -> Tensor:
        size, groups = model.head_size, model.heads // model.kv_heads
        q, k, v = linear(layer.qkv, y).split([model.heads * size, *[model.kv_heads * size] * 2], -1)
        q, k, v = (t.unflatten(-1, (-1, size)) for t in (q, k, v))
        if model.qk_norm:
            q, k = norm(layer.q_norm, q), norm(layer.k_norm, k)
        if model.position == "rope":
            q, k = rotate(q), rotate(k)
        k, v = k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)
        scores = torch.einsum("bshd,bthd->bhst", q, k) / size**0.5
        ahead = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(ahead, float("-inf")).softmax(-1)
        return linear(layer.attention_out, torch.einsum("bhst,bthd->bshd", weights, v).flatten(2))

    def mlp(y: Tensor) -> Tensor:
        wide = linear(layer.up, y)
        if model.activation == "gelu":
            return linear(layer.down, functional.gelu(wide, approximate="tanh"))
        gate, up = wide.chunk(2, -1)
        return linear(layer.down, gate * torch.sigmoid(gate) * up)

    attended = attention(norm(layer.attention_norm, x))
    if model.parallel_residual:
        return x + attended + mlp(norm(layer.mlp_norm, x))
    x = x + attended
    return x + mlp(norm(layer.mlp_norm, x))


def plain(model: ModelSpec, like: Stage | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of the whole sequence by plain float64 autograd, on the parameters of a Stage."""
    stage = whole_model(model, dtype=torch.float64)
    if like is not None:
        stage.load_state_dict(like.state_dict())
    tokens, targets = batch(model)
    x = functional.embedding(tokens, stage.embedding.weight)
    if model.position == "learned":
        x = x + stage.embedding.position[:LENGTH]
    for layer in stage.layers.values():
        x = plain_layer(model, layer, x)
    final = stage.final_norm
    if final.bias is None:
        x = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * final.weight
    else:
        x = functional.layer_norm(x, (model.hidden,), final.weight, final.bias, 1e-5)
    logits = functional.linear(x, stage.head.weight)
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED_TARGET)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in stage.named_parameters()}


def run_cut(stages: Sequence[Stage], lengths: Sequence[int], split: bool) -> Tensor:
    """All subsequences forward, then all backward (or I, with W after every I); returns the loss."""
    tokens, targets = batch(stages[0].model)
    valid = int((targets != IGNORED_TARGET).sum())
    microbatches = [stage.new_microbatch(BATCH, lengths, valid) for stage in stages]
    loss, stop = torch.zeros((), dtype=torch.float64), 0
    for j, length in enumerate(lengths):
        start, stop = stop, stop + length
        x = tokens[:, start:stop]
        for stage, microbatch in zip(stages[:-1], microbatches[:-1], strict=True):
            x = stage.forward(microbatch, j, x)
        loss += stages[-1].forward(microbatches[-1], j, x, targets[:, start:stop])
    for j in reversed(range(len(lengths))):
        grad = None
        for stage, microbatch in zip(reversed(stages), reversed(microbatches), strict=True):
            grad = (stage.backward_input if split else stage.backward)(microbatch, j, grad)
        assert grad is None
    if split:
        for stage, microbatch in zip(stages, microbatches, strict=True):
            for j in range(len(lengths)):
                stage.backward_weight(microbatch, j)
    return loss


def gradients(stages: Sequence[Stage]) -> dict[str, Tensor]:
    """Gradients by name; the two copies of a tied matrix added, as whoever runs the stages must do."""
    found = {name: p.grad for stage in stages for name, p in stage.named_parameters()}
    if len(stages) > 1 and stages[0].model.tied_embeddings:
        found["embedding.weight"] = found["embedding.weight"] + found.pop("head.weight")
    return found


def worst_relative_error(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    assert got.keys() == wanted.keys()
    return max(float((got[n] - wanted[n]).abs().max() / wanted[n].abs().max()) for n in wanted)


@pytest.mark.parametrize("split", [False, True], ids=["B", "I then W"])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", MODELS)
def test_any_cut_equals_the_plain_whole_sequence(name: str, cut: str, split: bool) -> None:
    loss, wanted = plain(MODELS[name])
    stage = whole_model(MODELS[name], dtype=torch.float64)
    got = run_cut([stage], CUTS[cut], split)
    assert abs(float(got / loss - 1)) < 1e-10
    assert worst_relative_error(gradients([stage]), wanted) < 1e-10


@pytest.mark.parametrize("split", [False, True], ids=["B", "I then W"])
@pytest.mark.parametrize("name", ["gqa", "gpt2"])
def test_any_partition_into_stages_is_the_same_model(name: str, split: bool) -> None:
    model = MODELS[name]
    loss, wanted = plain(model)
    layer_ranges = (range(1), range(1, 3), range(3, 3))  # the last one holds the head alone
    stages = [
        Stage(model, layers, has_embedding=n == 0, has_head=n == 2, seed=7, dtype=torch.float64)
        for n, layers in enumerate(layer_ranges)
    ]
    got = run_cut(stages, CUTS["unequal"], split)
    assert abs(float(got / loss - 1)) < 1e-10
    assert worst_relative_error(gradients(stages), wanted) < 1e-10


@pytest.mark.parametrize(("dtype", "total"), [(None, 512), (torch.bfloat16, 256)])
def test_gradients_of_keys_and_values_are_summed_in_float32_for_bf16(dtype: torch.dtype | None, total: int) -> None:
    """512 gradients of 1: a bf16 sum would stop at 256, whose next neighbour is 258; the default does not."""
    kept = KeyValues(torch.ones(1, 1, 1, 1, dtype=torch.bfloat16), 512, dtype)
    assert kept.gradient_dtype is (dtype or torch.float32)
    for start in reversed(range(512)):
        one = torch.ones(1, start + 1, 1, 1, dtype=torch.bfloat16)
        dk, dv = kept.add_gradients(one, one, start)
    assert dk.dtype is dv.dtype is torch.bfloat16
    assert float(dk) == float(dv) == total
    assert kept.gradients is None


def test_bf16_stage_stays_near_float64() -> None:
    stage = whole_model(LLAMA, dtype=torch.bfloat16)
    exact, wanted = plain(LLAMA, like=stage)
    loss = run_cut([stage], CUTS["ones"], split=False)
    assert abs(float(loss / exact - 1)) < 2e-3
    for name, p in stage.named_parameters():
        assert float((p.grad.double() - wanted[name]).norm() / wanted[name].norm()) < 0.05, name


@pytest.mark.parametrize("prefix", [0, 1, 7, 40])
def test_attention_with_a_prefix_is_the_last_rows_of_the_square(prefix: int) -> None:
    s, generator = 9, torch.Generator().manual_seed(1)
    n = prefix + s
    q = torch.randn(1, n, 4, 8, dtype=torch.float64, generator=generator)
    k, v = (torch.randn(1, n, 2, 8, dtype=torch.float64, generator=generator) for _ in range(2))
    torch.testing.assert_close(attend(q[:, prefix:], k, v), attend(q, k, v)[:, prefix:], rtol=1e-12, atol=1e-12)


def test_the_order_of_ops_is_asserted() -> None:
    stage = whole_model(LLAMA)
    tokens, targets = batch(LLAMA)
    microbatch = stage.new_microbatch(BATCH, (12, 12))
    with pytest.raises(AssertionError, match="forward of subsequence 1, but 0 is next"):
        stage.forward(microbatch, 1, tokens[:, 12:], targets[:, 12:])
    stage.forward(microbatch, 0, tokens[:, :12], targets[:, :12])
    with pytest.raises(AssertionError, match="backward of subsequence 1 before its forward"):
        stage.backward(microbatch, 1)
    stage.forward(microbatch, 1, tokens[:, 12:], targets[:, 12:])
    with pytest.raises(AssertionError, match="backward of subsequence 0, but 1 is next"):
        stage.backward(microbatch, 0)
    stage.backward_input(microbatch, 1)
    with pytest.raises(AssertionError, match="backward of subsequence 1, but 0 is next"):
        stage.backward(microbatch, 1)
    stage.backward_weight(microbatch, 1)
    with pytest.raises(AssertionError, match="weight gradient of subsequence 1"):
        stage.backward_weight(microbatch, 1)


def test_split_backward_leaves_no_matrix_gradient_before_its_w() -> None:
    stage = whole_model(LLAMA)
    tokens, targets = batch(LLAMA)
    microbatch = stage.new_microbatch(BATCH, (LENGTH,))
    stage.forward(microbatch, 0, tokens, targets)
    stage.backward_input(microbatch, 0)
    done = {name for name, p in stage.named_parameters() if p.grad is not None}
    assert done == {name for name, _ in stage.named_parameters() if "norm" in name}
    stage.backward_weight(microbatch, 0)
    assert all(p.grad is not None for p in stage.parameters())
    assert microbatch.kept == [None] * LAYERS


def test_experts_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="experts"):
        whole_model(replace(LLAMA, experts=8, experts_per_token=2, expert_feedforward=16))
