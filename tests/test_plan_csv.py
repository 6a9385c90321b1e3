"""Plan files: the forms people have, what B means, where stages live, and what wrong files are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipesim.check import check_plan
from pipesim.costs.unit import UnitCosts
from pipesim.errors import FileError, PlanError, ShapeError
from pipesim.lower import lower
from pipesim.lower.check import check_lowered
from pipesim.lower.csv import read_lowered, write_lowered
from pipesim.plan import Kind, PipelineShape
from pipesim.plan_csv import read_plan, write_plan
from pipesim.schedules import all_schedules, build_plan, schedule_named
from pipesim.transfers import transfers_of
from tests.simulating import unit_timeline

if TYPE_CHECKING:
    from pathlib import Path

    from pipesim.plan import Plan


def plan_of(folder: Path, text: str) -> Plan:
    path = folder / "plan.csv"
    path.write_text(text, encoding="utf-8")
    return read_plan(path)


def halves(stages_per_device: int) -> UnitCosts:
    """F = I = W = 1 and B = 2 for the op of one stage."""
    return UnitCosts.of(stages_per_device, stages_per_device, stages_per_device)


def makespan(plan: Plan) -> float:
    timeline = unit_timeline(plan, halves(plan.shape.stages_per_device))
    return timeline.in_units(timeline.makespan_ns)


def test_spaces_and_empty_cells(tmp_path: Path) -> None:
    """Field case O28: trimmed, skipped, an idle cell costs nothing."""
    plan = plan_of(tmp_path, "0F0, 0F1 ,,0I0,0W0,0B1\n")
    check_plan(plan)
    assert str(plan) == "0F0 0F1 0I0 0W0 0B1"
    assert makespan(plan) == 6


@pytest.mark.parametrize(("text", "message"), [("0F0,0W0", "W without its I"), ("0F0,0F0", "done already by 0F0")])
def test_illegal_files(tmp_path: Path, text: str, message: str) -> None:
    """Field case O28: a W before its I, a forward twice."""
    with pytest.raises(PlanError, match=message):
        check_plan(plan_of(tmp_path, text))


@pytest.mark.parametrize("text", ["0F0,0X0", "0F0,F0", "0F0,0F0.", "0F0,(0F1;0B0)OVERLAP", "0F0,(0F1;0B0)GROUP"])
def test_unknown_cells_are_named_by_row_and_column(tmp_path: Path, text: str) -> None:
    with pytest.raises(FileError, match=r"row 2, column 2: .* is not an op; write 0F0, 2B0\.3"):
        plan_of(tmp_path, f"1F0\n{text}\n")


def zero_bubble(*, old: bool) -> list[str]:
    """Two devices, four stages, eight micro-batches: device 0 computes full backwards, device 1 splits them."""
    full, half = ("BW", "B") if old else ("B", "I")
    first = "0F0 0F1 2F0 2F1 2B0 0F2 2B1 0F3 0B0 2F2 0B1 2F3 2B2 0F4 2B3 0F5 0B2 2F4 0B3 2F5 2B4 0F6 2B5 0F7 0B4"
    first += " 2F6 0B5 2F7 2B6 2B7 0B6 0B7"
    second = "1F0 1F1 3F0 3B0 3F1 3B1 3W0 1F2 1B0 3W1 1F3 1B1 1W0 3F2 3B2 1W1 3F3 3B3 3W2 1F4 1B2 3W3 1F5 1B3 1W2"
    second += " 3F4 3B4 1W3 3F5 3B5 3W4 1F6 1B4 3W5 1F7 1B5 1W4 3F6 3B6 1W5 3F7 3B7 3W6 1B6 3W7 1B7 1W6 1W7"
    return [first.replace("B", full), second.replace("B", half)]


def as_file(rows: list[str]) -> str:
    return "\n".join(",".join(row.split()) for row in rows) + "\n"


@pytest.mark.parametrize("old", [True, False])
def test_what_b_means_is_decided_per_stage_and_microbatch(tmp_path: Path, old: bool) -> None:
    """Field case O28: BW on one device and B with W on the other mean the same as B, and I with W; makespan 49."""
    plan = plan_of(tmp_path, as_file(zero_bubble(old=old)))
    check_plan(plan)
    assert np.bincount(plan.kind[: plan.offsets[1]], minlength=5).tolist() == [16, 16, 0, 0, 0]
    assert np.bincount(plan.kind[plan.offsets[1] :], minlength=5).tolist() == [16, 0, 16, 16, 0]
    timeline = unit_timeline(plan, halves(2))
    assert timeline.in_units(timeline.makespan_ns) == 49
    busy = [int((timeline.end_ns - timeline.start_ns)[plan.device == d].sum()) / timeline.unit_ns for d in (0, 1)]
    assert busy == [48, 48]


def test_sends_and_receives_of_a_file(tmp_path: Path) -> None:
    """Field case O28: 24 messages each way, all matched; the plan inside is the same with or without them."""
    plan = plan_of(tmp_path, as_file(zero_bubble(old=True)))
    write_lowered(lower(plan), tmp_path / "lowered.csv")
    lowered = read_lowered(tmp_path / "lowered.csv")
    check_lowered(lowered)
    sent = {(c.source, c.destination): 0 for c in lowered.channels()}
    for channel in lowered.channels():
        sent[channel.source, channel.destination] += len(channel.sent)
    assert sent == {(0, 1): 24, (1, 0): 24}
    assert read_plan(tmp_path / "lowered.csv").same_ops(plan)


def test_a_custom_schedule_of_two_devices(tmp_path: Path) -> None:
    """Field case O28: all forwards, then split backwards in pairs of micro-batches; makespan 50, 16 held at once."""
    rows = []
    for device in (0, 1):
        row = [f"{stage}F{i}" for stage in (device, device + 2) for i in range(8)]
        for pair in range(0, 8, 2):
            for stage in (device + 2, device):
                row += [f"{stage}{kind}{i}" for i in (pair, pair + 1) for kind in "IW"]
        rows.append(" ".join(row))
    plan = plan_of(tmp_path, as_file(rows))
    check_plan(plan)
    assert makespan(plan) == 50
    change = np.where(plan.kind == Kind.F, 1, np.where(plan.kind == Kind.W, -1, 0))
    assert [int(np.cumsum(change[plan.device == device]).max()) for device in (0, 1)] == [16, 16]


def test_overlapped_pairs_are_a_forward_and_a_backward(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "0F0,(0F1;0B0)OVERLAP_F_B,0B1")
    check_plan(plan)
    assert str(plan) == "0F0 0F1 0B0 0B1"


def v_shaped(p: int, m: int) -> list[str]:
    """All forwards, then all backwards, of 2p stages that turn at device p-1."""
    rows = []
    for device in range(p):
        stages = (device, 2 * p - 1 - device)
        forward = [f"{s}F{i}" for s in stages for i in range(m)]
        rows.append(" ".join([*forward, *(f"{s}B{i}" for s in stages[::-1] for i in range(m))]))
    return rows


def test_the_stage_map_comes_from_the_rows(tmp_path: Path) -> None:
    """Field case O29: with a V of 8 stages on 4 devices the turn needs no message: 6 hops each way, not 7."""
    plan = plan_of(tmp_path, as_file(v_shaped(4, 10)))
    check_plan(plan)
    held = {d: np.flatnonzero(plan.placement.device_of[0] == d).tolist() for d in range(4)}
    assert held == {0: [0, 7], 1: [1, 6], 2: [2, 5], 3: [3, 4]}
    kinds = plan.kind[transfers_of(plan).sender]
    assert ((kinds == Kind.F).sum(), (kinds == Kind.B).sum()) == (60, 60)
    assert plan.placement.device_of[0, 7] == 0  # the loss


def test_a_stage_on_two_rows_is_refused(tmp_path: Path) -> None:
    """Field case O29: one direction, but stage 1 moves to another device for one micro-batch."""
    with pytest.raises(FileError, match=r"row 3, column 1: 1F1: stage 1 stands on row 2 already \(1F0\)"):
        plan_of(tmp_path, "0F0,0F1\n1F0\n1F1,2F0\n")


def test_two_directions_are_recognised_where_the_second_map_mirrors_the_first(tmp_path: Path) -> None:
    plan = build_plan("bitpipe", PipelineShape(4, 8, 2))
    write_plan(plan, tmp_path / "bitpipe.csv")
    again = read_plan(tmp_path / "bitpipe.csv")
    assert again.placement == plan.placement
    assert again == plan


BAD = [
    ("", "empty"),
    ("\n,,\n", "empty"),
    ("0SEND_F0\n", "no op"),
    ("0F0\n1F0\n2F0,2B0\n3F0\n\n4F0\n", "5 stages on 6 rows: every row must hold as many stages"),
    ("0F0,1F0\n2F0,3F0\n4F0,5F0,0B0\n", "row 3, column 3: 0B0: stage 0 stands on row 1 already"),
    ("0F0,2F0\n", "stage 1: stands on no row"),
    ("0F0,1F0,2F0\n3F0\n", "row 1: 3 stages: must hold 2"),
    ("0F999999999\n", "needs a forward and a backward of each"),
    ("40000F0\n", "40001 stages"),
    ("0F99999999999\n", "is not an op"),
    ("\x00", "is not an op"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_impossible_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FileError, match=message) as caught:
        plan_of(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="must be a readable file"):
        read_plan(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe0F0")
    with pytest.raises(FileError, match="UTF-8"):
        read_plan(tmp_path / "binary.csv")
    with pytest.raises(FileError):
        write_plan(build_plan("1f1b", PipelineShape(1, 1)), tmp_path / "no" / "folder.csv")


@pytest.mark.parametrize("schedule", sorted(all_schedules()))
@settings(max_examples=10, deadline=None)
@given(st.data())
def test_files_give_the_same_ops_back(
    tmp_path_factory: pytest.TempPathFactory, schedule: str, data: st.DataObject
) -> None:
    known = schedule_named(schedule)
    p = data.draw(st.sampled_from([1, 2, 3, 4]))
    shape = known.fit(PipelineShape(p, 2 * p, data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))))
    try:
        plan = known.plan(shape)
    except ShapeError:
        assume(condition=False)  # a shape the schedule does not take
    path = tmp_path_factory.mktemp("plans") / f"{schedule}.csv"
    write_plan(plan, path)
    assert read_plan(path).same_ops(plan)
    assert read_plan(path).schedule == schedule


@pytest.mark.parametrize("p", [2, 4, 6])
@pytest.mark.parametrize("m", [1, 2, 3, 5])
@pytest.mark.parametrize("k", [1, 3])
def test_files_of_opposing_pipelines(tmp_path: Path, p: int, m: int, k: int) -> None:
    """Odd numbers of micro-batches too; of one, only the direction that has it can be told from the file."""
    plan = build_plan("bsipipe", PipelineShape(p, m, 2, k))
    write_plan(plan, tmp_path / "plan.csv")
    again = read_plan(tmp_path / "plan.csv")
    assert str(again) == str(plan)
    used = plan.placement.device_of[: 1 if m == 1 else 2]
    assert np.array_equal(again.placement.device_of, used)
    assert np.array_equal(again.placement.direction_of, plan.placement.direction_of)


@settings(deadline=None)
@given(st.text(alphabet="0123FBIWR_.,;()\n SENDCVOLAPGU", max_size=60))
def test_any_text_is_read_or_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_text(text, encoding="utf-8")
    try:
        read_plan(path)
    except FileError as error:
        told = str(error)
    else:
        told = "read"
    assert len(told.splitlines()) == 1
