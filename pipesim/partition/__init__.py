"""The public names of partitioning: layers -> stages, batch -> micro-batches, sequence -> subsequences."""

from __future__ import annotations

from pipesim.partition.layers import (
    LayerPartition,
    StageContents,
    check_partition,
    even_layers,
    layers_with_ends,
    listed_layers,
    microbatch_sizes,
    weighted_layers,
)
from pipesim.partition.layout import layout_partition
from pipesim.partition.sequence import SequenceCost, equal_cost_sequence, even_sequence, seq1f1b_sequence

__all__ = [
    "LayerPartition",
    "SequenceCost",
    "StageContents",
    "check_partition",
    "equal_cost_sequence",
    "even_layers",
    "even_sequence",
    "layers_with_ends",
    "layout_partition",
    "listed_layers",
    "microbatch_sizes",
    "seq1f1b_sequence",
    "weighted_layers",
]
