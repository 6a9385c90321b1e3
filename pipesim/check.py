"""Is a plan legal? Finds every violation and shows each in the grid; knows no costs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipesim.dependencies import (
    ABSENT,
    BACKWARD,
    FORWARD,
    RECOMPUTE,
    ROLE_OF_KIND,
    WEIGHT,
    Producers,
    producers,
    unit_keys,
)
from pipesim.errors import DeadlockError, PlanError
from pipesim.plan import Kind, Op

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from pipesim.plan import Plan

_SHOWN = 20
_AROUND = 4


@dataclass(frozen=True)
class Violation:
    """One broken rule: where (device and place in its order, None where an op is missing) and what."""

    message: str
    device: int | None = None
    place: int | None = None

    def __str__(self) -> str:
        if self.device is None:
            return self.message
        return f"device {self.device}, place {self.place}: {self.message}"


def check_plan(plan: Plan, *, deadlock: bool = True) -> Producers:
    """Raises PlanError that lists every violation, or DeadlockError; returns what each op needs.

    `deadlock=False` leaves the search for cycles to an engine, which finds them anyway.
    """
    found = find_violations(plan)
    if found:
        raise PlanError(_report(plan, found))
    needs = producers(plan)
    if misplaced := list(_misordered(plan, needs)):
        raise PlanError(_report(plan, misplaced))
    if deadlock:
        finished = _run_untimed(plan, needs)
        if not finished.all():
            raise DeadlockError(describe_deadlock(plan, needs, finished))
    return needs


def find_violations(plan: Plan) -> list[Violation]:
    """Every op that is out of range, on the wrong device, doubled, missing or without its other half."""
    outside = list(_out_of_range(plan))
    return outside or [*_on_wrong_device(plan), *_wrong_counts(plan)]


def describe_deadlock(plan: Plan, needs: Producers, finished: NDArray[np.bool_]) -> str:
    """For each stuck device, the op it waits at and what for; then the ring of devices that wait for each other."""
    waits: dict[int, tuple[int, int]] = {}
    for device in range(plan.shape.devices):
        stuck = next((row for row in plan.rows(device) if not finished[row]), None)
        if stuck is not None:
            missing = next((r for r in needs.of(stuck) if not finished[r]), stuck)
            waits[device] = (stuck, missing)
    lines = [f"deadlock: {len(waits)} devices wait for ever"]
    for device, (stuck, missing) in waits.items():
        source = f"device {plan.device[missing]}" if plan.device[missing] != device else "itself, later in its order"
        lines.append(f"device {device} waits at {plan.label(stuck)} for {plan.label(missing)} of {source}")
    return "\n".join([*lines, _ring(plan, waits)])


def _ring(plan: Plan, waits: dict[int, tuple[int, int]]) -> str:
    device = next(iter(waits))
    path: list[int] = []
    while device not in path:
        path.append(device)
        device = int(plan.device[waits[device][1]])
    ring = path[path.index(device) :]
    steps = [f"{plan.label(waits[d][0])} (device {d})" for d in ring]
    return "cycle: " + " <- ".join([*steps, steps[0]])


def _out_of_range(plan: Plan) -> Iterator[Violation]:
    limits = (
        ("stage", plan.stage, plan.shape.stages),
        ("micro-batch", plan.microbatch, plan.shape.microbatches),
        ("subsequence", plan.subsequence, plan.shape.subsequences),
    )
    for name, column, limit in limits:
        for row in np.flatnonzero((column < 0) | (column >= limit)):
            yield _at(plan, int(row), f"{name} must be 0..{limit - 1}")


def _on_wrong_device(plan: Plan) -> Iterator[Violation]:
    home = plan.placement.device_of[plan.direction, plan.stage]
    for row in np.flatnonzero(home != plan.device):
        yield _at(plan, int(row), f"stage {plan.stage[row]} lives on device {home[row]}")


def _wrong_counts(plan: Plan) -> Iterator[Violation]:
    keys, roles = unit_keys(plan), ROLE_OF_KIND[plan.kind]
    cells = plan.shape.stages * plan.shape.units
    counts = {role: np.bincount(keys[roles == role], minlength=cells) for role in (FORWARD, BACKWARD)}
    for role, count in counts.items():
        if len(plan) and count.max() > 1:
            yield from _doubled(plan, keys, roles == role)
        for key in np.flatnonzero(count == 0):
            yield Violation(f"{_op_of_key(plan, int(key), Kind.F if role == FORWARD else Kind.B)} is missing")
    split = np.bincount(keys[plan.kind == Kind.I], minlength=cells) > 0
    weights = np.bincount(keys[roles == WEIGHT], minlength=cells)
    if weights.max(initial=0) > 1:
        yield from _doubled(plan, keys, roles == WEIGHT)
    for key in np.flatnonzero(split & (weights == 0)):
        yield Violation(f"{_op_of_key(plan, int(key), Kind.W)} is missing: its I is there")
    for row in np.flatnonzero((roles == WEIGHT) & ~split[keys]):
        yield _at(plan, int(row), "W without its I")
    if (roles == RECOMPUTE).any():
        yield from _doubled(plan, keys, roles == RECOMPUTE)


def _doubled(plan: Plan, keys: NDArray[np.int64], wanted: NDArray[np.bool_]) -> Iterator[Violation]:
    first: dict[int, int] = {}
    for row in np.flatnonzero(wanted):
        earlier = first.setdefault(int(keys[row]), int(row))
        if earlier != row:
            yield _at(plan, int(row), f"done already by {plan.label(earlier)} of device {plan.device[earlier]}")


def _misordered(plan: Plan, needs: Producers) -> Iterator[Violation]:
    rows = np.arange(len(plan), dtype=np.int32)
    for producer in (needs.own, needs.stage, needs.sequence):
        late = producer > rows
        late &= plan.device[producer] == plan.device
        for row in np.flatnonzero(late):
            yield _at(plan, int(row), f"comes before {plan.label(int(producer[row]))}, which it needs")


def _run_untimed(plan: Plan, needs: Producers) -> NDArray[np.bool_]:
    """bool [ops]: which ops finish when every device runs its order as far as it can."""
    finished = np.zeros(len(plan), dtype=bool)
    needed = list(zip(needs.own.tolist(), needs.stage.tolist(), needs.sequence.tolist(), strict=True))
    place = plan.offsets[:-1].tolist()
    end = plan.offsets[1:].tolist()
    waiting: dict[int, int] = {}
    awake = deque(range(plan.shape.devices))
    done = bytearray(len(plan))
    while awake:
        device = awake.popleft()
        while place[device] < end[device]:
            row = place[device]
            missing = next((r for r in needed[row] if r != ABSENT and not done[r]), None)
            if missing is not None:
                waiting[missing] = device
                break
            done[row] = 1
            place[device] += 1
            if row in waiting:
                awake.append(waiting.pop(row))
    finished[:] = np.frombuffer(done, dtype=np.uint8).astype(bool)
    return finished


def _at(plan: Plan, row: int, message: str) -> Violation:
    device = int(plan.device[row])
    return Violation(f"{plan.label(row)}: {message}", device, row - int(plan.offsets[device]))


def _op_of_key(plan: Plan, key: int, kind: Kind) -> str:
    rest, subsequence = divmod(key, plan.shape.subsequences)
    stage, microbatch = divmod(rest, plan.shape.microbatches)
    text = str(Op(kind, stage, microbatch, subsequence))
    return text if plan.shape.subsequences > 1 else text.partition(".")[0]


def _report(plan: Plan, found: Sequence[Violation]) -> str:
    counted = f"{len(found)} violation" + ("s" if len(found) > 1 else "")
    lines = [f"{plan.schedule}: {counted}", *(f"  {v}" for v in found[:_SHOWN])]
    if len(found) > _SHOWN:
        lines.append(f"  … and {len(found) - _SHOWN} more")
    return "\n".join([*lines, *_grid(plan, found[:_SHOWN])])


def _grid(plan: Plan, found: Sequence[Violation]) -> Iterator[str]:
    marked = {(v.device, v.place) for v in found if v.device is not None}
    for device in sorted({d for d, _ in marked if d is not None}):
        first = int(plan.offsets[device])
        places = sorted({p for d, p in marked if d == device and p is not None})
        shown = sorted({q for p in places for q in range(p - _AROUND, p + _AROUND + 1)} & set(_range(plan, device)))
        cells, last = [], -1
        for place in shown:
            if place != last + 1:
                cells.append("…")
            text = plan.label(first + place)
            cells.append(f">{text}<" if (device, place) in marked else text)
            last = place
        yield f"  device {device} | " + " ".join(cells) + ("" if last + 1 == len(plan.rows(device)) else " …")


def _range(plan: Plan, device: int) -> range:
    return range(len(plan.rows(device)))
