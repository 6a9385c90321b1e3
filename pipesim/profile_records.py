"""The records a calibration profile is made of, as its JSON file holds them; does not read files or look up.

Times are seconds, sizes are bytes; both are per layer for the part "layer".
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Part = Literal["layer", "embedding", "head"]
OpName = Literal["F", "B", "I", "W"]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]


class Record(BaseModel):
    """Immutable, no unknown fields, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Provenance(Record):
    """Where, when and how a profile was measured."""

    device: Text
    device_kind: Literal["cpu", "cuda"]
    driver: str
    torch: Text
    python: Text
    dtype: Text
    gradient_dtype: Text
    attention_backend: Text
    threads: Positive
    clocks: str
    date: Text
    git_commit: str
    command: Text


class Grid(Record):
    """How often the points were visited; the first `warm_ups` samples of every visit do not count."""

    subsequences: list[Positive]
    rounds: Positive
    repetitions: Positive
    warm_ups: Natural
    layers: Positive
    seed: Natural


class OpPoint(Record):
    """One op at one point of the grid; times of held-out points fit nothing, they judge the fits."""

    tp: Positive
    part: Part
    op: OpName
    tokens: Positive
    prefix: Natural
    held_out: bool


class Samples(OpPoint):
    """Raw times of one op at one point, a list for each visit, warm-ups included."""

    seconds: list[list[PositiveFloat]]
    host_seconds: list[list[PositiveFloat]]


class TimeRow(OpPoint):
    """One op at one point: median and 90 % quantile of its samples, per layer for layers."""

    seconds: PositiveFloat
    p90_seconds: PositiveFloat
    stable: bool


class MemoryRow(Record):
    """Bytes of one part at one point: kept from F to B, kept from I to W, and only while an op runs.

    The transient ones are those of a whole run, as layers need theirs one after another.
    """

    tp: Positive
    part: Part
    tokens: Positive
    prefix: Natural
    activation: Natural
    weight_activation: Natural
    transient_f: Natural
    transient_b: Natural
    transient_i: Natural
    transient_w: Natural


class Fit(Record):
    """value = a + b·s + c·s·prefix + d·s² + e·prefix for s tokens; residuals are relative errors.

    No coefficient is negative, so that no extrapolated time is.
    """

    tp: Positive
    part: Part
    quantity: Text
    where: Literal["any prefix", "prefix 0", "prefix above 0"]
    a: NonNegative
    b: NonNegative
    c: NonNegative
    d: NonNegative
    e: NonNegative
    points: Positive
    stable: bool
    tokens_range: Annotated[tuple[Positive, Positive], Field(strict=False)]
    prefix_range: Annotated[tuple[Natural, Natural], Field(strict=False)]
    rms: Finite
    worst: Finite
    held_out_points: Natural
    held_out_rms: Finite | None
    held_out_worst: Finite | None

    def value(self, tokens: int, prefix: int) -> float:
        """The fitted value; seconds or bytes as the quantity is."""
        s = tokens
        return self.a + self.b * s + self.c * s * prefix + self.d * s * s + self.e * prefix

    def covers(self, prefix: int) -> bool:
        """Whether this fit is the one for such a prefix."""
        return self.where == "any prefix" or (self.where == "prefix 0") == (prefix == 0)

    def inside(self, tokens: int, prefix: int) -> bool:
        """Whether the point lies within the measured ranges."""
        (low, high), (first, last) = self.tokens_range, self.prefix_range
        return low <= tokens <= high and first <= prefix <= last


class HeldOut(Record):
    """Relative errors of the layer fits on op times they never saw, all ops together."""

    op_times: Positive
    rms: Finite
    worst: Finite


class Optimizer(Record):
    """One optimizer step, per parameter."""

    name: Text
    parameters: Positive
    seconds: list[PositiveFloat]
    seconds_per_parameter: PositiveFloat


class LinkFit(Record):
    """A message takes latency + bytes / rate; residuals are relative errors of the fit on the table."""

    latency_seconds: NonNegative
    bytes_per_second: PositiveFloat
    rms: Finite
    worst: Finite


class LinkRow(Record):
    """Raw one-way times of one message size, alone and with a message the other way."""

    size_bytes: Positive
    one_way_seconds: list[PositiveFloat]
    both_ways_seconds: list[PositiveFloat]


class Links(Record):
    """Links between devices: measured by ping-pong, or given (one device only), which `note` says."""

    origin: Literal["measured", "given"]
    note: Text
    backend: str = ""
    warm_ups: Natural = 0
    table: list[LinkRow] = Field(default_factory=list)
    one_way: LinkFit | None = None
    both_ways: LinkFit | None = None


class Stability(Record):
    """Drift of a fixed matrix product over the rounds, worst p90 / median of a point, the verdict."""

    verdict: Literal["stable", "unstable"]
    drift: Finite
    worst_spread: Finite
    unstable_points: Natural
    points: Positive
    reference_seconds: list[list[PositiveFloat]]
    reasons: list[str]
