"""Measure a model's parts over a grid and make a profile of it; the same code for CPU and CUDA, knows no plans.

Points are visited in random order in several rounds, so that slow drifts fall on all of them alike, and a fixed matrix
product is timed in each round. Every visit goes to a journal; a killed run continues from there.
"""

from __future__ import annotations

import gc
import math
import random
import time
import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from calibration.fit.assemble import Measured, assemble
from calibration.grid import Point, grid
from calibration.layer.attention import attend, pinned
from calibration.measure.bench import Bench, BenchSettings, share_of
from calibration.measure.environment import provenance
from calibration.measure.journal import Journal
from calibration.measure.timer import CacheFlush, clock_of, time_spans
from pipesim.errors import InputError
from pipesim.profile import write_profile
from pipesim.profile_records import Grid, Links, MemoryRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pipesim.model import ModelSpec
    from pipesim.profile import CalibrationProfile

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
# How long one series of a visit should take: shorter ops are repeated more, longer ones at least twice.
VISIT_SECONDS = 0.12
REFERENCE_SIZE = {"cpu": 384, "cuda": 4096}
REFERENCE_REPETITIONS = 10
MOST_LOGITS = 2**31 - 1


@dataclass(frozen=True)
class Settings:
    """One calibration."""

    model: ModelSpec
    sequence_length: int
    subsequences: tuple[int, ...]
    device: str = "cpu"
    dtype: str = "float32"
    cuts: tuple[str, ...] = ("even", "flops")
    tps: tuple[int, ...] = (1,)
    micro_batch_size: int = 1
    layers: int = 2
    rounds: int = 3
    repetitions: int = 10
    warm_ups: int = 2
    seed: int = 0
    backend: str = "flash"
    threads: int = 1
    visit_seconds: float = VISIT_SECONDS
    refuse_unstable: bool = True

    def check(self) -> None:
        """InputError if the model cannot be divided or the sequence cut like this."""
        for tp in self.tps:
            share_of(self.model, tp)
        self.points()

    def points(self) -> list[Point]:
        """All points of the grid."""
        return grid(self.model, self.sequence_length, self.subsequences, cuts=self.cuts, tps=self.tps, seed=self.seed)

    def bench(self) -> BenchSettings:
        """What a bench needs to know."""
        return BenchSettings(
            self.model,
            self.sequence_length,
            self.micro_batch_size,
            self.layers,
            self.device,
            DTYPES[self.dtype],
            self.backend,
            self.seed,
        )

    def more(self, once: float) -> int:
        """Repetitions after the first of a visit, which took `once` seconds."""
        fits = int(self.visit_seconds / once) if once > 0 else self.repetitions
        return max(self.warm_ups + 2, min(self.warm_ups + self.repetitions, fits)) - 1


@dataclass(frozen=True)
class Progress:
    """Told after every visit."""

    done: int
    total: int
    seconds_left: float


def measure(
    settings: Settings,
    out: Path,
    *,
    links: Links,
    report: Callable[[Progress], object] = lambda _: None,
    stop_after: float = math.inf,
) -> CalibrationProfile:
    """Run the calibration, or what an interrupted one left of it, and write the profile to `out`.

    After `stop_after` seconds no further point is visited; the profile is made of what there is and says so.
    Raises InputError when nothing stable is left to fit, FileError on a journal of another run beside `out`.
    """
    check_device(settings.device)
    check_attention(settings.backend, settings.device, settings.dtype)
    settings.check()
    torch.set_num_threads(settings.threads)
    gc.freeze()  # what is loaded now stays: collecting between visits looks at a visit's own objects only
    journal = Journal(journal_path(out), _fingerprint(settings))
    try:
        _Run(settings, journal, report).all_rounds(time.monotonic() + stop_after)
        profile = assemble(_collected(settings, journal.lines, links))
        write_profile(profile, out)
    except BaseException:
        journal.close()
        raise
    journal.remove()
    return profile


def journal_path(out: Path) -> Path:
    """Where the journal of a profile lies."""
    return out.with_name(out.name + ".partial")


def check_device(device: str) -> None:
    """InputError if this machine has no such device."""
    if device not in ("cpu", "cuda"):
        raise InputError("--device", device, "must be cpu or cuda", "CUDA_VISIBLE_DEVICES chooses among GPUs")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device", device, "torch sees no CUDA device here", "use --device cpu")


def check_attention(backend: str, device: str, dtype: str) -> None:
    """InputError if this torch cannot run such attention behind a prefix."""
    q, k = (torch.zeros(1, n, 1, 64, dtype=DTYPES[dtype], device=device) for n in (8, 16))
    try:
        with pinned(backend), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says why at length; the reason here is one line
            attend(q, k, k)
    except RuntimeError:
        rule = f"torch {torch.__version__} cannot run it on {device} in {dtype}"
        remedy = "use --attention flash" + (" and --dtype bfloat16" if device == "cuda" else "")
        raise InputError("--attention", backend, rule, remedy) from None


def _fingerprint(settings: Settings) -> dict[str, Any]:
    found = asdict(settings)
    found["torch"] = str(torch.__version__)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


class _Run:
    """The rounds of one calibration, whatever of them the journal lacks."""

    def __init__(self, settings: Settings, journal: Journal, report: Callable[[Progress], object]) -> None:
        self.settings, self.journal, self.report = settings, journal, report
        self.clock = clock_of(settings.device, settings.threads)
        self.benches: dict[int, Bench] = {}
        self.points = settings.points()

    def all_rounds(self, deadline: float) -> None:
        """Visit every point once a round, in a new order each time, and none after `deadline`."""
        wanted = [(n, point) for n in range(self.settings.rounds) for point in self._order(n)]
        seen = {(line["round"], Point(*line["point"])) for line in self.journal.lines if "point" in line}
        left = [visit for visit in wanted if visit not in seen]
        began, latest = time.monotonic(), -1
        for count, (n, point) in enumerate(left, 1):
            if time.monotonic() > deadline:
                self.journal.add(
                    {"stopped": f"stopped after {len(wanted) - len(left) + count - 1} of {len(wanted)} visits"}
                )
                break
            if n != latest:
                self._reference(n)
                latest = n
            self._visit(n, point)
            pace = (time.monotonic() - began) / count
            self.report(Progress(len(wanted) - len(left) + count, len(wanted), pace * (len(left) - count)))
        if latest >= 0:
            self._reference(latest)
        if not any("optimizer" in line for line in self.journal.lines):
            self._optimizer()

    def _order(self, n: int) -> Iterator[Point]:
        points = list(self.points)
        random.Random(f"{self.settings.seed} {n}").shuffle(points)
        # one share's weights at a time: two would not fit beside each other on a GPU
        return iter(sorted(points, key=lambda point: point.tp))

    def _bench(self, tp: int) -> Bench:
        if tp not in self.benches:
            self.benches.clear()
            self.benches[tp] = Bench(self.settings.bench(), tp, self.clock)
        return self.benches[tp]

    def _visit(self, n: int, point: Point) -> None:
        line: dict[str, Any] = {"round": n, "point": list(point)}
        gc.collect()
        try:
            self._refuse_too_many_logits(point)
            bench = self._bench(point.tp)
            if n == 0 and not point.held_out:
                line["sizes"] = bench.sizes(point).model_dump()
            series = bench.times(point, self.settings.more)
            line["seconds"] = [times.seconds for times in series]
            line["host_seconds"] = [times.host_seconds for times in series]
        except torch.OutOfMemoryError as error:
            line["skipped"] = str(error).split(". ")[0]
        if "skipped" in line:  # out here nothing holds the tensors of the failed run any more
            torch.cuda.empty_cache()
        self.journal.add(line)

    def _refuse_too_many_logits(self, point: Point) -> None:
        """Kernels that count in 32 bits would fail, or be wrong; the fit of the smaller sizes goes on."""
        count = self.settings.micro_batch_size * point.tokens * share_of(self.settings.model, point.tp).vocab
        if point.part == "head" and count > MOST_LOGITS:
            raise torch.OutOfMemoryError(f"{count:,} logits at once are more than 2^31")

    def _reference(self, n: int) -> None:
        """A fixed matrix product, whose times tell whether the machine itself has changed."""
        s = self.settings
        size = REFERENCE_SIZE[s.device]
        a, b = (torch.randn(size, size, dtype=DTYPES[s.dtype], device=s.device) for _ in range(2))
        times = time_spans(self.clock, CacheFlush(s.device), [("mm", lambda: a @ b)], REFERENCE_REPETITIONS)
        self.journal.add({"round": n, "reference": times.seconds["mm"]})

    def _optimizer(self) -> None:
        """AdamW over float32 copies of one stage's layers."""
        s = self.settings
        stage = self._bench(min(s.tps)).stage("layer")
        copies = [torch.nn.Parameter(p.detach().float()) for p in stage.parameters()]
        for copy in copies:
            copy.grad = torch.full_like(copy, 1e-3)
        step = torch.optim.AdamW(copies, fused=True).step
        times = time_spans(self.clock, CacheFlush(s.device), [("step", step)], s.warm_ups + s.repetitions)
        count = sum(copy.numel() for copy in copies)
        self.journal.add({"optimizer": times.seconds["step"], "parameters": count, "name": "AdamW fused float32"})


def _named(point: Point) -> str:
    return f"{point.part} at s={point.tokens}, prefix={point.prefix}, tp={point.tp}"


def _collected(settings: Settings, lines: list[dict[str, Any]], links: Links) -> Measured:
    """Everything the journal holds, by op and point."""
    s = settings
    return Measured(
        provenance=provenance(s.device, DTYPES[s.dtype], s.backend, s.threads),
        clock=clock_of(s.device, s.threads).name,
        model=s.model,
        sequence_length=s.sequence_length,
        micro_batch_size=s.micro_batch_size,
        grid=Grid(
            subsequences=list(s.subsequences),
            rounds=s.rounds,
            repetitions=s.repetitions,
            warm_ups=s.warm_ups,
            layers=s.layers,
            seed=s.seed,
        ),
        visits=[line for line in lines if "seconds" in line],
        sizes=[MemoryRow.model_validate(line["sizes"]) for line in lines if "sizes" in line],
        reference=[line["reference"] for line in lines if "reference" in line],
        optimizer=next(line for line in lines if "optimizer" in line),
        notes=[
            *(f"{_named(Point(*line['point']))}: {line['skipped']}" for line in lines if "skipped" in line),
            *(line["stopped"] for line in lines if "stopped" in line),
        ],
        links=links,
        # attention at prefix 0 is a triangle on a CPU, a square with a mask behind a prefix
        prefix_zero_apart=not s.device.startswith("cuda"),
        refuse_unstable=s.refuse_unstable,
    )
