"""BitPipe: its published op lists and makespans, the variant of its figure, and what it refuses."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesim.check import check_plan
from pipesim.costs.unit import UnitCosts, unit_costs
from pipesim.dependencies import ABSENT, producers, remote_producers
from pipesim.errors import InputError, ShapeError
from pipesim.memory import in_flight, peak_in_flight
from pipesim.plan import Kind, Plan
from pipesim.schedules import build_plan
from tests.conftest import GOLDEN
from tests.simulating import shape_of, unit_timeline

STAGE_COSTS = UnitCosts.of(2, 4)  # two stages a device: F = 1 and B = 2 each


def bitpipe(p: int, m: int, variant: str = "code") -> Plan:
    return build_plan("bitpipe", shape_of(p, m, 2), variant=variant)


def bitpipe_makespan(plan: Plan) -> float:
    timeline = unit_timeline(plan, STAGE_COSTS)
    return timeline.in_units(timeline.makespan_ns)


@pytest.mark.parametrize("m", [4, 8])
def test_op_lists_of_the_published_code(m: int) -> None:
    published = (GOLDEN / f"orders_bitpipe_p4_m{m}.txt").read_text(encoding="utf-8")
    assert f"{bitpipe(4, m)}\n" == published


def test_first_half_of_each_unit_goes_down() -> None:
    assert bitpipe(4, 8).placement.direction_of.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("p", "m", "expected"),
    [
        (4, 4, 28), (4, 8, 54), (4, 12, 80), (4, 16, 106),
        (8, 8, 60), (8, 16, 114), (8, 32, 222), (16, 16, 124), (16, 32, 234),
    ],
)  # fmt: skip
def test_makespans_of_the_published_code(p: int, m: int, expected: int) -> None:
    assert bitpipe_makespan(bitpipe(p, m)) == expected
    assert expected == 6 * m + (m // p + 1) * (p - 2)


def test_figure_saves_a_step_at_each_seam() -> None:
    assert bitpipe_makespan(bitpipe(4, 8, "figure")) == 53
    assert bitpipe_makespan(bitpipe(4, 16, "figure")) == 106 - 3
    assert bitpipe_makespan(bitpipe(8, 32, "figure")) == 222 - 3


def test_figure_moves_one_forward_on_each_edge_device() -> None:
    code, figure = (str(bitpipe(4, 8, variant)).splitlines() for variant in ("code", "figure"))
    assert [d for d in range(4) if code[d] != figure[d]] == [0, 3]
    assert code[0].replace("0B1 0F5", "0F5 0B1") == figure[0]
    assert code[3].replace("0B3 0F7", "0F7 0B3") == figure[3]


@pytest.mark.parametrize(
    ("p", "chunks"),
    [(4, [7, 8, 8, 7]), (8, [13, 14, 15, 16, 16, 15, 14, 13]), (16, [*range(25, 33), *range(32, 24, -1)])],
)
def test_peaks_do_not_depend_on_the_number_of_units(p: int, chunks: list[int]) -> None:
    for units in (1, 2, 3):
        assert [2 * peak for peak in peak_in_flight(bitpipe(p, units * p))] == chunks


def test_hops_of_one_direction_of_a_v() -> None:
    """Field case O29: p = 4 as a V has devices {0,7} {1,6} {2,5} {3,4}; of 7 hops of a micro-batch 6 are messages,
    and the loss is on device 0."""
    plan = bitpipe(4, 4)
    down = plan.placement.device_of[0].tolist()
    assert [[s for s in range(8) if down[s] == d] for d in range(4)] == [[0, 7], [1, 6], [2, 5], [3, 4]]
    sent = remote_producers(plan, producers(plan)) != ABSENT
    for kind in (Kind.F, Kind.B):
        for microbatch in range(4):
            assert int((sent & (plan.kind == kind) & (plan.microbatch == microbatch)).sum()) == 6


@given(half=st.integers(1, 6), units=st.integers(1, 3), variant=st.sampled_from(["code", "figure"]))
@settings(deadline=None, max_examples=40)
def test_every_shape_is_legal_and_balanced(half: int, units: int, variant: str) -> None:
    plan = bitpipe(2 * half, 2 * half * units, variant)
    check_plan(plan)
    assert set(Counter(plan.device.tolist()).values()) == {8 * half * units}
    assert int(plan.placement.direction_of.sum()) * 2 == plan.shape.microbatches
    assert not in_flight(plan).after[plan.offsets[1:] - 1].any()


@pytest.mark.parametrize(
    ("p", "m", "options", "error", "words"),
    [
        (3, 6, {}, ShapeError, "--devices/-p: 3: bitpipe needs an even number; 4 would do"),
        (4, 6, {}, ShapeError, "--microbatches/-m: 6: bitpipe needs a multiple of the 4 devices; 8 would do"),
        (4, 4, {"variant": "paper"}, InputError, "--variant: paper: bitpipe has no such variant; one of code, figure"),
    ],
)
def test_refusals(p: int, m: int, options: dict[str, str], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as raised:
        build_plan("bitpipe", shape_of(p, m, 2), **options)
    assert str(raised.value) == words


def test_it_does_not_cut_sequences() -> None:
    with pytest.raises(ShapeError, match=r"--subsequences/-k: 2: bitpipe takes 1 only"):
        build_plan("bitpipe", shape_of(4, 4, 2, 2))


def test_each_device_holds_two_copies_of_its_share() -> None:
    """Stage s weighs 2^s: device r holds r and 7-r of one direction, 3-r and 4+r of the other."""
    plan = bitpipe(4, 4)
    table, _ = unit_costs(STAGE_COSTS, plan.shape)
    weighed = replace(table, static_bytes=2 ** np.arange(8))
    expected = [2**r + 2 ** (7 - r) + 2 ** (3 - r) + 2 ** (4 + r) for r in range(4)]
    assert weighed.static_bytes_of_devices(plan).tolist() == expected
