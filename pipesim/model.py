"""What a transformer is made of, and the parameters of each part; knows no hardware, schedule or time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pipesim.errors import InputError
from pipesim.files import is_there

_POSITIVE = ("layers", "hidden", "heads", "kv_heads", "head_size", "feedforward", "vocab")
_EXPERTS = ("experts", "experts_per_token", "expert_feedforward", "shared_expert_feedforward")


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only transformer whose layers are all alike; `source` says where its sizes come from.

    `experts` = 0 is a dense model; otherwise every layer routes each token to `experts_per_token` of them.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    feedforward: int
    vocab: int
    activation: Literal["swiglu", "gelu"]
    norm: Literal["rmsnorm", "layernorm"]
    position: Literal["rope", "learned"]
    tied_embeddings: bool
    max_positions: int = 0
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    parallel_residual: bool = False
    rope_theta: float = 10000.0
    experts: int = 0
    experts_per_token: int = 0
    expert_feedforward: int = 0
    shared_expert_feedforward: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        for field, minimum in [(f, 1) for f in _POSITIVE] + [(f, 0) for f in ("max_positions", *_EXPERTS)]:
            value = getattr(self, field)
            if value < minimum:
                raise InputError(field, value, f"must be at least {minimum}")
        if self.heads % self.kv_heads:
            raise InputError("kv_heads", self.kv_heads, f"must divide heads = {self.heads}")
        if self.position == "learned" and not self.max_positions:
            raise InputError("max_positions", 0, "must be at least 1 with learned positions")
        self._check_experts()

    def _check_experts(self) -> None:
        if not self.experts:
            return
        if not 1 <= self.experts_per_token <= self.experts:
            rule = f"must be from 1 to experts = {self.experts}"
            raise InputError("experts_per_token", self.experts_per_token, rule)
        if not self.expert_feedforward:
            raise InputError("expert_feedforward", 0, "must be at least 1 with experts")
        if self.mlp_bias:
            raise InputError("mlp_bias", True, "must be false with experts: their biases are not counted")

    # Widths: what attention works on, per token.

    @property
    def query_width(self) -> int:
        """heads × head_size: the width of the queries and of the attention output."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """kv_heads × head_size: the width of the keys, and of the values."""
        return self.kv_heads * self.head_size

    @property
    def mlp_matrices(self) -> int:
        """Matrices of size hidden × width in one MLP: gate, up, down, or just up and down."""
        return 3 if self.activation == "swiglu" else 2

    # Parameters, part by part.

    @property
    def attention_matrix_parameters(self) -> int:
        """Weights of the query, key, value and output projections of one layer."""
        return self.hidden * (2 * self.query_width + 2 * self.kv_width)

    @property
    def norm_parameters(self) -> int:
        """One norm over the hidden size."""
        return self.hidden * (2 if self.norm == "layernorm" else 1)

    def mlp_matrix_parameters(self, *, active: bool = False) -> int:
        """MLP weights of one layer, router included; `active` counts only the experts one token meets."""
        per_width = self.mlp_matrices * self.hidden
        if not self.experts:
            return per_width * self.feedforward
        used = self.experts_per_token if active else self.experts
        width = used * self.expert_feedforward + self.shared_expert_feedforward
        return per_width * width + self.hidden * self.experts

    @property
    def linear_parameters(self) -> int:
        """Matrix weights that one token is multiplied with in one layer, the base of its linear FLOPs."""
        return self.attention_matrix_parameters + self.mlp_matrix_parameters(active=True)

    @property
    def _layer_vector_parameters(self) -> int:
        """Norms and biases of one layer."""
        count = 2 * self.norm_parameters
        if self.attention_bias:
            count += self.query_width + 2 * self.kv_width
        if self.output_bias:
            count += self.hidden
        if self.mlp_bias:
            count += (self.mlp_matrices - 1) * self.feedforward + self.hidden
        if self.qk_norm:
            count += 2 * self.head_size
        return count

    @property
    def layer_parameters(self) -> int:
        """All parameters of one layer."""
        return self.attention_matrix_parameters + self.mlp_matrix_parameters() + self._layer_vector_parameters

    @property
    def embedding_parameters(self) -> int:
        """Token embedding, and learned positions where there are some."""
        return (self.vocab + self.max_positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """The output projection; 0 when it is the token embedding again."""
        return 0 if self.tied_embeddings else self.vocab * self.hidden

    @property
    def final_norm_parameters(self) -> int:
        """The norm before the head."""
        return self.norm_parameters

    @property
    def parameters(self) -> int:
        """All parameters of the model, each once."""
        rest = self.embedding_parameters + self.head_parameters + self.final_norm_parameters
        return self.layers * self.layer_parameters + rest

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: all of a dense model, the routed experts' share of the others."""
        idle = self.mlp_matrix_parameters() - self.mlp_matrix_parameters(active=True)
        return self.parameters - self.layers * idle


@cache
def _presets() -> dict[str, dict[str, Any]]:
    text = (files("pipesim.presets") / "models.json").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, Any]] = json.loads(text)
    return loaded


def preset_names() -> tuple[str, ...]:
    """Names of the models that come with pipesim, in the order of their file."""
    return tuple(_presets())


def preset(name: str) -> ModelSpec:
    """The model of that name from presets/models.json; InputError lists the names when there is none."""
    if name not in _presets():
        remedy = f"use one of {', '.join(preset_names())}, or a config.json file"
        raise InputError("model", name, "is not a known model", remedy)
    return ModelSpec(name=name, **_presets()[name])


def load(name_or_path: str | Path) -> ModelSpec:
    """A preset by name, a Hugging Face config.json (or its folder), or a JSON file of ModelSpec's own fields.

    Raises InputError for an unknown name and FileError for a file that is wrong.
    """
    path = Path(name_or_path)
    if str(name_or_path) in _presets():
        return preset(str(name_or_path))
    if path.suffix != ".json" and not is_there(path):
        return preset(str(name_or_path))
    from pipesim.model_files import read_model_file

    return read_model_file(path / "config.json" if path.is_dir() else path)
