"""What follows the backwards of a step: sums of gradients, the optimizer, the parameters; knows no engine.

    ops          ... B B B|                 the last backward of a stage on this device
    replicas              [reduce over dp]              all-reduce, or reduce-scatter with a distributed optimizer
    pair                                  [exchange]    the two copies of a stage of a bidirectional plan
    optimizer                                        [step]     when all of the device is summed
    parameters                                             [all-gather]   with a distributed optimizer

Sums are cut so finely that messages of the pipeline pass between their pieces: a sum takes only what the ports
leave free, and delays no op. At one port, sums go one after the other in order of asking (ties by device, stage).
A ring over n sends (n-1)/n of the bytes in each of its two halves, with n-1 latencies each.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from pipesim.errors import InputError
from pipesim.network import NO_PORT, ReplicaLinks
from pipesim.plan import Kind
from pipesim.timeline import NOTHING_SENT, SyncSpan
from pipesim.transfers import transfers_of
from pipesim.units import NS_PER_S

if TYPE_CHECKING:
    from pipesim.costs.table import StepCosts
    from pipesim.plan import Plan
    from pipesim.timeline import Timeline

When = Literal["eager", "end"]
WHEN: tuple[When, ...] = ("eager", "end")


class Copy(NamedTuple):
    """One copy of a stage: its direction, stage and device."""

    direction: int
    stage: int
    device: int


def synchronise(
    timeline: Timeline,
    links: ReplicaLinks | None = None,
    when: str = "eager",
    *,
    distributed_optimizer: bool = False,
) -> Timeline:
    """The timeline with sums of gradients, optimizer and parameters after its ops.

    when "eager": a stage's sum may start when its last B or W has ended; "end": when the last op of its device
    has. Raises InputError where the costs know no gradients, or on another `when`.
    """
    if when not in WHEN:
        raise InputError("--synchronisation", when, "no such choice", f"one of {', '.join(WHEN)}")
    if timeline.costs.step is None:
        rule = "knows no bytes of gradients to sum"
        raise InputError("costs", timeline.costs.name, rule, "give a model, or leave synchronisation out")
    links = links or ReplicaLinks.none(timeline.plan.shape.devices)
    step = _Step(timeline, timeline.costs.step, links, when == "eager", distributed_optimizer)
    spans = sorted(step.spans(), key=lambda span: (span.start_ns, span.device, span.stage))
    return replace(timeline, synchronisation=tuple(spans))


class _Step:
    """The pieces of one step, each after what it waits for."""

    def __init__(
        self, timeline: Timeline, costs: StepCosts, links: ReplicaLinks, eager: bool, distributed: bool
    ) -> None:
        self.timeline, self.plan, self.costs, self.links = timeline, timeline.plan, costs, links
        self.distributed = distributed and links.dp > 1
        self.ports = _Ports(timeline)
        self.ops_end = _ends_of_devices(timeline)
        self.copies = copies_of(self.plan)
        ready = _ends_of_copies(timeline, self.copies)
        self.summed = {c: ready[c] if eager else self.ops_end[c.device] for c in self.copies}
        self.done: list[SyncSpan] = []

    def spans(self) -> list[SyncSpan]:
        """Every piece, in the order in which they are made."""
        self._sum_replicas()
        self._sum_pairs()
        self._optimize()
        return self.done

    def _sum_replicas(self) -> None:
        dp = self.links.dp
        if dp == 1:
            return
        halves = 1 if self.distributed else 2
        for copy in self._in_order():
            size = halves * self._part(int(self.costs.gradient_bytes[copy.stage]), dp)
            self.summed[copy] = self._ring("replicas", copy.device, copy.stage, self.summed[copy], size, halves)

    def _sum_pairs(self) -> None:
        """Each copy sends its gradients to the other; with a distributed optimizer only the part it keeps."""
        if self.plan.placement.directions == 1:
            return
        shared = self.links.dp if self.distributed else 1
        stages = self.plan.shape.stages
        pairs = list(zip(self.copies[:stages], self.copies[stages:], strict=True))
        for down, up in sorted(pairs, key=lambda pair: (max(self.summed[c] for c in pair), *pair[0][::-1])):
            size = -(-int(self.costs.gradient_bytes[down.stage]) // shared)
            asked = max(self.summed[down], self.summed[up])
            if down.device == up.device:
                ends = [asked]
            else:
                ends = [self._send(down, up, asked, size), self._send(up, down, asked, size)]
            self.summed[down] = self.summed[up] = max(ends)

    def _optimize(self) -> None:
        replicas = self.links.dp if self.distributed else 1
        for device, ops_end in enumerate(self.ops_end):
            held = [copy for copy in self.copies if copy.device == device]
            start = max([ops_end, *(self.summed[copy] for copy in held)])
            took = -(-sum(int(self.costs.optimizer_ns[copy.stage]) for copy in held) // replicas)
            self.done.append(SyncSpan("optimizer", device, -1, start, start + took))
            if self.distributed:
                size = sum(self._part(int(self.costs.parameter_bytes[c.stage]), replicas) for c in held)
                self._ring("parameters", device, -1, start + took, size, 1)

    def _in_order(self) -> list[Copy]:
        return sorted(self.copies, key=lambda copy: (self.summed[copy], copy.device, copy.stage))

    @staticmethod
    def _part(size: int, ring: int) -> int:
        """What each of a ring sends in one half of an all-reduce."""
        return -(-size * (ring - 1) // ring)

    def _ring(self, what: str, device: int, stage: int, asked: int, size: int, halves: int) -> int:
        links, ports = self.links, (int(self.links.out_port[device]), int(self.links.in_port[device]))
        took = -(-size * NS_PER_S // int(links.bytes_per_second[device]))
        start, end = self.ports.take(ports, asked, took)
        end += halves * (links.dp - 1) * int(links.latency_ns[device])
        self.done.append(SyncSpan(what, device, stage, start, end, size))
        return end

    def _send(self, source: Copy, destination: Copy, asked: int, size: int) -> int:
        network, pair = self.timeline.network, (source.device, destination.device)
        rate = int(network.bytes_per_second[pair])
        took = -(-size * NS_PER_S // rate) if rate else 0
        start, end = self.ports.take((int(network.out_port[pair]), int(network.in_port[pair])), asked, took)
        end += int(network.latency_ns[pair])
        self.done.append(SyncSpan("pair", source.device, source.stage, start, end, size))
        return end


class _Ports:
    """When each port is taken: by messages of the pipeline, which go first, and by earlier sums."""

    def __init__(self, timeline: Timeline) -> None:
        self.free_at: dict[int, int] = {}
        sent = transfers_of(timeline.plan)
        begin, end = timeline.transfer_start_ns[sent.sender], timeline.transfer_end_ns[sent.sender]
        device = timeline.plan.device
        source, destination = device[sent.sender], device[sent.receiver]
        held = (begin != NOTHING_SENT) & (end > begin)
        self.begin, self.end = begin[held], end[held]
        self.out_port = timeline.network.out_port[source, destination][held]
        self.in_port = timeline.network.in_port[source, destination][held]

    def take(self, ports: tuple[int, int], asked: int, took: int) -> tuple[int, int]:
        """(start, end) of `took` ns of time in which both ports are free, from `asked` on; takes them to the end."""
        real = [port for port in ports if port != NO_PORT]
        start = max([asked, *(self.free_at.get(port, 0) for port in real)])
        begins, ends = self._taken(real, start)
        left, now = took, start
        for begin, end in zip(begins, ends, strict=True):
            if begin - now >= left:
                break
            left -= max(begin - now, 0)
            now = max(now, end)
        for port in real:
            self.free_at[port] = now + left
        return start, now + left

    def _taken(self, ports: list[int], after: int) -> tuple[list[int], list[int]]:
        """Begins and ends of the pipeline's messages at these ports that end after a time, in order of begin."""
        here = np.isin(self.out_port, ports) | np.isin(self.in_port, ports)
        here &= self.end > after
        begins, ends = self.begin[here], self.end[here]
        order = np.argsort(begins, kind="stable")
        return begins[order].tolist(), ends[order].tolist()


def _ends_of_devices(timeline: Timeline) -> list[int]:
    ends = timeline.end_ns.tolist()
    return [ends[stop - 1] if stop > start else 0 for start, stop in pairwise(timeline.plan.offsets.tolist())]


def _ends_of_copies(timeline: Timeline, copies: list[Copy]) -> dict[Copy, int]:
    """When the last B or W of each copy of a stage has ended; 0 where it had none."""
    plan = timeline.plan
    rows = np.flatnonzero((plan.kind == Kind.B) | (plan.kind == Kind.W))
    ends = np.zeros((plan.placement.directions, plan.shape.stages), dtype=np.int64)
    np.maximum.at(ends, (plan.direction[rows], plan.stage[rows]), timeline.end_ns[rows])
    return {copy: int(ends[copy.direction, copy.stage]) for copy in copies}


def copies_of(plan: Plan) -> list[Copy]:
    """Every copy of every stage, those of direction 0 first, in order of stages."""
    places = enumerate(plan.placement.device_of.tolist())
    return [Copy(direction, stage, device) for direction, row in places for stage, device in enumerate(row)]
