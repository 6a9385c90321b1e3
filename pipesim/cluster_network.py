"""Which GPUs a device occupies, and the Network between devices that follows; knows no plan and no cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipesim.errors import InputError
from pipesim.network import NO_PORT, Network
from pipesim.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipesim.cluster import ClusterSpec

PortKey = tuple[str, int, int]


def rank_order(devices: int, tp: int = 1, dp: int = 1, replica: int = 0) -> tuple[int, ...]:
    """First GPU of each device of one data-parallel replica, tensor parallel fastest, then data, then pipeline.

    Device d of replica r occupies GPUs (d × dp + r) × tp and the tp - 1 after it.
    """
    return tuple((device * dp + replica) * tp for device in range(devices))


def check_tp(cluster: ClusterSpec, tp: int) -> None:
    """Raises InputError unless tensor-parallel groups of tp GPUs fill nodes and network cards without rest."""
    if tp < 1 or cluster.gpus_per_node % tp:
        raise InputError("tp", tp, f"must divide gpus_per_node = {cluster.gpus_per_node} of {cluster.name}")
    sharing = max(1, cluster.gpus_per_node // cluster.cards_per_node)
    if tp % sharing and sharing % tp:
        rule = f"must divide the {sharing} GPUs that share a network card of {cluster.name}, or be a multiple"
        raise InputError("tp", tp, rule)


def cluster_network(cluster: ClusterSpec, first_gpus: Sequence[int], tp: int = 1) -> Network:
    """Links between devices, device d on GPUs first_gpus[d]..first_gpus[d]+tp-1 (counted over all nodes).

    Messages are the bytes of a whole device: its tp GPUs send their parts at once, so bandwidths are those of
    its GPUs' links, or of its network cards, together. Inside a node with a switch a device has one outgoing
    and one incoming port; where each pair has a link of its own, so has each pair here. Devices that share a
    network card share its two ports. Raises InputError when devices overlap or do not fit the cluster.
    """
    check_tp(cluster, tp)
    _check_gpus(cluster, first_gpus, tp)
    p = len(first_gpus)
    node = [gpu // cluster.gpus_per_node for gpu in first_gpus]
    card = [_first_card(cluster, gpu) for gpu in first_gpus]
    ports = _Ports()
    latency, rate = np.zeros((p, p), dtype=np.int64), np.zeros((p, p), dtype=np.int64)
    out_port = np.full((p, p), NO_PORT, dtype=np.int32)
    in_port = np.full((p, p), NO_PORT, dtype=np.int32)
    kinds = [["local"] * p for _ in range(p)]
    inside, across = intra_rate(cluster, tp), inter_rate(cluster, tp)
    for source, destination in np.ndindex(p, p):
        if source == destination:
            continue
        pair = source, destination
        if node[source] == node[destination]:
            kinds[source][destination] = cluster.intra_link
            latency[pair], rate[pair] = _ns(cluster.intra_latency_seconds), inside
            keys = _inside_keys(cluster, source, destination)
        else:
            kinds[source][destination] = cluster.inter_link
            latency[pair], rate[pair] = _ns(cluster.inter_latency_seconds), across
            keys = ("out of card", *card[source]), ("into card", *card[destination])
        out_port[pair], in_port[pair] = (ports.number(key) for key in keys)
    return Network(latency, rate, out_port, in_port, ports.names(), tuple(tuple(row) for row in kinds))


def intra_rate(cluster: ClusterSpec, tp: int) -> int:
    """Bytes/s from one device to another of the same node."""
    return tp * cluster.pair_bandwidth


def inter_rate(cluster: ClusterSpec, tp: int) -> int:
    """Bytes/s from one device to another node: all the cards its GPUs use."""
    return max(1, tp * cluster.cards_per_node // cluster.gpus_per_node) * cluster.inter_bandwidth


class _Ports:
    """Numbers for ports, in order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[PortKey, int] = {}

    def number(self, key: PortKey) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def names(self) -> tuple[str, ...]:
        return tuple(self._name(key) for key in self._numbers)

    @staticmethod
    def _name(key: PortKey) -> str:
        what, first, second = key
        if what.endswith("card"):
            return f"{what} {second} of node {first}"
        return f"{what} device {first}" if second < 0 else f"{what} devices {first}-{second}"


def _inside_keys(cluster: ClusterSpec, source: int, destination: int) -> tuple[PortKey, PortKey]:
    if cluster.intra_pair_bandwidth:
        return ("out, link of", source, destination), ("in, link of", source, destination)
    return ("out of", source, -1), ("into", destination, -1)


def _first_card(cluster: ClusterSpec, gpu: int) -> tuple[int, int]:
    """(node, card) of a GPU: neighbouring GPUs share a card where there are fewer cards than GPUs."""
    node, local = divmod(gpu, cluster.gpus_per_node)
    return node, local * cluster.cards_per_node // cluster.gpus_per_node


def _check_gpus(cluster: ClusterSpec, first_gpus: Sequence[int], tp: int) -> None:
    for gpu in first_gpus:
        if gpu < 0 or gpu % tp:
            raise InputError("first GPU of a device", gpu, f"must be a multiple of tp = {tp}")
    if len(set(first_gpus)) != len(first_gpus):
        raise InputError("first GPUs of devices", str(list(first_gpus)), "must differ")
    if cluster.nodes is not None and (needed := max(first_gpus) + tp) > cluster.nodes * cluster.gpus_per_node:
        rule = f"has {cluster.nodes} × {cluster.gpus_per_node} GPUs, the last device needs GPU {needed - 1}"
        raise InputError("cluster", cluster.name, rule, "use fewer devices, a smaller tp or more nodes")


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)
