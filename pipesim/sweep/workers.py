"""Where the points of a sweep run: here, on processes of this machine, or on a Dask cluster; knows no files.

Each way yields batches of (key, row) as they finish, in any order. Processes and clusters are given scenarios,
which are small, and give back rows; nothing else travels.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

from pipesim.errors import DependencyMissing, InputError
from pipesim.forkserver import forkserver_context
from pipesim.sweep.point import COLUMNS, inputs_of, row_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pipesim.scenario import Scenario

    Point = tuple[str, Scenario]
    Finished = list[tuple[str, dict[str, Any]]]

_BATCHES_PER_WORKER = 32  # points differ a hundredfold in time
_LARGEST_BATCH = 16
_DIED = "the process that simulated it died, perhaps for want of memory"


def on_this_process(points: Sequence[Point]) -> Iterator[Finished]:
    """One point after the other."""
    for key, scenario in points:
        yield [(key, row_of(scenario))]


def on_processes(points: Sequence[Point], workers: int) -> Iterator[Finished]:
    """On `workers` processes of this machine. A point whose process dies is a row that says so."""
    here, rest = _first_of_each_kind(points)
    yield from on_this_process(here)  # compiles what this sweep needs, once
    suspects: list[Point] = []
    for batch, future in _as_finished(rest, workers):
        try:
            yield future.result()
        except BrokenProcessPool:
            suspects += batch
    for point in suspects:  # whichever of them it was, each now has a process of its own
        for batch, future in _as_finished([point], 1):
            try:
                yield future.result()
            except BrokenProcessPool:
                yield [_failed(*batch[0], _DIED)]


def on_dask(points: Sequence[Point], address: str) -> Iterator[Finished]:
    """On the workers of the Dask scheduler at `address`; the work of a worker that dies goes to another.

    Raises DependencyMissing without Dask, InputError where no scheduler answers.
    """
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise DependencyMissing("--dask needs Dask: pip install 'pipesim[dask]'") from None
    try:
        client = Client(address, timeout="10s", set_as_default=False)
    except (OSError, ValueError) as error:
        reason = f"no Dask scheduler answers there ({type(error).__name__})"
        raise InputError("--dask", address, reason, "start `dask scheduler` and `dask worker` first") from None
    with client:
        if not client.ncores():
            raise InputError("--dask", address, "the scheduler has no workers", f"start `dask worker {address}`")
        batches = _batches(points, sum(client.ncores().values()))
        batch_of = {client.submit(rows_of, batch, pure=False): batch for batch in batches}
        for future in as_completed(batch_of, loop=client.loop):
            if future.status == "finished":
                yield future.result()
            else:
                reason = f"Dask: {type(future.exception()).__name__}"
                yield [_failed(*point, reason) for point in batch_of[future]]


def _as_finished(points: Sequence[Point], workers: int) -> Iterator[tuple[Sequence[Point], Future[Finished]]]:
    """Batches with their results, as they finish; a few batches wait in line and no more."""
    context = forkserver_context(["pipesim.sweep.workers", "pipesim.engine.compiled", "pipesim.metrics"])
    waiting = _batches(points, workers)[::-1]
    running: dict[Future[Finished], Sequence[Point]] = {}
    with ProcessPoolExecutor(workers, context, initializer=_live_with_the_parent) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < 2 * workers:
                    batch = waiting.pop()
                    running[_submit(pool, batch)] = batch
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _submit(pool: ProcessPoolExecutor, batch: Sequence[Point]) -> Future[Finished]:
    try:
        return pool.submit(rows_of, batch)
    except BrokenProcessPool as error:
        broken: Future[Finished] = Future()
        broken.set_exception(error)
        return broken


def _live_with_the_parent() -> None:
    """A worker leaves Ctrl-C to its parent, and ends when the parent is killed instead of waiting for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:

        def end_with_it() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=end_with_it, daemon=True).start()


def _batches(points: Sequence[Point], workers: int) -> list[Sequence[Point]]:
    size = max(1, min(_LARGEST_BATCH, len(points) // (workers * _BATCHES_PER_WORKER)))
    return [points[first : first + size] for first in range(0, len(points), size)]


def _first_of_each_kind(points: Sequence[Point]) -> tuple[list[Point], list[Point]]:
    """The smallest point of each schedule and communication, with and without ports: they use all kernels."""
    firsts: dict[tuple[str, str, bool], Point] = {}
    for point in sorted(points, key=lambda p: p[1].devices * p[1].microbatches):
        scenario = point[1]
        free = scenario.unit_costs is not None and not scenario.unit_costs.transfer
        firsts.setdefault((scenario.schedule, scenario.communication, free), point)
    chosen = {key for key, _ in firsts.values()}
    return list(firsts.values()), [point for point in points if point[0] not in chosen]


def _failed(key: str, scenario: Scenario, reason: str) -> tuple[str, dict[str, Any]]:
    return key, dict.fromkeys(COLUMNS) | inputs_of(scenario) | {"failure": reason}
