"""Where sends and receives go between the ops of a device, a function a policy; knows no links.

    producer-order  receive placed at the moment its send is: one order of all messages that every device keeps,
                    hence free of deadlock however blocking the links are; as torch.distributed.pipelining does
    just-in-time    send right after its op, receive right before the op that uses it
    early           the same, with the receive `depth` ops before its use
    fused           what stands between two ops starts together; just-in-time: Megatron-LM's
                    send_forward_recv_backward, send_backward_recv_forward, send_forward_recv_forward, ...;
                    in producer order where just-in-time would hang (rings of stages, see `pipesim.lower.fused`)
    odd-even        just-in-time, in the order of Megatron-LM's unbatched exchange, which Seq1F1B's code uses:
                    even devices send to the next, receive from the previous, send to the previous, receive from
                    the next; odd ones the other way about

A policy gives every step a key; the steps of a device run in the order of their keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipesim.dependencies import ABSENT
from pipesim.lower.fused import gaps_hang
from pipesim.lower.steps import ALONE, Action, Messages, Steps
from pipesim.plan import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from pipesim.dependencies import Producers
    from pipesim.plan import Plan
    from pipesim.timeline import Timeline

    Policy = Callable[[Messages, Producers, int, Timeline | None], Steps]


def _sorted_steps(messages: Messages, *keys: tuple[NDArray[np.int64], ...]) -> Steps:
    """The steps of every device in order of their keys, most important key first.

    Each key holds three columns: of the plan's rows, of the sends and of the receives.
    """
    plan = messages.plan
    counts = (len(plan), len(messages.producer), len(messages.producer))
    action = np.repeat(np.array(list(Action), dtype=np.int8), counts)
    device = np.concatenate([plan.device, messages.source, messages.destination])
    columns = [np.concatenate(key) for key in keys]
    order = np.lexsort([*columns[::-1], device])
    row = np.concatenate([np.arange(len(plan)), messages.producer, messages.producer])[order]
    peer = np.concatenate([np.full(len(plan), ABSENT), messages.destination, messages.source])[order]
    per_device = np.bincount(device, minlength=plan.shape.devices)
    return Steps(
        np.concatenate([[0], np.cumsum(per_device)]).astype(np.int64),
        action[order],
        row.astype(np.int32),
        peer.astype(np.int32),
        np.full(len(row), ALONE, dtype=np.int32),
    )


def just_in_time(messages: Messages, needs: Producers, depth: int, timeline: Timeline | None) -> Steps:
    """Send right after its op, receive right before its use."""
    return early(messages, needs, 0, timeline)


def early(messages: Messages, needs: Producers, depth: int, timeline: Timeline | None) -> Steps:
    """Send right after its op, receive `depth` ops before its use, or first of all where there are fewer."""
    rows = np.arange(len(messages.plan), dtype=np.int64)
    first = messages.plan.offsets[messages.destination]
    before = np.maximum(messages.consumer - depth, first)
    # Between op i and op i+1: first the send of i, then receives in the order of their use.
    place = (3 * rows + 1, 3 * messages.producer + 2, 3 * before)
    return _sorted_steps(messages, place, (rows, messages.producer, messages.consumer))


def odd_even(messages: Messages, needs: Producers, depth: int, timeline: Timeline | None) -> Steps:
    """Between two ops even devices send on, receive, send back, receive back; odd ones receive first."""
    rows = np.arange(len(messages.plan), dtype=np.int64)
    back = messages.plan.kind[messages.producer] != Kind.F
    # Places in a gap: to the next stage, from the previous one, to the previous one, from the next one.
    send = np.where(messages.source % 2 == 0, np.where(back, 2, 0), np.where(back, 3, 1))
    receive = np.where(messages.destination % 2 == 0, np.where(back, 3, 1), np.where(back, 2, 0))
    return _sorted_steps(messages, (5 * rows + 4, 5 * (messages.producer + 1) + send, 5 * messages.consumer + receive))


def fused(messages: Messages, needs: Producers, depth: int, timeline: Timeline | None) -> Steps:
    """What stands between two ops starts together, placed just in time or, where that hangs, in producer order."""
    place = producer_order if gaps_hang(messages) else just_in_time
    steps = place(messages, needs, depth, timeline)
    return steps._replace(group=_gap_groups(steps))


def _gap_groups(steps: Steps) -> NDArray[np.int32]:
    """int32 [steps]: one number for all that stands between two ops of a device, where that is more than one."""
    communicates = steps.action != Action.COMPUTE
    begins = communicates & ~np.concatenate([[False], communicates[:-1]])
    first = steps.offsets[:-1]
    begins[first[first < len(communicates)]] = True
    gap = np.cumsum(begins)
    alone = np.bincount(gap[communicates], minlength=len(gap) + 1)[gap] < 2
    return np.where(communicates & ~alone, gap, ALONE).astype(np.int32)


def producer_order(messages: Messages, needs: Producers, depth: int, timeline: Timeline | None) -> Steps:
    """Every message has one place in an order of all, kept by both its ends.

    The order is that of the moments at which messages are made: rounds in which every device runs at most one op,
    or the times of `timeline`. In a round, pairs of devices whose lower one is even come first, so that neighbours
    do not wait for each other down the pipeline.
    """
    rows = np.arange(len(messages.plan), dtype=np.int64)
    made, used = messages.producer, rows
    turn = _rounds(messages.plan, needs)
    ends = np.zeros(len(rows), dtype=np.int64) if timeline is None else timeline.end_ns
    starts = np.zeros(len(rows), dtype=np.int64) if timeline is None else timeline.start_ns
    parity = np.minimum(messages.source, messages.destination) % 2
    nothing = np.zeros_like(used)
    return _sorted_steps(
        messages,
        (starts, ends[made], ends[made]),
        (turn, turn[made], turn[made]),
        (nothing, 1 + parity, 1 + parity),
        (used, made, made),
    )


def _rounds(plan: Plan, needs: Producers) -> NDArray[np.int64]:
    """int64 [ops]: the round in which each op of a legal plan runs, when a round is one op of every device."""
    previous = np.arange(len(plan), dtype=np.int64) - 1
    previous[plan.offsets[:-1][plan.offsets[:-1] < len(plan)]] = ABSENT
    inputs = np.stack([previous, needs.own, needs.stage, needs.sequence], axis=1).tolist()
    turn = [ABSENT] * len(plan)
    place, end = plan.offsets[:-1].tolist(), plan.offsets[1:].tolist()
    waiting: dict[int, int] = {}
    awake = list(range(plan.shape.devices))
    while awake:
        device = awake.pop()
        while place[device] < end[device]:
            row = place[device]
            missing = next((r for r in inputs[row] if r != ABSENT and turn[r] == ABSENT), None)
            if missing is not None:
                waiting[missing] = device
                break
            turn[row] = 1 + max((turn[r] for r in inputs[row] if r != ABSENT), default=ABSENT)
            place[device] += 1
            if row in waiting:
                awake.append(waiting.pop(row))
    return np.array(turn, dtype=np.int64)


POLICIES: dict[str, Policy] = {
    "producer-order": producer_order,
    "just-in-time": just_in_time,
    "early": early,
    "fused": fused,
    "odd-even": odd_even,
}
