"""Which GPUs each device gets: rank orders, groups of ranks, mappings of devices; knows no plan and no cost.

Ranks count GPUs node after node. A *slot* is a place of the pipeline, counted along its group of ranks; a mapping
gives each device a slot.

    linear     device    0 1 2 3 4 5 6 7      neighbours side by side
    mirrored   device    0 7 1 6 2 5 3 4      devices r and p-1-r side by side: the two copies of a stage of a
                                              bidirectional plan sum their gradients there (BitPipe)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from pipesim.cluster_network import cluster_network, inter_rate, intra_rate
from pipesim.errors import InputError
from pipesim.network import NO_PORT, ReplicaLinks
from pipesim.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipesim.cluster import ClusterSpec
    from pipesim.network import Network

Axis = Literal["tp", "dp", "pp"]
ORDERS = ("tp-dp-pp", "tp-pp-dp")
_MOST_GPUS = 10**6
MAPPINGS = ("linear", "mirrored", "auto")


@dataclass(frozen=True)
class RankOrder:
    """How the ranks of a run are numbered: the axes of `order` from the fastest to the slowest.

    devices: pipeline devices; tp: GPUs acting as one device; dp: replicas. Raises InputError on another order or a
    size below 1, and on more than a million GPUs.
    """

    devices: int
    tp: int = 1
    dp: int = 1
    order: str = "tp-dp-pp"

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise InputError("--rank-order", self.order, "no such order", f"one of {', '.join(ORDERS)}")
        for name in ("devices", "tp", "dp"):
            if getattr(self, name) < 1:
                raise InputError(name, getattr(self, name), "must be at least 1")
        if self.ranks > _MOST_GPUS:
            sizes = f"{self.devices} · {self.tp} · {self.dp}"
            raise InputError("devices · tp · dp", sizes, f"must be at most {_MOST_GPUS} GPUs", "lower --dp or --tp")

    @property
    def ranks(self) -> int:
        """GPUs of the run."""
        return self.devices * self.tp * self.dp

    def _sizes(self) -> list[tuple[str, int]]:
        sizes = {"tp": self.tp, "dp": self.dp, "pp": self.devices}
        return [(axis, sizes[axis]) for axis in self.order.split("-")]

    def rank(self, tensor: int, replica: int, slot: int) -> int:
        """The rank at a place of every axis."""
        places = {"tp": tensor, "dp": replica, "pp": slot}
        rank, stride = 0, 1
        for axis, size in self._sizes():
            rank += places[axis] * stride
            stride *= size
        return rank

    def places(self, rank: int) -> dict[str, int]:
        """The place of a rank on each axis, `tp`, `dp` and `pp`. Raises InputError outside the run."""
        if not 0 <= rank < self.ranks:
            raise InputError("rank", rank, f"must be 0..{self.ranks - 1}")
        places = {}
        for axis, size in self._sizes():
            rank, places[axis] = divmod(rank, size)
        return places

    def group(self, axis: Axis, rank: int) -> tuple[int, ...]:
        """The ranks that differ from one rank on one axis only, in order: its tensor, data or pipeline group."""
        places = self.places(rank)
        size = dict(self._sizes())[axis]
        return tuple(self._rank_at(places | {axis: place}) for place in range(size))

    def groups(self, axis: Axis) -> tuple[tuple[int, ...], ...]:
        """All groups of one axis, in order of their first ranks."""
        return tuple(sorted({self.group(axis, rank) for rank in range(self.ranks)}))

    def next_slot(self, rank: int) -> int | None:
        """The rank that takes this one's forward output; None at the end of the pipeline."""
        group = self.group("pp", rank)
        place = group.index(rank)
        return group[place + 1] if place + 1 < len(group) else None

    def _rank_at(self, places: dict[str, int]) -> int:
        return self.rank(places["tp"], places["dp"], places["pp"])


def mirrored(devices: int) -> tuple[int, ...]:
    """The slot of each device with r and p-1-r side by side; an odd one out sits last."""
    return tuple(2 * d if d < (devices + 1) // 2 else 2 * (devices - 1 - d) + 1 for d in range(devices))


def slots_of(mapping: str, devices: int) -> tuple[int, ...]:
    """The slot of each device: "linear", "mirrored", or a list "0,2,3,1".

    Raises InputError on another name and on a list that is no permutation ("auto" needs a plan:
    `pipesim.mapping.best_mapping`).
    """
    if mapping == "linear":
        return tuple(range(devices))
    if mapping == "mirrored":
        return mirrored(devices)
    try:
        slots = tuple(int(text) for text in mapping.split(","))
    except ValueError:
        names = ", ".join(MAPPINGS)
        raise InputError("--mapping", mapping, "no such mapping", f"one of {names}, or slots as 0,2,3,1") from None
    if sorted(slots) != list(range(devices)):
        raise InputError("--mapping", mapping, f"must hold each of 0..{devices - 1} once, the slot of each device")
    return slots


class _Ring(NamedTuple):
    """The slowest link of a ring of replicas and the names of the ports it uses."""

    rate: int
    latency_ns: int
    ports: tuple[str, str]


@dataclass(frozen=True)
class Topology:
    """Devices on the GPUs of a cluster. slots: the slot of each device in every replica's pipeline group.

    Raises InputError where slots are no permutation of the devices.
    """

    cluster: ClusterSpec
    ranks: RankOrder
    slots: tuple[int, ...]

    def __post_init__(self) -> None:
        if sorted(self.slots) != list(range(self.ranks.devices)):
            rule = f"must hold each of 0..{self.ranks.devices - 1} once"
            raise InputError("--mapping", ",".join(map(str, self.slots)), rule)

    @classmethod
    def of(cls, cluster: ClusterSpec, ranks: RankOrder, mapping: str = "linear") -> Topology:
        """From the name of a mapping or a list of slots. Raises InputError."""
        return cls(cluster, ranks, slots_of(mapping, ranks.devices))

    def gpus(self, device: int, replica: int = 0) -> tuple[int, ...]:
        """The GPUs of a device, counted over all nodes."""
        return tuple(self.ranks.rank(t, replica, self.slots[device]) for t in range(self.ranks.tp))

    def first_gpus(self, replica: int = 0) -> tuple[int, ...]:
        """The first GPU of each device."""
        return tuple(self.gpus(device, replica)[0] for device in range(self.ranks.devices))

    def node(self, gpu: int) -> int:
        """The node of a GPU."""
        return gpu // self.cluster.gpus_per_node

    @property
    def nodes(self) -> int:
        """Nodes in use."""
        return 1 + max(self.node(rank) for rank in range(self.ranks.ranks))

    def network(self) -> Network:
        """Links between the devices of one replica.

        All replicas do the same at the same time, so a card that serves the same device of several replicas gives
        each an equal part. Raises InputError where the devices do not fit the cluster.
        """
        last = self.ranks.ranks - 1
        if self.cluster.nodes is not None and self.node(last) >= self.cluster.nodes:
            rule = f"has {self.cluster.nodes} × {self.cluster.gpus_per_node} GPUs, the run needs {last + 1}"
            raise InputError("cluster", self.cluster.name, rule, "use fewer devices, replicas or a smaller tp")
        network = cluster_network(self.cluster, self.first_gpus(), self.ranks.tp)
        sharing = np.array([self._replicas_on_card(device) for device in range(self.ranks.devices)])
        across = np.array([[self._apart(a, b) for b in range(self.ranks.devices)] for a in range(self.ranks.devices)])
        most = np.maximum(sharing[:, np.newaxis], sharing[np.newaxis, :])
        rate = np.where(across, np.maximum(network.bytes_per_second // most, 1), network.bytes_per_second)
        return replace(network, bytes_per_second=rate.astype(np.int64))

    def replica_links(self, network: Network) -> ReplicaLinks:
        """The ring of each device's replicas, and the ports it shares with the pipeline's network."""
        rings = [self._ring(device) for device in range(self.ranks.devices)]
        numbers = {name: number for number, name in enumerate(network.port_names)}
        ports = [[numbers.get(name, NO_PORT) for name in ring.ports] for ring in rings]
        return ReplicaLinks(
            self.ranks.dp,
            np.array([ring.rate for ring in rings], dtype=np.int64),
            np.array([ring.latency_ns for ring in rings], dtype=np.int64),
            np.array([out for out, _ in ports], dtype=np.int32),
            np.array([into for _, into in ports], dtype=np.int32),
        )

    def _ring(self, device: int) -> _Ring:
        cluster, first = self.cluster, self.gpus(device)[0]
        apart = len({self.node(self.gpus(device, replica)[0]) for replica in range(self.ranks.dp)}) > 1
        if not apart:
            names = (f"out of device {device}", f"into device {device}")
            return _Ring(intra_rate(cluster, self.ranks.tp), round(cluster.intra_latency_seconds * NS_PER_S), names)
        node, card = self._card(first)
        names = (f"out of card {card} of node {node}", f"into card {card} of node {node}")
        return _Ring(inter_rate(cluster, self.ranks.tp), round(cluster.inter_latency_seconds * NS_PER_S), names)

    def _apart(self, a: int, b: int) -> bool:
        return self.node(self.gpus(a)[0]) != self.node(self.gpus(b)[0])

    def _replicas_on_card(self, device: int) -> int:
        """Replicas whose copy of a device sends through the same network card as the first one's."""
        cards = [self._card(self.gpus(device, replica)[0]) for replica in range(self.ranks.dp)]
        return cards.count(cards[0])

    def _card(self, gpu: int) -> tuple[int, int]:
        node, local = divmod(gpu, self.cluster.gpus_per_node)
        return node, local * self.cluster.cards_per_node // self.cluster.gpus_per_node


def pairs_inside(topology: Topology) -> int:
    """Pairs of devices r and p-1-r that share a node."""
    p = topology.ranks.devices
    nodes = [topology.node(gpu) for gpu in topology.first_gpus()]
    return sum(nodes[r] == nodes[p - 1 - r] for r in range(p // 2))


def hops_inside(topology: Topology, chain: Sequence[int] | None = None) -> int:
    """Hops between neighbours of a chain of devices (all of them in order, unless given) that stay in a node."""
    nodes = [topology.node(gpu) for gpu in topology.first_gpus()]
    return sum(nodes[a] == nodes[b] for a, b in pairwise(chain or range(topology.ranks.devices)))
