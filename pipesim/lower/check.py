"""Is a lowered plan sound? Every message sent once and received once, in time for its use; knows no costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipesim.dependencies import ABSENT, producers, remote_producers
from pipesim.errors import MessageOrderError, PlanError
from pipesim.lower.steps import Action

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pipesim.lower import Channel, LoweredPlan

_SHOWN = 20


def check_lowered(lowered: LoweredPlan) -> None:
    """Raises PlanError that lists every send or receive that is missing, doubled, misplaced or needless."""
    found = [*_counts(lowered), *_places(lowered)]
    if found:
        counted = f"{len(found)} violation" + ("s" if len(found) > 1 else "")
        more = [f"  … and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        lines = [f"{lowered.plan.schedule}: {counted} of sends and receives", *(f"  {v}" for v in found[:_SHOWN])]
        raise PlanError("\n".join(lines + more))


def check_order(lowered: LoweredPlan, *, kinds_apart: bool = False) -> None:
    """Raises MessageOrderError where messages without tags would be taken for each other.

    Without tags the n-th receive from a device takes the n-th message sent by it. kinds_apart: forward and
    backward messages travel on wires of their own.
    """
    wires: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}
    for wire, channels in _wires(lowered, kinds_apart=kinds_apart).items():
        wires[wire] = _both_orders(lowered, channels)
    for (source, destination, *_), (sends, receives) in wires.items():
        for sent, received in zip(sends, receives, strict=False):
            if lowered.row[sent] != lowered.row[received]:
                raise MessageOrderError(
                    f"device {destination} receives {lowered.label(received)} where device {source} sends "
                    f"{lowered.label(sent)}: without tags it would take one for the other"
                )


def _wires(lowered: LoweredPlan, *, kinds_apart: bool) -> dict[tuple[int, ...], list[Channel]]:
    wires: dict[tuple[int, ...], list[Channel]] = {}
    for channel in lowered.channels():
        key = (channel.source, channel.destination, channel.backward and kinds_apart)
        wires.setdefault(key, []).append(channel)
    return wires


def _both_orders(lowered: LoweredPlan, channels: Sequence[Channel]) -> tuple[list[int], list[int]]:
    sends = [int(lowered.send_of[row]) for channel in channels for row in channel.sent]
    receives = [int(lowered.receive_of[row]) for channel in channels for row in channel.received]
    return sorted(sends), sorted(receives)


def _counts(lowered: LoweredPlan) -> Iterator[str]:
    plan = lowered.plan
    remote = remote_producers(plan, producers(plan))
    consumer = np.flatnonzero(remote != ABSENT)
    wanted = np.zeros(len(plan), dtype=np.int64)
    wanted[remote[consumer]] = 1
    for action, name in ((Action.SEND, "send"), (Action.RECEIVE, "receive")):
        steps = np.flatnonzero(lowered.action == action)
        found = np.bincount(lowered.row[steps], minlength=len(plan))
        for row in np.flatnonzero((wanted == 1) & (found == 0)):
            yield f"{plan.label(int(row))} of device {plan.device[row]} has no {name}, another device needs it"
        for row in np.flatnonzero((wanted == 0) & (found > 0)):
            yield f"{plan.label(int(row))} of device {plan.device[row]} has a {name}, no other device needs it"
        for row in np.flatnonzero((wanted == 1) & (found > 1)):
            yield f"{plan.label(int(row))} of device {plan.device[row]} has {found[row]} {name}s"


def _places(lowered: LoweredPlan) -> Iterator[str]:
    plan = lowered.plan
    remote = remote_producers(plan, producers(plan))
    consumer = np.full(len(plan), ABSENT)
    consumer[remote[remote != ABSENT]] = np.flatnonzero(remote != ABSENT)
    sends = lowered.action == Action.SEND
    # The op of its own device that a step belongs to: the one whose output it sends, or that uses what it receives.
    user = np.where(sends, lowered.row, consumer[lowered.row])
    steps = np.flatnonzero((lowered.action != Action.COMPUTE) & (user != ABSENT))
    compute = lowered.compute_of[user[steps]]
    astray = plan.device[user[steps]] != lowered.device[steps]
    late = np.where(sends[steps], steps < compute, steps > compute)
    for step in steps[astray | late].tolist():
        label, op = lowered.label(step), plan.label(int(user[step]))
        device = int(lowered.device[step])
        at = f"device {device}, place {step - int(lowered.offsets[device])}: {label}"
        if plan.device[user[step]] != device:
            yield f"{at}: {op} is on device {plan.device[user[step]]}"
        elif sends[step]:
            yield f"{at}: comes before {op}, whose output it sends"
        else:
            yield f"{at}: comes after {op}, which needs it"
