"""The lowered plan: a plan with its sends and receives placed on each device; knows no time and no link.

    plan      device 0:  0F0 0F1 0B0 0B1          device 1:  1F0 1B0 1F1 1B1
    lowered   device 0:  0F0 0SEND_F0 0F1 0RECV_B0 0SEND_F1 0B0 0RECV_B1 0B1
              device 1:  1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1

A message is named by the op that makes it: its send and its receive carry the plan row of their producer, so a
send and its receive match by that row, whatever the order on the wire. `0SEND_F0` names the stage that sends,
`1RECV_F0` the stage that receives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipesim.dependencies import ABSENT, neighbour_stage, producers, remote_producers
from pipesim.errors import InputError
from pipesim.lower.policies import POLICIES
from pipesim.lower.steps import ALONE, Action, Messages
from pipesim.plan import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pipesim.plan import Plan
    from pipesim.timeline import Timeline


class Channel(NamedTuple):
    """The messages of one kind from one device to another: the wire that keeps order where there are no tags.

    sent, received: plan rows of the producers, in the order of the sending and of the receiving device.
    """

    source: int
    destination: int
    backward: bool
    sent: tuple[int, ...]
    received: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class LoweredPlan:
    """The steps of each device, in order, as columns.

    plan: what is computed; policy: how sends and receives were placed.
    offsets int64 [p+1]: steps offsets[d]:offsets[d+1] are those of device d.
    action int8 [steps]: COMPUTE, SEND or RECEIVE.
    row int32 [steps]: the plan row that a COMPUTE step runs, or that produces the message of a SEND or RECEIVE.
    peer int32 [steps]: the device at the other end of a SEND or RECEIVE, ABSENT for COMPUTE.
    group int32 [steps]: adjacent steps of a device with one number start together, ALONE elsewhere.

    The receive that a COMPUTE step waits for is `receive_of[producer]`, with producer the remote input of its row
    (`dependencies.remote_producers`).
    """

    plan: Plan
    policy: str
    offsets: NDArray[np.int64]
    action: NDArray[np.int8]
    row: NDArray[np.int32]
    peer: NDArray[np.int32]
    group: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.action)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LoweredPlan):
            return NotImplemented
        return self.plan.same_ops(other.plan) and all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in ("offsets", "action", "row", "peer", "group")
        )

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def device(self) -> NDArray[np.int32]:
        """int32 [steps]: the device of each step."""
        return np.repeat(np.arange(self.plan.shape.devices, dtype=np.int32), np.diff(self.offsets))

    @cached_property
    def send_of(self) -> NDArray[np.int32]:
        """int32 [ops]: the step that sends each row's message, ABSENT where there is none."""
        return self._steps_by_row(Action.SEND)

    @cached_property
    def receive_of(self) -> NDArray[np.int32]:
        """int32 [ops]: the step that receives each row's message, ABSENT where there is none."""
        return self._steps_by_row(Action.RECEIVE)

    @cached_property
    def compute_of(self) -> NDArray[np.int32]:
        """int32 [ops]: the step that runs each row."""
        return self._steps_by_row(Action.COMPUTE)

    def _steps_by_row(self, action: Action) -> NDArray[np.int32]:
        steps = np.flatnonzero(self.action == action)
        found = np.full(len(self.plan), ABSENT, dtype=np.int32)
        found[self.row[steps]] = steps
        return found

    def steps(self, device: int) -> range:
        """The steps of one device, in its order."""
        return range(int(self.offsets[device]), int(self.offsets[device + 1]))

    def label(self, step: int) -> str:
        """The text of one step: `2F0.3`, `2SEND_F0.3` or `3RECV_F0.3`."""
        row = int(self.row[step])
        if self.action[step] == Action.COMPUTE:
            return self.plan.label(row)
        op = self.plan.op(row)
        sends = self.action[step] == Action.SEND
        stage = op.stage if sends else neighbour_stage(op.kind, op.stage)
        cut = f".{op.subsequence}" if self.plan.shape.subsequences > 1 else ""
        return f"{stage}{'SEND' if sends else 'RECV'}_{'F' if op.kind == Kind.F else 'B'}{op.microbatch}{cut}"

    def cells(self, device: int) -> list[str]:
        """The texts of one device's steps; steps that start together share one, `(0SEND_F1;0RECV_B0)GROUP`."""
        cells: list[str] = []
        last = ALONE
        for step in self.steps(device):
            group, text = int(self.group[step]), self.label(step)
            if group != ALONE and group == last:
                cells[-1] = cells[-1].replace(")GROUP", f";{text})GROUP")
            else:
                cells.append(text if group == ALONE else f"({text})GROUP")
            last = group
        return cells

    def __str__(self) -> str:
        """A line per device, steps separated by spaces; `pipesim.lower.csv` reads and writes the file form."""
        return "\n".join(" ".join(self.cells(device)) for device in range(self.plan.shape.devices))

    def channels(self) -> list[Channel]:
        """Every (source, destination, kind) that carries messages, with both ends' orders."""
        communicates = np.flatnonzero(self.action != Action.COMPUTE)
        sends = self.action[communicates] == Action.SEND
        here, there = self.device[communicates], self.peer[communicates]
        row = self.row[communicates]
        backward = self.plan.kind[row] != Kind.F
        source, destination = np.where(sends, here, there), np.where(sends, there, here)
        orders: dict[tuple[int, int, bool], tuple[list[int], list[int]]] = {}
        columns = (source.tolist(), destination.tolist(), backward.tolist(), sends.tolist(), row.tolist())
        for s, d, b, is_send, message in zip(*columns, strict=True):
            orders.setdefault((s, d, b), ([], []))[not is_send].append(message)
        return [Channel(*key, tuple(sent), tuple(received)) for key, (sent, received) in sorted(orders.items())]


def lower(
    plan: Plan, policy: str = "producer-order", *, depth: int = 1, timeline: Timeline | None = None
) -> LoweredPlan:
    """Places a send and a receive for every message between devices.

    policy: a name of `POLICIES`; depth: how many ops before its use "early" posts a receive; timeline: a run of
    the same plan whose times "producer-order" follows instead of taking all ops as equal. The plan must be legal
    (see `check`). Raises InputError on an unknown policy or a depth below 0.
    """
    if policy not in POLICIES:
        raise InputError("policy", policy, "no such policy", f"one of {', '.join(POLICIES)}")
    if depth < 0:
        raise InputError("depth", depth, "must be at least 0")
    needs = producers(plan)
    messages = Messages.of(plan, remote_producers(plan, needs))
    placed = POLICIES[policy](messages, needs, depth, timeline)
    return LoweredPlan(plan, policy, *placed)
