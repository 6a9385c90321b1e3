"""Devices on GPUs: groups of ranks, mappings, shared cards, loads, and the search for a mapping."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import cluster as clusters
from pipesim.errors import InputError
from pipesim.link_load import hops_of, port_loads
from pipesim.mapping import best_mapping
from pipesim.network import NO_PORT
from pipesim.scenario import Scenario, run
from pipesim.topology import RankOrder, Topology, hops_inside, mirrored, pairs_inside, slots_of

H100 = clusters.preset("h100")


def test_pipeline_groups_of_sixteen_ranks() -> None:
    """Field case O15: tensor fastest, then data, then pipeline; an exchange in another group hangs."""
    ranks = RankOrder(4, tp=2, dp=2)
    assert ranks.ranks == 16
    assert ranks.group("pp", 0) == (0, 4, 8, 12)
    assert ranks.group("pp", 3) == (3, 7, 11, 15)
    assert ranks.next_slot(5) == 9
    assert ranks.places(10)["pp"] == 2
    assert ranks.next_slot(12) is None


def test_pipeline_groups_of_eight_ranks() -> None:
    """Field case O15: world 8, tp=2, pp=4: rank 0 sends to 2, rank 1 to 3."""
    ranks = RankOrder(4, tp=2)
    assert ranks.groups("pp") == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert ranks.groups("tp") == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert (ranks.next_slot(0), ranks.next_slot(1)) == (2, 3)


def test_pipeline_before_data() -> None:
    ranks = RankOrder(4, tp=2, dp=2, order="tp-pp-dp")
    assert ranks.group("pp", 0) == (0, 2, 4, 6)
    assert ranks.group("dp", 3) == (3, 11)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.sampled_from(["tp-dp-pp", "tp-pp-dp"]))
def test_groups_of_an_axis_part_the_ranks(devices: int, tp: int, dp: int, order: str) -> None:
    ranks = RankOrder(devices, tp, dp, order)
    for axis, size in (("tp", tp), ("dp", dp), ("pp", devices)):
        groups = ranks.groups(axis)  # type: ignore[arg-type]
        assert sorted(rank for group in groups for rank in group) == list(range(ranks.ranks))
        assert {len(group) for group in groups} == {size}
    for rank in range(ranks.ranks):
        places = ranks.places(rank)
        assert ranks.rank(places["tp"], places["dp"], places["pp"]) == rank


@given(st.integers(1, 20))
def test_mirrored_puts_pairs_side_by_side(devices: int) -> None:
    slots = mirrored(devices)
    assert sorted(slots) == list(range(devices))
    assert all(abs(slots[r] - slots[devices - 1 - r]) == 1 for r in range(devices // 2))


def test_mirrored_keeps_pairs_in_a_node_and_linear_keeps_hops() -> None:
    ranks = RankOrder(16)
    linear, folded = (Topology.of(H100, ranks, mapping) for mapping in ("linear", "mirrored"))
    assert (pairs_inside(linear), hops_inside(linear)) == (0, 14)
    assert (pairs_inside(folded), hops_inside(folded)) == (8, 13)
    kinds = folded.network().link_kinds
    assert (kinds[3][4], kinds[11][12], kinds[7][8]) == ("network", "network", H100.intra_link)


def test_linear_is_what_devices_had_before_mappings() -> None:
    from pipesim.cluster_network import cluster_network, rank_order

    for tp, dp in ((1, 1), (2, 2), (4, 1)):
        topology = Topology.of(H100, RankOrder(4, tp, dp))
        assert topology.first_gpus() == rank_order(4, tp, dp)
        plain, mapped = cluster_network(H100, rank_order(4, tp, dp), tp), topology.network()
        assert (plain.bytes_per_second == mapped.bytes_per_second).all()
        assert (plain.latency_ns == mapped.latency_ns).all()


def test_both_directions_meet_at_one_port() -> None:
    """Messages to the next and to the previous device of another node leave by the same card."""
    network = Topology.of(replace(H100, gpus_per_node=1, cards_per_node=1), RankOrder(3)).network()
    assert network.out_port[1, 0] == network.out_port[1, 2] != NO_PORT
    assert network.in_port[1, 0] != network.out_port[1, 0]


def test_replicas_on_one_card_share_its_bandwidth() -> None:
    """Two replicas of each device sit on neighbouring GPUs; with one card for two GPUs each gets half."""
    paired = replace(H100, cards_per_node=4)
    alone = Topology.of(paired, RankOrder(16)).network().bytes_per_second[7, 8]
    shared = Topology.of(paired, RankOrder(8, dp=2)).network().bytes_per_second[3, 4]
    assert shared == alone // 2
    apart = Topology.of(paired, RankOrder(16, dp=2, order="tp-pp-dp")).network().bytes_per_second[7, 8]
    assert apart == alone


def test_rings_of_replicas_know_their_links() -> None:
    inside = Topology.of(H100, RankOrder(4, dp=2))
    network = inside.network()
    links = inside.replica_links(network)
    assert links.bytes_per_second.tolist() == [H100.pair_bandwidth] * 4
    assert links.out_port[0] == network.out_port[0, 1]  # the pipeline's own port inside the node
    across = Topology.of(H100, RankOrder(8, dp=2, order="tp-pp-dp"))
    far = across.replica_links(across.network())
    assert far.bytes_per_second.tolist() == [H100.inter_bandwidth] * 8
    assert far.out_port.tolist() == [NO_PORT] * 8  # its pipeline never leaves the node


@pytest.mark.parametrize(
    ("mapping", "message"),
    [("0,1,1,2", "must hold each of 0..3 once"), ("0,1,2", "each of 0..3"), ("round", "one of linear, mirrored, auto")],
)
def test_wrong_mappings(mapping: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        slots_of(mapping, 4)


def test_wrong_orders_and_clusters() -> None:
    with pytest.raises(InputError, match="one of tp-dp-pp, tp-pp-dp"):
        RankOrder(4, order="pp-tp-dp")
    with pytest.raises(InputError, match="the run needs 16"):
        Topology.of(replace(H100, nodes=1), RankOrder(8, dp=2)).network()
    with pytest.raises(InputError, match=r"must be 0\.\.7"):
        RankOrder(8).places(8)


def test_search_finds_the_mapping_with_the_shortest_step() -> None:
    """The measure counts hops between nodes: a linear order has one; started elsewhere, swaps find the way back."""
    two = replace(H100, gpus_per_node=3, cards_per_node=3)
    chain = (4, 0, 2, 5, 1, 3)
    asked: list[Topology] = []

    def hops(topology: Topology) -> int:
        asked.append(topology)
        return len(chain) - hops_inside(topology, chain)

    best = best_mapping(two, RankOrder(6), hops)
    assert hops(best) == 2  # one hop between nodes, and the count of devices less the count of hops
    assert len(asked) <= 201
    assert best_mapping(two, RankOrder(6), hops, evaluations=1).slots == (0, 1, 2, 3, 4, 5)
    assert best_mapping(H100, RankOrder(8), hops).slots == tuple(range(8))


def test_loads_of_hops_and_ports() -> None:
    """16 devices on two nodes: messages of the one hop between nodes, and the share of time its card is in use."""
    outcome = run(Scenario(schedule="1f1b", devices=16, microbatches=4))
    hops = {(hop.source, hop.destination): hop for hop in hops_of(outcome.timeline)}
    assert set(hops) == {(d, d + 1) for d in range(15)} | {(d + 1, d) for d in range(15)}
    assert [pair for pair, hop in hops.items() if hop.link == "network"] == [(7, 8), (8, 7)]
    size = int(outcome.case.costs.boundary_bytes[0, 0])
    assert (hops[7, 8].messages, hops[7, 8].bytes) == (4, 4 * size)
    assert hops[7, 8].held_ns == 4 * -(-size * 10**9 // H100.inter_bandwidth)
    fullest = port_loads(outcome.timeline)[0]
    assert fullest.held_ns == hops[7, 8].held_ns
    assert fullest.load == fullest.held_ns / outcome.timeline.makespan_ns
    assert "card" in fullest.name


@pytest.mark.parametrize("mapping", ["linear", "mirrored", "auto", "0,2,1,3,4,5,6,7,8,9,10,11,12,13,14,15"])
def test_every_mapping_simulates(mapping: str) -> None:
    scenario = Scenario(schedule="seq1f1b", devices=16, microbatches=16, subsequences=2, mapping=mapping)
    outcome = run(scenario)
    assert outcome.case.topology is not None
    assert np.array_equal(outcome.case.topology.network().latency_ns, outcome.case.network.latency_ns)
    if mapping == "auto":
        assert outcome.timeline.makespan_ns <= run(replace(scenario, mapping="mirrored")).timeline.makespan_ns
