"""Ping-pong between two ranks: how long messages of each size take; knows no pipelines, fits nothing itself.

One way: rank 0 sends, rank 1 answers, half the round trip. Both ways: both send and receive at once. `measure_links`
starts two processes on this machine; under torchrun, `python -m calibration.measure.comm` runs on the ranks it was
given, ranks 0 and 1 playing, which is how links between nodes are measured.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from calibration.fit import fit_links
from pipesim.errors import ExecutionError, InputError
from pipesim.profile_records import LinkFit, LinkRow, Links

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SMALLEST = 4096
WARM_UPS = 3
REPETITIONS = 15
TIMEOUT = timedelta(seconds=60)
ENOUGH_FOR_A_RATE = 4 * 2**20
LARGEST = 256 * 2**20


def sizes_up_to(largest: int) -> list[int]:
    """Message sizes by fours from 4 KiB (or less), ending with the largest itself."""
    sizes = [min(SMALLEST, largest)]
    while sizes[-1] * 4 < largest:
        sizes.append(sizes[-1] * 4)
    return sizes if sizes[-1] == largest else [*sizes, largest]


def given_links(device: str) -> Links:
    """For machines with one device, where nothing can be measured."""
    return Links(origin="given", note=f"one {device} device: links are those of the cluster, not measured")


def measure_links(backend: str, largest: int) -> Links:
    """Ping-pong between two processes of this machine. ExecutionError if they do not finish."""
    if backend == "nccl" and torch.cuda.device_count() < 2:
        raise InputError(
            "--links", backend, "needs two GPUs on this machine", "leave --links out: links are then given"
        )
    with tempfile.TemporaryDirectory() as folder:
        meeting, out = Path(folder) / "meeting", Path(folder) / "links.json"
        context = torch.multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch.distributed", "calibration.measure.comm"])
        ranks = [
            context.Process(target=_rank, args=(rank, backend, f"file://{meeting}", largest, out)) for rank in range(2)
        ]
        for process in ranks:
            process.start()
        limit = time.monotonic() + 2 * TIMEOUT.total_seconds()
        for process in ranks:
            process.join(max(0.0, limit - time.monotonic()))
        late = [process for process in ranks if process.is_alive()]
        for process in late:
            process.kill()
            process.join()
        if late or not out.exists():
            codes = [process.exitcode for process in ranks]
            raise ExecutionError(f"links: the two ranks over {backend} did not finish (exit codes {codes})")
        table = [LinkRow.model_validate(row) for row in json.loads(out.read_text(encoding="utf-8"))]
    return fitted_links(table, backend, "two processes of one machine")


def fitted_links(table: list[LinkRow], backend: str, note: str) -> Links:
    """The table with its fits; where a rate cannot be seen in it there is no fit and the note says so."""
    fits: list[LinkFit | None] = []
    for both_ways in (False, True):
        try:
            fits.append(fit_links(table, WARM_UPS, both_ways=both_ways))
        except InputError as error:
            fits.append(None)
            note += f"; no fit {'both ways' if both_ways else 'one way'}: {error.rule}"
    return Links(
        origin="measured",
        note=note,
        backend=backend,
        warm_ups=WARM_UPS,
        table=table,
        one_way=fits[0],
        both_ways=fits[1],
    )


def _rank(rank: int, backend: str, meeting: str, largest: int, out: Path) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=2, timeout=TIMEOUT)
    try:
        device = f"cuda:{rank}" if backend == "nccl" else "cpu"
        table = play(rank, device, largest)
        if rank == 0:
            out.write_text(json.dumps([row.model_dump() for row in table]), encoding="utf-8")
        dist.barrier()
    finally:
        dist.destroy_process_group()


def play(rank: int, device: str, largest: int) -> list[LinkRow]:
    """Ping-pong of ranks 0 and 1 of the process group; each returns its own times."""
    table = []
    for size in sizes_up_to(largest):
        mine, other = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
        one_way = _times(lambda mine=mine: _there_and_back(rank, mine), 0.5, device)
        both = _times(lambda mine=mine, other=other: _at_once(rank, mine, other), 1.0, device)
        table.append(LinkRow(size_bytes=size, one_way_seconds=one_way, both_ways_seconds=both))
    return table


def _there_and_back(rank: int, tensor: torch.Tensor) -> None:
    if rank == 0:
        dist.send(tensor, 1)
        dist.recv(tensor, 1)
    else:
        dist.recv(tensor, 0)
        dist.send(tensor, 0)


def _at_once(rank: int, mine: torch.Tensor, other: torch.Tensor) -> None:
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
    ):
        work.wait()


def _times(run: Callable[[], object], share: float, device: str) -> list[float]:
    """Wall seconds of each repetition times `share`; both ranks start each together."""
    found = []
    for _ in range(WARM_UPS + REPETITIONS):
        dist.barrier()
        _wait(device)
        begin = time.perf_counter_ns()
        run()
        _wait(device)
        found.append(max(time.perf_counter_ns() - begin, 1) * 1e-9 * share)
    return found


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def largest_message(boundary_bytes: Sequence[int]) -> int:
    """The largest message of a plan, within what shows a rate and what is worth waiting for."""
    return min(LARGEST, max(ENOUGH_FOR_A_RATE, *boundary_bytes))


def main() -> None:
    """Under torchrun: ranks 0 and 1 play over NCCL (or gloo without GPUs); rank 0 prints the links as JSON."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=TIMEOUT)
    try:
        rank, local = dist.get_rank(), int(os.environ.get("LOCAL_RANK", "0"))
        device = f"cuda:{local}" if backend == "nccl" else "cpu"
        if dist.get_world_size() != 2:
            raise InputError("torchrun", dist.get_world_size(), "ping-pong needs exactly 2 ranks", "one on each node")
        table = play(rank, device, LARGEST)
        if rank == 0:
            links = fitted_links(table, backend, "two ranks started by torchrun")
            os.write(1, (links.model_dump_json(indent=1) + "\n").encode())
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
