"""What a cluster is made of: GPUs, memory, links; knows no model, schedule or time of any op."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pipesim.errors import FileError, InputError
from pipesim.files import is_there
from pipesim.units import parse_bytes


@dataclass(frozen=True)
class ClusterSpec:
    """Nodes of `gpus_per_node` GPUs; `nodes` None means as many as are needed.

    peak_flops is dense BF16 operations/s. Bandwidths are bytes/s in one direction: intra_bandwidth of one GPU
    over all its links inside the node, intra_pair_bandwidth between two of them where every pair has a link
    of its own (0: a switch, one GPU can give all to one other), inter_bandwidth of one network card. Cards are
    shared by neighbouring GPUs. `sources` pairs a field with where its number comes from.
    """

    name: str
    gpu: str
    peak_flops: int
    memory_bytes: int
    memory_bandwidth: int
    gpus_per_node: int
    intra_bandwidth: int
    intra_latency_seconds: float
    inter_bandwidth: int
    cards_per_node: int
    inter_latency_seconds: float
    intra_pair_bandwidth: int = 0
    nodes: int | None = None
    intra_link: str = "intra-node"
    inter_link: str = "network"
    sources: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for field in ("peak_flops", "memory_bytes", "memory_bandwidth", "intra_bandwidth", "inter_bandwidth"):
            _check_range(field, getattr(self, field), 1, 10**18)
        _check_range("intra_pair_bandwidth", self.intra_pair_bandwidth, 0, self.intra_bandwidth)
        for field in ("intra_latency_seconds", "inter_latency_seconds"):
            _check_range(field, getattr(self, field), 0, 1)
        for field in ("gpus_per_node", "cards_per_node"):
            _check_range(field, getattr(self, field), 1, 2**20)
        if self.nodes is not None:
            _check_range("nodes", self.nodes, 1, 2**20)
        gpus, cards = self.gpus_per_node, self.cards_per_node
        if gpus % cards and cards % gpus:
            rule = f"must divide gpus_per_node = {gpus} or be a multiple of it"
            raise InputError("cards_per_node", cards, rule)

    @property
    def pair_bandwidth(self) -> int:
        """Bytes/s in one direction between two GPUs of a node."""
        return self.intra_pair_bandwidth or self.intra_bandwidth

    def group_bandwidth(self, gpus: int) -> int:
        """Bytes/s in one direction that a GPU has towards `gpus` - 1 others of its node together."""
        return min(self.intra_bandwidth, self.pair_bandwidth * max(gpus - 1, 1))

    def source_of(self, field: str) -> str:
        """Where the number of a field comes from."""
        return dict(self.sources).get(field, "given with the cluster")


def _check_range(field: str, value: float, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InputError(field, value, f"must be from {low} to {high}")


@cache
def _presets() -> dict[str, dict[str, Any]]:
    text = (files("pipesim.presets") / "clusters.json").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, Any]] = json.loads(text)
    return loaded


def preset_names() -> tuple[str, ...]:
    """Names of the clusters that come with pipesim, in the order of their file."""
    return tuple(_presets())


def preset(name: str) -> ClusterSpec:
    """The cluster of that name from presets/clusters.json; InputError lists the names when there is none."""
    if name not in _presets():
        remedy = f"use one of {', '.join(preset_names())}, or a JSON file"
        raise InputError("cluster", name, "is not a known cluster", remedy)
    data = _presets()[name]
    return ClusterSpec(name=name, **(data | {"sources": tuple(data["sources"].items())}))


def load(name_or_path: str | Path) -> ClusterSpec:
    """A preset by name, or a JSON file with ClusterSpec's fields (memory_bytes may be a text: "80GiB").

    `sources` is an object {field: text}. Raises InputError for an unknown name, FileError for a wrong file.
    """
    path = Path(name_or_path)
    if str(name_or_path) in _presets() or (path.suffix != ".json" and not is_there(path)):
        return preset(str(name_or_path))
    from pipesim.json_files import read_object, read_record

    data = read_object(path)
    sources = _file_sources(data.pop("sources", {}), path)
    memory = data.get("memory_bytes")
    if isinstance(memory, str):
        data["memory_bytes"] = parse_bytes(memory, f"{path}: memory_bytes")
    spec = read_record(ClusterSpec, {"name": path.stem} | data, path)
    return dataclasses.replace(spec, sources=sources)


def _file_sources(given: object, path: Path) -> tuple[tuple[str, str], ...]:
    """The sources of a file; fields they leave out are said to come from that file."""
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        raise FileError(f"{path}: sources", json.dumps(given)[:60], "must be an object of texts by field")
    fields = [field.name for field in dataclasses.fields(ClusterSpec) if field.name != "sources"]
    for field in given:
        if field not in fields:
            raise FileError(f"{path}: sources", field, "is not a field of a cluster")
    return tuple({field: given.get(field, str(path)) for field in fields}.items())
