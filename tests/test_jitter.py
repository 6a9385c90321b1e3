"""Stragglers and noise: exact where they can be, seeded, and the same through every way of sending."""

from __future__ import annotations

import numpy as np
import pytest

from pipesim.communication import Communication
from pipesim.costs.unit import UnitCosts, unit_costs
from pipesim.engine import simulate
from pipesim.errors import InputError
from pipesim.jitter import Jitter, Study, disturbed, study
from pipesim.plan import Kind, PipelineShape
from pipesim.schedules import build_plan


def study_of(
    jitter: Jitter, schedule: str = "1f1b", p: int = 4, m: int = 8, communication: Communication | None = None
) -> Study:
    plan = build_plan(schedule, PipelineShape(p, m))
    costs, network = unit_costs(UnitCosts.of(1, 2), plan.shape)
    return study(plan, costs, network, jitter, communication=communication or Communication())


@pytest.mark.parametrize(("device", "factor", "expected"), [(3, 1.5, 45), (0, 1.5, 40.5), (1, 1.5, 42), (0, 1, 33)])
def test_one_slow_device_is_a_slow_stage(device: int, factor: float, expected: float) -> None:
    """Field case O22: 1F1B, p=4, m=8, one stage 1.5 times as long."""
    found = study_of(Jitter(trials=3, slow={device: factor}))
    assert found.makespan_ns.tolist() == [expected * found.unit_ns] * 3
    assert (found.undisturbed, found.mean, found.percentile(95)) == (33, expected, expected)


def test_trials_repeat_by_seed_and_differ_by_trial() -> None:
    first, again, other = (study_of(Jitter(0.1, 20, seed)) for seed in (7, 7, 8))
    assert first.makespan_ns.tolist() == again.makespan_ns.tolist()
    assert len(set(first.makespan_ns.tolist())) == 20
    assert first.makespan_ns.tolist() != other.makespan_ns.tolist()
    longer = study_of(Jitter(0.1, 40, 7))
    assert longer.makespan_ns.tolist()[:20] == first.makespan_ns.tolist()


def test_noise_has_mean_one_and_the_given_spread() -> None:
    plan = build_plan("gpipe", PipelineShape(2, 2000))
    costs, _ = unit_costs(UnitCosts.of("1000000", "1000000"), plan.shape)
    noisy = disturbed(costs, plan, np.ones(2), 0.2, np.random.default_rng(1))
    ratio = noisy.duration_ns[Kind.F] / costs.duration_ns[Kind.F]
    assert ratio.size == 4000
    assert ratio.mean() == pytest.approx(1, abs=4 * 0.2 / np.sqrt(ratio.size))
    assert ratio.std() == pytest.approx(0.2, rel=0.1)


def test_noise_only_lengthens_a_pipeline_on_average() -> None:
    """A step waits for the slowest of many, so its mean lies above the undisturbed one and grows with the noise."""
    means = [study_of(Jitter(noise, 200)).mean for noise in (0.02, 0.1, 0.3)]
    assert 33 < means[0] < means[1] < means[2]


def test_percentiles_are_in_order() -> None:
    found = study_of(Jitter(0.1, 50)).as_json()
    assert found["p50_seconds"] < found["p95_seconds"] < found["max_seconds"]
    assert found["trials"] == 50


@pytest.mark.parametrize("communication", [Communication("blocking"), Communication(queues="direction")])
def test_no_noise_is_the_plain_run_however_messages_go(communication: Communication) -> None:
    plan = build_plan("1f1b", PipelineShape(4, 8))
    costs, network = unit_costs(UnitCosts.of(1, 2), plan.shape)
    plain = simulate(plan, costs, network, communication=communication)
    found = study_of(Jitter(0, 2), communication=communication)
    assert found.makespan_ns.tolist() == [plain.makespan_ns * found.unit_ns // plain.unit_ns] * 2


def test_progress_is_told_once_a_trial() -> None:
    told: list[int] = []
    plan = build_plan("1f1b", PipelineShape(2, 2))
    costs, network = unit_costs(UnitCosts.of(1, 2, latency=1, transfer=1), plan.shape)
    study(plan, costs, network, Jitter(0.1, 5), tell=told.append)
    assert told == [1] * 5


def test_latency_and_port_time_keep_their_proportion() -> None:
    plan = build_plan("1f1b", PipelineShape(3, 4))
    costs, network = unit_costs(UnitCosts.of(1, 2, latency=1, transfer=3), plan.shape)
    plain = simulate(plan, costs, network)
    assert study(plan, costs, network, Jitter(trials=1)).mean == plain.in_units(plain.makespan_ns)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Jitter(-0.1), "--jitter"),
        (lambda: Jitter(float("nan")), "--jitter"),
        (lambda: Jitter(trials=0), "--trials: 0: must be at least 1"),
        (lambda: Jitter(slow={1: 0}), "--slow: 1:0: must be above 0"),
        (lambda: Jitter.parse_slow("3"), "DEVICE:FACTOR"),
        (lambda: study_of(Jitter(trials=1, slow={4: 2})), r"must name a device 0\.\.3"),
    ],
)
def test_wrong_values(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]


def test_slow_devices_are_read() -> None:
    assert Jitter.parse_slow("3:1.2,0:2") == {3: 1.2, 0: 2.0}
