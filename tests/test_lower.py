"""Lowered plans: where each policy places sends and receives, the text form, and what a sound one is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesim.costs.unit import UnitCosts, unit_costs
from pipesim.engine import simulate
from pipesim.errors import FileError, InputError, MessageOrderError, PlanError
from pipesim.lower import lower
from pipesim.lower.check import check_lowered, check_order
from pipesim.lower.csv import read_lowered, read_plan_or_lowered, write_lowered
from pipesim.lower.policies import POLICIES
from pipesim.lower.steps import Action
from pipesim.plan import PipelineShape, Placement, Plan
from pipesim.plan_csv import write_plan
from pipesim.schedules import build_plan
from pipesim.transfers import transfers_of
from tests.lowering import lowered_by_hand
from tests.strategies import legal_plans

if TYPE_CHECKING:
    from pathlib import Path

ONE_F_ONE_B = {
    "producer-order": """\
0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1
1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1""",
    "just-in-time": """\
0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1
1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1""",
    "early": """\
0F0 0SEND_F0 0RECV_B0 0F1 0SEND_F1 0RECV_B1 0B0 0B1
1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1""",
    "fused": """\
0F0 0SEND_F0 0F1 (0SEND_F1;0RECV_B0)GROUP 0B0 0RECV_B1 0B1
1RECV_F0 1F0 1B0 (1SEND_B0;1RECV_F1)GROUP 1F1 1B1 1SEND_B1""",
    "odd-even": """\
0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1
1RECV_F0 1F0 1B0 1RECV_F1 1SEND_B0 1F1 1B1 1SEND_B1""",
}


@pytest.mark.parametrize("policy", list(POLICIES))
def test_1f1b_of_two_devices(policy: str) -> None:
    assert str(lower(build_plan("1f1b", PipelineShape(2, 2)), policy)) == ONE_F_ONE_B[policy]


def test_fused_1f1b_is_the_exchange_of_megatron() -> None:
    """A middle device: warm-up, then send_forward_recv_backward and send_backward_recv_forward in turn."""
    assert " ".join(lower(build_plan("1f1b", PipelineShape(3, 3)), "fused").cells(1)) == (
        "1RECV_F0 1F0 (1SEND_F0;1RECV_F1)GROUP 1F1 (1SEND_F1;1RECV_B0)GROUP 1B0 (1SEND_B0;1RECV_F2)GROUP 1F2 "
        "(1SEND_F2;1RECV_B1)GROUP 1B1 (1SEND_B1;1RECV_B2)GROUP 1B2 1SEND_B2"
    )


def test_odd_even_order_of_the_forward_phase() -> None:
    """Even devices send on before they receive, odd ones receive first."""
    lowered = lower(build_plan("gpipe", PipelineShape(4, 2)), "odd-even")
    assert lowered.cells(1)[:5] == ["1RECV_F0", "1F0", "1RECV_F1", "1SEND_F0", "1F1"]
    assert lowered.cells(2)[:5] == ["2RECV_F0", "2F0", "2SEND_F0", "2RECV_F1", "2F1"]


@settings(deadline=None)
@given(legal_plans(), st.sampled_from(list(POLICIES)), st.integers(0, 4))
def test_every_message_has_one_send_and_one_receive_in_time(plan: Plan, policy: str, depth: int) -> None:
    lowered = lower(plan, policy, depth=depth)
    check_lowered(lowered)
    transfers = transfers_of(plan)
    assert len(lowered) == len(plan) + 2 * len(transfers)
    assert (lowered.row[lowered.action == Action.COMPUTE] == np.arange(len(plan))).all()
    assert (lowered.peer[lowered.send_of[transfers.sender]] == plan.device[transfers.receiver]).all()
    assert (lowered.peer[lowered.receive_of[transfers.sender]] == plan.device[transfers.sender]).all()


@settings(deadline=None)
@given(legal_plans(), st.booleans())
def test_producer_order_keeps_one_order_at_both_ends(plan: Plan, timed: bool) -> None:
    timeline = None
    if timed:
        costs, network = unit_costs(UnitCosts.of(1, 2, 3, latency="0.3"), plan.shape)
        timeline = simulate(plan, costs, network)
    lowered = lower(plan, timeline=timeline)
    check_order(lowered)
    for channel in lowered.channels():
        assert channel.sent == channel.received == tuple(sorted(channel.sent))


@settings(deadline=None)
@given(legal_plans(), st.integers(0, 9))
def test_early_receives_stand_depth_ops_before_their_use(plan: Plan, depth: int) -> None:
    lowered = lower(plan, "early", depth=depth)
    transfers = transfers_of(plan)
    for sender, receiver in zip(transfers.sender.tolist(), transfers.receiver.tolist(), strict=True):
        receive, use = int(lowered.receive_of[sender]), int(lowered.compute_of[receiver])
        between = int((lowered.action[receive:use] == Action.COMPUTE).sum())
        place = receiver - int(plan.offsets[plan.device[receiver]])
        assert between == min(depth, place)


@settings(deadline=None)
@given(plan=legal_plans(), policy=st.sampled_from(list(POLICIES)))
def test_files_give_the_same_steps_back(tmp_path_factory: pytest.TempPathFactory, plan: Plan, policy: str) -> None:
    plan = build_plan("bitpipe", PipelineShape(2, 2, 2)) if plan.placement.directions > 1 else plan
    if len(set(plan.placement.device_of[0].tolist())) < plan.shape.devices:
        return  # a file says how many devices there are by its rows, each with as many stages
    if (np.bincount(plan.placement.device_of[0]) != plan.shape.stages_per_device).any() or plan.shape.devices == 1:
        return
    lowered = lower(plan, policy)
    path = tmp_path_factory.mktemp("plans") / "lowered.csv"
    write_lowered(lowered, path)
    again = read_lowered(path)
    assert str(again) == str(lowered)
    assert again.plan.same_ops(plan)
    for name in ("offsets", "action", "row", "peer"):
        assert getattr(again, name).tolist() == getattr(lowered, name).tolist()


def test_a_file_without_sends_is_a_plan(tmp_path: Path) -> None:
    plan = build_plan("1f1b", PipelineShape(2, 3))
    write_plan(plan, tmp_path / "plan.csv")
    found = read_plan_or_lowered(tmp_path / "plan.csv")
    assert isinstance(found, Plan)
    assert found.same_ops(plan)
    with pytest.raises(FileError, match="no SEND or RECV"):
        read_lowered(tmp_path / "plan.csv")


@pytest.mark.parametrize(
    ("row", "column", "cells"), [(1, 2, "0F0,1SEND_F0,0B0"), (1, 3, "0F0,0B0,0SEND_F7"), (1, 2, "0F0,0RECV_F0,0B0")]
)
def test_a_send_of_nothing_is_named_by_row_and_column(tmp_path: Path, row: int, column: int, cells: str) -> None:
    (tmp_path / "p.csv").write_text(cells)
    with pytest.raises(FileError, match=f"row {row}, column {column}: .* no F of stage"):
        read_lowered(tmp_path / "p.csv")


SOUND = ["0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"]
UNSOUND = [
    (["0F0 0RECV_B0 0B0", SOUND[1]], "0F0 of device 0 has no send"),
    ([SOUND[0], "1F0 1B0 1SEND_B0"], "0F0 of device 0 has no receive"),
    (["0F0 0SEND_F0 0SEND_F0 0RECV_B0 0B0", SOUND[1]], "0F0 of device 0 has 2 sends"),
    (["0SEND_F0 0F0 0RECV_B0 0B0", SOUND[1]], "place 0: 0SEND_F0: comes before 0F0, whose output it sends"),
    ([SOUND[0], "1F0 1RECV_F0 1B0 1SEND_B0"], "place 1: 1RECV_F0: comes after 1F0, which needs it"),
    (["0F0 0SEND_F0 0RECV_B0 0B0 1RECV_F0", "1F0 1B0 1SEND_B0"], "1F0 is on device 1"),
    (["0F0 0SEND_F0 0RECV_B0 0B0 0SEND_B0", SOUND[1]], "0B0 of device 0 has a send, no other device needs it"),
]


def test_the_sound_one_passes() -> None:
    check_lowered(lowered_by_hand(SOUND, PipelineShape(2, 1)))


@pytest.mark.parametrize(("rows", "message"), UNSOUND)
def test_what_is_wrong_is_named(rows: list[str], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        check_lowered(lowered_by_hand(rows, PipelineShape(2, 1)))


def test_two_messages_to_one_peer_swapped_without_tags() -> None:
    """Field case O14: p=2, v=2; device 0 sends an activation (7 long) and a gradient (5 long), 1 takes them crosswise.

    Matched by name each gets its own; matched by order the activation's receive would take the gradient.
    """
    rows = ["0F1 2B0 0SEND_F1 2SEND_B0", "1RECV_B0 1B0 1RECV_F1 1F1"]
    lowered = lowered_by_hand(rows, PipelineShape(2, 2, 2))
    lengths = {lowered.label(int(lowered.send_of[row])): length for row, length in ((0, 7), (1, 5))}
    assert lengths == {"0SEND_F1": 7, "2SEND_B0": 5}
    delivered = {
        lowered.label(step): lengths[lowered.label(int(lowered.send_of[lowered.row[step]]))]
        for step in lowered.steps(1)
        if lowered.action[step] == Action.RECEIVE
    }
    assert delivered == {"1RECV_B0": 5, "1RECV_F1": 7}
    with pytest.raises(MessageOrderError, match="device 1 receives 1RECV_B0 where device 0 sends 0SEND_F1"):
        check_order(lowered)
    check_order(lowered, kinds_apart=True)  # a wire for each kind keeps them apart


def test_consistent_order_per_peer_needs_no_tags() -> None:
    rows = ["0F1 2B0 0SEND_F1 2SEND_B0", "1RECV_F1 1RECV_B0 1B0 1F1"]
    check_order(lowered_by_hand(rows, PipelineShape(2, 2, 2)))


def test_receive_groups_of_two_directions_print_and_compare() -> None:
    placement = Placement(np.array([[0, 1], [1, 0]], dtype=np.int32), np.array([0, 1], dtype=np.int8))
    rows = ["0F0 (0SEND_F0;1RECV_F1)GROUP 1F1", "0F1 (0SEND_F1;1RECV_F0)GROUP 1F0"]
    lowered = lowered_by_hand(rows, PipelineShape(2, 2), placement)
    assert str(lowered) == "\n".join(rows)
    assert lowered == lowered_by_hand(rows, PipelineShape(2, 2), placement)
    apart = ["0F0 0SEND_F0 1RECV_F1 1F1", rows[1]]
    assert lowered != lowered_by_hand(apart, PipelineShape(2, 2), placement)


def test_unknown_policy_and_negative_depth_are_refused() -> None:
    plan = build_plan("1f1b", PipelineShape(2, 2))
    with pytest.raises(InputError, match="one of producer-order, just-in-time, early, fused, odd-even"):
        lower(plan, "late")
    with pytest.raises(InputError, match="at least 0"):
        lower(plan, "early", depth=-1)
