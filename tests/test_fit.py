"""Fits: laws are found again, unstable points are left out, refusals have reasons; all without torch."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.fit import Point, fit_links, fit_times, relative_fit, rms, worst
from calibration.fit.assemble import assemble
from calibration.grid import Point as GridPoint
from calibration.grid import gap_pairs, grid, held_out_pairs, planned_pairs
from pipesim.errors import InputError
from pipesim.profile import as_json
from pipesim.profile_records import LinkRow
from tests.calibrating import MODEL, SEQUENCE, law, measured, profile, sizes

SIZES = [128, 256, 512, 1024]


def points(a: float, b: float, c: float, d: float, noise: float = 0.0) -> list[Point]:
    draw = random.Random(5)
    return [
        Point(s, p, (a + b * s + c * s * p + d * s * s) * (1 + noise * draw.uniform(-1, 1)))
        for s, p in product(SIZES, (0, 700, 1400))
    ]


def test_a_law_is_found_again() -> None:
    found = relative_fit(points(1e-4, 2e-6, 3e-9, 4e-9), "bacd")
    assert found == pytest.approx({"a": 1e-4, "b": 2e-6, "c": 3e-9, "d": 4e-9}, rel=1e-6)


def test_errors_are_relative_so_that_short_ops_count_as_much_as_long_ones() -> None:
    """An absolute fit would miss the shortest op by far more than the noise."""
    found = relative_fit(points(1e-4, 2e-6, 3e-9, 4e-9, noise=0.05), "bacd")
    for p in points(1e-4, 2e-6, 3e-9, 4e-9):
        s, c = p.tokens, p.prefix
        value = found["a"] + found["b"] * s + found["c"] * s * c + found["d"] * s * s
        assert value == pytest.approx(p.value, rel=0.06)


def test_no_coefficient_is_negative() -> None:
    """Times that fall with s would give a negative slope, and negative times further out."""
    found = relative_fit([Point(s, 0, 1e-3 / s) for s in SIZES], "bacd")
    assert min(found.values()) >= 0
    assert any(found.values())


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**6), st.floats(1e-9, 1e3)), min_size=1, max_size=20))
def test_a_fit_is_never_nan_or_negative(rows: list[tuple[int, int, float]]) -> None:
    found = relative_fit([Point(*row) for row in rows], "bacd"[: len(rows)])
    assert all(math.isfinite(x) and x >= 0 for x in found.values())


def test_the_profile_of_a_law_predicts_it_everywhere() -> None:
    found = profile()
    assert found.stability.verdict == "stable"
    for op, (s, c) in product("FBIW", ((100, 0), (333, 500), (1024, 0), (2048, 4096))):
        estimate = found.seconds(1, "layer", op, s, c)
        assert estimate is not None
        assert estimate.value == pytest.approx(law(GridPoint(1, "layer", s, c), op), rel=0.01)
    for fit in (f for f in found.fits if f.part == "layer" and f.quantity in "FBIW"):
        assert fit.rms < 0.01
        assert fit.held_out_points == 6
        assert fit.held_out_rms is not None
        assert fit.held_out_rms < 0.01


def test_held_out_points_are_predicted_but_never_fitted() -> None:
    """Held-out times ten times the law: the fit must not move, and its held-out error must say 90 %."""

    def odd(point: GridPoint, op: str) -> float:
        return law(point, op) * (10 if point.held_out else 1)

    plain, found = profile(), profile(seconds=odd)
    by_key = {(f.part, f.quantity, f.where): f for f in plain.fits}
    assert found.held_out is not None
    assert found.held_out.rms == pytest.approx(0.9, abs=0.01)
    assert found.held_out.op_times == 24
    for fit in found.fits:
        before = by_key[fit.part, fit.quantity, fit.where]
        assert (fit.a, fit.b, fit.c, fit.d) == (before.a, before.b, before.c, before.d)
        if fit.part == "layer" and fit.quantity in "FBIW":
            assert fit.held_out_rms == pytest.approx(0.9, abs=0.01)


def test_prefix_zero_is_fitted_apart_where_its_kernel_differs() -> None:
    def two_kernels(point: GridPoint, op: str) -> float:
        return law(point, op) * (1.0 if point.prefix or point.part != "layer" else 0.5)

    apart = profile(seconds=two_kernels, prefix_zero_apart=True)
    together = profile(seconds=two_kernels)
    wheres = {f.where for f in apart.fits if f.part == "layer" and f.quantity == "F"}
    assert wheres == {"prefix 0", "prefix above 0"}
    assert max(f.worst for f in apart.fits if f.quantity in "FBI") < 0.01
    assert max(f.worst for f in together.fits if f.quantity in "FBI") > 0.1


def test_unstable_points_are_left_out_of_the_fit_and_marked() -> None:
    """One point alternates between its time and three times that: spread about 3, far off the law."""
    found = measured()
    wild = next(v for v in found.visits if v["point"][1:4] == ["layer", 1024, 0])
    wild["seconds"] = [{op: [9.0, 9.0, *([t, 3 * t] * 4)] for op, (_, _, t, *_) in s.items()} for s in wild["seconds"]]
    result = assemble(found)
    rows = [r for r in result.times if (r.part, r.tokens, r.prefix) == ("layer", 1024, 0)]
    assert [r.stable for r in rows] == [False] * 4
    assert result.stability.verdict == "unstable"
    assert result.stability.unstable_points == 4
    assert "4 of" in result.stability.reasons[0]
    fit = next(f for f in result.fits if (f.part, f.quantity) == ("layer", "F"))
    assert fit.value(1024, 0) == pytest.approx(law(GridPoint(1, "layer", 1024, 0), "F"), rel=0.01)


def test_field_case_o32_a_drifting_machine_makes_an_unstable_profile() -> None:
    """The reference product takes 1000 µs in the first rounds, 1150 in the last."""
    found = profile(reference=[[1000e-6] * 10, [1000e-6] * 10, [1150e-6] * 10, [1150e-6] * 10])
    assert found.stability.drift == pytest.approx(0.15)
    assert found.stability.verdict == "unstable"
    assert found.stability.reasons == ["reference product: drift +15.0% is beyond 5%"]


def test_field_case_o32_nothing_stable_is_refused_with_the_reason() -> None:
    def wild(found: dict[str, object]) -> dict[str, object]:
        return found | {"seconds": [{op: [1.0, 1.0, *([1e-3, 3e-3] * 4)] for op in s} for s in found["seconds"]]}

    raw = measured()
    with pytest.raises(InputError, match=r"layer B: fewer than 2 sizes of its \d+ points are stable \(worst spread"):
        assemble(measured(visits=[wild(v) for v in raw.visits]))
    kept = assemble(measured(visits=[wild(v) for v in raw.visits], refuse_unstable=False))
    assert not any(f.stable for f in kept.fits if f.quantity in "FBIW")
    json.dumps(as_json(kept), allow_nan=False)


def test_a_host_bound_op_lasts_as_long_as_its_issue() -> None:
    """On CUDA an op can end on the device before the host has issued the next one."""
    slow_host = measured(clock="CUDA events or host issue time, whichever is longer")
    for found in slow_host.visits:
        found["host_seconds"] = [{op: [3 * t for t in row] for op, row in s.items()} for s in found["host_seconds"]]
    on_cuda, on_cpu = assemble(slow_host), profile()
    for fast, slow in zip(on_cpu.times, on_cuda.times, strict=True):
        assert slow.seconds == pytest.approx(3 * fast.seconds)


def test_bytes_are_fitted_too_and_zero_stays_zero() -> None:
    found = profile()
    for s, c in ((100, 0), (700, 300)):
        expected = sizes(GridPoint(1, "layer", s, c))
        for quantity in ("activation", "weight_activation", "transient_b", "transient_w"):
            estimate = found.size(1, "layer", quantity, s, c)
            assert estimate is not None
            assert estimate.value == pytest.approx(getattr(expected, quantity), rel=1e-6)


def test_a_missing_optimizer_and_part_are_no_error() -> None:
    layers = [p for p in grid(MODEL, SEQUENCE, (1, 2)) if p.part == "layer"]
    found = profile(points=layers, optimizer=None)
    assert found.optimizer is None
    assert found.seconds(1, "head", "F", 100, 0) is None


def test_one_size_only_cannot_be_fitted() -> None:
    with pytest.raises(InputError, match="nothing left to fit"):
        profile(points=[GridPoint(1, "layer", 1024, 0)])


def test_rms_and_worst() -> None:
    assert rms([0.3, -0.4]) == pytest.approx(math.sqrt(0.125))
    assert worst([0.3, -0.4]) == 0.4


def link_table(latency: float, rate: float) -> list[LinkRow]:
    """Times of each size; the first three are warm-ups, some of the rest were disturbed."""
    rows = []
    for size in (4096, 16384, 65536, 262144, 1048576):
        t = latency + size / rate
        rows.append(
            LinkRow(
                size_bytes=size,
                one_way_seconds=[0.09, 0.01, 0.01, t, t, 1.8 * t, 5 * t, t, t],
                both_ways_seconds=[0.09, 0.01, 0.01, *[2 * t] * 6],
            )
        )
    return rows


def test_links_are_fitted_on_undisturbed_messages() -> None:
    fit = fit_links(link_table(40e-6, 5e9), 3)
    assert fit.latency_seconds == pytest.approx(40e-6)
    assert fit.bytes_per_second == pytest.approx(5e9)
    assert fit.worst < 1e-6
    both = fit_links(link_table(40e-6, 5e9), 3, both_ways=True)
    assert both.bytes_per_second == pytest.approx(2.5e9)


def test_a_link_whose_rate_cannot_be_seen_is_refused() -> None:
    flat = [LinkRow(size_bytes=s, one_way_seconds=[1e-4 / s] * 5, both_ways_seconds=[1e-4] * 5) for s in (4096, 65536)]
    with pytest.raises(InputError, match="measure larger messages"):
        fit_links(flat, 3)


def test_the_grid_holds_every_pair_of_the_plans_and_holds_others_out() -> None:
    planned = planned_pairs(MODEL, 1000, (1, 3), ("even", "flops"), 1)
    assert {(1000, 0), (334, 0), (333, 334), (333, 667)} <= set(planned)
    assert len(planned) > 4  # and the equal-FLOPs ones
    found = grid(MODEL, 1000, (1, 3))
    layer = {(p.tokens, p.prefix) for p in found if p.part == "layer" and not p.held_out}
    assert layer == set(planned) | set(gap_pairs(1000, 3))
    held_out = {(p.tokens, p.prefix) for p in found if p.part == "layer" and p.held_out}
    assert held_out
    assert held_out == set(held_out_pairs(1000, 3, 0)) - layer
    assert all(p.tokens + p.prefix <= 1000 for p in found)
    sizes_of = {part: {p.tokens for p in found if p.part == part} for part in ("layer", "embedding", "head")}
    assert sizes_of["layer"] > sizes_of["embedding"] == sizes_of["head"] >= {1000, 333, 334}


@given(st.integers(32, 5000), st.integers(1, 8), st.integers(0, 3))
def test_any_grid_stays_inside_its_sequence(seq_len: int, k: int, seed: int) -> None:
    for point in grid(MODEL, seq_len, (k,), seed=seed):
        assert point.tokens >= 1
        assert point.prefix >= 0
        assert point.tokens + point.prefix <= seq_len


def test_tensor_parallel_cuts_are_multiples_of_it() -> None:
    assert all(s % 8 == 0 for s, _ in planned_pairs(MODEL, 1024, (3,), ("even", "flops"), 8))
    assert {p.tp for p in grid(MODEL, SEQUENCE, (2,), tps=(1, 4))} == {1, 4}
    with pytest.raises(InputError, match="must be even, flops or both"):
        planned_pairs(MODEL, 1024, (3,), ("odd",), 1)


def test_fitting_and_reading_need_no_torch() -> None:
    modules = "calibration.fit.assemble, pipesim.profile, pipesim.costs.calibrated"
    code = f"import {modules}, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_fit_times_without_rows_is_empty() -> None:
    assert fit_times([]) == []
