"""Unit costs: F and B (or F, I, W) of one micro-batch on one device's whole share; knows no hardware."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from pipesim.costs.table import CostTable, Source
from pipesim.errors import InputError
from pipesim.network import Network
from pipesim.plan import Kind
from pipesim.units import NS_PER_S, exact_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pipesim.plan import PipelineShape

_WHERE = "--unit-costs"


@dataclass(frozen=True)
class UnitCosts:
    """Times of one micro-batch on one device's whole share; a stage and subsequence take 1/(v·k) of them.

    latency is a pure delay on each hop; transfer the port time of one micro-batch's boundary tensor (a subsequence
    takes transfer/k). `stage_weights` [stages] scale the ops of single stages, `microbatch_sizes` [m] those of
    single micro-batches. activation_bytes are those of one micro-batch on one device's share, of which
    weight_activation_bytes stay from I until W. All exact. Raises InputError on negative times and on weights of
    the wrong length.
    """

    forward: Fraction
    input_gradient: Fraction
    weight_gradient: Fraction
    split: bool = False
    latency: Fraction = Fraction(0)
    transfer: Fraction = Fraction(0)
    stage_weights: tuple[Fraction, ...] = ()
    microbatch_sizes: tuple[Fraction, ...] = ()
    activation_bytes: int = 0
    weight_activation_bytes: int = 0

    def __post_init__(self) -> None:
        for name in (
            "forward",
            "input_gradient",
            "weight_gradient",
            "latency",
            "transfer",
            "activation_bytes",
        ):
            if getattr(self, name) < 0:
                raise InputError(name, str(getattr(self, name)), "must not be negative")
        if not 0 <= self.weight_activation_bytes <= self.activation_bytes:
            raise InputError(
                "weight_activation_bytes", self.weight_activation_bytes, "must be a part of activation_bytes"
            )

    @classmethod
    def of(
        cls,
        forward: float | str | Fraction,
        backward: float | str | Fraction,
        weight_gradient: float | str | Fraction | None = None,
        *,
        latency: float | str | Fraction = 0,
        transfer: float | str | Fraction = 0,
    ) -> UnitCosts:
        """From F and B, or F, I and W; decimal numbers are taken as written (0.1 is one tenth)."""
        exact = [Fraction(str(value)) for value in (forward, backward, latency, transfer)]
        if weight_gradient is None:
            half = exact[1] / 2
            return cls(exact[0], half, half, latency=exact[2], transfer=exact[3])
        weight = Fraction(str(weight_gradient))
        return cls(exact[0], exact[1], weight, split=True, latency=exact[2], transfer=exact[3])

    @classmethod
    def parse(cls, text: str, latency: Fraction, transfer: Fraction) -> UnitCosts:
        """From the command line's `F,B` or `F,I,W`. Raises InputError with the forms that would do."""
        parts = text.split(",")
        if len(parts) not in (2, 3):
            raise InputError(_WHERE, text, "must be two or three numbers", "write F,B as 1,2 or F,I,W as 1,1,1")
        try:
            return cls.of(*(exact_number(part) for part in parts), latency=latency, transfer=transfer)
        except (ValueError, ZeroDivisionError):
            raise InputError(_WHERE, text, "must be numbers", "write F,B as 1,2 or F,I,W as 1,1,1") from None

    @property
    def backward(self) -> Fraction:
        """The full backward, I + W."""
        return self.input_gradient + self.weight_gradient

    @property
    def name(self) -> str:
        """As shown in captions."""
        if self.split:
            text = f"F={self.forward} I={self.input_gradient} W={self.weight_gradient}"
        else:
            text = f"F={self.forward} B={self.backward}"
        extras = [f"{n}={v}" for n, v in (("latency", self.latency), ("transfer", self.transfer)) if v]
        return "unit costs " + " ".join([text.replace("/1", ""), *extras])


def unit_costs(costs: UnitCosts, shape: PipelineShape) -> tuple[CostTable, Network]:
    """The cost table and network of unit costs for a shape, exact: a unit is as many ns as makes all integers.

    Activation bytes of an op are 1/(v·k) of the given ones, rounded up; other bytes are 0.
    """
    v, k, m = shape.stages_per_device, shape.subsequences, shape.microbatches
    weights = _weights("stage_weights", costs.stage_weights, shape.stages)
    sizes = _weights("microbatch_sizes", costs.microbatch_sizes, m)
    classes = sorted(set(sizes))
    per_kind = {
        Kind.F: costs.forward,
        Kind.B: costs.backward,
        Kind.I: costs.input_gradient,
        Kind.W: costs.weight_gradient,
        Kind.R: costs.forward,
    }
    exact = [[[per_kind[kind] * size * w / (v * k) for w in weights] for size in classes] for kind in Kind]
    messages = [costs.transfer * size / k for size in classes]
    unit_ns = _common_denominator([*_flatten(exact), *messages, costs.latency])
    duration = np.array([[[int(t * unit_ns) for t in row] for row in plane] for plane in exact], dtype=np.int64)
    nothing = np.zeros((len(classes), shape.stages, k), dtype=np.int64)

    def share(size_bytes: int) -> NDArray[np.int64]:
        scale = [[[math.ceil(size_bytes * size * w / (v * k))] * k for w in weights] for size in classes]
        return np.array(scale, dtype=np.int64)

    table = CostTable(
        duration_ns=np.repeat(duration[..., np.newaxis], k, axis=3),
        activation_bytes=share(costs.activation_bytes),
        weight_activation_bytes=share(costs.weight_activation_bytes),
        transient_bytes=np.zeros((len(Kind), *nothing.shape), dtype=np.int64),
        kv_bytes=nothing[..., 0],
        kv_gradient_bytes=nothing[..., 0],
        boundary_bytes=np.array([[int(t * unit_ns)] * k for t in messages], dtype=np.int64),
        static_bytes=np.zeros(shape.stages, dtype=np.int64),
        class_of_microbatch=np.array([classes.index(size) for size in sizes], dtype=np.int32),
        name=costs.name,
        sources=(Source("op times", costs.name, f"{_WHERE}, each op 1/(v·k) = 1/{v * k} of them"),),
        unit_ns=unit_ns,
        unit="unit",
    )
    # A byte stands for a nanosecond of port time, so that transfers stay exact.
    rate = NS_PER_S if costs.transfer else 0
    return table, Network.uniform(shape.devices, int(costs.latency * unit_ns), rate)


def _weights(name: str, given: Sequence[Fraction], count: int) -> list[Fraction]:
    if given and len(given) != count:
        raise InputError(name, f"{len(given)} values", f"must be {count}, one each")
    if any(value < 0 for value in given):
        raise InputError(name, ",".join(map(str, given)), "must not be negative")
    return list(given) or [Fraction(1)] * count


def _flatten(nested: list[list[list[Fraction]]]) -> list[Fraction]:
    return [value for plane in nested for row in plane for value in row]


def _common_denominator(values: Sequence[Fraction]) -> int:
    return math.lcm(*(value.denominator for value in values))
