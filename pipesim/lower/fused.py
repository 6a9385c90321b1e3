"""Can a plan hang whose devices take all that stands between two ops at once? Knows no group and no time.

A *gap* is the place before an op: gap i of a device holds the send of its op i-1 and the receive for its op i. A
device stays in a gap until both have ended. With a line of stages somebody can always go on; with a ring
(interleaved plans) devices may wait for each other in a circle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipesim.dependencies import ABSENT

if TYPE_CHECKING:
    from pipesim.lower.steps import Messages


def gaps_hang(messages: Messages) -> bool:
    """Whether devices wait for ever when each receives right before the use, together with its send."""
    gaps = _Gaps(messages)
    awake = list(range(messages.plan.shape.devices))
    while awake:
        awake.extend(gaps.walk(awake.pop()))
    return bool(gaps.place != gaps.end)


class _Gaps:
    """How far each device is: `place` is the row before which it stands."""

    def __init__(self, messages: Messages) -> None:
        count = len(messages.plan)
        self.first = messages.plan.offsets[:-1].tolist()
        self.place, self.end = self.first.copy(), messages.plan.offsets[1:].tolist()
        self.ends = list(zip(messages.source.tolist(), messages.destination.tolist(), strict=True))
        self.rows = list(zip(messages.producer.tolist(), messages.consumer.tolist(), strict=True))
        self.done = bytearray(len(self.ends))
        self.sends, self.receives = [ABSENT] * (count + 1), [ABSENT] * (count + 1)
        for message, (producer, consumer) in enumerate(self.rows):
            self.sends[producer], self.receives[consumer] = message, message

    def walk(self, device: int) -> list[int]:
        """Walks a device on as far as it can; returns the devices at the other ends of what has ended."""
        woken: list[int] = []
        while True:
            held = self._held(device)
            for message in held:
                if not self.done[message] and self._both_there(message):
                    self.done[message] = 1
                    woken += self.ends[message]
            if self.place[device] == self.end[device] or not all(self.done[message] for message in held):
                return [other for other in woken if other != device]
            self.place[device] += 1

    def _held(self, device: int) -> list[int]:
        """The messages of the gap in which a device stands."""
        row = self.place[device]
        send = self.sends[row - 1] if row > self.first[device] else ABSENT
        receive = self.receives[row] if row < self.end[device] else ABSENT
        return [message for message in (send, receive) if message != ABSENT]

    def _both_there(self, message: int) -> bool:
        (source, destination), (producer, consumer) = self.ends[message], self.rows[message]
        return bool(self.place[source] == producer + 1 and self.place[destination] == consumer)
