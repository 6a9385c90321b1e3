"""The definition of a simulation with sends and receives, in SimPy: devices and queues are processes.

    device:   walks through its steps; computes where the inputs are there; *posts* a send or receive when it gets
              there, and a group all at once; blocking: it then stays until all it posted has ended
    queue:    takes what was posted to it in order; at its front a send or receive is *active*
    message:  ready when both its ends are active (an eager one when its send is); then asks for both its ports,
              starts when it is first at both and they are free, holds them for bytes / bandwidth
    send      ends when the ports are released; a receive ends when the message has arrived, a latency later

Ties. Whatever can happen at a moment without a new transfer happens first: arrivals, ends of sends and ops, ops
that take no time, steps reached. The messages that are ready by then ask together, in order of (source device,
place of the send in its order); what that lets happen at the same moment happens next, and so on. A port serves in
order of asking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import simpy

from pipesim.deadlock import describe
from pipesim.dependencies import ABSENT
from pipesim.errors import DeadlockError
from pipesim.lower.steps import Action
from pipesim.network import NO_PORT
from pipesim.program import message_holds
from pipesim.timeline import NOTHING_SENT, Timeline

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from pipesim.costs.table import CostTable
    from pipesim.network import Network
    from pipesim.program import Program

    Process = Generator[simpy.Event, None, None]
    Requests = dict[simpy.Resource, simpy.Event]

_AFTER_ALL_ELSE = 10  # SimPy's own events use priorities 0 and 1


class _Machine:
    """One run: the events of every step and the ports, shared by devices, queues and messages."""

    def __init__(self, program: Program, costs: CostTable, network: Network) -> None:
        self.env = simpy.Environment(initial_time=0)
        self.program, self.network = program, network
        self.lowered, self.plan = program.lowered, program.lowered.plan
        self.duration = costs.durations(self.plan).tolist()
        self.hold = message_holds(self.lowered, costs, network).tolist()
        count = len(self.lowered)
        self.posted, self.active, self.ended = ([self.env.event() for _ in range(count)] for _ in range(3))
        highest = max(network.out_port.max(initial=NO_PORT), network.in_port.max(initial=NO_PORT))
        self.ports = [simpy.Resource(self.env) for _ in range(1 + int(highest))]
        self.ready: list[tuple[int, Requests, simpy.Event]] = []
        self.start, self.end, self.transfer_start, self.transfer_end, self.arrival = (
            [NOTHING_SENT] * len(self.plan) for _ in range(5)
        )

    def run_device(self, device: int) -> Process:
        """Walks through the steps of one device."""
        steps = self.lowered.steps(device)
        step = steps.start
        while step < steps.stop:
            group = range(step, int(self.program.group_end[step]))
            if self.lowered.action[step] == Action.COMPUTE:
                yield from self.compute(step)
            else:
                for member in group:
                    self.posted[member].succeed()
                if self.program.blocks:
                    yield simpy.AllOf(self.env, [self.ended[member] for member in group])
            step = group.stop

    def compute(self, step: int) -> Process:
        """Runs one op when its message is there."""
        row, receive = int(self.lowered.row[step]), int(self.program.input_of[step])
        if receive != ABSENT:
            yield self.ended[receive]
        self.start[row] = self.env.now
        yield self.env.timeout(self.duration[row])
        self.end[row] = self.env.now
        self.ended[step].succeed()

    def run_queue(self, elements: Sequence[Sequence[int]]) -> Process:
        """Makes the elements of one queue active one after the other, each when the one before has ended."""
        for members in elements:
            for step in members:
                yield self.posted[step]
            for step in members:
                self.active[step].succeed()
            yield simpy.AllOf(self.env, [self.ended[step] for step in members])

    def run_message(self, send: int) -> Process:
        """Carries one message from its send to its receive."""
        row, receive = int(self.lowered.row[send]), int(self.program.partner[send])
        yield self.active[send]
        if not self.program.eager[row]:
            yield self.active[receive]
        requests: Requests = {}
        yield self.turn_to_ask(send, requests)
        for request in requests.values():
            yield request
        self.transfer_start[row] = self.env.now
        yield self.env.timeout(self.hold[row])
        self.transfer_end[row] = self.env.now
        for port, request in requests.items():
            port.release(request)
        self.ended[send].succeed()
        yield self.env.timeout(int(self.network.latency_ns[self.lowered.device[send], self.lowered.peer[send]]))
        self.arrival[row] = self.env.now
        yield self.active[receive]
        self.ended[receive].succeed()

    def turn_to_ask(self, send: int, requests: Requests) -> simpy.Event:
        """Notes a message that may go; all of this moment ask for their ports when nothing else can happen.

        The event happens when it has asked; `requests` then holds a request by port.
        """
        turn = self.env.event()
        self.ready.append((send, requests, turn))
        if len(self.ready) == 1:
            asking = self.env.event()
            asking._ok, asking._value = True, None
            asking.callbacks.append(self.ask)
            self.env.schedule(asking, priority=_AFTER_ALL_ELSE)
        return turn

    def ask(self, _: simpy.Event) -> None:
        """Lets the ready messages join the queues of their ports, in order of their sends."""
        ready, self.ready = sorted(self.ready, key=lambda entry: entry[0]), []
        for send, requests, turn in ready:
            source, destination = self.lowered.device[send], self.lowered.peer[send]
            ports = {self.network.out_port[source, destination], self.network.in_port[source, destination]}
            requests.update({self.ports[port]: self.ports[port].request() for port in ports if port != NO_PORT})
            turn.succeed()


def run(program: Program, costs: CostTable, network: Network) -> Timeline:
    """Simulates a checked lowered plan. Raises DeadlockError where devices wait for ever, with the cycle."""
    machine = _Machine(program, costs, network)
    lowered = program.lowered
    for device in range(lowered.plan.shape.devices):
        machine.env.process(machine.run_device(device))
    for elements in _queues(program):
        machine.env.process(machine.run_queue(elements))
    for send in np.flatnonzero(lowered.action == Action.SEND).tolist():
        machine.env.process(machine.run_message(send))
    machine.env.run()
    ended = np.array([event.triggered for event in machine.ended], dtype=bool)
    if not ended.all():
        raise DeadlockError(describe(program, ended))
    return Timeline(
        plan=lowered.plan,
        costs=costs,
        network=network,
        start_ns=np.array(machine.start, dtype=np.int64),
        end_ns=np.array(machine.end, dtype=np.int64),
        transfer_start_ns=np.array(machine.transfer_start, dtype=np.int64),
        transfer_end_ns=np.array(machine.transfer_end, dtype=np.int64),
        arrival_ns=np.array(machine.arrival, dtype=np.int64),
        engine="reference",
    )


def _queues(program: Program) -> list[list[list[int]]]:
    """For each queue its elements, for each element its steps."""
    members: list[list[int]] = [[] for _ in range(program.elements)]
    for step in np.flatnonzero(program.element != ABSENT).tolist():
        members[program.element[step]].append(step)
    queues: list[list[list[int]]] = []
    for element, steps in enumerate(members):
        if program.queue_first[element]:
            queues.append([])
        queues[-1].append(steps)
    return queues
