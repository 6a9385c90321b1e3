"""ModelSpec from a Hugging Face config.json, or from a file of ModelSpec's own fields; knows no presets.

Families: llama, mistral, qwen2, qwen3, gpt2, gpt_neox, and with experts mixtral and qwen3_moe. What a family
can express but ModelSpec cannot (a sliding window, dense layers among layers of experts) is refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pipesim.errors import FileError
from pipesim.json_files import read_object, read_record, validated
from pipesim.model import ModelSpec

if TYPE_CHECKING:
    from pathlib import Path

# No model comes near the upper bound; it turns a slip of the keyboard into an error, not a later overflow.
Size = Annotated[int, Field(ge=1, le=2**28)]
_NOT_COUNTED = {
    "deepseek_v2": "multi-head latent attention is not counted",
    "deepseek_v3": "multi-head latent attention is not counted",
}


class _Config(BaseModel):
    """Fields every family has; unknown fields are left alone, known ones must have the right type."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    vocab_size: Size

    def refused(self) -> tuple[str, object, str, str] | None:
        """(field, value, rule, remedy) of what this family can express and ModelSpec cannot."""
        return None

    def spec(self) -> dict[str, Any]:
        raise NotImplementedError  # every family below has its own


class _RopeParameters(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    rope_theta: Annotated[float, Field(gt=0)] = 10000.0


class _Llama(_Config):
    """llama, and what the other gated families share with it."""

    hidden_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    intermediate_size: Size
    hidden_act: Literal["silu", "swish"] = "silu"
    tie_word_embeddings: bool = False
    rope_theta: Annotated[float, Field(gt=0)] | None = None
    rope_parameters: _RopeParameters | None = None
    attention_bias: bool = False
    mlp_bias: bool = False

    def refused(self) -> tuple[str, object, str, str] | None:
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        if kv_heads is not None and heads % kv_heads:
            return "num_key_value_heads", kv_heads, f"must divide num_attention_heads = {heads}", ""
        if self.head_dim is None and self.hidden_size % heads:
            rule = f"must divide hidden_size = {self.hidden_size}"
            return "num_attention_heads", heads, rule, "give head_dim where it is not their quotient"
        return None

    def spec(self) -> dict[str, Any]:
        theta = self.rope_parameters.rope_theta if self.rope_parameters else 10000.0
        return {
            "layers": self.num_hidden_layers,
            "hidden": self.hidden_size,
            "heads": self.num_attention_heads,
            "kv_heads": self.num_key_value_heads or self.num_attention_heads,
            "head_size": self.head_dim or self.hidden_size // self.num_attention_heads,
            "feedforward": self.intermediate_size,
            "vocab": self.vocab_size,
            "activation": "swiglu",
            "norm": "rmsnorm",
            "position": "rope",
            "tied_embeddings": self.tie_word_embeddings,
            "attention_bias": self.attention_bias,
            "output_bias": self.attention_bias,
            "mlp_bias": self.mlp_bias,
            "rope_theta": self.rope_theta or theta,
        }


_WINDOW_RULE = "must be null: only full causal attention is counted"
_WINDOW_REMEDY = "set it to null to count full attention"


class _Mistral(_Llama):
    """The library's default of num_key_value_heads is not the number of heads, so the file must say it."""

    num_key_value_heads: Size
    sliding_window: int | None = None

    def refused(self) -> tuple[str, object, str, str] | None:
        if self.sliding_window is not None:
            return "sliding_window", self.sliding_window, _WINDOW_RULE, _WINDOW_REMEDY
        return super().refused()

    def spec(self) -> dict[str, Any]:
        return super().spec() | {"attention_bias": False, "output_bias": False, "mlp_bias": False}


class _Mixtral(_Mistral):
    num_local_experts: Size
    num_experts_per_tok: Size

    def refused(self) -> tuple[str, object, str, str] | None:
        return _too_many_experts(self.num_experts_per_tok, self.num_local_experts) or super().refused()

    def spec(self) -> dict[str, Any]:
        return super().spec() | {
            "experts": self.num_local_experts,
            "experts_per_token": self.num_experts_per_tok,
            "expert_feedforward": self.intermediate_size,
        }


class _Qwen2(_Llama):
    num_key_value_heads: Size
    use_sliding_window: bool = False

    def refused(self) -> tuple[str, object, str, str] | None:
        if self.use_sliding_window:
            rule = "must be false: only full causal attention is counted"
            return "use_sliding_window", True, rule, "set it to false to count full attention"
        return super().refused()

    def spec(self) -> dict[str, Any]:
        return super().spec() | {"attention_bias": True, "output_bias": False, "mlp_bias": False}


class _Qwen3(_Qwen2):
    head_dim: Size

    def spec(self) -> dict[str, Any]:
        biases = {"attention_bias": self.attention_bias, "output_bias": self.attention_bias}
        return super().spec() | biases | {"qk_norm": True}


class _Qwen3Moe(_Qwen3):
    num_experts: Size
    num_experts_per_tok: Size
    moe_intermediate_size: Size
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] = Field(default_factory=list)

    def refused(self) -> tuple[str, object, str, str] | None:
        rule = "must leave every layer with experts: mixed layers are not counted"
        if self.decoder_sparse_step != 1:
            return "decoder_sparse_step", self.decoder_sparse_step, rule, "use 1"
        if self.mlp_only_layers:
            return "mlp_only_layers", self.mlp_only_layers, rule, "use []"
        return _too_many_experts(self.num_experts_per_tok, self.num_experts) or super().refused()

    def spec(self) -> dict[str, Any]:
        return super().spec() | {
            "experts": self.num_experts,
            "experts_per_token": self.num_experts_per_tok,
            "expert_feedforward": self.moe_intermediate_size,
        }


def _too_many_experts(used: int, experts: int) -> tuple[str, object, str, str] | None:
    if used <= experts:
        return None
    return "num_experts_per_tok", used, f"must be at most the number of experts = {experts}", ""


_Gelu = Literal["gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"]


class _Gpt2(_Config):
    n_embd: Size
    n_layer: Size
    n_head: Size
    n_positions: Size
    n_inner: Size | None = None
    activation_function: _Gelu = "gelu_new"
    tie_word_embeddings: bool = True

    def refused(self) -> tuple[str, object, str, str] | None:
        if self.n_embd % self.n_head:
            return "n_head", self.n_head, f"must divide n_embd = {self.n_embd}", ""
        return None

    def spec(self) -> dict[str, Any]:
        inner = self.n_inner or 4 * self.n_embd
        return _gpt(self.n_layer, self.n_embd, self.n_head, inner, self.vocab_size) | {
            "position": "learned",
            "max_positions": self.n_positions,
            "tied_embeddings": self.tie_word_embeddings,
        }


class _GptNeox(_Config):
    hidden_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    intermediate_size: Size
    hidden_act: _Gelu = "gelu"
    tie_word_embeddings: bool = False
    attention_bias: bool = True
    use_parallel_residual: bool = True
    rotary_emb_base: Annotated[float, Field(gt=0)] = 10000.0

    def refused(self) -> tuple[str, object, str, str] | None:
        if self.hidden_size % self.num_attention_heads:
            rule = f"must divide hidden_size = {self.hidden_size}"
            return "num_attention_heads", self.num_attention_heads, rule, ""
        return None

    def spec(self) -> dict[str, Any]:
        layers, hidden, heads = self.num_hidden_layers, self.hidden_size, self.num_attention_heads
        return _gpt(layers, hidden, heads, self.intermediate_size, self.vocab_size) | {
            "position": "rope",
            "tied_embeddings": self.tie_word_embeddings,
            "attention_bias": self.attention_bias,
            "output_bias": self.attention_bias,
            "parallel_residual": self.use_parallel_residual,
            "rope_theta": self.rotary_emb_base,
        }


def _gpt(layers: int, hidden: int, heads: int, feedforward: int, vocab: int) -> dict[str, Any]:
    """What gpt2 and gpt_neox share: LayerNorm, GELU, biases everywhere, one key head per query head."""
    return {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_size": hidden // heads,
        "feedforward": feedforward,
        "vocab": vocab,
        "activation": "gelu",
        "norm": "layernorm",
        "attention_bias": True,
        "output_bias": True,
        "mlp_bias": True,
    }


_FAMILIES: dict[str, type[_Config]] = {
    "llama": _Llama,
    "mistral": _Mistral,
    "qwen2": _Qwen2,
    "qwen3": _Qwen3,
    "gpt2": _Gpt2,
    "gpt_neox": _GptNeox,
    "mixtral": _Mixtral,
    "qwen3_moe": _Qwen3Moe,
}
FAMILIES = tuple(_FAMILIES)


def read_model_file(path: Path) -> ModelSpec:
    """A model from a config.json of a known family or from a file of ModelSpec's fields.

    Raises FileError, one line: file and field, value, rule, remedy.
    """
    data = read_object(path)
    if "model_type" not in data and "layers" in data:
        return read_record(ModelSpec, {"name": path.stem, "source": str(path)} | data, path)
    return _from_family(data, path)


def _from_family(data: dict[str, Any], path: Path) -> ModelSpec:
    family = data.get("model_type", "missing")
    known = f"use one of {', '.join(FAMILIES)}"
    if not isinstance(family, str) or family not in _FAMILIES:
        rule = _NOT_COUNTED.get(str(family), "is not a model family that is counted here")
        raise FileError(f"{path}: model_type", str(family), rule, known)
    config = validated(_FAMILIES[family], data, path)
    if (refusal := config.refused()) is not None:
        field, value, rule, remedy = refusal
        raise FileError(f"{path}: {field}", value, rule, remedy)
    name = (path.absolute().parent.name if path.name == "config.json" else path.stem) or family
    return ModelSpec(name=name, source=f"{path} ({family})", **config.spec())
