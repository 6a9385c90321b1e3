"""Plans as values, and the checker: a good plan passes, every kind of damage is found and shown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesim.check import check_plan
from pipesim.errors import DeadlockError, PlanError
from pipesim.plan import Kind, Op, PipelineShape, Placement, Plan
from pipesim.schedules import build_plan
from tests.simulating import hand_plan, shape_of


def test_op_text_and_back() -> None:
    op = Op(Kind.F, 2, 0, 3)
    assert str(op) == "2F0.3"
    assert Op.parse("2F0.3") == op
    assert Op.parse(" 2F0 ") == Op(Kind.F, 2, 0, 0)
    with pytest.raises(ValueError, match="2X0"):
        Op.parse("2X0")


def test_shapes_are_values() -> None:
    assert len({PipelineShape(4, 8), PipelineShape(4, 8), PipelineShape(4, 8, 2)}) == 2


def test_a_plan_takes_nine_bytes_an_op() -> None:
    plan = build_plan("1f1b", shape_of(4, 8))
    columns = (plan.kind, plan.stage, plan.microbatch, plan.subsequence)
    assert sum(column.itemsize for column in columns) == 9


def test_opposing_v_placement_mirrors() -> None:
    placement = Placement.opposing_v(shape_of(4, 4, 2), np.array([0, 1, 0, 1], dtype=np.int8))
    assert placement.device_of.tolist() == [[0, 1, 2, 3, 3, 2, 1, 0], [3, 2, 1, 0, 0, 1, 2, 3]]


damage = st.sampled_from(["drop", "double", "swap in", "stage", "microbatch", "subsequence", "weight"])


@given(p=st.integers(1, 4), m=st.integers(1, 4), k=st.integers(1, 3), how=damage, data=st.data())
@settings(deadline=None, max_examples=120)
def test_a_damaged_plan_never_passes(p: int, m: int, k: int, how: str, data: st.DataObject) -> None:
    plan = build_plan("seq1f1b", shape_of(p, m, 1, k))
    orders = [list(plan.order(device)) for device in range(p)]
    device = data.draw(st.integers(0, p - 1))
    order = orders[device]
    place = data.draw(st.integers(0, len(order) - 1))
    op = order[place]
    match how:
        case "drop":
            del order[place]
        case "double":
            order.append(op)
        case "swap in":
            order.remove(op)
            order.insert(0 if op.kind is Kind.B else len(order), op)
        case "stage":
            order[place] = Op(op.kind, p, op.microbatch, op.subsequence)
        case "microbatch":
            order[place] = Op(op.kind, op.stage, m, op.subsequence)
        case "subsequence":
            order[place] = Op(op.kind, op.stage, op.microbatch, k)
        case "weight":
            order.append(Op(Kind.W, op.stage, op.microbatch, op.subsequence))
    with pytest.raises(PlanError):
        check_plan(Plan.from_orders("damaged", plan.shape, plan.placement, orders))


def test_the_place_is_marked_in_the_grid() -> None:
    with pytest.raises(PlanError) as caught:
        check_plan(hand_plan(["0F0 0F1 0B0 0B0 0B1", "1F0 1B0 1F1 1B1"], 2, 2))
    text = str(caught.value)
    assert "device 0, place 3: 0B0: done already by 0B0 of device 0" in text
    assert "device 0 | 0F0 0F1 0B0 >0B0< 0B1" in text


def test_every_violation_is_listed() -> None:
    with pytest.raises(PlanError) as caught:
        check_plan(hand_plan(["0F0 0B0", "1F0"], 2, 2))
    for missing in ("0F1", "1F1", "0B1", "1B0", "1B1"):
        assert f"{missing} is missing" in str(caught.value)


def test_halves_of_a_backward_belong_together() -> None:
    check_plan(hand_plan(["0F0 0I0 0W0"], 1, 1))
    with pytest.raises(PlanError, match="0W0 is missing: its I is there"):
        check_plan(hand_plan(["0F0 0I0"], 1, 1))
    with pytest.raises(PlanError, match="0W0: W without its I"):
        check_plan(hand_plan(["0F0 0B0 0W0"], 1, 1))
    with pytest.raises(PlanError, match="0W0: comes before 0I0"):
        check_plan(hand_plan(["0F0 0W0 0I0"], 1, 1))
    with pytest.raises(PlanError, match="done already by 0B0"):
        check_plan(hand_plan(["0F0 0B0 0I0 0W0"], 1, 1))


def test_recomputation_comes_between_forward_and_backward() -> None:
    check_plan(hand_plan(["0F0 0R0 0B0"], 1, 1))
    with pytest.raises(PlanError, match="0B0: comes before 0R0"):
        check_plan(hand_plan(["0F0 0B0 0R0"], 1, 1))


def test_a_stage_on_the_wrong_device() -> None:
    with pytest.raises(PlanError, match="device 0, place 1: 1F0: stage 1 lives on device 1"):
        check_plan(hand_plan(["0F0 1F0 0B0", "1B0"], 2, 1))


def test_a_cycle_is_a_deadlock() -> None:
    with pytest.raises(DeadlockError, match="2 devices wait for ever"):
        check_plan(hand_plan(["0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"], 2, 2))
