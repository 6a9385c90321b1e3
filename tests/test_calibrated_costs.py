"""Calibrated costs: measured numbers where the profile has them, formulas elsewhere, and each says which."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from calibration.grid import Point
from pipesim import cluster
from pipesim.costs.analytic import AnalyticOptions, analytic_costs
from pipesim.costs.calibrated import calibrated_costs
from pipesim.errors import InputError
from pipesim.partition import SequenceCost, equal_cost_sequence, even_layers, even_sequence
from pipesim.plan import Kind, PipelineShape
from tests.calibrating import MODEL, SEQUENCE, law, profile, sizes

if TYPE_CHECKING:
    from pipesim.costs.table import CostTable
    from pipesim.partition import LayerPartition
    from pipesim.profile import CalibrationProfile

H100 = cluster.preset("h100")
PROFILE = profile()


def costs(
    k: int = 4, *, p: int = 4, v: int = 1, m: int = 8, layers: int = 4, measured: CalibrationProfile = PROFILE,
    partition: LayerPartition | None = None, lengths: tuple[int, ...] = (), **options: Any,
) -> CostTable:  # fmt: skip
    model = replace(MODEL, layers=layers)
    lengths = lengths or even_sequence(SEQUENCE, k)
    shape = PipelineShape(p, m, v, len(lengths))
    partition = partition or even_layers(layers, shape.stages)
    return calibrated_costs(measured, model, H100, shape, partition, lengths, AnalyticOptions(**options))


def of_layers(op: str, tokens: int, prefix: int, count: int = 1, tp: int = 1) -> float:
    return count * law(Point(tp, "layer", tokens, prefix), op)


def sources(table: CostTable) -> dict[str, tuple[str, str]]:
    return {s.what: (s.value, s.origin) for s in table.sources}


def test_a_middle_stage_costs_its_layers() -> None:
    table = costs(4)
    for kind in (Kind.F, Kind.B, Kind.I, Kind.W):
        expected = [of_layers(kind.name, 256, 256 * j) * 1e9 for j in range(4)]
        assert table.duration_ns[kind, 0, 1] == pytest.approx(expected, rel=1e-6)
    assert (table.duration_ns[Kind.R, 0, 1] == table.duration_ns[Kind.F, 0, 1]).all()


def test_embedding_and_head_are_on_the_end_stages() -> None:
    table = costs(4)
    for kind in (Kind.F, Kind.B, Kind.I, Kind.W):
        one = table.duration_ns[kind, 0, 1]
        ends = {0: "embedding", 3: "head"}
        for stage, part in ends.items():
            extra = law(Point(1, part, 256, 0), kind.name) * 1e9
            assert table.duration_ns[kind, 0, stage] - one == pytest.approx(extra, abs=2)


@pytest.mark.parametrize(("layers", "p", "v", "k"), [(12, 4, 1, 2), (8, 2, 2, 1), (80, 8, 2, 4), (5, 4, 1, 4)])
def test_other_layer_counts_devices_and_cuts(layers: int, p: int, v: int, k: int) -> None:
    partition = even_layers(layers, p * v)
    table = costs(k, p=p, v=v, layers=layers, partition=partition)
    stage = 1
    held = partition.layers_per_stage[stage]
    tokens = SEQUENCE // k
    expected = [of_layers("B", tokens, tokens * j, held) * 1e9 for j in range(k)]
    if not partition.contents(stage).has_head:
        assert table.duration_ns[Kind.B, 0, stage] == pytest.approx(expected, rel=1e-6)
    assert table.duration_ns.shape == (5, 1, p * v, k)


def test_unmeasured_cuts_come_from_the_fit_and_say_so() -> None:
    lengths = (500, 300, 224)
    table = costs(lengths=lengths)
    expected = [of_layers("F", s, c) * 1e9 for s, c in ((500, 0), (300, 500), (224, 800))]
    assert table.duration_ns[Kind.F, 0, 1] == pytest.approx(expected, rel=0.01)
    assert sources(table)["layer F by subsequence"][1] == "fit"


def test_mixed_origins_are_counted() -> None:
    table = costs(lengths=(256, 256, 500, 12))
    assert sources(table)["layer F by subsequence"][1] == "2 measured, 1 fit, 1 fit, extrapolated"


def test_equal_flops_cuts_are_measured_points() -> None:
    table = costs(lengths=equal_cost_sequence(SEQUENCE, 4, SequenceCost.of_layer(MODEL)))
    assert sources(table)["layer B by subsequence"][1] == "measured"


def test_explain_names_profile_and_measured_numbers() -> None:
    found = sources(costs(4))
    assert found["layer F by subsequence"][1] == "measured"
    assert found["head W by subsequence"][1] == "measured"
    assert "law" in found["profile"][1]
    assert found["measured second"][0] == "thread CPU time"
    assert "rms" in found["fit of layer F, any prefix"][0]
    assert found["static bytes, collectives, links"][1] == "analytic, not measured"


def test_what_was_not_measured_is_analytic_and_says_so() -> None:
    """A profile without the head: its times are those of the analytic model."""
    headless = profile(points=[p for p in _grid() if p.part != "head"])
    table, base = costs(4, measured=headless), _analytic(4)
    ends = table.duration_ns[Kind.F, 0, 3] - table.duration_ns[Kind.F, 0, 1]
    by_formula = base.duration_ns[Kind.F, 0, 3] - base.duration_ns[Kind.F, 0, 1]
    assert ends == pytest.approx(by_formula, abs=2)
    assert sources(table)["head F by subsequence"][1] == "analytic, not measured"
    assert "no bytes in the profile" in sources(table)["activation and transient bytes"][1]
    assert (table.activation_bytes == base.activation_bytes).all()


def _grid() -> list[Point]:
    from calibration.grid import grid

    return grid(MODEL, SEQUENCE, (1, 2, 4))


def _analytic(k: int, **options: Any) -> CostTable:
    shape = PipelineShape(4, 8, 1, k)
    return analytic_costs(MODEL, H100, shape, even_layers(4, 4), even_sequence(SEQUENCE, k), AnalyticOptions(**options))


def test_bytes_are_the_measured_ones() -> None:
    table = costs(4)
    layer, head = sizes(Point(1, "layer", 256, 768)), sizes(Point(1, "head", 256, 0))
    assert table.activation_bytes[0, 1, 3] == layer.activation
    assert table.activation_bytes[0, 3, 3] == layer.activation + head.activation
    assert table.weight_activation_bytes[0, 1, 3] == layer.weight_activation
    assert table.transient_bytes[Kind.B, 0, 1, 3] == layer.transient_b
    assert table.transient_bytes[Kind.B, 0, 3, 3] == max(layer.transient_b, head.transient_b)
    assert table.transient_bytes[Kind.W, 0, 1].max() == 0


def test_messages_and_keys_have_the_measured_element_size() -> None:
    table, base = costs(4), _analytic(4)
    assert (table.boundary_bytes == 256 * MODEL.hidden * 4).all()
    assert (table.kv_bytes == 2 * base.kv_bytes).all()
    assert (table.kv_gradient_bytes == base.kv_gradient_bytes).all()
    assert table.kv_bytes[0, 1] == 2 * SEQUENCE * 32 * 4


def test_without_subsequences_keys_and_values_are_activations() -> None:
    table = costs(1)
    assert table.kv_bytes.max() == 0
    kv = 2 * SEQUENCE * 32 * 4
    assert table.activation_bytes[0, 1, 0] == sizes(Point(1, "layer", SEQUENCE, 0)).activation + kv


def test_full_recompute_runs_the_measured_forward_again() -> None:
    plain, full = costs(4), costs(4, recompute="full")
    again = plain.duration_ns[Kind.R]
    for kind in (Kind.B, Kind.I):
        assert full.duration_ns[kind] - plain.duration_ns[kind] == pytest.approx(again, abs=2)
    assert (full.duration_ns[Kind.W] == plain.duration_ns[Kind.W]).all()
    assert (full.activation_bytes == _analytic(4, recompute="full").activation_bytes).all()
    assert "differ" in sources(full)["activation and transient bytes"][1]


def test_tensor_parallel_shares_are_measured_and_collectives_added() -> None:
    both = profile(tps=(1, 2))
    table, base = costs(4, measured=both, tp=2), _analytic(4, tp=2)
    silent = AnalyticOptions(tp=2)
    silent = replace(silent, efficiency=replace(silent.efficiency, exposed_collectives=0.0))
    shape = PipelineShape(4, 8, 1, 4)
    alone = analytic_costs(MODEL, H100, shape, even_layers(4, 4), even_sequence(SEQUENCE, 4), silent)
    collectives = base.duration_ns - alone.duration_ns
    assert collectives[Kind.F].min() > 0
    for kind in (Kind.F, Kind.B, Kind.I, Kind.W):
        measured = np.array([of_layers(kind.name, 256, 256 * j, tp=2) * 1e9 for j in range(4)])
        assert table.duration_ns[kind, 0, 1] == pytest.approx(measured + collectives[kind, 0, 1], abs=3)


def test_a_tensor_parallel_size_that_was_not_measured_is_refused() -> None:
    with pytest.raises(InputError, match=r"--tp: 2: profile was measured with tp = 1; calibrate with --tp 2"):
        costs(4, tp=2)


def test_another_micro_batch_size_is_refused_or_analytic_beside_the_measured_one() -> None:
    with pytest.raises(InputError, match=r"--micro-batch-size: 2: profile was measured with micro-batches of 1"):
        costs(4, micro_batch_size=2)
    mixed = costs(4, m=2, microbatch_sizes=(1, 2))
    base = analytic_costs(
        MODEL, H100, PipelineShape(4, 2, 1, 4), even_layers(4, 4), even_sequence(SEQUENCE, 4),
        AnalyticOptions(microbatch_sizes=(1, 2)),
    )  # fmt: skip
    assert (mixed.duration_ns[:, 0] == costs(4).duration_ns[:, 0]).all()
    assert (mixed.duration_ns[:, 1] == base.duration_ns[:, 1]).all()
    assert sources(mixed)["micro-batches of other sizes"] == ("2", "analytic, not measured")


def test_another_models_profile_is_refused() -> None:
    other = replace(MODEL, name="other", hidden=128)
    shape, layers = PipelineShape(4, 8, 1, 4), even_layers(4, 4)
    with pytest.raises(InputError, match=r"p\.json: is of law with hidden = 64, other has 128"):
        calibrated_costs(PROFILE, other, H100, shape, layers, even_sequence(SEQUENCE, 4), where="p.json")


def test_an_unstable_profile_says_so() -> None:
    drifting = profile(reference=[[1e-3] * 10, [1.15e-3] * 10])
    assert "drift +15.0%" in sources(costs(4, measured=drifting))["profile is unstable"][0]
    assert "profile is unstable" not in sources(costs(4))


def test_scaling_the_measured_times_scales_the_table() -> None:
    doubled = profile(seconds=lambda point, op: 2 * law(point, op))
    assert costs(4, measured=doubled).duration_ns == pytest.approx(2 * costs(4).duration_ns, abs=2)
