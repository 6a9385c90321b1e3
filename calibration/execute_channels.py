"""One-way channels between devices: who sends what to whom in which order; knows no torch and no time.

    device 0 ──forward──> device 1      activations, in the order in which device 0 makes them
    device 0 <─backward── device 1      gradients, in the order in which device 1 makes them

With two devices, or a ring of stages, the same pair has several channels. A message is named by the row of the op that
makes it, so that a receiver can never take one for another; receivers post in the sender's order, which
also holds where a backend has no names (NCCL). That order adds no way to hang: whatever is before a message in its
channel was made before it by the same device, so a plan without a cycle of dependencies runs to its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from pipesim.errors import PlanError
from pipesim.plan import Kind
from pipesim.transfers import transfers_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pipesim.plan import Plan


class Way(IntEnum):
    """Which way through the model a message goes."""

    FORWARD = 0
    BACKWARD = 1


@dataclass(frozen=True, order=True)
class Channel:
    """One way from one device to another."""

    source: int
    destination: int
    way: Way

    def __str__(self) -> str:
        return f"{self.source}->{self.destination} {self.way.name.lower()}"


@dataclass(frozen=True, eq=False)
class Routes:
    """Every message of a plan: by channel the rows that send, in order; by row its receiver and its sender."""

    messages: dict[Channel, tuple[int, ...]]
    receiver: dict[int, int]
    sender: dict[int, int]

    @property
    def channels(self) -> list[Channel]:
        """In the one order in which every rank opens them."""
        return sorted(self.messages)


def channel_of(plan: Plan, sender: int, receiver: int) -> Channel:
    """The channel of the message from one row to another."""
    way = Way.FORWARD if plan.kind[sender] == Kind.F else Way.BACKWARD
    return Channel(int(plan.device[sender]), int(plan.device[receiver]), way)


def routes_of(plan: Plan) -> Routes:
    """The channels of a legal plan."""
    transfers = transfers_of(plan)
    pairs = sorted(zip(transfers.sender.tolist(), transfers.receiver.tolist(), strict=True))
    messages: dict[Channel, list[int]] = {}
    for sender, receiver in pairs:  # rows of one device rise in its order
        messages.setdefault(channel_of(plan, sender, receiver), []).append(sender)
    return Routes(
        {channel: tuple(rows) for channel, rows in messages.items()},
        dict(pairs),
        {receiver: sender for sender, receiver in pairs},
    )


def check_order(plan: Plan, sends: Mapping[Channel, Sequence[int]], receives: Mapping[Channel, Sequence[int]]) -> None:
    """Raises PlanError where the two ends of a channel disagree on the order: without names, the wrong tensor arrives."""
    for channel in sorted({*sends, *receives}):
        sent, expected = sends.get(channel, ()), receives.get(channel, ())
        if len(sent) != len(expected):
            raise PlanError(f"channel {channel}: {len(sent)} sends, {len(expected)} receives")
        for place, (row, wanted) in enumerate(zip(sent, expected, strict=True)):
            if row != wanted:
                raise PlanError(
                    f"channel {channel}, message {place}: {plan.label(row)} is sent where {plan.label(wanted)} is received"
                )
