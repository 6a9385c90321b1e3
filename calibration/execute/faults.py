"""Supervises local ranks: one that dies, raises or hangs ends them all, with one line that names rank and op.

Which rank is to blame: one killed by a signal before one that raised, one that raised while computing before one whose
connection broke, and of ranks that all stand still the one that is not waiting for another.
"""

from __future__ import annotations

import os
import signal
import time
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

from calibration.execute import launch
from calibration.execute.launch import Failure
from calibration.execute.ranks import BOARD_FIELDS, NO_ROW, NOT_TO_BLAME, Board, Phase, backend_of
from pipesim.errors import ExecutionError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_POLL_S, _GRACE_S, _START_S = 0.2, 0.5, 120.0


class RankPool:
    """Ranks on this machine that wait for tasks; use as a context manager, so that none outlives it.

    ranks: how many. device: cpu or cuda. timeout_s: how long all of them may stand still. port: where they meet,
    0 for a free one. Raises InputError on what this machine lacks, ExecutionError where a rank does not start.
    """

    def __init__(self, ranks: int, *, device: str = "cpu", timeout_s: float = 20.0, port: int = 0) -> None:
        launch.refuse_missing(device, ranks)
        self.ranks, self.device, self.timeout_s = ranks, device, timeout_s
        self._store = launch.open_store(port)
        context = launch.context()
        memory = context.RawArray("q", ranks * BOARD_FIELDS)
        self._board = Board(memory, ranks)
        self._pipes, self._lifelines, self._processes = [], [], []
        for number in range(ranks):
            tasks, its_tasks = context.Pipe()
            lifeline, its_lifeline = context.Pipe()
            process = context.Process(
                target=launch.rank_main,
                args=(number, ranks, device, self._store.port, memory, its_tasks, its_lifeline),
                daemon=True,
            )
            process.start()
            its_tasks.close()
            its_lifeline.close()
            self._pipes.append(tasks)
            self._lifelines.append(lifeline)
            self._processes.append(process)

    @property
    def backend(self) -> str:
        """Of messages between its ranks."""
        return backend_of(self.device)

    @property
    def pids(self) -> list[int]:
        """Process ids by rank."""
        return [int(process.pid or 0) for process in self._processes]

    def run(self, task: Callable[..., Any], *arguments: Any, label: Callable[[int], str] = str) -> list[Any]:
        """task(rank, *arguments) on every rank; returns the results by rank. `label` prints a row as an op.

        Raises ExecutionError that names rank and op, after all ranks have been ended.
        """
        if not self._processes:
            raise ExecutionError("the ranks have been ended; start new ones")
        try:
            for pipe in self._pipes:
                pipe.send((task, arguments))
            return self._collect(label)
        except BrokenPipeError:
            raise self._ended(self._blame({}, label)) from None
        except BaseException:
            self.close()
            raise

    def _collect(self, label: Callable[[int], str]) -> list[Any]:
        answers: dict[int, Any] = {}
        progress, since = self._board.progress, time.monotonic()
        while len(answers) < self.ranks:
            if self._receive(answers, _POLL_S):
                self._hear_out(answers)
                raise self._ended(self._blame(answers, label))
            seen = self._board.progress
            if (seen != progress).any():
                progress, since = seen, time.monotonic()
            elif time.monotonic() - since > self._patience(answers):
                raise self._ended(self._blame_hang(answers, label))
        return [answers[number] for number in range(self.ranks)]

    def _patience(self, answers: dict[int, Any]) -> float:
        """Longer while a rank has not begun its task: importing code can take long on a busy machine."""
        silent = (self._board.read(number)[0] for number in range(self.ranks) if number not in answers)
        return max(self.timeout_s, _START_S) if {*silent} & {Phase.STARTING, Phase.IDLE} else self.timeout_s

    def _receive(self, answers: dict[int, Any], timeout_s: float) -> bool:
        """Takes what has come in; whether something has gone wrong."""
        waiting = {self._pipes[n]: n for n in range(self.ranks) if n not in answers}
        for ready in connection.wait(list(waiting), timeout_s):
            number = waiting[ready]  # type: ignore[index]
            try:
                answers[number] = self._pipes[number].recv()
            except (EOFError, OSError):
                answers[number] = None
                self._processes[number].join(1)
        return self._dead() != [] or any(isinstance(answer, Failure) for answer in answers.values())

    def _hear_out(self, answers: dict[int, Any]) -> None:
        """The others' troubles may tell which was first; a rank's death can be seen after the errors it causes."""
        until = time.monotonic() + _GRACE_S
        while not self._dead() and len(answers) < self.ranks and (left := until - time.monotonic()) > 0:
            self._receive(answers, min(left, _POLL_S))

    def _dead(self) -> list[int]:
        return [n for n, process in enumerate(self._processes) if not process.is_alive()]

    def _blame(self, answers: dict[int, Any], label: Callable[[int], str]) -> str:
        dead = self._dead()
        if dead:
            return self._death(dead[0], label)
        failures = {n: answer for n, answer in answers.items() if isinstance(answer, Failure)}
        own = [n for n, f in failures.items() if f.phase not in NOT_TO_BLAME]
        number = min(own or failures, default=0)
        failure = failures.get(number)
        if failure is None:
            return "a rank closed its connection"
        place = place_of(Phase(failure.phase), failure.row, NO_ROW, label)
        return f"rank {number} raised {failure.kind} {place}: {failure.text}"

    def _death(self, number: int, label: Callable[[int], str]) -> str:
        status = self._processes[number].exitcode or 0
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return f"rank {number} {how} {place_of(*self._board.read(number), label)}"

    def _blame_hang(self, answers: dict[int, Any], label: Callable[[int], str]) -> str:
        silent = [number for number in range(self.ranks) if number not in answers]
        stands = {number: self._board.read(number) for number in silent}
        causes = [n for n, (phase, _, _) in stands.items() if phase not in NOT_TO_BLAME]
        shown = causes or silent
        places = ", ".join(f"rank {n} {place_of(*stands[n], label)}" for n in shown)
        return f"no progress for {self._patience(answers):g} s (--timeout): {places}"

    def _ended(self, reason: str) -> ExecutionError:
        self.close()
        return ExecutionError(f"{reason}; all {self.ranks} ranks ended")

    def close(self) -> None:
        """Ends every rank and waits until it is gone."""
        for process in self._processes:
            if process.is_alive() and process.pid:
                os.kill(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.join()
            process.close()
        for pipe in (*self._pipes, *self._lifelines):
            pipe.close()
        self._processes, self._pipes, self._lifelines = [], [], []
        self._store = None

    def __enter__(self) -> RankPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_PLACES = {
    Phase.STARTING: "while starting",
    Phase.IDLE: "between tasks",
    Phase.PREPARING: "while preparing",
    Phase.SUMMING: "while summing gradients",
    Phase.MEETING: "while waiting for all ranks",
}


def place_of(phase: Phase, row: int, waits_for: int, label: Callable[[int], str]) -> str:
    """Where a rank is, in words, from its line on the board."""
    if phase in _PLACES or row == NO_ROW:
        return _PLACES.get(phase, "")
    if waits_for != NO_ROW:
        return f"at {label(row)}, waiting for {label(waits_for)}"
    return f"at {label(row)}"
