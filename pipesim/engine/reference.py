"""The definition of a simulation, in SimPy: devices are processes, ports are resources. Short before fast.

    device r:  ─[ op ]─wait for inputs─[ op ]─ ...         one op at a time, in the plan's order
                   └ asks for its transfer when it ends
    transfer:  ─queue at out port and in port─[ held: bytes / bandwidth ]─latency─> arrived

Completions are handled in order of (time, device), after all arrivals due at that time; each asks for its
transfer in turn, and a port serves in order of asking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import simpy

from pipesim.check import describe_deadlock
from pipesim.dependencies import ABSENT, remote_producers
from pipesim.errors import DeadlockError
from pipesim.network import NO_PORT
from pipesim.timeline import NOTHING_SENT, Timeline

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.typing import NDArray

    from pipesim.costs.table import CostTable
    from pipesim.dependencies import Producers
    from pipesim.network import Network
    from pipesim.plan import Plan

_AFTER_ARRIVALS = 2  # SimPy's own events use priorities 0 and 1


class _Completion(simpy.Event):  # type: ignore[misc]  # SimPy's classes are untyped here
    """The end of an op: at equal times, after every arrival, and in order of devices."""

    def __init__(self, env: simpy.Environment, delay: int, device: int) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        env.schedule(self, priority=_AFTER_ARRIVALS + device, delay=delay)


class _Machine:
    """One run: the state that devices and transfers share."""

    def __init__(self, plan: Plan, costs: CostTable, network: Network, needs: Producers) -> None:
        self.env = simpy.Environment(initial_time=0)
        self.plan, self.network = plan, network
        self.duration = costs.durations(plan).tolist()
        self.local = _local_inputs(needs, remote := remote_producers(plan, needs))
        self.remote = remote.tolist()
        self.device_of_row = plan.device.tolist()
        receiver = _receivers(remote)
        self.receiver: list[int] = receiver.tolist()
        self.hold = _hold(plan, costs, network, receiver)
        self.arrived: list[simpy.Event | None] = [None] * len(plan)
        self.ports = [simpy.Resource(self.env) for _ in range(1 + _highest_port(network))]
        self.finished = bytearray(len(plan))
        self.start, self.end, self.transfer_start, self.transfer_end, self.arrival = (
            [NOTHING_SENT] * len(plan) for _ in range(5)
        )

    def run_device(self, device: int) -> Generator[simpy.Event, None, None]:
        """Runs the ops of one device in order, each when its inputs are there."""
        for row in self.plan.rows(device):
            for producer in self.local[row]:
                if not self.finished[producer]:
                    yield self.env.event()  # own later op: nobody will ever trigger this
            producer = self.remote[row]
            if producer != ABSENT and self.arrival_event(producer).callbacks is not None:
                yield self.arrival_event(producer)
            self.start[row] = self.env.now
            yield _Completion(self.env, self.duration[row], device)
            self.end[row] = self.env.now
            self.finished[row] = 1
            if self.receiver[row] != ABSENT:
                self.ask_transfer(row)

    def arrival_event(self, row: int) -> simpy.Event:
        """The event of the message of one row being there."""
        event = self.arrived[row]
        if event is None:
            event = self.arrived[row] = self.env.event()
        return event

    def ask_transfer(self, row: int) -> None:
        """Joins the queues of both ports at once and leaves the rest to a process of its own."""
        source, destination = self.device_of_row[row], self.device_of_row[self.receiver[row]]
        path = (self.network.out_port[source, destination], self.network.in_port[source, destination])
        ports = dict.fromkeys(path)  # a bus both ways is one port, asked once
        asked = [(self.ports[port], self.ports[port].request()) for port in ports if port != NO_PORT]
        latency = int(self.network.latency_ns[source, destination])
        self.env.process(self.transfer(row, asked, latency))

    def transfer(
        self, row: int, asked: list[tuple[simpy.Resource, simpy.Event]], latency: int
    ) -> Generator[simpy.Event, None, None]:
        """Starts when first at every port, holds them for bytes / bandwidth, arrives a latency later."""
        for _, request in asked:
            yield request
        self.transfer_start[row] = self.env.now
        if self.hold[row]:
            yield self.env.timeout(self.hold[row])
        self.transfer_end[row] = self.env.now
        for port, request in asked:
            port.release(request)
        if latency:
            yield self.env.timeout(latency)
        self.arrival[row] = self.env.now
        self.arrival_event(row).succeed()


def run(plan: Plan, costs: CostTable, network: Network, needs: Producers) -> Timeline:
    """Simulates a checked plan. Raises DeadlockError where devices wait for ever."""
    machine = _Machine(plan, costs, network, needs)
    for device in range(plan.shape.devices):
        machine.env.process(machine.run_device(device))
    machine.env.run()
    if not all(machine.finished):
        raise DeadlockError(describe_deadlock(plan, needs, np.array(machine.finished, dtype=bool)))
    return Timeline(
        plan,
        costs,
        network,
        start_ns=np.array(machine.start, dtype=np.int64),
        end_ns=np.array(machine.end, dtype=np.int64),
        transfer_start_ns=np.array(machine.transfer_start, dtype=np.int64),
        transfer_end_ns=np.array(machine.transfer_end, dtype=np.int64),
        arrival_ns=np.array(machine.arrival, dtype=np.int64),
        engine="reference",
    )


def _local_inputs(needs: Producers, remote: NDArray[np.int32]) -> list[tuple[int, ...]]:
    stage = np.where(remote == needs.stage, ABSENT, needs.stage)
    triples = zip(needs.own.tolist(), stage.tolist(), needs.sequence.tolist(), strict=True)
    return [tuple(row for row in triple if row != ABSENT) for triple in triples]


def _receivers(remote: NDArray[np.int32]) -> NDArray[np.int64]:
    """int64 [ops]: the row that the message of each row is for, ABSENT where it sends none."""
    receiver = np.full(len(remote), ABSENT, dtype=np.int64)
    waiting = np.flatnonzero(remote != ABSENT)
    receiver[remote[waiting]] = waiting
    return receiver


def _hold(plan: Plan, costs: CostTable, network: Network, receiver: NDArray[np.int64]) -> list[int]:
    senders = np.flatnonzero(receiver != ABSENT)
    hold = np.zeros(len(plan), dtype=np.int64)
    source, destination = plan.device[senders], plan.device[receiver[senders]]
    hold[senders] = network.hold_ns(costs.messages(plan)[senders], source, destination)
    return [int(held) for held in hold]


def _highest_port(network: Network) -> int:
    return int(max(network.out_port.max(initial=NO_PORT), network.in_port.max(initial=NO_PORT)))
