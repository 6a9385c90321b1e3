"""One part of a model set up to be run at one point again and again; does not choose points or keep results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from calibration.layer import Stage
from calibration.layer.attention import KeyValues, causal_mask
from calibration.measure.memory import byte_meter, saved_storages, storages
from calibration.measure.timer import CacheFlush, Times, time_spans
from pipesim.errors import InputError
from pipesim.profile_records import MemoryRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from calibration.grid import Point
    from calibration.layer.microbatch import Microbatch
    from calibration.measure.timer import Clock, Span
    from pipesim.model import ModelSpec
    from pipesim.profile_records import Part


def share_of(model: ModelSpec, tp: int) -> ModelSpec:
    """The shapes one of `tp` tensor-parallel devices works on: heads, feed-forward and vocabulary divided."""
    for field, value in (("heads", model.heads), ("feedforward", model.feedforward)):
        if value % tp:
            raise InputError("--tp", tp, f"must divide {field} = {value} of {model.name}")
    if model.kv_heads % tp and tp % model.kv_heads:
        raise InputError("--tp", tp, f"must divide kv_heads = {model.kv_heads} of {model.name} or be a multiple of it")
    return replace(
        model,
        heads=model.heads // tp,
        kv_heads=max(1, model.kv_heads // tp),
        feedforward=model.feedforward // tp,
        vocab=-(-model.vocab // tp),
    )


def _shares(seconds: list[float], per: int) -> list[float]:
    """Each divided by `per`, to a tenth of a nanosecond, which no clock here resolves."""
    return [max(round(s / per, 10), 1e-10) for s in seconds]


@dataclass(frozen=True)
class BenchSettings:
    """What is the same for every point of a calibration."""

    model: ModelSpec
    sequence_length: int
    micro_batch_size: int = 1
    layers: int = 2
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    backend: str = "flash"
    seed: int = 0


class Scene:
    """One point set up: a micro-batch whose subsequence `j` can run F, B, I and W any number of times."""

    def __init__(self, stage: Stage, point: Point, settings: BenchSettings) -> None:
        self.stage = stage
        end = settings.sequence_length
        cut = (point.prefix, point.tokens, end - point.prefix - point.tokens)
        self.j = 1 if point.prefix else 0
        lengths = [length for length in cut if length]
        self.microbatch: Microbatch = stage.new_microbatch(settings.micro_batch_size, lengths)
        self.kept = list(self._filled(point, settings))
        self.gradients = [self._zeroed(kept) if cut[2] else None for kept in self.kept]
        self.x, self.targets, self.grad_out = self._data(point, settings)

    def _filled(self, point: Point, settings: BenchSettings) -> Iterator[KeyValues]:
        model, stage = self.stage.model, self.stage
        shape = (settings.micro_batch_size, point.tokens, model.kv_heads, model.head_size)
        like = torch.empty(shape, dtype=stage.dtype, device=stage.device)
        for _ in stage.layers:
            kept = KeyValues(like, settings.sequence_length)
            kept.keys.normal_()
            kept.values.normal_()
            yield kept

    @staticmethod
    def _zeroed(kept: KeyValues) -> tuple[Tensor, Tensor]:
        return (
            torch.zeros_like(kept.keys, dtype=kept.gradient_dtype),
            torch.zeros_like(kept.values, dtype=kept.gradient_dtype),
        )

    def _data(self, point: Point, settings: BenchSettings) -> tuple[Tensor, Tensor | None, Tensor | None]:
        stage, model = self.stage, self.stage.model
        rows = (settings.micro_batch_size, point.tokens)
        hidden = torch.randn(*rows, model.hidden, dtype=stage.dtype, device=stage.device)
        tokens = torch.randint(model.vocab, rows, device=stage.device)
        x = tokens if stage.embedding is not None else hidden
        return x, tokens if stage.head is not None else None, None if stage.head is not None else hidden

    def rewind(self) -> None:
        """As if the prefix had run forward and everything later backward; starts nothing on the device."""
        m = self.microbatch
        m.next_forward = m.next_backward = self.j
        m.saved.clear()
        m.waiting.clear()
        m.kept = list(self.kept)
        for kept, gradients in zip(self.kept, self.gradients, strict=True):
            kept.gradients = gradients

    def forward(self) -> Tensor:
        """F."""
        return self.stage.forward(self.microbatch, self.j, self.x, self.targets)

    def backward(self) -> Tensor | None:
        """B."""
        return self.stage.backward(self.microbatch, self.j, self.grad_out)

    def backward_input(self) -> Tensor | None:
        """I."""
        return self.stage.backward_input(self.microbatch, self.j, self.grad_out)

    def backward_weight(self) -> None:
        """W."""
        self.stage.backward_weight(self.microbatch, self.j)


class Bench:
    """The parts of one tensor-parallel share on one device, made when first asked for."""

    def __init__(self, settings: BenchSettings, tp: int, clock: Clock) -> None:
        self.settings, self.clock, self.tp = settings, clock, tp
        self.model = share_of(settings.model, tp)
        self.flush = CacheFlush(settings.device)
        self._stages: dict[Part, Stage] = {}

    def stage(self, part: Part) -> Stage:
        """`layers` distinct layers, or the embedding, or final norm + head + loss, alone."""
        if part not in self._stages:
            s = self.settings
            self._stages[part] = Stage(
                self.model,
                range(s.layers if part == "layer" else 0),
                has_embedding=part == "embedding",
                has_head=part == "head",
                device=s.device,
                dtype=s.dtype,
                seed=s.seed,
                backend=s.backend,
            )
            for parameter in self._stages[part].parameters():
                parameter.grad = torch.zeros_like(parameter)
        return self._stages[part]

    def per(self, part: Part) -> int:
        """How many layers one run holds; times and bytes are divided by it."""
        return self.settings.layers if part == "layer" else 1

    def times(self, point: Point, repetitions: Callable[[float], int]) -> list[Times]:
        """Two visits, (F, B) then (F, I, W); `repetitions` says how many more from the seconds of the first."""
        scene = Scene(self.stage(point.part), point, self.settings)

        def prepare() -> None:
            scene.rewind()
            self.flush()

        full: list[Span] = [("F", scene.forward), ("B", scene.backward)]
        split: list[Span] = [("F", scene.forward), ("I", scene.backward_input), ("W", scene.backward_weight)]
        return [self._visit(prepare, spans, repetitions, self.per(point.part)) for spans in (full, split)]

    def _visit(
        self, prepare: Callable[[], object], spans: list[Span], repetitions: Callable[[float], int], per: int
    ) -> Times:
        first = time_spans(self.clock, prepare, spans, 1)
        once = sum(max(first.seconds[n][0], first.host_seconds[n][0]) for n, _ in spans)
        rest = time_spans(self.clock, prepare, spans, repetitions(once))
        names = [name for name, _ in spans]
        return Times(
            {n: _shares(first.seconds[n] + rest.seconds[n], per) for n in names},
            {n: _shares(first.host_seconds[n] + rest.host_seconds[n], per) for n in names},
        )

    def sizes(self, point: Point) -> MemoryRow:
        """Bytes at one point: what F leaves for B, what I leaves for W, what each op needs on top."""
        scene = Scene(self.stage(point.part), point, self.settings)
        activation, f, b = self._forward_and(scene, scene.backward)
        _, _, i = self._forward_and(scene, scene.backward_input)
        pairs = scene.microbatch.waiting[scene.j]
        kept = sum(storages(t for _, x, dy in pairs for t in (x, dy)).values())
        w = self._transient(scene.backward_weight)
        per = self.per(point.part)
        return MemoryRow(
            tp=point.tp,
            part=point.part,
            tokens=point.tokens,
            prefix=point.prefix,
            activation=-(-activation // per),
            weight_activation=-(-kept // per),
            transient_f=f,
            transient_b=b,
            transient_i=i,
            transient_w=w,
        )

    def _transient(self, run: Callable[[], object]) -> int:
        with byte_meter(self.settings.device) as meter:
            before = meter.now()
            meter.reset()
            run()
            return max(0, meter.peak() - before)

    def _forward_and(self, scene: Scene, backward: Callable[[], object]) -> tuple[int, int, int]:
        """Activation bytes, then what F and the backward op need on top while they run."""
        scene.rewind()
        with byte_meter(self.settings.device) as meter, saved_storages(self._not_counted(scene)) as saved:
            before = meter.now()
            meter.reset()
            scene.x = scene.x.clone()  # the stage's input is an activation
            scene.forward()
            activation = sum(saved.values())
            f = max(0, meter.peak() - before - activation)
            before = meter.now()
            meter.reset()
            backward()
            return activation, f, max(0, meter.peak() - before)

    def _not_counted(self, scene: Scene) -> list[Tensor]:
        """Parameters, keys and values, rotation tables and the CPU's mask: none of them is an activation."""
        stage, point_tokens = scene.stage, scene.x.shape[1]
        tensors: list[Tensor] = [*stage.parameters(), *(t for k in scene.kept for t in (k.keys, k.values))]
        if stage.rotation is not None:
            tensors += stage.rotation.prepare(self.settings.sequence_length, scene.kept[0].keys) if scene.kept else ()
        stop = scene.microbatch.start(scene.j) + point_tokens
        if not self.settings.device.startswith("cuda"):
            tensors.append(causal_mask(point_tokens, stop, stage.dtype, stage.device))
        return tensors
