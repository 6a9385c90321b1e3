"""Calibrated costs: measured times and bytes of layers where a profile has them, the analytic model elsewhere."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipesim.costs.analytic import AnalyticOptions, analytic_costs
from pipesim.costs.parts import Machine, PartSeconds, embedding_seconds, head_seconds, layer_seconds
from pipesim.costs.table import Source
from pipesim.errors import InputError
from pipesim.plan import Kind
from pipesim.units import NS_PER_S, format_count, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from pipesim.cluster import ClusterSpec
    from pipesim.costs.table import CostTable
    from pipesim.model import ModelSpec
    from pipesim.partition import LayerPartition
    from pipesim.plan import PipelineShape
    from pipesim.profile import CalibrationProfile
    from pipesim.profile_records import OpName, Part

OPS: tuple[OpName, ...] = ("F", "B", "I", "W")
PARTS: tuple[Part, ...] = ("layer", "embedding", "head")
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
BF16 = 2
ANALYTIC = "analytic, not measured"


class Found(NamedTuple):
    """A number and where it comes from."""

    value: float
    origin: str


def calibrated_costs(
    profile: CalibrationProfile,
    model: ModelSpec,
    cluster: ClusterSpec,
    shape: PipelineShape,
    layer_partition: LayerPartition,
    sequence_partition: tuple[int, ...],
    options: AnalyticOptions | None = None,
    *,
    where: str = "profile",
) -> CostTable:
    """The cost table of `analytic_costs`, with everything the profile knows in place of formulas.

    Times of layers, embedding and head come from the table of measured points, else from the fit, else from the
    formulas; tensor-parallel collectives are never measured and are added by formula; messages and keys/values
    have the measured element size. Sources say which number is which. Raises InputError when the profile is of
    another model's shapes, or has no such tensor-parallel or micro-batch size.
    """
    options = options or AnalyticOptions()
    profile.check_model(model, where)
    _check_covered(profile, options, shape, where)
    base = analytic_costs(model, cluster, shape, layer_partition, sequence_partition, options)
    build = _Calibrated(profile, model, cluster, options, layer_partition, sequence_partition)
    sizes = sorted(set(options.sizes(shape.microbatches)))
    measured = [n for n, size in enumerate(sizes) if size == profile.micro_batch_size]
    scale, divisor = ITEM_BYTES.get(profile.provenance.dtype, BF16), BF16
    activation, weight_activation, transient = build.byte_tables(base, measured)
    return replace(
        base,
        duration_ns=_in_classes(base.duration_ns, measured, build.durations()),
        activation_bytes=activation,
        weight_activation_bytes=weight_activation,
        transient_bytes=transient,
        kv_bytes=base.kv_bytes * scale // divisor,
        kv_gradient_bytes=base.kv_gradient_bytes * max(scale, 4) // 4,
        boundary_bytes=base.boundary_bytes * scale // divisor,
        name=f"{model.name} measured on {profile.provenance.device}, {format_count(sum(sequence_partition))} tokens",
        sources=(*_profile_sources(profile, where, sizes), *build.sources(), *base.sources),
    )


def _check_covered(profile: CalibrationProfile, options: AnalyticOptions, shape: PipelineShape, where: str) -> None:
    if options.tp not in profile.tensor_parallel:
        known = ", ".join(map(str, profile.tensor_parallel))
        raise InputError(
            "--tp", options.tp, f"{where} was measured with tp = {known}", f"calibrate with --tp {options.tp}"
        )
    sizes = set(options.sizes(shape.microbatches))
    if profile.micro_batch_size not in sizes:
        rule = f"{where} was measured with micro-batches of {profile.micro_batch_size}"
        remedy = f"calibrate with --micro-batch-size {max(sizes)}"
        raise InputError("--micro-batch-size", max(sizes), rule, remedy)


def _in_classes(base: NDArray[np.int64], classes: list[int], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """`base` with the micro-batch classes that were measured replaced; the class axis is the last but two."""
    changed = base.copy()
    for n in classes:
        changed[..., n, :, :] = values
    return changed


@dataclass(frozen=True)
class _Calibrated:
    """Values over (stage, subsequence) for micro-batches of the measured size."""

    profile: CalibrationProfile
    model: ModelSpec
    cluster: ClusterSpec
    options: AnalyticOptions
    partition: LayerPartition
    lengths: tuple[int, ...]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(tokens, prefix) of each subsequence."""
        return list(zip(self.lengths, accumulate(self.lengths, initial=0), strict=False))

    def part_seconds(self, part: Part, op: OpName, tokens: int, prefix: int) -> Found:
        """Seconds of one op of one layer, the embedding or the head, collectives included."""
        at = prefix if part == "layer" else 0
        found = self.profile.seconds(self.options.tp, part, op, tokens, at)
        alone, together = self._analytic(part, tokens, prefix)
        if found is None:
            return Found(_of(op, together), ANALYTIC)
        return Found(found.value + _of(op, together) - _of(op, alone), found.origin)

    def _analytic(self, part: Part, tokens: int, prefix: int) -> tuple[PartSeconds, PartSeconds]:
        """By formula: without tensor-parallel collectives, and with them."""
        o, count = self.options, self.profile.micro_batch_size
        silent = replace(o.efficiency, exposed_collectives=0.0)
        machines = [Machine(self.cluster, o.layout, e) for e in (silent, o.efficiency)]
        formulas: dict[Part, Callable[[Machine], PartSeconds]] = {
            "layer": lambda machine: layer_seconds(self.model, machine, tokens, prefix, count),
            "embedding": lambda machine: embedding_seconds(self.model, machine, tokens * count),
            "head": lambda machine: head_seconds(self.model, machine, tokens * count, o.kept_logits_chunk),
        }
        alone, together = (formulas[part](machine) for machine in machines)
        return alone, together

    def durations(self) -> NDArray[np.int64]:
        """int64 [5, stages, k]; with full recompute B and I hold the layers' forward again, which is R."""
        by_op = {op: self._per_stage(partial(self._seconds, op)) for op in OPS}
        layers = np.array(self.partition.layers_per_stage)[:, np.newaxis]
        again = layers * np.array([self.part_seconds("layer", "F", *pair).value for pair in self.pairs])
        extra = again if self.options.recompute == "full" else 0.0
        by_kind = {
            Kind.F: by_op["F"],
            Kind.B: by_op["B"] + extra,
            Kind.I: by_op["I"] + extra,
            Kind.W: by_op["W"],
            Kind.R: again,
        }
        return np.stack([np.rint(by_kind[kind] * NS_PER_S).astype(np.int64) for kind in Kind])

    def _seconds(self, op: OpName, part: Part, pair: tuple[int, int]) -> float:
        return self.part_seconds(part, op, *pair).value

    def _per_stage(self, value: Callable[[Part, tuple[int, int]], float]) -> NDArray[np.float64]:
        """[stages, k]: layers times a layer's value, with embedding and head where they are."""
        each = {part: np.array([value(part, pair) for pair in self.pairs]) for part in PARTS}
        return np.stack(
            [
                held.layers * each["layer"] + held.has_embedding * each["embedding"] + held.has_head * each["head"]
                for held in map(self.partition.contents, range(self.partition.stages))
            ]
        )

    @property
    def bytes_measured(self) -> bool:
        """Whether activations were kept as the options ask: all of them, on one GPU or not cut by sequence."""
        o = self.options
        return o.recompute != "full" and not o.layout.sequence_parallel and not o.dropout and self._has_sizes

    @property
    def _has_sizes(self) -> bool:
        return all(self._size(part, "activation", *pair) is not None for part in PARTS for pair in self.pairs)

    def _size(self, part: Part, quantity: str, tokens: int, prefix: int) -> Found | None:
        at = prefix if part == "layer" else 0
        found = self.profile.size(self.options.tp, part, quantity, tokens, at)
        return None if found is None else Found(found.value, found.origin)

    def byte_tables(self, base: CostTable, classes: list[int]) -> tuple[NDArray[np.int64], ...]:
        """Activation, weight-activation and transient bytes of a CostTable; those of `base` if not measured."""
        if not self.bytes_measured:
            return base.activation_bytes, base.weight_activation_bytes, base.transient_bytes

        def table(quantity: str) -> NDArray[np.int64]:
            return np.ceil(self._per_stage(lambda part, pair: self._bytes(part, quantity, pair))).astype(np.int64)

        kept = table("activation") + (self._kv_of_one_op() if len(self.lengths) == 1 else 0)
        return (
            _in_classes(base.activation_bytes, classes, kept),
            _in_classes(base.weight_activation_bytes, classes, table("weight_activation")),
            _in_classes(base.transient_bytes, classes, self._transients()),
        )

    def _bytes(self, part: Part, quantity: str, pair: tuple[int, int]) -> float:
        found = self._size(part, quantity, *pair)
        return 0.0 if found is None else found.value

    def _kv_of_one_op(self) -> NDArray[np.int64]:
        """[stages, 1] keys and values of the sequence: without subsequences they count as activations."""
        tokens = self.lengths[0] * self.profile.micro_batch_size
        item = ITEM_BYTES.get(self.profile.provenance.dtype, BF16)
        one = 2 * tokens * self.options.layout.kv_width(self.model) * item
        return one * np.array(self.partition.layers_per_stage, dtype=np.int64)[:, np.newaxis]

    def _transients(self) -> NDArray[np.int64]:
        """[5, stages, k]: the most that any part of a stage needs, as parts run one after another."""
        by_kind = {Kind.F: "transient_f", Kind.B: "transient_b", Kind.I: "transient_i", Kind.W: "transient_w"}
        by_kind[Kind.R] = by_kind[Kind.F]
        return np.stack([np.stack(list(self._stage_transients(by_kind[kind]))) for kind in Kind])

    def _stage_transients(self, quantity: str) -> Iterator[NDArray[np.int64]]:
        for held in map(self.partition.contents, range(self.partition.stages)):
            parts = [p for p, here in zip(PARTS, (held.layers, held.has_embedding, held.has_head), strict=True) if here]
            rows = [[self._bytes(part, quantity, pair) for pair in self.pairs] for part in parts]
            yield np.ceil(np.max(rows, axis=0, initial=0.0)).astype(np.int64)

    def sources(self) -> tuple[Source, ...]:
        """A line per part and op: its time for each subsequence, and how many are measured, fitted, by formula."""
        return tuple(
            [self._time_source(part, op) for part in PARTS for op in OPS]
            + [self._bytes_source()]
            + [
                Source("message and keys/values element", self.profile.provenance.dtype, "measured in this type"),
                Source("static bytes, collectives, links", "as below", "analytic, not measured"),
            ]
        )

    def _time_source(self, part: Part, op: OpName) -> Source:
        found = [self.part_seconds(part, op, *pair) for pair in self.pairs]
        shown = ", ".join(format_seconds(f.value) for f in found[:8]) + (", …" if len(found) > 8 else "")
        return Source(f"{part} {op} by subsequence", shown, _counted([f.origin for f in found]))

    def _bytes_source(self) -> Source:
        if not self.bytes_measured:
            why = "recompute, dropout or sequence parallelism differ" if self._has_sizes else "no bytes in the profile"
            return Source("activation and transient bytes", "as below", f"analytic: {why}")
        origins = [f.origin for p in PARTS for pair in self.pairs if (f := self._size(p, "activation", *pair))]
        first = self._bytes("layer", "activation", self.pairs[0])
        return Source("activation bytes of a layer, first subsequence", f"{first:,.0f}", _counted(origins))


def _of(op: OpName, seconds: PartSeconds) -> float:
    if op == "B":
        return seconds.input_gradient + seconds.weight_gradient
    return seconds[{"F": 0, "I": 1, "W": 2}[op]]


def _counted(origins: Sequence[str]) -> str:
    """`measured` if all are alike, else each with its count."""
    counts = Counter(origins)
    return origins[0] if len(counts) == 1 else ", ".join(f"{n} {origin}" for origin, n in counts.items())


def _profile_sources(profile: CalibrationProfile, where: str, sizes: list[int]) -> Iterator[Source]:
    p, s = profile.provenance, profile.stability
    yield Source("profile", where, f"{p.device}, torch {p.torch}, {p.dtype}, {p.date}, commit {p.git_commit[:12]}")
    yield Source("measured second", profile.clock, f"{p.attention_backend} attention, {p.threads} thread(s)")
    for fit in profile.fits:
        if fit.part == "layer" and fit.quantity in OPS and fit.held_out_rms is not None:
            what = f"fit of layer {fit.quantity}, {fit.where}"
            yield Source(what, f"{fit.held_out_rms:.1%} rms", f"error on {fit.held_out_points} held-out points")
    if s.verdict == "unstable":
        yield Source("profile is unstable", f"drift {s.drift:+.1%}, spread {s.worst_spread:.2f}", "; ".join(s.reasons))
    others = [size for size in sizes if size != profile.micro_batch_size]
    if others:
        yield Source("micro-batches of other sizes", ", ".join(map(str, others)), ANALYTIC)
