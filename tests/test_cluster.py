"""ClusterSpec: presets with sources, files and refusals, GB against GiB (O37), GPUs of devices (O15), links."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pipesim import cluster
from pipesim.cluster_network import cluster_network, rank_order
from pipesim.errors import FileError, InputError
from pipesim.network import NO_PORT
from pipesim.units import parse_bytes

if TYPE_CHECKING:
    from pathlib import Path

MINE: dict[str, Any] = {
    "gpu": "X1", "peak_flops": 10**14, "memory_bytes": "80GiB", "memory_bandwidth": 10**12, "gpus_per_node": 4,
    "intra_bandwidth": 10**11, "intra_latency_seconds": 2e-6, "inter_bandwidth": 10**10, "cards_per_node": 2,
    "inter_latency_seconds": 1e-5,
}  # fmt: skip


def write(folder: Path, data: object) -> Path:
    path = folder / "mine.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_presets_have_published_rates_and_a_source_for_each_number() -> None:
    peaks = {name: cluster.preset(name).peak_flops / 1e12 for name in cluster.preset_names()}
    assert peaks == {"a100": 312, "a800": 312, "h100": 989.4, "h200": 989.4, "b200": 2250, "mi300x": 1307.4}
    for name in cluster.preset_names():
        spec = cluster.preset(name)
        numbers = [f for f, value in vars(spec).items() if isinstance(value, (int, float)) and value]
        told = {field for field, _ in spec.sources} | {"cards_per_node"}  # one card per GPU is in inter_bandwidth
        assert set(numbers) <= told


def test_gb_is_not_gib() -> None:
    """Field case O37: 82,000,000,000 bytes fit 80GiB and do not fit 80GB."""
    needed = 82_000_000_000
    assert parse_bytes("80GB", "memory") < needed < parse_bytes("80GiB", "memory") == 85_899_345_920
    assert cluster.preset("a100").memory_bytes == 80 * 2**30


def test_a_file_with_the_fields(tmp_path: Path) -> None:
    spec = cluster.load(write(tmp_path, MINE | {"sources": {"peak_flops": "datasheet"}}))
    assert (spec.name, spec.memory_bytes, spec.nodes) == ("mine", 80 * 2**30, None)
    assert spec.source_of("peak_flops") == "datasheet"
    assert spec.source_of("memory_bandwidth").endswith("mine.json")


REFUSED: dict[str, tuple[object, str]] = {
    "missing": ({k: v for k, v in MINE.items() if k != "gpu"}, "gpu: missing: is required"),
    "text": (MINE | {"peak_flops": "fast"}, 'peak_flops: "fast": must be a valid integer'),
    "unit": (MINE | {"memory_bytes": "80 gigs"}, "memory_bytes: 80 gigs: must be a size in bytes; write 80GiB"),
    "zero": (MINE | {"gpus_per_node": 0}, "gpus_per_node: 0: must be from 1 to"),
    "negative": (MINE | {"inter_latency_seconds": -1.0}, "inter_latency_seconds: -1.0: must be from 0 to 1"),
    "cards": (MINE | {"cards_per_node": 3}, "cards_per_node: 3: must divide gpus_per_node = 4"),
    "pair": (MINE | {"intra_pair_bandwidth": 10**12}, "intra_pair_bandwidth: 1000000000000: must be from 0 to"),
    "unknown": (MINE | {"colour": "red"}, "colour: red: is not a field of this file"),
    "sources": (MINE | {"sources": {"colour": "x"}}, "sources: colour: is not a field of a cluster"),
    "source type": (MINE | {"sources": ["x"]}, 'sources: ["x"]: must be an object of texts by field'),
    "list": ([], "list: must hold one JSON object"),
}


@pytest.mark.parametrize(("data", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_file_is_one_line_with_file_field_value_and_rule(tmp_path: Path, data: object, message: str) -> None:
    path = write(tmp_path, data)
    with pytest.raises(InputError) as caught:
        cluster.load(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_names_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cluster: v100: is not a known cluster; use one of a100, a800, h100"):
        cluster.load("v100")
    with pytest.raises(FileError, match="No such file"):
        cluster.load(tmp_path / "absent.json")


def test_gpus_of_devices_in_rank_order() -> None:
    """Field case O15: world 16, tp 2, dp 2, pp 4; exchanges must stay in the pipeline's own group."""
    groups = [rank_order(4, tp=2, dp=2, replica=r) for r in range(2)]
    assert groups[0] == (0, 4, 8, 12)  # of rank 0; rank 3 is the second GPU of replica 1's first device
    assert [gpu + 1 for gpu in groups[1]] == [3, 7, 11, 15]
    assert groups[0][2] <= 10 - 2 < groups[0][3]  # rank 10 is on stage 2
    assert 5 - groups[0][1] + groups[0][2] == 9  # after rank 5 comes rank 9


def test_one_node_of_h100_is_a_switch() -> None:
    network = cluster_network(cluster.preset("h100"), rank_order(8))
    off = ~np.eye(8, dtype=bool)
    assert (network.bytes_per_second[off] == 450 * 10**9).all()
    assert (network.latency_ns[off] == 5000).all()
    assert (network.latency_ns[~off] == 0).all()
    assert (network.out_port[~off] == NO_PORT).all()
    # One port out and one in per device, whatever the other end.
    for device in range(8):
        assert len(set(network.out_port[device][off[device]])) == 1
        assert len(set(network.in_port[:, device][off[device]])) == 1
    assert len(network.port_names) == 16
    assert network.link_kinds[0][0] == "local"
    assert network.link_kinds[0][1] == "nvlink"


def test_devices_of_several_gpus_use_all_their_links_and_cards() -> None:
    network = cluster_network(cluster.preset("h100"), rank_order(4, tp=4), tp=4)
    assert network.link_kinds[0][1] == network.link_kinds[2][3] == "nvlink"
    assert network.link_kinds[1][2] == "network"
    assert network.bytes_per_second[0, 1] == 4 * 450 * 10**9
    assert network.bytes_per_second[1, 2] == 4 * 50 * 10**9
    assert network.latency_ns[1, 2] == 10_000


def test_devices_that_share_a_card_share_its_ports(tmp_path: Path) -> None:
    spec = cluster.load(write(tmp_path, MINE))  # nodes of 4 GPUs and 2 cards
    network = cluster_network(spec, rank_order(8))
    out = network.out_port[:4, 4]
    assert out[0] == out[1] != out[2] == out[3]
    into = network.in_port[0, 4:]
    assert into[0] == into[1] != into[2] == into[3]
    assert not set(network.out_port.ravel()) & set(network.in_port.ravel()) - {NO_PORT}
    assert network.port_names[out[2]] == "out of card 1 of node 0"
    # Two devices of two GPUs: one card each; one of four: both cards.
    assert cluster_network(spec, rank_order(4, tp=2), tp=2).bytes_per_second[0, 2] == 10**10
    assert cluster_network(spec, rank_order(2, tp=4), tp=4).bytes_per_second[0, 1] == 2 * 10**10


def test_a_mesh_has_a_link_for_each_pair() -> None:
    spec = cluster.preset("mi300x")
    network = cluster_network(spec, rank_order(8))
    assert network.bytes_per_second[0, 1] == 64 * 10**9
    assert network.out_port[0, 1] != network.out_port[0, 2]
    assert spec.group_bandwidth(2) == 64 * 10**9
    assert spec.group_bandwidth(8) == 448 * 10**9
    assert cluster.preset("h100").group_bandwidth(2) == 450 * 10**9


def test_devices_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    spec = cluster.preset("h100")
    with pytest.raises(InputError, match="tp: 3: must divide gpus_per_node = 8 of h100"):
        cluster_network(spec, (0, 3), tp=3)
    with pytest.raises(InputError, match="tp: 16: must divide gpus_per_node = 8"):
        cluster_network(spec, (0, 16), tp=16)
    with pytest.raises(InputError, match="has 1 × 8 GPUs, the last device needs GPU 15"):
        cluster_network(replace(spec, nodes=1), rank_order(16))
    with pytest.raises(InputError, match="must differ"):
        cluster_network(spec, (0, 0))
    with pytest.raises(InputError, match="first GPU of a device: 1: must be a multiple of tp = 2"):
        cluster_network(spec, (1, 2), tp=2)
    odd = replace(spec, gpus_per_node=12, cards_per_node=3)
    with pytest.raises(InputError, match="tp: 3: must divide the 4 GPUs that share a network card"):
        cluster_network(odd, (0, 3), tp=3)
