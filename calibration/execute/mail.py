"""The two ends of a rank's channels: receives posted ahead in the sender's order, sends kept until they are done."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from calibration.execute.channels import shown
from calibration.execute.ranks import Phase
from pipesim.errors import ExecutionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from calibration.execute.channels import Routes, Wire
    from calibration.execute.ranks import Rank
    from calibration.execute.workload import Workload
    from pipesim.plan import Plan

POSTED_AHEAD = 2  # receives of a channel that wait beyond the last one taken
_FACTS = 5  # of a message: row, sequences, tokens, hidden, dtype


class Mail:
    """All channels of one rank for one plan; all ranks call `agree_on_shapes` once, then `post_receives` each step.

    Messages are tagged with the row of the op that made them, so gloo cannot deliver another one.
    """

    def __init__(self, rank: Rank, plan: Plan, workload: Workload, routes: Routes, dtype: torch.dtype) -> None:
        self.rank, self.plan, self.workload, self.routes, self.dtype = rank, plan, workload, routes, dtype
        self.groups = {wire: rank.open_group(wire, wire[:2]) for wire in routes.wires}
        self.wire_of = {row: wire for wire, rows in routes.messages.items() for row in rows}
        self.incoming = [wire for wire in routes.wires if wire[1] == rank.number]
        self._posted: dict[int, tuple[Tensor, Any]] = {}
        self._next: dict[Wire, int] = {}
        self._place = {row: place for rows in routes.messages.values() for place, row in enumerate(rows)}
        self._sends: deque[tuple[Tensor, Any]] = deque()

    def agree_on_shapes(self) -> None:
        """Each sender tells its receiver every message to come; raises ExecutionError where they disagree.

        Channel by channel in one order over all ranks, so it also opens each connection without a deadlock.
        """
        self.rank.at(Phase.MEETING)
        for wire in self.routes.wires:
            source, destination, _ = wire
            if source == self.rank.number:
                self._tell(wire)
            elif destination == self.rank.number:
                self._hear(wire)

    def facts(self, wire: Wire) -> Tensor:
        """int64 [messages, 5]: row, sequences, tokens, hidden and dtype of each message of a channel, in order."""
        rows = self.routes.messages[wire]
        code = sorted(map(str, _DTYPES)).index(str(self.dtype))
        listed = [(row, *self._shape(row), code) for row in rows]
        return torch.tensor(listed, dtype=torch.int64, device=self.rank.device)

    def _tell(self, wire: Wire) -> None:
        facts = self.facts(wire)
        count = torch.tensor([len(facts)], device=self.rank.device)
        for tensor in (count, facts):
            distributed.send(tensor, wire[1], group=self.groups[wire])

    def _hear(self, wire: Wire) -> None:
        expected = self.facts(wire).cpu()
        count = torch.zeros(1, dtype=torch.int64, device=self.rank.device)
        distributed.recv(count, wire[0], group=self.groups[wire])
        heard = torch.zeros(int(count), _FACTS, dtype=torch.int64, device=self.rank.device)
        distributed.recv(heard, wire[0], group=self.groups[wire])
        refuse_other_messages(wire, heard.tolist(), expected.tolist(), self.plan.label)

    def _shape(self, row: int) -> tuple[int, int, int]:
        return self.workload.message_shape(int(self.plan.microbatch[row]), int(self.plan.subsequence[row]))

    def post_receives(self) -> None:
        """The first receives of every channel, before a step begins."""
        self._next = dict.fromkeys(self.incoming, 0)
        for wire in self.incoming:
            self._post_until(wire, POSTED_AHEAD)

    def _post_until(self, wire: Wire, place: int) -> None:
        rows = self.routes.messages[wire]
        while self._next[wire] < min(place, len(rows)):
            row = rows[self._next[wire]]
            buffer = torch.empty(self._shape(row), dtype=self.dtype, device=self.rank.device)
            work = distributed.irecv(buffer, wire[0], group=self.groups[wire], tag=row)
            self._posted[row] = (buffer, work)
            self._next[wire] += 1

    def take(self, row: int) -> Tensor:
        """Waits for the message that the op of `row` makes."""
        self._post_until(self.wire_of[row], self._place[row] + 1)
        buffer, work = self._posted.pop(row)
        work.wait()
        return buffer

    def post_ahead(self, row: int) -> None:
        """Posts the receives that follow the message just taken."""
        self._post_until(self.wire_of[row], self._place[row] + 1 + POSTED_AHEAD)

    def send(self, row: int, tensor: Tensor) -> None:
        """Sends what the op of `row` made; returns at once and keeps the tensor until it has left."""
        while self._sends and self._sends[0][1].is_completed():
            self._sends.popleft()
        wire, tensor = self.wire_of[row], tensor.contiguous()
        work = distributed.isend(tensor, wire[1], group=self.groups[wire], tag=row)
        self._sends.append((tensor, work))

    def finish(self) -> None:
        """Waits until everything sent has left."""
        while self._sends:
            self._sends.popleft()[1].wait()


_DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def refuse_other_messages(
    wire: Wire,
    heard: Sequence[Sequence[int]],
    expected: Sequence[Sequence[int]],
    label: Callable[[int], str],
) -> None:
    """Raises ExecutionError at the first message (row, sequences, tokens, hidden, dtype) that is not as expected."""
    for place, (sent, wanted) in enumerate(zip(heard, expected, strict=False)):
        if list(sent) != list(wanted):
            raise ExecutionError(
                f"channel of {shown(wire)}, message {place}: {_shown(sent, label)} is sent, "
                f"{_shown(wanted, label)} is expected"
            )
    if len(heard) != len(expected):
        raise ExecutionError(f"channel of {shown(wire)}: {len(heard)} messages are sent, {len(expected)} are expected")


def _shown(facts: Sequence[int], label: Callable[[int], str]) -> str:
    row, sequences, tokens, hidden, dtype = facts
    name = sorted(map(str, _DTYPES))[dtype].removeprefix("torch.")
    return f"{label(row)} [{sequences}, {tokens}, {hidden}] {name}"
