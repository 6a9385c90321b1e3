"""The search for a good mapping of devices to GPUs: a few known ones, then swaps; knows no schedule."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

from pipesim.topology import Topology, mirrored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pipesim.cluster import ClusterSpec
    from pipesim.topology import RankOrder

    Slots = tuple[int, ...]


def best_mapping(
    cluster: ClusterSpec, ranks: RankOrder, makespan_ns: Callable[[Topology], int], evaluations: int = 200
) -> Topology:
    """The best mapping found: the known ones, then swaps of two devices on different nodes while they help.

    makespan_ns: the length of the step on a topology; evaluations: the most topologies it is asked for. Of equal
    ones the first is kept, linear before all. On one node every mapping is alike, and linear is the answer.
    """
    best = Topology(cluster, ranks, tuple(range(ranks.devices)))
    if len({best.node(gpu) for gpu in best.first_gpus()}) == 1:
        return best
    shortest, left, tried = makespan_ns(best), evaluations - 1, {best.slots}
    starts = iter(_known(ranks.devices))
    candidates: Iterator[Slots] = starts
    while left > 0:
        slots = next(candidates, None)
        if slots is None and candidates is starts:
            candidates = _swaps(best)
            continue
        if slots is None:
            return best
        if slots in tried:
            continue
        tried.add(slots)
        left -= 1
        topology = replace(best, slots=slots)
        if (length := makespan_ns(topology)) < shortest:
            best, shortest = topology, length
            if candidates is not starts:
                candidates = _swaps(best)
    return best


def _known(devices: int) -> list[Slots]:
    """Mirrored pairs side by side, and the two halves of the pipeline dealt out in turn."""
    half = (devices + 1) // 2
    return [mirrored(devices), tuple(2 * d if d < half else 2 * (d - half) + 1 for d in range(devices))]


def _swaps(topology: Topology) -> Iterator[Slots]:
    """Every exchange of two devices that sit on different nodes."""
    nodes = [topology.node(gpu) for gpu in topology.first_gpus()]
    for a, b in combinations(range(len(nodes)), 2):
        if nodes[a] != nodes[b]:
            slots = list(topology.slots)
            slots[a], slots[b] = slots[b], slots[a]
            yield tuple(slots)
