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
from typing import TYPE_CHECKING

from pipesim.dependencies import ABSENT, producers, remote_producers
from pipesim.errors import PlanError

if TYPE_CHECKING:
    from pipesim.lower import LoweredPlan

Wire = tuple[int, int, bool]
"""Source device, destination device, whether it carries gradients."""


@dataclass(frozen=True, eq=False)
class Routes:
    """Every message of a plan: by wire the rows that send, in order; by row its receiver and its sender."""

    messages: dict[Wire, tuple[int, ...]]
    receiver: dict[int, int]
    sender: dict[int, int]

    @property
    def wires(self) -> list[Wire]:
        """In the one order in which every rank opens them."""
        return sorted(self.messages)


def shown(wire: Wire) -> str:
    """As messages name it."""
    source, destination, backward = wire
    return f"{'gradients' if backward else 'activations'} {source}->{destination}"


def routes_of(lowered: LoweredPlan) -> Routes:
    """The channels of a lowered plan. Raises PlanError where the two ends of one disagree on the order."""
    refuse_swapped(lowered)
    remote = remote_producers(lowered.plan, producers(lowered.plan))
    pairs = [(int(sender), receiver) for receiver, sender in enumerate(remote.tolist()) if sender != ABSENT]
    return Routes(
        {(c.source, c.destination, c.backward): c.sent for c in lowered.channels()},
        dict(pairs),
        {receiver: sender for sender, receiver in pairs},
    )


def refuse_swapped(lowered: LoweredPlan) -> None:
    """Raises PlanError where the ends of a channel differ in order: without names, the wrong tensor arrives."""
    label = lowered.plan.label
    for channel in lowered.channels():
        where = f"channel of {shown((channel.source, channel.destination, channel.backward))}"
        if len(channel.sent) != len(channel.received):
            raise PlanError(f"{where}: {len(channel.sent)} sends, {len(channel.received)} receives")
        for place, (row, wanted) in enumerate(zip(channel.sent, channel.received, strict=True)):
            if row != wanted:
                raise PlanError(f"{where}, message {place}: {label(row)} is sent where {label(wanted)} is received")
