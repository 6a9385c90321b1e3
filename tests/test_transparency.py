"""Every schedule, executed on ranks, has the loss and every gradient of the single-process model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipesim.errors import ShapeError
from pipesim.plan import PipelineShape
from pipesim.schedules import all_schedules, schedule_named
from tests.executing import GQA, MHA, agreement_of, workload_of

pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from calibration.execute.faults import RankPool
    from pipesim.model import ModelSpec

pytestmark = [pytest.mark.torch, pytest.mark.ranks]

TOLERANCE = 1e-10
CASES: dict[str, tuple[ModelSpec, int, bool]] = {
    "MHA equal cut": (MHA, 0, True),
    "GQA unequal cut": (GQA, 0, False),
    "GQA unequal cut m<p": (GQA, -1, False),
    "MHA equal cut m>p": (MHA, 1, True),
}


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    from calibration.execute.faults import RankPool

    with RankPool(4) as made:
        yield made


def shape_for(schedule: str, devices: int, microbatches: int) -> PipelineShape:
    """The schedule's own defaults, with two stages and three subsequences where it has a choice."""
    named = schedule_named(schedule)
    wanted = {"stages_per_device": 2, "subsequences": 3}
    chosen = {name: value for name, value in wanted.items() if name in named.defaults}
    in_flight = named.defaults.get("in_flight")
    return named.fit(PipelineShape(devices, microbatches, in_flight=in_flight, **chosen))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("schedule", list(all_schedules()))
def test_gradients_are_those_of_one_process(schedule: str, devices: int, case: str, pool: RankPool) -> None:
    model, more, equal = CASES[case]
    shape = shape_for(schedule, devices, devices + more)
    try:
        plan = schedule_named(schedule).plan(shape)
    except ShapeError as refusal:
        if case == "GQA unequal cut":  # m = p is a shape that every schedule takes
            raise
        pytest.skip(str(refusal))
    found = agreement_of(plan, workload_of(plan, model, equal=equal), pool)
    assert found.loss < TOLERANCE
    assert found.gradient < TOLERANCE, found.parameter
