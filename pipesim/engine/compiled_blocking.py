"""The fast engine with sends and receives: the meaning of `reference_blocking`, in compiled loops over arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.compiled_cache import announced
from pipesim.deadlock import describe
from pipesim.dependencies import ABSENT
from pipesim.engine._kernels import Times
from pipesim.engine._kernels_blocking import Job, State, run_steps
from pipesim.errors import DeadlockError
from pipesim.lower.steps import Action
from pipesim.network import NO_PORT
from pipesim.program import message_holds
from pipesim.timeline import NOTHING_SENT, Timeline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pipesim.costs.table import CostTable
    from pipesim.lower import LoweredPlan
    from pipesim.network import Network
    from pipesim.program import Program


def run(program: Program, costs: CostTable, network: Network) -> Timeline:
    """Simulates a checked lowered plan. Raises DeadlockError where devices wait for ever, with the cycle."""
    plan = program.lowered.plan
    times = Times(*(np.full(len(plan), NOTHING_SENT, dtype=np.int64) for _ in Times._fields))
    job = _job(program, costs, network)
    state = _start(program, network)
    with announced("simulation engine with sends and receives"):
        run_steps(job, times, state)
    if not state.ended.all():
        raise DeadlockError(describe(program, state.ended))
    return Timeline(plan, costs, network, *times, engine="compiled")


def _job(program: Program, costs: CostTable, network: Network) -> Job:
    lowered = program.lowered
    members = np.flatnonzero(program.element != ABSENT)
    members = members[np.argsort(program.element[members], kind="stable")]
    sizes = np.bincount(program.element[members], minlength=program.elements)
    return Job(
        program.blocks,
        _as(lowered.offsets, np.int64),
        _as(lowered.action, np.int8),
        _as(lowered.row, np.int32),
        _as(lowered.device, np.int32),
        _as(program.partner, np.int32),
        _as(program.input_of, np.int32),
        _as(program.group_end, np.int32),
        _as(program.element, np.int32),
        _as(program.queue_next, np.int32),
        _as(members, np.int32),
        _as(np.concatenate([[0], np.cumsum(sizes)]), np.int64),
        _as(program.eager, np.bool_),
        _as(costs.durations(lowered.plan), np.int64),
        _as(message_holds(lowered, costs, network), np.int64),
        _of_messages(lowered, network.latency_ns, 0, np.int64),
        _of_messages(lowered, network.out_port, NO_PORT, np.int32),
        _of_messages(lowered, network.in_port, NO_PORT, np.int32),
    )


def _start(program: Program, network: Network) -> State:
    lowered = program.lowered
    steps, rows, elements = len(lowered), len(lowered.plan), program.elements
    highest = max(network.out_port.max(initial=NO_PORT), network.in_port.max(initial=NO_PORT))
    # A step ends once, is posted once and makes its device walk once; an element moves up once.
    most_tasks = 4 * steps + elements + lowered.plan.shape.devices
    return State(
        place=lowered.offsets[:-1].copy(),
        posted=np.zeros(steps, dtype=np.bool_),
        active=np.zeros(steps, dtype=np.bool_),
        ended=np.zeros(steps, dtype=np.bool_),
        arrived=np.zeros(rows, dtype=np.bool_),
        head=program.queue_first.copy(),
        left=np.bincount(program.element[program.element != ABSENT], minlength=elements).astype(np.int64),
        port_free=np.zeros(1 + int(highest), dtype=np.int64),
        heap_time=np.zeros(steps, dtype=np.int64),
        heap_what=np.zeros(steps, dtype=np.int64),
        stack=np.zeros(most_tasks, dtype=np.int64),
        ready=np.zeros(steps, dtype=np.int64),
        sizes=np.zeros(3, dtype=np.int64),
    )


def _of_messages(lowered: LoweredPlan, table: NDArray[Any], absent: int, dtype: type[np.generic]) -> NDArray[Any]:
    """A value of each pair of devices, by the row of the message it applies to."""
    found = np.full(len(lowered.plan), absent, dtype=dtype)
    sends = np.flatnonzero(lowered.action == Action.SEND)
    found[lowered.row[sends]] = table[lowered.device[sends], lowered.peer[sends]]
    return found


def _as(array: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    """The same numbers in the one layout the kernels are compiled for; copies only what differs from it."""
    return np.require(array, dtype, ["C", "W"])
