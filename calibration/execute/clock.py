"""Moments on a device and one clock for all ranks: host time on CPUs, events on GPUs; knows no ops."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import distributed

from calibration.execute.ranks import host_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from calibration.execute.ranks import Rank

_PINGS = 20


class HostClock:
    """Moments are integers of the monotonic clock, which all processes of a machine share."""

    mark = staticmethod(time.perf_counter_ns)

    def begin(self) -> None:
        """Nothing to do: the clock runs."""

    def nanoseconds(self, moments: Sequence[Any]) -> NDArray[np.int64]:
        """int64 [moments]: host time of each."""
        return np.array(moments, dtype=np.int64)


class EventClock:
    """Moments are CUDA events, timed against one base event whose host time is known."""

    def begin(self) -> None:
        """Records the base event on an idle device and reads the host clock beside it."""
        torch.cuda.synchronize()
        self._base = torch.cuda.Event(enable_timing=True)
        self._base.record()
        self._base.synchronize()
        self._base_ns = time.perf_counter_ns()

    def mark(self) -> torch.cuda.Event:
        """A moment of the current stream: when all that was queued before is done."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def nanoseconds(self, moments: Sequence[torch.cuda.Event]) -> NDArray[np.int64]:
        """int64 [moments]: host time of each; waits for the device."""
        torch.cuda.synchronize()
        return np.array([self._base_ns + round(1e6 * self._base.elapsed_time(m)) for m in moments], dtype=np.int64)


def longer_ns(clock: HostClock | EventClock, marks: Sequence[tuple[Any, int]]) -> NDArray[np.int64]:
    """int64 [marks - 1]: between neighbouring (moment, host time), the longer of the device's time and the host's to
    issue the work: what an op takes that follows at once on another."""
    moments, host = zip(*marks, strict=True)
    return np.maximum(np.diff(clock.nanoseconds(moments)), np.diff(np.array(host, dtype=np.int64)))


def clock_of(device: torch.device) -> HostClock | EventClock:
    """The clock that can see when a device's work begins and ends."""
    return EventClock() if device.type == "cuda" else HostClock()


def offset_ns(rank: Rank, *, now: Callable[[], int] = time.perf_counter_ns, host: str | None = None) -> int:
    """What to add to this rank's clock to get rank 0's; 0 on rank 0's own machine. All ranks must call it.

    Rank 0 and each rank elsewhere exchange pings; of the one with the shortest round trip, the reply was made halfway.
    """
    if rank.world == 1:
        return 0
    hosts: list[Any] = [None] * rank.world
    distributed.all_gather_object(hosts, host or host_name(), group=rank.host_group)
    found = 0
    for other in range(1, rank.world):
        if hosts[other] == hosts[0]:
            continue
        if rank.number == 0:
            _reply(rank, other, now)
        elif rank.number == other:
            found = _ask(rank, now)
    return found


def _reply(rank: Rank, other: int, now: Callable[[], int]) -> None:
    for _ in range(_PINGS):
        ping = torch.zeros(1, dtype=torch.int64)
        distributed.recv(ping, other, group=rank.host_group)
        ping[0] = now()
        distributed.send(ping, other, group=rank.host_group)


def _ask(rank: Rank, now: Callable[[], int]) -> int:
    trips = []
    for _ in range(_PINGS):
        ping = torch.zeros(1, dtype=torch.int64)
        asked = now()
        distributed.send(ping, 0, group=rank.host_group)
        distributed.recv(ping, 0, group=rank.host_group)
        heard = now()
        trips.append((heard - asked, int(ping) - (asked + heard) // 2))
    return min(trips)[1]
