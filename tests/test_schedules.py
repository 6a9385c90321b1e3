"""Every schedule: right order, legal for every shape, and the published closed forms, exactly."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesim.check import check_plan
from pipesim.costs.unit import UnitCosts
from pipesim.errors import InputError, ShapeError
from pipesim.plan import PipelineShape
from pipesim.schedules import all_schedules, build_plan
from tests.conftest import GOLDEN
from tests.simulating import makespan, one_f_one_b_with_warmup, shape_of, unit_metrics, unit_timeline

ONE_STAGE = ("gpipe", "1f1b")
LOOPED = ("gpipe", "1f1b", "interleaved", "seq1f1b", "seq1f1b-interleaved")


def _reference_rows() -> list[list[str]]:
    lines = (GOLDEN / "makespans.txt").read_text(encoding="utf-8").splitlines()
    return [[part.strip() for part in line.split("|")] for line in lines[3:]]


@pytest.mark.parametrize("row", _reference_rows(), ids=lambda row: row[0])
def test_reference_makespans(row: list[str]) -> None:
    schedule, *numbers = row[0].split()
    p, m, v, k = map(int, numbers[:4])
    found = unit_metrics(schedule, p, m, v, k, UnitCosts.of(*numbers[4:6], latency=numbers[6])).as_json()
    assert found["makespan_seconds"] == float(Fraction(row[1]))
    assert found["peak_in_flight"] == [float(Fraction(text)) for text in row[2].split()]
    assert found["leading_forwards"] == [int(text) for text in row[3].split()]


@pytest.mark.parametrize("schedule", LOOPED)
def test_orders_of_a_small_shape(schedule: str, golden) -> None:
    target = all_schedules()[schedule]
    plan = build_plan(schedule, target.fit(PipelineShape(4, 4, 2, 2)))
    golden(f"orders_{schedule}_p4_m4.txt", f"{plan}\n")


shapes = st.builds(
    PipelineShape,
    devices=st.integers(1, 8),
    microbatches=st.integers(1, 13),
    stages_per_device=st.integers(1, 3),
    subsequences=st.integers(1, 8),
)


@given(shape=shapes, schedule=st.sampled_from(LOOPED))
@settings(deadline=None, max_examples=150)
def test_every_shape_is_legal_and_ideal_where_work_suffices(shape: PipelineShape, schedule: str) -> None:
    shape = all_schedules()[schedule].fit(shape)
    plan = build_plan(schedule, shape)
    check_plan(plan)
    p, m, v, k = shape.devices, shape.microbatches, shape.stages_per_device, shape.subsequences
    if schedule in ("gpipe", "1f1b") or m * k >= p:
        timeline = unit_timeline(plan)
        ideal = (m + p - 1) * 3 if schedule in ("gpipe", "1f1b") else m * 3 + Fraction((p - 1) * 3, v * k)
        assert Fraction(timeline.makespan_ns, timeline.unit_ns) == ideal


@given(p=st.integers(1, 6), m=st.integers(1, 9), k=st.integers(1, 5), v=st.integers(1, 3))
@settings(deadline=None, max_examples=60)
def test_uncut_sequences_give_the_parent_schedule_op_for_op(p: int, m: int, k: int, v: int) -> None:
    assert build_plan("seq1f1b", shape_of(p, m)).same_ops(build_plan("1f1b", shape_of(p, m)))
    interleaved = build_plan("interleaved", shape_of(p, m, v))
    assert build_plan("seq1f1b-interleaved", shape_of(p, m, v)).same_ops(interleaved)


@pytest.mark.parametrize(("p", "m"), [(1, 1), (1, 4), (4, 1), (4, 2), (4, 8), (8, 16), (16, 64)])
@pytest.mark.parametrize(("forward", "backward"), [("1", "2"), ("1.5", "2.5"), ("1/3", "2/7")])
def test_closed_form_of_1f1b_and_gpipe(p: int, m: int, forward: str, backward: str) -> None:
    costs = UnitCosts.of(Fraction(forward), Fraction(backward))
    expected = float((m + p - 1) * (Fraction(forward) + Fraction(backward)))
    assert makespan("1f1b", p, m, costs=costs) == expected
    assert makespan("gpipe", p, m, costs=costs) == expected


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 16)])
@pytest.mark.parametrize("latency", ["0.1", "0.5", "1"])
def test_closed_form_of_1f1b_with_latency(p: int, m: int, latency: str) -> None:
    c = Fraction(latency)
    expected = (m + p - 1) * 3 + 2 * c * ((p - 1) * (Fraction(m, p) + 1) - 1)
    assert makespan("1f1b", p, m, costs=UnitCosts.of(1, 2, latency=latency)) == float(expected)


@pytest.mark.parametrize(("p", "m", "v"), [(4, 8, 2), (4, 4, 4), (8, 16, 4)])
def test_closed_form_of_interleaved_with_latency(p: int, m: int, v: int) -> None:
    c = Fraction("0.1")
    expected = m * 3 + Fraction((p - 1) * 3, v) + 2 * c * (v * p - 1)
    assert makespan("interleaved", p, m, v, costs=UnitCosts.of(1, 2, latency=c)) == float(expected)


@pytest.mark.parametrize(
    ("schedule", "shape", "expected"),
    [
        ("interleaved", (4, 9, 2, 1), 31.5),
        ("interleaved", (8, 9, 2, 1), 37.5),
        ("interleaved", (6, 3, 2, 1), 21.0),
        ("seq1f1b-interleaved", (4, 5, 2, 2), 17.25),
        ("seq1f1b-interleaved", (4, 2, 2, 8), 6.5625),
        ("seq1f1b-interleaved", (4, 3, 2, 2), 11.25),
        ("seq1f1b", (4, 4, 1, 2), 16.5),
    ],
)
def test_shapes_that_the_originals_refuse(schedule: str, shape: tuple[int, ...], expected: float) -> None:
    assert makespan(schedule, *shape) == expected


def test_unused_counts_are_refused_with_what_would_do() -> None:
    with pytest.raises(ShapeError, match=r"--subsequences/-k: 4: 1f1b takes 1 only; .*seq1f1b"):
        build_plan("1f1b", shape_of(4, 8, k=4))
    with pytest.raises(ShapeError, match=r"--stages-per-device/-v: 2: seq1f1b takes 1 only"):
        build_plan("seq1f1b", shape_of(4, 8, v=2))


@pytest.mark.parametrize("field", ["devices", "microbatches", "stages_per_device", "subsequences"])
def test_counts_below_one_are_refused(field: str) -> None:
    counts = {"devices": 4, "microbatches": 4, field: 0}
    with pytest.raises(ShapeError, match=f"{field}: 0: must be at least 1"):
        PipelineShape(**counts)


def test_unknown_schedule_lists_the_known() -> None:
    with pytest.raises(InputError, match=r"SCHEDULE: 1fb: no such schedule; one of gpipe, 1f1b"):
        build_plan("1fb", shape_of(2, 2))


@pytest.mark.parametrize(
    ("warmup", "m", "expected"),
    [((0, 0, 0, 0), 4, 48), ((4, 3, 2, 1), 8, 33), ((2, 2, 1, 0), 8, 48), ((3, 1, 1, 0), 8, 51)],
)
def test_wrong_warmups_are_legal_but_slow(warmup: tuple[int, ...], m: int, expected: int) -> None:
    timeline = unit_timeline(one_f_one_b_with_warmup(4, m, warmup))
    assert timeline.in_units(timeline.makespan_ns) == expected
