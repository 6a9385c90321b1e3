"""What both lowered engines run: steps, queues and messages as flat arrays; knows no event and no clock.

A device walks through its steps in order. An *element* is what its queue takes at once: one send or receive, or
those of one group that belong to the same queue. Elements of a queue follow each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipesim.communication import queue_of_steps
from pipesim.dependencies import ABSENT, producers, remote_producers
from pipesim.lower.steps import ALONE, Action

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pipesim.communication import Communication
    from pipesim.costs.table import CostTable
    from pipesim.lower import LoweredPlan
    from pipesim.network import Network


@dataclass(frozen=True, eq=False)
class Program:
    """The steps of a lowered plan with all that decides when each may start.

    blocks: a device is busy with a send or receive until it ends.
    partner int32 [steps]: the other end of a send or receive, ABSENT for COMPUTE and where there is none;
    input_of int32 [steps]: the receive a COMPUTE step waits for, ABSENT where there is none;
    group_end int32 [steps]: the step after the group (or single step) that begins at a step;
    element int32 [steps]: the element of a send or receive, ABSENT for COMPUTE; queue_next int32 [elements]: the
    element behind it in its queue, ABSENT at the end; queue_first bool [elements];
    eager bool [ops]: messages that do not wait for their receive.
    """

    lowered: LoweredPlan
    blocks: bool
    partner: NDArray[np.int32]
    input_of: NDArray[np.int32]
    group_end: NDArray[np.int32]
    element: NDArray[np.int32]
    queue_next: NDArray[np.int32]
    queue_first: NDArray[np.bool_]
    eager: NDArray[np.bool_]

    @property
    def elements(self) -> int:
        """How many elements there are."""
        return len(self.queue_next)


def program_of(
    lowered: LoweredPlan, communication: Communication, message_bytes: NDArray[np.int64] | None = None
) -> Program:
    """The program of a checked lowered plan; message_bytes int64 [ops] decides which messages are eager."""
    element, queue_next, queue_first = _elements(lowered, communication)
    limit = communication.eager_bytes
    eager = np.zeros(len(lowered.plan), dtype=bool)
    if limit is not None and message_bytes is not None:
        eager = message_bytes <= limit
    return Program(
        lowered,
        communication.blocks,
        _partners(lowered),
        _inputs(lowered),
        _group_ends(lowered),
        element,
        queue_next,
        queue_first,
        eager,
    )


def _partners(lowered: LoweredPlan) -> NDArray[np.int32]:
    sends, receives = lowered.action == Action.SEND, lowered.action == Action.RECEIVE
    partner = np.full(len(lowered), ABSENT, dtype=np.int32)
    partner[sends] = lowered.receive_of[lowered.row[sends]]
    partner[receives] = lowered.send_of[lowered.row[receives]]
    return partner


def _inputs(lowered: LoweredPlan) -> NDArray[np.int32]:
    plan = lowered.plan
    remote = remote_producers(plan, producers(plan))
    receive = np.where(remote != ABSENT, lowered.receive_of[remote], ABSENT)
    return np.where(lowered.action == Action.COMPUTE, receive[lowered.row], ABSENT).astype(np.int32)


def _group_ends(lowered: LoweredPlan) -> NDArray[np.int32]:
    count = len(lowered)
    ends = np.arange(1, count + 1, dtype=np.int32)
    joined = (lowered.group[:-1] == lowered.group[1:]) & (lowered.group[:-1] != ALONE)
    joined &= lowered.device[:-1] == lowered.device[1:]
    for step in np.flatnonzero(joined)[::-1]:
        ends[step] = ends[step + 1]
    return ends


def _elements(
    lowered: LoweredPlan, communication: Communication
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]:
    queue = queue_of_steps(lowered, communication.queues)
    steps = np.flatnonzero(lowered.action != Action.COMPUTE)
    steps = steps[np.lexsort([steps, queue[steps]])]
    group, queued = lowered.group[steps], queue[steps]
    same_queue = queued[1:] == queued[:-1]
    same_group = (group[1:] == group[:-1]) & (group[1:] != ALONE)
    starts = np.concatenate([[True], ~(same_queue & same_group)])[: len(steps)]
    number = np.cumsum(starts) - 1
    element = np.full(len(lowered), ABSENT, dtype=np.int32)
    element[steps] = number
    queue_of_element = queued[starts]
    follows = queue_of_element[1:] == queue_of_element[:-1]
    count = len(queue_of_element)
    queue_next = np.full(count, ABSENT, dtype=np.int32)
    queue_next[:-1][follows] = np.arange(1, count)[follows]
    queue_first = np.concatenate([[True], ~follows])[:count]
    return element, queue_next, queue_first


def message_holds(lowered: LoweredPlan, costs: CostTable, network: Network) -> NDArray[np.int64]:
    """int64 [ops]: how long each row's message keeps its ports, 0 where it sends none."""
    hold = np.zeros(len(lowered.plan), dtype=np.int64)
    sends = np.flatnonzero(lowered.action == Action.SEND)
    rows = lowered.row[sends]
    hold[rows] = network.hold_ns(costs.messages(lowered.plan)[rows], lowered.device[sends], lowered.peer[sends])
    return hold
