"""The fast engine: the meaning of `reference`, in compiled loops over the columns of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.check import describe_deadlock
from pipesim.compiled_cache import announced
from pipesim.engine._kernels import Times, Work, destinations, run_with_ports, run_without_ports
from pipesim.errors import DeadlockError
from pipesim.network import NO_PORT
from pipesim.timeline import NOTHING_SENT, Timeline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pipesim.costs.table import CostTable
    from pipesim.dependencies import Producers
    from pipesim.network import Network
    from pipesim.plan import Plan


def run(plan: Plan, costs: CostTable, network: Network, needs: Producers) -> Timeline:
    """Simulates a checked plan. Raises DeadlockError where devices wait for ever."""
    times = Times(*(np.full(len(plan), NOTHING_SENT, dtype=np.int64) for _ in Times._fields))
    with announced("simulation engine"):
        work = _work(plan, costs, network, needs)
        if _is_contended(work):
            done = run_with_ports(work, times, 1 + int(max(work.out_port.max(), work.in_port.max())))
        else:
            done = run_without_ports(_without_ports(work), times)
    if done < len(plan):
        raise DeadlockError(describe_deadlock(plan, needs, times.end != NOTHING_SENT))
    return Timeline(plan, costs, network, *times, engine="compiled")


def _work(plan: Plan, costs: CostTable, network: Network, needs: Producers) -> Work:
    sizes, size_of = np.unique(costs.boundary_bytes, return_inverse=True)
    devices = np.arange(plan.shape.devices, dtype=np.int32)
    hold = network.hold_ns(sizes[:, np.newaxis, np.newaxis], devices[:, np.newaxis], devices[np.newaxis, :])
    offsets, neighbour = _as(plan.offsets, np.int64), _as(needs.stage, np.int32)
    return Work(
        offsets=offsets,
        kind=_as(plan.kind, np.int8),
        stage=_as(plan.stage, np.int16),
        microbatch=_as(plan.microbatch, np.int32),
        subsequence=_as(plan.subsequence, np.int16),
        own=_as(needs.own, np.int32),
        neighbour=neighbour,
        sequence=_as(needs.sequence, np.int32),
        destination=destinations(offsets, neighbour),
        class_of=_as(costs.class_of_microbatch, np.int32),
        duration_ns=_as(costs.duration_ns + costs.host_overhead_ns, np.int64),
        latency_ns=_as(network.latency_ns, np.int64),
        size_of=_as(size_of.reshape(costs.boundary_bytes.shape), np.int32),
        hold_ns=_as(hold, np.int64),
        out_port=_as(network.out_port, np.int32),
        in_port=_as(network.in_port, np.int32),
    )


def _as(array: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    """The same numbers in the one layout the kernels are compiled for; copies only what differs from it."""
    return np.require(array, dtype, ["C", "W"])


def _is_contended(work: Work) -> bool:
    has_port = (work.out_port != NO_PORT) | (work.in_port != NO_PORT)
    return bool((work.hold_ns[:, has_port] > 0).any())


def _without_ports(work: Work) -> Work:
    """Ports that no message ever keeps decide nothing; the loop without ports must not queue at them."""
    nowhere = np.full_like(work.out_port, NO_PORT)
    return work._replace(out_port=nowhere, in_port=nowhere)
