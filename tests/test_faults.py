"""A rank that dies, hangs or raises ends the run on all ranks with one line that names it; nothing is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipesim.errors import DeadlockError, ExecutionError, InputError, PlanError
from pipesim.lower import lower
from pipesim.plan import Kind, PipelineShape
from pipesim.schedules import build_plan
from tests.executing import workload_of
from tests.simulating import hand_plan

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from calibration.execute.ranks import Rank
    from pipesim.lower import LoweredPlan

pytestmark = [pytest.mark.torch, pytest.mark.ranks]

CULPRIT = 2


def run_broken(rank: Rank, how: str, *arguments: Any) -> Any:
    """The task of a rank, with one rank that fails at its backward of micro-batch 1."""
    from calibration.execute.ops import OpRunner
    from calibration.execute.run import run_on_rank

    whole = OpRunner.compute

    def broken(ops: OpRunner, kind: Kind, stage: int, microbatch: int, j: int, given: Any) -> Any:
        if rank.number == CULPRIT and kind == Kind.B and microbatch == 1:
            fail(how)
        return whole(ops, kind, stage, microbatch, j, given)

    OpRunner.compute = broken  # type: ignore[method-assign]
    return run_on_rank(rank, *arguments)


def fail(how: str) -> None:
    if how == "raises":
        raise RuntimeError("out of luck\nand more lines")
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exits":
        os._exit(7)
    if how == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(3600)


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", "rank 2 raised RuntimeError at 2B1: out of luck; all 4 ranks ended"),
        ("dies", "rank 2 was killed by SIGKILL at 2B1; all 4 ranks ended"),
        ("exits", "rank 2 ended with status 7 at 2B1; all 4 ranks ended"),
        ("hangs", "no progress for 3 s (--timeout): rank 2 at 2B1; all 4 ranks ended"),
        ("stops", "no progress for 3 s (--timeout): rank 2 at 2B1; all 4 ranks ended"),
    ],
)
def test_a_failing_rank_ends_all_and_is_named_with_its_op(how: str, said: str) -> None:
    from calibration.execute.engine import Effort, prepare
    from calibration.execute.faults import RankPool

    plan = build_plan("1f1b", PipelineShape(4, 4))
    workload = workload_of(plan)
    routes = prepare(lower(plan), workload)
    with RankPool(4, timeout_s=3) as pool:
        pids = pool.pids
        assert all(map(alive, pids))
        with pytest.raises(ExecutionError) as caught:
            pool.run(run_broken, how, plan, routes, workload, Effort(steps=1, memory=False), label=plan.label)
        assert str(caught.value) == said
        assert not any(map(alive, pids))
        with pytest.raises(ExecutionError, match="start new ones"):
            pool.run(run_broken, how)


def fail_around_a_death(rank: Rank) -> None:
    """Two ranks notice that a third is going, one after the other, before it is seen to be gone."""
    after, what = {0: (0.1, "raises"), 1: (0.0, "raises"), CULPRIT: (0.25, "dies")}[rank.number]
    time.sleep(after)
    fail(what)


def test_a_death_is_blamed_though_others_reported_its_consequences_first() -> None:
    from calibration.execute.faults import RankPool

    with RankPool(3) as pool, pytest.raises(ExecutionError, match=r"^rank 2 was killed by SIGKILL"):
        pool.run(fail_around_a_death)


PARENT = """
import sys, time
from calibration.execute.faults import RankPool
if __name__ == "__main__":
    pool = RankPool(2)
    print(*pool.pids, flush=True)
    time.sleep(3600)
"""


def test_ranks_do_not_outlive_their_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(alive, pids))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    gone_by = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < gone_by:
        time.sleep(0.05)
    assert not any(map(alive, pids))


def test_a_port_in_use_is_one_line() -> None:
    from calibration.execute.faults import RankPool

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"--port: {port}: is in use; leave the option out"):
            RankPool(2, port=port)


def test_a_missing_backend_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from calibration.execute.launch import refuse_missing

    monkeypatch.setattr(torch.distributed, "is_gloo_available", lambda: False)
    with pytest.raises(InputError, match=r"--device: cpu: this torch .* has no gloo backend"):
        refuse_missing("cpu", 2)
    with pytest.raises(InputError, match="--device: tpu: no such device; one of cpu, cuda"):
        refuse_missing("tpu", 2)


def test_more_ranks_than_gpus_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from calibration.execute.launch import refuse_missing

    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match="--devices: 2: needs a GPU each, 1 here; use fewer, or --one-gpu"):
        refuse_missing("cuda", 2)
    refuse_missing("cuda", 1)


class NoRanks:
    """A pool that must not be asked for anything."""

    ranks = 8
    backend = "none"

    def run(self, *arguments: Any, **named: Any) -> Any:
        raise AssertionError("ranks were started")


def test_a_plan_that_would_deadlock_is_refused_before_anything_starts() -> None:
    from calibration.execute.engine import execute

    odd = hand_plan(["0F0 0F1 0B0 0B1", "1F1 1B1 1F0 1B0"], 2, 2)  # device 1 takes micro-batch 1 first: that can run
    crossed = hand_plan(["0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"], 2, 2)
    with pytest.raises(AssertionError, match="ranks were started"):
        execute(odd, workload_of(odd), NoRanks())  # type: ignore[arg-type]
    with pytest.raises(DeadlockError, match="device 0 waits at 0B0 for 1B0 of device 1"):
        execute(crossed, workload_of(crossed), NoRanks())  # type: ignore[arg-type]


def swapped(lowered: LoweredPlan, device: int) -> LoweredPlan:
    """The same steps with the first two receives of a device swapped."""
    from pipesim.lower.policies import Action

    receives = [step for step in lowered.steps(device) if lowered.action[step] == Action.RECEIVE][:2]
    row = lowered.row.copy()
    row[receives] = row[receives[::-1]]
    return replace(lowered, row=row)


def test_two_ends_of_a_channel_that_disagree_on_the_order_are_refused() -> None:
    from calibration.execute.engine import execute

    plan = build_plan("1f1b", PipelineShape(2, 4))
    with pytest.raises(PlanError, match="activations 0->1, message 0: 0F0 is sent where 0F1 is received"):
        execute(swapped(lower(plan), 1), workload_of(plan), NoRanks())  # type: ignore[arg-type]


def run_with_other_lengths(rank: Rank, plan: Any, routes: Any, workload: Any, effort: Any) -> Any:
    from calibration.execute.run import run_on_rank

    mine = replace(workload, lengths=(6, 5)) if rank.number == 0 else workload
    return run_on_rank(rank, plan, routes, mine, effort)


def test_wrong_shapes_between_ranks_are_found_before_the_step() -> None:
    from calibration.execute.engine import Effort, prepare
    from calibration.execute.faults import RankPool

    plan = build_plan("seq1f1b", PipelineShape(2, 2, subsequences=2))
    workload = workload_of(plan, equal=True)
    routes = prepare(lower(plan), workload)
    with RankPool(2) as pool, pytest.raises(ExecutionError) as caught:
        pool.run(run_with_other_lengths, plan, routes, workload, Effort(steps=1), label=plan.label)
    assert "channel of activations 0->1, message 1: 0F0.1 [1, 5, 16] float64 is sent, " in str(caught.value)
    assert "0F0.1 [1, 6, 16] float64 is expected" in str(caught.value)
    assert "rank 1 raised ExecutionError while waiting for all ranks" in str(caught.value)


def session(pid: int) -> int:
    """The session a process belongs to, -1 where it has gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
    except (OSError, IndexError):
        return -1


def processes_of(leader: int) -> dict[int, str]:
    """Names by id of the living processes of a session."""
    found = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    mine = [pid for pid in found if session(pid) == leader and alive(pid)]
    return {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in mine}


def test_kill_9_of_one_rank_ends_the_command(tmp_path: Path) -> None:
    words = ["execute", "1f1b", "-p", "4", "-m", "8", "--seq-len", "64", "--steps", "1000000", "--gantt", "run.png"]
    code = "import sys; from pipesim.cli import main; sys.exit(main())"
    run = subprocess.Popen(
        [sys.executable, "-c", code, *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        victim = 0
        started_by = time.monotonic() + 60
        while not victim and time.monotonic() < started_by and run.poll() is None:
            victim = next((pid for pid, name in processes_of(run.pid).items() if name == "pipesim-rank2"), 0)
            time.sleep(0.1)
        assert victim, "rank 2 did not start"
        time.sleep(1)
        os.kill(victim, signal.SIGKILL)
        _, said = run.communicate(timeout=30)
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 1
    assert said.startswith("pipesim: rank 2 was killed by SIGKILL ")
    assert said.count("\n") == 1
    gone_by = time.monotonic() + 10
    while processes_of(run.pid) and time.monotonic() < gone_by:
        time.sleep(0.05)
    assert processes_of(run.pid) == {}
    assert list(tmp_path.iterdir()) == []


STANDS_STILL = """
import time, torch
from calibration.execute.torchrun import watch
from calibration.execute.ranks import Board, Phase, Rank
rank = Rank(1, 2, torch.device("cpu"), Board.private(2))
rank.at(Phase.COMPUTING, 3)
watch(rank, 0.5, lambda row: f"op {row}")
for _ in range(5):  # no reason to end: it still writes
    time.sleep(0.2)
    rank.at(Phase.COMPUTING, 3)
print("went on", flush=True)
time.sleep(60)
"""


def test_a_rank_under_torchrun_ends_itself_where_it_stands_still() -> None:
    done = subprocess.run([sys.executable, "-c", STANDS_STILL], capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout) == (1, "went on\n")
    assert done.stderr == "pipesim: no progress for 0.5 s (--timeout): rank 1 at op 3\n"
