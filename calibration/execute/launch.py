"""Starts ranks: on this machine by forkserver with torch preloaded, or as torchrun's environment says; runs nothing.

A local rank lives in a loop: it takes (function, arguments) from its pipe, runs function(rank, *arguments) and sends
the result back. Starting once and feeding many tasks costs milliseconds a task.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pipesim.errors import InputError
from pipesim.forkserver import forkserver_context

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerContext

    from calibration.execute.ranks import Board, Rank

# Backends have time limits of their own; the supervisor's is the one that counts.
_BACKEND_TIMEOUT = timedelta(hours=2)
_PRELOADED = ["torch", "torch.distributed", "numpy", "calibration.execute.rank"]


@dataclass(frozen=True)
class Failure:
    """What a rank reports when a task raised: one line for people, and the phase."""

    kind: str
    text: str
    phase: int
    row: int


def refuse_missing(device: str, ranks: int) -> None:
    """Raises InputError where this machine or this torch cannot run so many ranks on such a device."""
    import torch
    from torch import distributed

    if device not in ("cpu", "cuda"):
        raise InputError("--device", device, "no such device", "one of cpu, cuda")
    backend = "nccl" if device == "cuda" else "gloo"
    available = distributed.is_available() and getattr(distributed, f"is_{backend}_available")()
    if not available:
        raise InputError("--device", device, f"this torch {torch.__version__} has no {backend} backend",
                         "install one that has, or use --device cpu")  # fmt: skip
    if device == "cuda" and torch.cuda.device_count() < ranks:
        rule = f"needs a GPU each, {torch.cuda.device_count()} here"
        raise InputError("--devices", ranks, rule, "use fewer, or --one-gpu, or --device cpu")


def open_store(port: int) -> Any:
    """The meeting place of the ranks on 127.0.0.1; port 0 takes a free one. Raises InputError where it is in use."""
    from torch.distributed import DistNetworkError, TCPStore

    if not 0 <= port < 2**16:
        raise InputError("--port", port, "must be from 0 to 65535", "leave the option out for a free one")
    try:
        return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=_BACKEND_TIMEOUT)
    except DistNetworkError as error:
        reason = "is in use" if "EADDRINUSE" in str(error) else "cannot be opened"
        raise InputError("--port", port, reason, "leave the option out for a free one") from None


def context() -> ForkServerContext:
    """Processes forked from a server that has imported torch once."""
    return forkserver_context(_PRELOADED)


def rank_main(
    number: int, world: int, device: str, port: int, memory: Any, tasks: Connection, lifeline: Connection
) -> None:
    """The life of a local rank: until its pipe closes, or its parent is gone."""
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    from calibration.execute.ranks import Board, Phase

    board = Board(memory, world)
    try:
        rank = _joined(number, world, device, port, board)
    except Exception as error:  # whatever it is, the parent must hear of it
        tasks.send(_failure(board, number, error))
        return
    while True:
        rank.at(Phase.IDLE)
        try:
            function, arguments = tasks.recv()
        except EOFError:
            return
        rank.at(Phase.PREPARING)
        answer = _answer(rank, function, arguments)
        tasks.send(answer)
        if isinstance(answer, Failure):
            threading.Event().wait()  # its connections stay open, or others would fail too; the parent ends all


def _answer(rank: Rank, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return function(rank, *arguments)
    except Exception as error:  # whatever it is, the parent must hear of it
        return _failure(rank.board, rank.number, error)


def _failure(board: Board, number: int, error: Exception) -> Failure:
    phase, row, _ = board.read(number)
    lines = str(error).strip().splitlines() or [""]
    return Failure(type(error).__name__, lines[0], int(phase), row)


def _die_with_parent(lifeline: Connection) -> None:
    try:
        lifeline.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


def _joined(number: int, world: int, device: str, port: int, board: Board) -> Rank:
    import torch
    from torch import distributed

    from calibration.execute.ranks import Rank, prepare_process

    if device == "cpu" and os.path.isdir("/sys/class/net/lo"):  # noqa: PTH112  (a kernel folder)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")
    place = torch.device(device, number) if device == "cuda" else torch.device(device)
    prepare_process(number, place, number, world)
    store = distributed.TCPStore("127.0.0.1", port, is_master=False, timeout=_BACKEND_TIMEOUT)
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
        store=store, rank=number, world_size=world, timeout=_BACKEND_TIMEOUT,
    )  # fmt: skip
    return Rank(number, world, place, board)


def rank_of_environment(device: str) -> Rank:
    """This process as torchrun started it (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT).

    Raises InputError where one of them is missing.
    """
    import torch
    from torch import distributed

    from calibration.execute.ranks import Board, Rank, prepare_process

    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise InputError(name, "not set", "must be in the environment", "start it with torchrun")
    number, world, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    refuse_missing(device, local + 1)
    place = torch.device(device, local) if device == "cuda" else torch.device(device)
    prepare_process(number, place, local, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    distributed.init_process_group(backend, timeout=_BACKEND_TIMEOUT)
    return Rank(number, world, place, Board.private(world))
