"""How much each hop and each port carries in a timeline; knows no topology."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipesim.network import NO_PORT
from pipesim.transfers import transfers_of

if TYPE_CHECKING:
    from pipesim.timeline import Timeline


@dataclass(frozen=True)
class Hop:
    """The messages from one device to another: link, number, bytes, ns of port time, ns waited for ports in all."""

    source: int
    destination: int
    link: str
    messages: int
    bytes: int
    held_ns: int
    waited_ns: int


@dataclass(frozen=True)
class PortLoad:
    """A port: messages, ns in use, and that as a part of the makespan."""

    name: str
    messages: int
    held_ns: int
    load: float


def hops_of(timeline: Timeline) -> list[Hop]:
    """Every ordered pair of devices that carries messages."""
    plan, network = timeline.plan, timeline.network
    sent = transfers_of(plan)
    pair = plan.device[sent.sender].astype(np.int64) * plan.shape.devices + plan.device[sent.receiver]
    size = timeline.costs.messages(plan)[sent.sender]
    held = (timeline.transfer_end_ns - timeline.transfer_start_ns)[sent.sender]
    waited = (timeline.transfer_start_ns - timeline.end_ns)[sent.sender]
    hops = []
    for number in np.unique(pair).tolist():
        here = pair == number
        source, destination = divmod(number, plan.shape.devices)
        link = network.link_kinds[source][destination] if network.link_kinds else "link"
        totals = (int(here.sum()), *(int(column[here].sum()) for column in (size, held, waited)))
        hops.append(Hop(source, destination, link, *totals))
    return hops


def port_loads(timeline: Timeline) -> list[PortLoad]:
    """Every port that carries messages, the fullest first."""
    network, hops, makespan = timeline.network, hops_of(timeline), timeline.makespan_ns
    loads = []
    for port, name in enumerate(network.port_names):
        users = [hop for hop in hops if port in _ports(timeline, hop)]
        if users:
            held = sum(hop.held_ns for hop in users)
            loads.append(PortLoad(name, sum(h.messages for h in users), held, held / makespan if makespan else 0.0))
    return sorted(loads, key=lambda load: (-load.held_ns, load.name))


def _ports(timeline: Timeline, hop: Hop) -> set[int]:
    pair = hop.source, hop.destination
    return {int(timeline.network.out_port[pair]), int(timeline.network.in_port[pair])} - {NO_PORT}
