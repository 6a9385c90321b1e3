"""Measuring on the CPU with a clock that only counts: what is visited, kept, resumed, and how many bytes there are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from calibration import measure as measuring  # noqa: E402  (torch may be missing)
from calibration.grid import Point  # noqa: E402
from calibration.measure import Settings, check_device, journal_path, measure  # noqa: E402
from calibration.measure.bench import Bench, BenchSettings, Scene, share_of  # noqa: E402
from calibration.measure.comm import fitted_links, given_links, measure_links, sizes_up_to  # noqa: E402
from pipesim.errors import FileError, InputError  # noqa: E402
from pipesim.model import preset  # noqa: E402
from pipesim.profile import read_profile  # noqa: E402
from pipesim.profile_records import LinkRow  # noqa: E402
from tests.calibrating import MODEL, StepClock  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from calibration.measure import Progress
    from pipesim.profile import CalibrationProfile

pytestmark = pytest.mark.torch

SMALL = replace(MODEL, hidden=16, heads=2, kv_heads=1, head_size=8, feedforward=24, vocab=32)
SETTINGS = Settings(SMALL, 64, (1, 2), rounds=2, repetitions=2, warm_ups=1, visit_seconds=0.0)
LINKS = given_links("cpu")


@pytest.fixture(autouse=True)
def counting_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several wait for each other where the machine has other work
    monkeypatch.setattr(measuring, "clock_of", lambda *_: StepClock())
    yield
    torch.set_num_threads(threads)


def run(out: Path, settings: Settings = SETTINGS, **options: Any) -> CalibrationProfile:
    return measure(settings, out, links=LINKS, **options)


def test_every_point_is_visited_in_every_round_and_kept_raw(tmp_path: Path) -> None:
    found = run(tmp_path / "p.json")
    assert read_profile(tmp_path / "p.json") == found
    assert not journal_path(tmp_path / "p.json").exists()
    at = {(s.part, s.op, s.tokens, s.prefix, s.held_out) for s in found.samples}
    assert at == {(p.part, op, p.tokens, p.prefix, p.held_out) for p in SETTINGS.points() for op in "FBIW"}
    for s in found.samples:
        assert len(s.seconds) == (4 if s.op == "F" else 2)  # F is in both series of a round
        assert {len(visit) for visit in s.seconds} == {3}  # a warm-up and two
        per = SETTINGS.layers if s.part == "layer" else 1
        assert s.seconds == [pytest.approx([1e-3 / per] * 3)] * len(s.seconds)
    assert found.provenance.device_kind == "cpu"
    assert found.provenance.attention_backend == "flash"
    assert found.clock == "thread CPU time"
    assert found.links.origin == "given"
    assert found.optimizer is not None
    assert len(found.stability.reference_seconds) == 3  # before each round and at the end


def test_rounds_visit_in_different_orders_that_the_seed_fixes(tmp_path: Path) -> None:
    def order(settings: Settings) -> list[tuple[int, Point]]:
        seen = []
        journal = measuring.Journal(tmp_path / "j", {})
        probe = measuring._Run(settings, journal, lambda _: None)
        for n in range(2):
            seen += [(n, p) for p in probe._order(n)]
        journal.remove()
        return seen

    one = order(SETTINGS)
    assert [p for n, p in one if n == 0] != [p for n, p in one if n == 1]
    assert one == order(SETTINGS)
    assert one != order(replace(SETTINGS, seed=1))
    both = order(replace(SETTINGS, tps=(1, 2)))
    shares = [p.tp for n, p in both if n == 0]
    assert shares == sorted(shares)  # one share's weights are in memory at a time


class Killed(BaseException):
    """Stands for a signal: nothing in the measuring code may catch it."""


def killer(after: int) -> Any:
    def report(progress: Progress) -> None:
        if progress.done == after:
            raise Killed

    return report


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, visits = tmp_path / "p.json", []
    visit = measuring._Run._visit
    monkeypatch.setattr(measuring._Run, "_visit", lambda self, *at: (visits.append(at), visit(self, *at)))
    with pytest.raises(Killed):
        run(out, report=killer(7))
    assert not out.exists()
    with journal_path(out).open("a", encoding="utf-8") as file:
        file.write('{"round": 0, "point": [1, "lay')  # the line that was being written
    found = run(out)
    assert len(visits) == len(set(visits)) == 2 * len(SETTINGS.points())
    assert len(found.samples) == 4 * len(SETTINGS.points())
    assert {len(s.seconds) for s in found.samples} == {2, 4}
    assert not journal_path(out).exists()


def test_progress_counts_what_an_earlier_run_did(tmp_path: Path) -> None:
    seen: list[Progress] = []
    with pytest.raises(Killed):
        run(tmp_path / "p.json", report=killer(7))
    run(tmp_path / "p.json", report=seen.append)
    total = 2 * len(SETTINGS.points())
    assert [(p.done, p.total) for p in seen] == [(n, total) for n in range(8, total + 1)]
    assert seen[-1].seconds_left == 0


def test_a_journal_of_other_settings_is_refused_in_one_line(tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    with pytest.raises(Killed):
        run(out, report=killer(3))
    with pytest.raises(FileError, match=r"holds an interrupted calibration with other settings; give the same options"):
        run(out, replace(SETTINGS, seed=5))
    assert len(journal_path(out).read_text(encoding="utf-8").splitlines()) > 3


def test_a_journal_that_was_cut_before_its_first_line_is_begun_again(tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    journal_path(out).write_text('{"settin', encoding="utf-8")
    assert run(out).times


def test_time_running_out_leaves_a_profile_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(measuring.time, "monotonic", lambda: now[0])

    def tick(_: Progress) -> None:
        now[0] += 1

    total = 2 * len(SETTINGS.points())
    found = run(tmp_path / "p.json", report=tick, stop_after=20)
    assert found.notes == [f"stopped after 21 of {total} visits"]
    assert len({(s.part, s.tokens, s.prefix) for s in found.samples}) <= 21


def test_running_out_of_memory_at_one_point_leaves_it_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = Bench.sizes

    def too_large(self: Bench, point: Point) -> Any:
        if (point.part, point.tokens) == ("head", 64):
            raise torch.OutOfMemoryError("out of memory. Tried to allocate 1 PiB")
        return sizes(self, point)

    monkeypatch.setattr(Bench, "sizes", too_large)
    found = run(tmp_path / "p.json", replace(SETTINGS, rounds=1))
    assert found.notes == ["head at s=64, prefix=0, tp=1: out of memory"]
    assert not [s for s in found.samples if (s.part, s.tokens) == ("head", 64)]
    assert found.seconds(1, "head", "F", 64, 0).origin == "fit, extrapolated"


def test_more_logits_than_32_bits_count_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "MOST_LOGITS", 40 * 32)
    found = run(tmp_path / "p.json", replace(SETTINGS, rounds=1))
    assert "head at s=64, prefix=0, tp=1: 2,048 logits at once are more than 2^31" in found.notes
    heads = {p.tokens for p in SETTINGS.points() if p.part == "head"}
    assert {s.tokens for s in found.samples if s.part == "head"} == {tokens for tokens in heads if tokens <= 40}


def test_repetitions_fill_the_time_of_a_visit() -> None:
    settings = replace(SETTINGS, warm_ups=2, repetitions=10, visit_seconds=0.1)
    assert settings.more(0.001) == 11  # at most warm-ups and 10
    assert settings.more(0.015) == 5
    assert settings.more(5.0) == 3  # at least warm-ups and 2, the first of which is done


def bench(**changed: Any) -> Bench:
    return Bench(BenchSettings(SMALL, 64, **changed), 1, StepClock())


def test_activation_bytes_of_the_ends_are_counted_right() -> None:
    """Embedding: tokens and positions as int64, [2, s]. W: those and the gradient of its output."""
    row = bench().sizes(Point(1, "embedding", 24, 0))
    assert row.activation == 2 * 24 * 8
    assert row.weight_activation == 2 * 24 * 8 + 24 * 16 * 4


def test_activation_bytes_of_a_layer_are_linear_and_do_not_depend_on_the_prefix() -> None:
    b = bench()
    at = {s: b.sizes(Point(1, "layer", s, 0)) for s in (16, 32, 64)}
    for field in ("activation", "weight_activation"):
        assert getattr(at[32], field) == 2 * getattr(at[16], field)
        assert getattr(at[64], field) == 4 * getattr(at[16], field)
    behind = b.sizes(Point(1, "layer", 16, 48))
    assert behind.activation == at[16].activation
    assert behind.weight_activation == at[16].weight_activation


def test_bytes_kept_until_w_are_the_inputs_and_gradients_of_the_matrices() -> None:
    """Per token: norm output 16, attention output 16, norm output 16, gated 24; gradients 32, 16, 48, 16."""
    floats = 16 + 16 + 16 + 24 + (2 + 1 + 1) * 8 + 16 + 48 + 16
    assert bench().sizes(Point(1, "layer", 16, 0)).weight_activation == 16 * floats * 4


def test_bytes_are_per_layer_whatever_number_was_run() -> None:
    one, four = (bench(layers=n).sizes(Point(1, "layer", 32, 32)) for n in (1, 4))
    assert one.activation == four.activation
    assert one.weight_activation == four.weight_activation


def test_repeated_backwards_start_from_the_same_state() -> None:
    """The same op again and again: outputs and the gradient of the input may not change from run to run."""
    stage = bench().stage("layer")
    scene = Scene(stage, Point(1, "layer", 16, 48), BenchSettings(SMALL, 64))
    seen = []
    for _ in range(3):
        scene.rewind()
        seen.append((scene.forward(), scene.backward()))
    for out, grad in seen[1:]:
        assert torch.equal(out, seen[0][0])
        assert torch.equal(grad, seen[0][1])


def test_a_tensor_parallel_share_divides_what_it_must() -> None:
    share = share_of(preset("llama3-8b"), 16)
    assert (share.heads, share.kv_heads, share.feedforward, share.vocab) == (2, 1, 896, 8016)
    assert (share.hidden, share.head_size) == (4096, 128)
    with pytest.raises(InputError, match="--tp: 3: must divide heads = 32"):
        share_of(preset("llama3-8b"), 3)
    with pytest.raises(InputError, match="must divide kv_heads = 3"):
        share_of(replace(SMALL, heads=6, kv_heads=3, feedforward=24), 2)


def test_a_device_that_is_not_here_is_refused() -> None:
    with pytest.raises(InputError, match="--device: tpu: must be cpu or cuda"):
        check_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="torch sees no CUDA device here; use --device cpu"):
            check_device("cuda")


def test_message_sizes_go_by_fours_to_the_largest() -> None:
    assert sizes_up_to(65536) == [4096, 16384, 65536]
    assert sizes_up_to(100_000) == [4096, 16384, 65536, 100_000]
    assert sizes_up_to(1000) == [1000]


@pytest.mark.ranks
def test_two_ranks_play_over_gloo() -> None:
    links = measure_links("gloo", 65536)
    assert (links.origin, links.backend) == ("measured", "gloo")
    assert [row.size_bytes for row in links.table] == [4096, 16384, 65536]
    assert {len(row.one_way_seconds) for row in links.table} == {len(row.both_ways_seconds) for row in links.table}


def test_a_table_without_a_visible_rate_has_no_fit_and_says_so() -> None:
    """Small messages on a busy machine can take longer than large ones."""
    times = {4096: 2e-4, 65536: 1e-4}
    table = [LinkRow(size_bytes=s, one_way_seconds=[t] * 5, both_ways_seconds=[s * 1e-9] * 5) for s, t in times.items()]
    links = fitted_links(table, "gloo", "a test")
    assert links.one_way is None
    assert links.both_ways is not None
    assert links.note == "a test; no fit one way: time does not grow with size"


def test_nccl_on_one_gpu_is_refused() -> None:
    if torch.cuda.device_count() < 2:
        with pytest.raises(InputError, match="needs two GPUs on this machine"):
            measure_links("nccl", 65536)


KILLED_RUN = """
from pathlib import Path
import sys
from calibration.measure.comm import given_links
from calibration.measure import Settings, measure
from tests.test_measure import SMALL
settings = Settings(SMALL, 64, (1, 2), rounds=2, repetitions=2, warm_ups=1, visit_seconds=0.0, refuse_unstable=False)
measure(settings, Path(sys.argv[1]), links=given_links("cpu"), report=lambda p: print(p.done, flush=True))
"""


@pytest.mark.slow
def test_a_run_killed_by_sigkill_resumes(tmp_path: Path) -> None:
    """A real clock and a real SIGKILL after some points; the second run does the rest and nothing twice."""
    out, command = tmp_path / "p.json", [sys.executable, "-c", KILLED_RUN]
    with subprocess.Popen([*command, str(out)], stdout=subprocess.PIPE, text=True) as first:
        for line in first.stdout:
            if int(line) == 9:
                os.kill(first.pid, signal.SIGKILL)
                break
        assert first.wait(30) == -signal.SIGKILL
    assert not out.exists()
    kept = [json.loads(line) for line in journal_path(out).read_text(encoding="utf-8").splitlines()]
    second = subprocess.run([*command, str(out)], capture_output=True, text=True, check=True)
    assert int(second.stdout.split()[0]) >= 10
    assert sum("point" in line for line in kept) == int(second.stdout.split()[0]) - 1
    assert len(read_profile(out).samples) == 4 * len(SETTINGS.points())
