"""The stated model of how much of a GPU's peak is reached; knows no model and no schedule.

Every constant is a field that can be replaced, with a default and a line on where it comes from. A calibration
profile replaces all of it by measured times.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from pipesim.costs.table import Source
from pipesim.errors import InputError

_ORIGINS = {
    "matmul_max": "assumed: large BF16 products reach 0.7 to 0.8 of the dense peak on A100 and H100",
    "matmul_half_tokens": "assumed: tokens at which a product reaches half of matmul_max",
    "attention_forward_max": "assumed between FlashAttention-2 on A100 (about 0.6 of peak, arXiv 2307.08691) and "
    "on H100 (about 0.35); FlashAttention-3 reaches 0.65 there (arXiv 2407.08608)",
    "attention_backward_max": "assumed: the backward of the same kernels reaches about 0.8 of their forward rate",
    "attention_half_rows": "assumed: query tokens × heads on one GPU at which attention reaches half its rate",
    "memory_max": "assumed: streaming kernels reach about 0.8 of the memory bandwidth",
    "link_max": "assumed: collectives inside a node reach about 0.75 of the link rate",
    "exposed_collectives": "assumed: part of tensor-parallel collectives that nothing overlaps",
    "kernel_seconds": "assumed: issuing one kernel takes the host about 5 µs",
    "forward_kernels": "assumed: kernels of one layer's forward in an implementation with fused norms and MLP",
    "input_gradient_kernels": "assumed: kernels of one layer's input-gradient part",
    "weight_gradient_kernels": "assumed: kernels of one layer's weight-gradient part",
}


@dataclass(frozen=True)
class Efficiency:
    """Parts of peak rates, and the floor that issuing kernels sets.

    A product over t tokens runs at matmul_max × t / (t + matmul_half_tokens) of peak; attention likewise in
    rows = query tokens × heads; norms and activations at memory_max of the memory bandwidth.
    """

    matmul_max: float = 0.75
    matmul_half_tokens: float = 256.0
    attention_forward_max: float = 0.55
    attention_backward_max: float = 0.45
    attention_half_rows: float = 4096.0
    memory_max: float = 0.80
    link_max: float = 0.75
    exposed_collectives: float = 1.0
    kernel_seconds: float = 5e-6
    forward_kernels: int = 20
    input_gradient_kernels: int = 25
    weight_gradient_kernels: int = 8

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            part_of_peak = field.name.endswith("_max")
            if not 0 <= value < float("inf") or (part_of_peak and not 0 < value <= 1):
                raise InputError(
                    field.name, value, "must be above 0, at most 1" if part_of_peak else "must be at least 0"
                )

    def matmul(self, tokens: float) -> float:
        """Part of peak of a product over `tokens` tokens."""
        return self.matmul_max * _saturation(tokens, self.matmul_half_tokens)

    def attention(self, rows: float, *, backward: bool) -> float:
        """Part of peak of attention over `rows` query tokens × heads."""
        most = self.attention_backward_max if backward else self.attention_forward_max
        return most * _saturation(rows, self.attention_half_rows)

    def sources(self) -> tuple[Source, ...]:
        """Each constant, its value and where it comes from; replaced ones say so."""
        defaults = {field.name: field.default for field in fields(self)}
        return tuple(
            Source(f"efficiency: {name}", f"{getattr(self, name):g}", _origin(name, getattr(self, name), default))
            for name, default in defaults.items()
        )


def _origin(name: str, value: float, default: object) -> str:
    return _ORIGINS[name] if value == default else f"given; the default is {default:g}"


def _saturation(amount: float, half: float) -> float:
    return amount / (amount + half)
