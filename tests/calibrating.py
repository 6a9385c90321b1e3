"""Profiles made of a known law instead of a clock; needs neither torch nor a quiet machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from calibration.fit.assemble import Measured, assemble
from calibration.grid import Point, grid
from pipesim.model import ModelSpec
from pipesim.profile_records import Grid, Links, MemoryRow, Provenance

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipesim.profile import CalibrationProfile

MODEL = ModelSpec(
    name="law", layers=4, hidden=64, heads=4, kv_heads=2, head_size=16, feedforward=96, vocab=128, activation="swiglu",
    norm="rmsnorm", position="rope", tied_embeddings=False, source="made for tests",
)  # fmt: skip
SEQUENCE = 1024
WARM_UPS = 2
SHARE = {"F": 1.0, "B": 2.25, "I": 1.5, "W": 0.75}


def law(point: Point, op: str) -> float:
    """Seconds of one op: a + b·s + c·s·prefix + d·s² for layers, straight lines for the rest."""
    s, c = point.tokens, point.prefix
    if point.part == "embedding":
        return (1e-5 + 1e-8 * s) * SHARE[op]
    if point.part == "head":
        return (2e-5 + 3e-7 * s) * SHARE[op]
    if op == "W":
        return (1e-4 + 2e-6 * s) / point.tp
    return (1e-4 + 2e-6 * s + 4e-9 * s * c + 2e-9 * s * s) * SHARE[op] / point.tp


def sizes(point: Point) -> MemoryRow:
    """Bytes that grow with tokens, and during B with the prefix."""
    s, c = point.tokens, point.prefix
    return MemoryRow(
        tp=point.tp, part=point.part, tokens=s, prefix=c, activation=800 * s, weight_activation=500 * s,
        transient_f=64 * s, transient_b=100 * s + 256 * (s + c), transient_i=90 * s + 256 * (s + c), transient_w=0,
    )  # fmt: skip


def visit(n: int, point: Point, seconds: Callable[[Point, str], float] = law, noise: float = 0.01) -> dict[str, Any]:
    """One visit as the journal holds it: warm-ups far too long, then samples up and down around the law."""

    def series(ops: str) -> dict[str, list[float]]:
        tail = [1.0, 1.0 + noise, 1.0 - noise, 1.0, 1.0 + noise / 2]
        return {op: [seconds(point, op) * f for f in (50.0, 3.0, *tail)] for op in ops}

    return {
        "round": n,
        "point": list(point),
        "seconds": [series("FB"), series("FIW")],
        "host_seconds": [series("FB"), series("FIW")],
    }


def measured(
    *,
    model: ModelSpec = MODEL,
    subsequences: tuple[int, ...] = (1, 2, 4),
    tps: tuple[int, ...] = (1,),
    seconds: Callable[[Point, str], float] = law,
    reference: Sequence[Sequence[float]] = ((1e-3,) * 10, (1e-3,) * 10),
    points: Sequence[Point] | None = None,
    **changed: Any,
) -> Measured:
    """What a calibration of `model` on a machine that obeys the law would have collected."""
    visited = grid(model, SEQUENCE, subsequences, tps=tps) if points is None else points
    found = Measured(
        provenance=Provenance(
            device="law", device_kind="cpu", driver="", torch="2.0", python="3.11", dtype="float32",
            gradient_dtype="float32", attention_backend="flash", threads=1, clocks="", date="2026-01-01T00:00:00Z",
            git_commit="0" * 40, command="made for tests",
        ),
        clock="thread CPU time",
        model=model,
        sequence_length=SEQUENCE,
        micro_batch_size=1,
        grid=Grid(subsequences=list(subsequences), rounds=2, repetitions=5, warm_ups=WARM_UPS, layers=2, seed=0),
        visits=[visit(n, point, seconds) for n in range(2) for point in visited],
        sizes=[sizes(point) for point in visited if not point.held_out],
        reference=[list(row) for row in reference],
        optimizer={"optimizer": [9.0, 9.0, 1e-3, 1e-3, 1e-3], "parameters": 1000, "name": "AdamW"},
        notes=[],
        links=Links(origin="given", note="made for tests"),
        prefix_zero_apart=False,
    )  # fmt: skip
    return replace(found, **changed)


def profile(**options: Any) -> CalibrationProfile:
    """The profile of `measured(...)`."""
    return assemble(measured(**options))


class StepClock:
    """A clock that moves a millisecond at each mark, and as much more as somebody advances it."""

    name = "thread CPU time"

    def __init__(self) -> None:
        self.now = 0

    def advance(self, microseconds: int) -> None:
        self.now += 1000 * microseconds

    def mark(self) -> tuple[int, int]:
        self.now += 1_000_000
        return self.now, self.now

    def wait(self) -> None:
        """Nothing is pending."""

    def seconds(self, begin: int, end: int) -> float:
        return (end - begin) * 1e-9
