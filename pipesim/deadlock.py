"""Can a lowered plan hang? Finds the cycle of steps that wait for each other; knows no time.

A send and its receive end together, so one waits for what the device or queue of the other does first:

    device 0:  … 0SEND_F1 2RECV_F0 …        0SEND_F1 waits for 1RECV_F1, which stands behind 1SEND_F0;
    device 1:  … 1SEND_F0 1RECV_F1 …        1SEND_F0 waits for 2RECV_F0, which stands behind 0SEND_F1

Whether a plan hangs does not depend on times: a step that may start stays so, whatever else starts first. Hence
running it without a clock, as far as it goes, finds every deadlock, and what is left holds the cycle.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from pipesim.communication import Communication
from pipesim.dependencies import ABSENT
from pipesim.errors import DeadlockError
from pipesim.lower.steps import Action
from pipesim.program import program_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from pipesim.lower import LoweredPlan
    from pipesim.program import Program

BLOCKING = Communication("blocking")


def check_deadlock(
    lowered: LoweredPlan,
    communication: Communication = BLOCKING,
    message_bytes: NDArray[np.int64] | None = None,
) -> None:
    """Raises DeadlockError where devices would wait for each other for ever; the text prints the cycle.

    message_bytes int64 [ops]: sizes that decide which messages are eager (None: all wait for their receive).
    """
    program = program_of(lowered, communication, message_bytes)
    ended = run_untimed(program)
    if not ended.all():
        raise DeadlockError(describe(program, ended))


def run_untimed(program: Program) -> NDArray[np.bool_]:
    """bool [steps]: which steps end when everything runs as far as it can."""
    state = _Untimed(program)
    awake: deque[int] = deque(range(program.lowered.plan.shape.devices))
    while awake:
        awake.extend(state.walk(awake.popleft()))
    return np.array(state.ended, dtype=bool)


class _Untimed:
    """How far everything is: what has been reached, what is at the head of its queue, what has ended."""

    def __init__(self, program: Program) -> None:
        self.lowered, self.blocks = program.lowered, program.blocks
        self.action, self.row = self.lowered.action.tolist(), self.lowered.row.tolist()
        self.device, self.offsets = self.lowered.device.tolist(), self.lowered.offsets.tolist()
        self.partner, self.input_of = program.partner.tolist(), program.input_of.tolist()
        self.group_end, self.element = program.group_end.tolist(), program.element.tolist()
        self.queue_next, self.heads = program.queue_next.tolist(), program.queue_first.tolist()
        self.eager = program.eager.tolist()
        self.members: list[list[int]] = [[] for _ in range(program.elements)]
        for step, element in enumerate(self.element):
            if element != ABSENT:
                self.members[element].append(step)
        self.left = [len(members) for members in self.members]
        self.place = self.offsets[:-1].copy()
        self.posted, self.ended = bytearray(len(self.action)), bytearray(len(self.action))

    def walk(self, device: int) -> list[int]:
        """Walks a device on; returns the devices that may go on because of it."""
        woken: list[int] = []
        while self.place[device] < self.offsets[device + 1]:
            step = self.place[device]
            if self.action[step] == Action.COMPUTE:
                if self.input_of[step] != ABSENT and not self.ended[self.input_of[step]]:
                    break
                self.ended[step] = 1
                self.place[device] = step + 1
                continue
            group = range(step, self.group_end[step])
            for member in group:
                if not self.posted[member]:
                    self.posted[member] = 1
                    woken += self._look_at(self.element[member])
            if self.blocks and not all(self.ended[member] for member in group):
                break
            self.place[device] = group.stop
        return woken

    def _look_at(self, element: int) -> list[int]:
        """Ends what can end of an element at the head of its queue, and of what that lets go; returns devices."""
        woken: list[int] = []
        stack = [element]
        while stack:
            element = stack.pop()
            if not self.heads[element]:
                continue
            for step in self.members[element]:
                for ended in self._ends(step):
                    self.ended[ended] = 1
                    woken.append(self.device[ended])
                    stack += self._after(ended)
        return woken

    def _ends(self, step: int) -> Iterator[int]:
        """The steps that end now that this one is at the head of its queue."""
        other = self.partner[step]
        if not self.posted[step] or self.ended[step] or other == ABSENT:
            return
        if self.eager[self.row[step]]:
            if self.action[step] == Action.SEND:
                yield step
                if self._active(other):
                    yield other
            elif self.ended[other]:
                yield step
        elif self._active(other):
            yield step
            yield other

    def _active(self, step: int) -> bool:
        return bool(self.posted[step]) and self.heads[self.element[step]] and not self.ended[step]

    def _after(self, step: int) -> list[int]:
        element = self.element[step]
        self.left[element] -= 1
        following = self.queue_next[element]
        if self.left[element] or following == ABSENT:
            return []
        self.heads[following] = True
        return [following]


def describe(program: Program, ended: NDArray[np.bool_]) -> str:
    """For each stuck device, the step it waits at and what for; then the cycles among them, shortest first."""
    wait = _Waits(program, ended)
    lines = [f"deadlock: {len(wait.stuck)} devices wait for ever"]
    lines += [f"device {device} waits at {wait.reason(step)}" for device, step in sorted(wait.stuck.items())]
    lines += [f"cycle: {_ring(program.lowered, cycle)}" for cycle in _cycles(wait)]
    return "\n".join(lines)


def find_cycles(program: Program, ended: NDArray[np.bool_]) -> list[list[int]]:
    """The cycles of steps in which each waits for the next, shortest first."""
    return _cycles(_Waits(program, ended))


def _cycles(wait: _Waits) -> list[list[int]]:
    """A stuck step waits for exactly one other, so following that one from each device finds every cycle."""
    found: dict[int, list[int]] = {}
    seen: set[int] = set()
    for start in sorted(wait.stuck.values()):
        path: dict[int, int] = {}
        step: int | None = start
        while step is not None and step not in seen:
            seen.add(step)
            path[step] = len(path)
            step = wait.waits_for(step)
        if step in path:
            cycle = list(path)[path[step] :]
            first = cycle.index(min(cycle))
            found[min(cycle)] = cycle[first:] + cycle[:first]
    return sorted(found.values(), key=lambda cycle: (len(cycle), cycle))


def _ring(lowered: LoweredPlan, cycle: Sequence[int]) -> str:
    texts = [f"{lowered.label(step)} (device {lowered.device[step]})" for step in cycle]
    return " <- ".join([*texts, texts[0]])


class _Waits:
    """Who waits for whom when nothing moves any more.

    A step is *at the front* where its device has reached it and nothing of its queue stands before it.
    """

    def __init__(self, program: Program, ended: NDArray[np.bool_]) -> None:
        self.program, self.lowered, self.ended = program, program.lowered, ended
        self.head = {d: h for d in range(self.lowered.plan.shape.devices) if (h := self._head(d)) is not None}
        self.first_left: dict[int, int] = {}
        queue = self._queue_numbers()
        for step in np.flatnonzero(~ended & (self.lowered.action != Action.COMPUTE)).tolist():
            self.first_left.setdefault(queue[program.element[step]], int(program.element[step]))
        self.queue = queue
        self.stuck = {device: self._front_of(head) for device, head in self.head.items()}

    def _head(self, device: int) -> int | None:
        """The step at which a device has stopped walking."""
        for step in self.lowered.steps(device):
            computes = self.lowered.action[step] == Action.COMPUTE
            if not self.ended[step] and (computes or self.program.blocks):
                return step
        left = [step for step in self.lowered.steps(device) if not self.ended[step]]
        return left[0] if left else None

    def _queue_numbers(self) -> list[int]:
        numbers: list[int] = []
        back = {int(after): element for element, after in enumerate(self.program.queue_next) if after != ABSENT}
        for element in range(self.program.elements):
            numbers.append(numbers[back[element]] if element in back else element)
        return numbers

    def _reached(self, step: int) -> bool:
        head = self.head[int(self.lowered.device[step])]
        if self.program.blocks:
            return bool(step < self.program.group_end[head])
        return bool(self.lowered.action[head] != Action.COMPUTE or step <= head)

    def _front_of(self, step: int) -> int:
        """The step at the front that a step stands behind, itself where it is at the front."""
        while True:
            ahead = self._ahead(step)
            if ahead is None:
                return step
            step = ahead

    def _ahead(self, step: int) -> int | None:
        if not self._reached(step):
            return self.head[int(self.lowered.device[step])]
        if self.lowered.action[step] == Action.COMPUTE:
            return None
        first = self.first_left[self.queue[self.program.element[step]]]
        if first == self.program.element[step]:
            return None
        members = np.flatnonzero(self.program.element == first)
        return int(next(member for member in members if not self.ended[member]))

    def waits_for(self, step: int) -> int | None:
        """The step at the front that one at the front waits for."""
        other = self._missing(step)
        return None if other is None else self._front_of(other)

    def _missing(self, step: int) -> int | None:
        if self.lowered.action[step] == Action.COMPUTE:
            needed = int(self.program.input_of[step])
        else:
            needed = int(self.program.partner[step])
        return None if needed == ABSENT or self.ended[needed] else needed

    def reason(self, step: int) -> str:
        """The step, what it waits for and what that stands behind."""
        label, other = self.lowered.label(step), self._missing(step)
        if other is None:
            return f"{label}, which nobody answers"
        text = f"{label} for {self.lowered.label(other)} of device {self.lowered.device[other]}"
        front = self._front_of(other)
        return text if front == other else f"{text}, which stands behind {self.lowered.label(front)}"
