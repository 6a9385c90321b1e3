"""The map of devices on GPUs as text and as values: nodes, hops, ports; makes no choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipesim.link_load import hops_of, port_loads
from pipesim.topology import pairs_inside
from pipesim.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipesim.scenario import Outcome
    from pipesim.timeline import Timeline
    from pipesim.topology import Topology

_PORTS_SHOWN = 8


def topology_text(outcome: Outcome, topology: Topology) -> str:
    """What stands where, what each hop carries over which link, and the fullest ports."""
    timeline = outcome.timeline
    lines = [*_map(timeline, topology), "", *_hops(timeline), "", *_ports(timeline)]
    return "\n".join([*lines, "", *_totals(outcome, topology)])


def topology_json(outcome: Outcome, topology: Topology) -> dict[str, Any]:
    """The same as plain values; times in seconds."""
    timeline = outcome.timeline
    second = timeline.unit_ns
    return {
        "cluster": topology.cluster.name,
        "rank_order": topology.ranks.order,
        "slots": list(topology.slots),
        "devices": [
            {"device": d, "node": topology.node(topology.gpus(d)[0]), "gpus": list(topology.gpus(d)), "stages": stages}
            for d, stages in enumerate(_stages(timeline))
        ],
        "hops": [
            {
                "source": hop.source,
                "destination": hop.destination,
                "link": hop.link,
                "messages": hop.messages,
                "bytes": hop.bytes,
                "held_seconds": hop.held_ns / second,
                "waited_seconds": hop.waited_ns / second,
            }
            for hop in hops_of(timeline)
        ],
        "ports": [
            {"name": p.name, "messages": p.messages, "held_seconds": p.held_ns / second, "load": p.load}
            for p in port_loads(timeline)
        ],
        "makespan_seconds": outcome.metrics.makespan_seconds,
        "exposed_communication_seconds": list(outcome.metrics.exposed_communication_seconds),
        "exposed_synchronisation_seconds": timeline.exposed_synchronisation_ns / second,
    }


def _stages(timeline: Timeline) -> list[list[int]]:
    """The stages each device holds, of all directions."""
    held: list[set[int]] = [set() for _ in range(timeline.plan.shape.devices)]
    for devices in timeline.plan.placement.device_of.tolist():
        for stage, device in enumerate(devices):
            held[device].add(stage)
    return [sorted(stages) for stages in held]


def _map(timeline: Timeline, topology: Topology) -> Iterator[str]:
    ranks = topology.ranks
    yield (
        f"{topology.cluster.name}: {ranks.devices} devices × tp {ranks.tp} × dp {ranks.dp} = {ranks.ranks} GPUs "
        f"on {topology.nodes} nodes of {topology.cluster.gpus_per_node}, rank order {ranks.order}"
    )
    at = {gpu: device for device in range(ranks.devices) for gpu in topology.gpus(device)}
    stages = _stages(timeline)
    for node in range(topology.nodes):
        first = node * topology.cluster.gpus_per_node
        for gpu in range(first, first + topology.cluster.gpus_per_node):
            if (device := at.get(gpu)) is not None and gpu == topology.gpus(device)[0]:
                last = topology.gpus(device)[-1]
                name = f"GPU {gpu}" if gpu == last else f"GPUs {gpu}-{last}"
                yield f"  node {node}  {name:<12} device {device:<3} stages {', '.join(map(str, stages[device]))}"
    if ranks.dp > 1:
        yield f"  (replica 0 of {ranks.dp}; the others hold the same in the same order)"


def _hops(timeline: Timeline) -> Iterator[str]:
    yield "hop         link          messages        GB   port time   waited for ports"
    for hop in hops_of(timeline):
        held, waited = (format_seconds(time / timeline.unit_ns) for time in (hop.held_ns, hop.waited_ns))
        yield (
            f"{hop.source:>3} -> {hop.destination:<4} {hop.link:<12} {hop.messages:>9} {hop.bytes / 1e9:>9.2f} "
            f"{held:>11} {waited:>18}"
        )


def _ports(timeline: Timeline) -> Iterator[str]:
    loads = port_loads(timeline)
    yield f"port, of {len(loads)} the fullest{'':<12} messages    in use"
    for load in loads[:_PORTS_SHOWN]:
        yield f"{load.name:<32} {load.messages:>9} {100 * load.load:>8.1f}%"


def _totals(outcome: Outcome, topology: Topology) -> Iterator[str]:
    timeline, p = outcome.timeline, topology.ranks.devices
    hops = hops_of(timeline)
    across = sum(hop.messages for hop in hops if hop.link == topology.cluster.inter_link)
    yield f"messages between nodes: {across} of {sum(hop.messages for hop in hops)}"
    if timeline.plan.placement.directions > 1:
        yield f"pairs of copies inside one node: {pairs_inside(topology)} of {p // 2}"
    exposed = sum(outcome.metrics.exposed_communication_seconds)
    yield (
        f"step {format_seconds(outcome.metrics.makespan_seconds)}; exposed communication {format_seconds(exposed)} "
        f"over all devices; exposed synchronisation "
        f"{format_seconds(timeline.exposed_synchronisation_ns / timeline.unit_ns)}"
    )
