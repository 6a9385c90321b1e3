"""What lowering speaks of: actions, messages and the columns of steps; knows no policy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipesim.dependencies import ABSENT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pipesim.plan import Plan

ALONE = -1
"""The group of a step that starts by itself."""


class Action(IntEnum):
    """What a step of a lowered plan does."""

    COMPUTE = 0
    SEND = 1
    RECEIVE = 2


@dataclass(frozen=True)
class Messages:
    """The messages of a plan, int64 [messages] each: rows of the ops that make and use them, and their devices."""

    plan: Plan
    producer: NDArray[np.int64]
    consumer: NDArray[np.int64]
    source: NDArray[np.int64]
    destination: NDArray[np.int64]

    @classmethod
    def of(cls, plan: Plan, remote: NDArray[np.int32]) -> Messages:
        """From the row whose message each row waits for."""
        consumer = np.flatnonzero(remote != ABSENT)
        producer = remote[consumer].astype(np.int64)
        device = plan.device.astype(np.int64)
        return cls(plan, producer, consumer, device[producer], device[consumer])


class Steps(NamedTuple):
    """The columns of a lowered plan: offsets int64 [p+1]; action int8, row, peer, group int32 [steps]."""

    offsets: NDArray[np.int64]
    action: NDArray[np.int8]
    row: NDArray[np.int32]
    peer: NDArray[np.int32]
    group: NDArray[np.int32]
