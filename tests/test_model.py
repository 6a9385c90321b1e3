"""ModelSpec: parameter counts against published ones, reading of config.json, refusals, counts of FLOPs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipesim import flops, model
from pipesim.errors import FileError, InputError
from pipesim.json_files import read_record
from pipesim.model_files import FAMILIES

LLAMA3_8B = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "hidden_act": "silu",
    "tie_word_embeddings": False, "rope_theta": 500000.0, "attention_bias": False, "rms_norm_eps": 1e-5,
}  # fmt: skip
MISTRAL_7B = {
    "model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "sliding_window": None,
}  # fmt: skip
QWEN2_7B = {
    "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "use_sliding_window": False,
    "sliding_window": 131072, "tie_word_embeddings": False,
}  # fmt: skip
QWEN2_05B = QWEN2_7B | {
    "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
    "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip
QWEN3_8B = {
    "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936,
    "attention_bias": False, "use_sliding_window": False, "sliding_window": None, "rope_theta": 1000000,
}  # fmt: skip
QWEN3_30B_A3B = QWEN3_8B | {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
MIXTRAL_8X7B = MISTRAL_7B | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
GPT2 = {
    "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
    "vocab_size": 50257, "activation_function": "gelu_new", "n_inner": None,
}  # fmt: skip
GPT_NEOX_20B = {
    "model_type": "gpt_neox", "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
    "intermediate_size": 24576, "vocab_size": 50432, "hidden_act": "gelu_fast", "tie_word_embeddings": False,
}  # fmt: skip

# Parameter counts as their publishers or the transformers library report them.
PUBLISHED = [
    (LLAMA3_8B, 8_030_261_248),
    (MISTRAL_7B, 7_241_732_096),
    (QWEN2_7B, 7_615_616_512),
    (QWEN2_05B, 494_032_768),
    (QWEN3_8B, 8_190_735_360),
    (QWEN3_30B_A3B, 30_532_122_624),
    (MIXTRAL_8X7B, 46_702_792_704),
    (GPT2, 124_439_808),
    (GPT_NEOX_20B, 20_554_567_680),
]


def write(folder: Path, data: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.mark.parametrize(("config", "parameters"), PUBLISHED, ids=[c["model_type"] for c, _ in PUBLISHED])
def test_config_json_gives_the_published_parameter_count(
    tmp_path: Path, config: dict[str, Any], parameters: int
) -> None:
    assert model.load(write(tmp_path, config)).parameters == parameters


def test_every_family_is_tested() -> None:
    assert {config["model_type"] for config, _ in PUBLISHED} == set(FAMILIES)


def test_presets_have_their_published_parameter_count() -> None:
    counts = {name: model.preset(name).parameters for name in model.preset_names()}
    assert counts["llama3-8b"] == 8_030_261_248
    assert counts["llama3-70b"] == 70_553_706_496
    assert counts["llama2-7b"] == 6_738_415_616
    assert counts["qwen3-8b"] == 8_190_735_360
    assert 174.5e9 < counts["gpt3-175b"] < 175.5e9


def test_presets_keep_the_rules_of_files() -> None:
    for name in model.preset_names():
        read = read_record(model.ModelSpec, {"name": name, **model._presets()[name]}, Path("models.json"))
        assert read == model.preset(name)
        assert model.preset(name).source


@pytest.mark.parametrize("size", ["2.7b", "7b", "13b", "30b"])
def test_seq1f1b_presets_are_near_their_names(size: str) -> None:
    assert model.preset(f"seq1f1b-{size}").parameters == pytest.approx(float(size[:-1]) * 1e9, rel=0.05)


def test_parts_of_llama3_8b() -> None:
    """Field case O24 counts its stages from these parts."""
    spec = model.preset("llama3-8b")
    assert spec.layer_parameters == 218_112_000
    assert spec.embedding_parameters == spec.head_parameters == 525_336_576
    assert spec.final_norm_parameters == 4_096
    assert spec.active_parameters == spec.parameters


def test_tied_head_has_no_parameters_of_its_own(tmp_path: Path) -> None:
    spec = model.load(write(tmp_path, QWEN2_05B))
    assert spec.tied_embeddings
    assert spec.head_parameters == 0


def test_experts_count_in_full_and_active_per_token(tmp_path: Path) -> None:
    qwen = model.load(write(tmp_path, QWEN3_30B_A3B))
    # 128 experts, 8 used: the other 120 of every layer are idle, each three matrices of 2048 × 768.
    assert qwen.parameters - qwen.active_parameters == 48 * 120 * 3 * 2048 * 768
    assert qwen.active_parameters == pytest.approx(3.3e9, rel=0.02)
    mixtral = model.load(write(tmp_path, MIXTRAL_8X7B))
    assert mixtral.active_parameters == pytest.approx(12.9e9, rel=0.01)


def test_folder_and_own_format_and_newer_rope_field(tmp_path: Path) -> None:
    without = {key: value for key, value in LLAMA3_8B.items() if key != "rope_theta"}
    write(tmp_path, without | {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}})
    assert model.load(tmp_path).rope_theta == 500000.0
    own = tmp_path / "mine.json"
    own.write_text(json.dumps(model._presets()["tiny"]), encoding="utf-8")
    assert model.load(own).name == "mine"
    assert model.load(own).parameters == model.preset("tiny").parameters


def test_gpt2_inner_size_defaults_to_four_times_hidden(tmp_path: Path) -> None:
    assert model.load(write(tmp_path, GPT2)).feedforward == 3072
    assert model.load(write(tmp_path, GPT2 | {"n_inner": 1000})).feedforward == 1000


def drop(config: dict[str, Any], field: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != field}


TINY = model._presets()["tiny"]
NOT_COUNTED = "is not a model family that is counted here; use one of llama, mistral, qwen2"
MIXED = "must leave every layer with experts: mixed layers are not counted"
REFUSED: dict[str, tuple[object, str]] = {
    "gemma": ({"model_type": "gemma2"}, f"model_type: gemma2: {NOT_COUNTED}"),
    "no type": ({"hidden_size": 64}, f"model_type: missing: {NOT_COUNTED}"),
    "mla": (
        {"model_type": "deepseek_v3"},
        "model_type: deepseek_v3: multi-head latent attention is not counted; use one of llama",
    ),
    "window": (MISTRAL_7B | {"sliding_window": 4096}, "sliding_window: 4096: must be null: only full causal"),
    "used window": (QWEN2_7B | {"use_sliding_window": True}, "use_sliding_window: True: must be false"),
    "missing": (drop(LLAMA3_8B, "hidden_size"), "hidden_size: missing: is required"),
    "two missing": (
        drop(drop(LLAMA3_8B, "hidden_size"), "intermediate_size"),
        "missing: is required; 1 more of its fields",
    ),
    "text": (LLAMA3_8B | {"hidden_size": "4096"}, 'hidden_size: "4096": must be a valid integer'),
    "zero": (
        LLAMA3_8B | {"num_hidden_layers": 0},
        "num_hidden_layers: 0: must be greater than or equal to 1",
    ),
    "boolean": (LLAMA3_8B | {"vocab_size": True}, "vocab_size: true: must be a valid integer"),
    "fraction": (LLAMA3_8B | {"vocab_size": 1.5}, "vocab_size: 1.5: must be a valid integer"),
    "activation": (LLAMA3_8B | {"hidden_act": "relu"}, "hidden_act: \"relu\": must be 'silu' or 'swish'"),
    "kv heads": (LLAMA3_8B | {"num_key_value_heads": 5}, "num_key_value_heads: 5: must divide num_attention"),
    "heads": (GPT2 | {"n_head": 7}, "n_head: 7: must divide n_embd = 768"),
    "mixed layers": (QWEN3_30B_A3B | {"mlp_only_layers": [0]}, f"mlp_only_layers: [0]: {MIXED}"),
    "sparse step": (QWEN3_30B_A3B | {"decoder_sparse_step": 2}, f"decoder_sparse_step: 2: {MIXED}"),
    "experts": (MIXTRAL_8X7B | {"num_experts_per_tok": 9}, "num_experts_per_tok: 9: must be at most"),
    "own kv": (TINY | {"kv_heads": 3}, "kv_heads: 3: must divide heads = 4"),
    "own zero": (TINY | {"layers": 0}, "layers: 0: must be at least 1"),
    "own text": (TINY | {"layers": "8"}, 'layers: "8": must be a valid integer'),
    "own extra": (TINY | {"colour": 1}, "colour: 1: is not a field of this file"),
    "list": ([1, 2], "list: must hold one JSON object"),
}


@pytest.mark.parametrize(("data", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_file_is_one_line_with_file_field_value_and_rule(tmp_path: Path, data: object, message: str) -> None:
    path = write(tmp_path, data)
    with pytest.raises(FileError) as caught:
        model.load(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


UNREADABLE = {
    b"{": "line 1 column 2: must be JSON",
    b'{"a": NaN}': "NaN is not a JSON number",
    b'{"a": 1, "a": 2}': "'a' is given twice",
    b"\xff\xfe\x00": "must be a JSON text in UTF-8",
}


@pytest.mark.parametrize(("text", "message"), UNREADABLE.items())
def test_a_file_that_is_not_json_says_where(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(FileError, match=message):
        model.load(path)


def test_unknown_names_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model: llama9: is not a known model; use one of llama3-8b"):
        model.load("llama9")
    with pytest.raises(FileError, match="No such file"):
        model.load(tmp_path / "absent.json")


def test_attention_flops_of_the_parts_add_up_to_the_whole() -> None:
    spec = model.preset("llama3-8b")
    whole = flops.attention_flops(spec, 4096, 0)
    parts = [flops.attention_flops(spec, s, c) for s, c in [(1000, 0), (3000, 1000), (96, 4000)]]
    assert sum(parts) == whole == 2 * 4096 * 4096**2


def test_model_flops_is_six_per_weight_met_plus_causal_attention() -> None:
    spec = model.preset("llama3-8b")
    tokens, seq_len = 4 * 8192, 8192
    norms = 32 * 2 * 4096 + 4096
    matrices = spec.parameters - spec.embedding_parameters - norms
    attention = 3 * 4 * 32 * spec.query_width * seq_len // 2
    assert flops.model_flops(spec, tokens, seq_len) == tokens * (6 * matrices + attention)


def test_seq1f1b_metric_gives_the_gpus_of_the_papers_run() -> None:
    """Tokens/s and TFLOPS per GPU, both printed by the authors for 32 A100s, must imply 32.00 GPUs."""
    spec = model.preset("seq1f1b-7b")
    printed = [(32768, 48189.47, 99.67), (65536, 37342.92, 107.49), (131072, 30392.34, 136.72)]
    for seq_len, tokens_per_second, tflops in printed:
        needed = flops.seq1f1b_model_flops(spec, seq_len, seq_len) / seq_len * tokens_per_second
        assert needed / (tflops * 1e12) == pytest.approx(32.0, abs=0.002)
