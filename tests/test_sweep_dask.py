"""A sweep on a real Dask scheduler and two workers of this machine, one of which is killed in between."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from pipesim.costs.unit import UnitCosts
from pipesim.errors import InputError
from pipesim.sweep import grid, sweep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

distributed = pytest.importorskip("distributed")

POINTS = grid(
    ["1f1b", "seq1f1b", "interleaved", "seq1f1b-interleaved"],
    {
        "unit_costs": [UnitCosts.of(1, 2, transfer=t) for t in ("0", "1/4", "1/2")],
        "devices": [2, 4, 8],
        "microbatches": [8, 9, 12, 16],
        "subsequences": [1, 2, 3, 4, 5, 6],
    },
)


@contextmanager
def dask_process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`dask ...` as a user would start it, ended with the block, children included."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dask", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def cluster() -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """The address of a scheduler, and its two workers."""
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    own = ("--host", "127.0.0.1", "--no-dashboard")
    worker = ("worker", address, *own, "--nthreads", "1", "--no-nanny")
    with dask_process("scheduler", *own, "--port", str(port)), dask_process(*worker) as a, dask_process(*worker) as b:
        with distributed.Client(address, timeout="60s", set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
        yield address, [a, b]


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets of a worker that was killed
def test_500_points_on_dask_are_those_of_two_processes_and_a_killed_worker_costs_nothing(tmp_path: Path) -> None:
    assert len(POINTS) >= 500
    done = 0
    killed: list[int] = []
    sweep(POINTS, tmp_path / "processes.csv", workers=2)
    with cluster() as (address, workers):

        def kill_one(count: int) -> None:
            nonlocal done
            done += count
            if done > len(POINTS) // 3 and not killed:
                workers[0].send_signal(signal.SIGKILL)
                killed.append(workers[0].wait())

        sweep(POINTS, tmp_path / "dask.csv", dask=address, report=kill_one)
    assert killed == [-signal.SIGKILL]
    assert done == len(POINTS)
    assert (tmp_path / "dask.csv").read_bytes() == (tmp_path / "processes.csv").read_bytes()


@pytest.mark.ranks
def test_an_address_where_no_scheduler_answers_is_refused() -> None:
    with pytest.raises(InputError, match="no Dask scheduler answers"):
        sweep(POINTS[:1], dask=f"tcp://127.0.0.1:{free_port()}")
