"""Layers of a model cut into stages: evenly, by counts, by weights or by a layout string; knows no costs."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from pipesim.errors import InputError

Number = int | float | Fraction


class StageContents(NamedTuple):
    """What one stage holds."""

    layers: int
    has_embedding: bool
    has_head: bool


@dataclass(frozen=True)
class LayerPartition:
    """Layers of each stage in model order, the stages that hold embedding and head (with the final norm).

    `mtp_layers_per_stage` counts multi-token-prediction layers, () where there are none. In a bidirectional
    schedule each direction has the same partition.
    """

    layers_per_stage: tuple[int, ...]
    embedding_stage: int
    head_stage: int
    mtp_layers_per_stage: tuple[int, ...] = ()

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return len(self.layers_per_stage)

    @property
    def layers(self) -> int:
        """How many layers they hold together."""
        return sum(self.layers_per_stage)

    def first_layer(self, stage: int) -> int:
        """The index of the first layer of a stage (of the next one where it is empty)."""
        return sum(self.layers_per_stage[:stage])

    def contents(self, stage: int) -> StageContents:
        """What a stage holds."""
        return StageContents(self.layers_per_stage[stage], stage == self.embedding_stage, stage == self.head_stage)

    @classmethod
    def of(cls, layers_per_stage: list[int]) -> LayerPartition:
        """The usual form: embedding on the first stage, head on the last."""
        return cls(tuple(layers_per_stage), 0, len(layers_per_stage) - 1)


def spread(total: int, parts: int) -> list[int]:
    """`total` cut into exactly `parts` sizes that differ by at most one, larger ones first."""
    least, larger = divmod(total, parts)
    return [least + 1] * larger + [least] * (parts - larger)


def microbatch_sizes(samples: int, microbatches: int) -> tuple[int, ...]:
    """Samples of each of exactly `microbatches` micro-batches: they differ by at most one, larger first."""
    if microbatches < 1:
        raise InputError("microbatches", microbatches, "must be at least 1")
    if samples < microbatches:
        rule = f"must be at most the number of samples = {samples}"
        raise InputError("microbatches", microbatches, rule, "use fewer micro-batches or a larger batch")
    return tuple(spread(samples, microbatches))


def even_layers(layers: int, stages: int, *, allow_empty: bool = False) -> LayerPartition:
    """Layers spread over stages, the remainder on the earlier ones: 30 over 4 is 8, 8, 7, 7.

    Raises InputError when a stage would be empty, unless that is allowed.
    """
    _check_stages(layers, stages)
    if layers < stages and not allow_empty:
        rule = f"must be at most layers = {layers}, or stages would hold none"
        raise InputError("stages", stages, rule, "use fewer devices or fewer stages per device")
    return LayerPartition.of(spread(layers, stages))


def layers_with_ends(
    layers: int,
    devices: int,
    stages_per_device: int = 1,
    *,
    first: int | None = None,
    last: int | None = None,
) -> LayerPartition:
    """`first` and `last` layers on the first and last device, the rest equally on the others.

    The counts are of whole devices: with v stages per device, stage s on device s mod p, each of the device's
    stages holds a v-th of them. For a V-shaped placement give its 2p stages as devices with one stage each.
    Raises InputError when the rest cannot be spread equally or a count is not a multiple of v.
    """
    _check_stages(layers, devices * stages_per_device)
    if devices == 1:
        raise InputError("first and last layers", devices, "need at least 2 devices", "leave them out")
    for name, count in (("first layers", first), ("last layers", last)):
        if count is not None:
            _check_device_count(name, count, layers, stages_per_device)
    head, tail = ([] if count is None else [count] for count in (first, last))
    others = devices - len(head) - len(tail)
    each = _equal_rest(layers, layers - sum(head) - sum(tail), others * stages_per_device)
    per_stage = [count // stages_per_device for count in head] + [each] * others
    per_stage += [count // stages_per_device for count in tail]
    return LayerPartition.of(per_stage * stages_per_device)


def _check_device_count(name: str, count: int, layers: int, stages_per_device: int) -> None:
    if not 0 <= count <= layers:
        raise InputError(name, count, f"must be from 0 to layers = {layers}")
    if count % stages_per_device:
        rule = f"must be a multiple of stages per device = {stages_per_device}"
        raise InputError(name, count, rule)


def _equal_rest(layers: int, rest: int, stages: int) -> int:
    """Layers of each stage of the devices that have no count of their own."""
    if (stages == 0 and rest != 0) or (stages and (rest < stages or rest % stages)):
        rule = f"leaves {rest} layers for {stages} other stages, which must hold equally many, at least 1"
        raise InputError("layers", layers, rule, "change the first or last count")
    return rest // stages if stages else 0


def weighted_layers(
    layers: int, stages: int, *, embedding_weight: Number = 0, head_weight: Number = 0
) -> LayerPartition:
    """Layers spread so that the heaviest stage is lightest, embedding and head weighing so many layers each.

    Each layer goes to the lightest stage so far, the earliest of equals. Raises InputError when embedding or
    head alone outweighs a stage's fair share (layers + weights) / stages: it would hold fewer than 0 layers.
    """
    _check_stages(layers, stages)
    _check_weights(layers, stages, embedding_weight, head_weight)
    loads = [Fraction(0)] * stages
    loads[0] += Fraction(embedding_weight)
    loads[-1] += Fraction(head_weight)
    counts = [0] * stages
    for _ in range(layers):
        stage = loads.index(min(loads))
        counts[stage] += 1
        loads[stage] += 1
    if 0 in counts[1:-1]:
        raise InputError("stages", stages, f"are too many for {layers} layers: one would hold nothing")
    return LayerPartition.of(counts)


def _check_weights(layers: int, stages: int, embedding_weight: Number, head_weight: Number) -> None:
    for name, weight in (("embedding weight", embedding_weight), ("head weight", head_weight)):
        if not 0 <= weight < float("inf"):
            raise InputError(name, weight, "must be at least 0")
    share = (layers + Fraction(embedding_weight) + Fraction(head_weight)) / stages
    for name, weight in (("embedding weight", embedding_weight), ("head weight", head_weight)):
        if stages > 1 and weight > share:
            rule = f"must be at most a stage's fair share of {float(share):g} layers, or it would hold below 0"
            raise InputError(name, weight, rule, "use fewer stages or a smaller weight")


def listed_layers(text: str) -> LayerPartition:
    """A partition written out as layers of each stage, `8,8,7,7`; stages may be empty."""
    parts = text.replace(" ", "").split(",")
    if not all(part.isascii() and part.isdigit() and len(part) < 7 for part in parts):
        raise InputError("layers per stage", text, "must be whole numbers with commas", "an example: 8,8,7,7")
    return LayerPartition.of([int(part) for part in parts])


def check_partition(partition: LayerPartition, layers: int, devices: int, stages_per_device: int = 1) -> None:
    """Raises InputError unless the partition has devices × stages_per_device stages and all the layers."""
    stages = devices * stages_per_device
    if partition.stages != stages:
        multiple = "" if partition.stages % devices == 0 else f", not a multiple of {devices} devices"
        rule = f"must have devices × stages per device = {stages} stages, has {partition.stages}{multiple}"
        raise InputError("layers per stage", str(list(partition.layers_per_stage)), rule)
    if partition.layers != layers:
        rule = f"must hold the model's {layers} layers, holds {partition.layers}"
        raise InputError("layers per stage", str(list(partition.layers_per_stage)), rule)


def _check_stages(layers: int, stages: int) -> None:
    if stages < 1:
        raise InputError("stages", stages, "must be at least 1")
    if layers < 1:
        raise InputError("layers", layers, "must be at least 1")
