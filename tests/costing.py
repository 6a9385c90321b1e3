"""Analytic cost tables of llama3-8b on H100 nodes for the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipesim import cluster, model
from pipesim.costs.analytic import AnalyticOptions, analytic_costs
from pipesim.partition import LayerPartition, even_layers, even_sequence
from pipesim.plan import PipelineShape

if TYPE_CHECKING:
    from pipesim.costs.table import CostTable

LLAMA, H100 = model.preset("llama3-8b"), cluster.preset("h100")
SEQ_LEN = 65536


def table(
    k: int = 1, *, layers: LayerPartition | None = None, lengths: tuple[int, ...] = (), m: int = 16, **options: Any
) -> CostTable:
    lengths = lengths or even_sequence(SEQ_LEN, k)
    shape = PipelineShape(8, m, 1, len(lengths))
    return analytic_costs(LLAMA, H100, shape, layers or even_layers(32, 8), lengths, AnalyticOptions(**options))
