"""Stragglers and noise: the same plan with slower devices and ops of varying length, many times; knows no schedule.

Every op gets a duration of its own: its cost, times the factor of its device, times a lognormal number of mean 1
and the given relative standard deviation. Trial i of a seed is the same wherever it is run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pipesim.communication import OVERLAPPED, Communication
from pipesim.engine import simulate
from pipesim.errors import InputError
from pipesim.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from pipesim.costs.table import CostTable
    from pipesim.network import Network
    from pipesim.plan import Plan

_FINE_NS = 10**6  # a unit of unit costs, in which noise must not be rounded away
_LARGEST_NOISE = 10.0
_LARGEST_FACTOR = 1000
_MOST_TRIALS = 10**6


@dataclass(frozen=True)
class Jitter:
    """noise: relative standard deviation of each op's duration; slow: by device, how many times as long its ops take.

    Raises InputError on a negative noise, a factor of 0 or less, or fewer than one trial.
    """

    noise: float = 0.0
    trials: int = 200
    seed: int = 0
    slow: Mapping[int, float] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.noise <= _LARGEST_NOISE:
            raise InputError("--jitter", self.noise, f"must be from 0 to {_LARGEST_NOISE}", "0.05 is five per cent")
        if not 1 <= self.trials <= _MOST_TRIALS:
            raise InputError("--trials", self.trials, f"must be at least 1, at most {_MOST_TRIALS}")
        if self.seed < 0:
            raise InputError("--seed", self.seed, "must be at least 0")
        for device, factor in (self.slow or {}).items():
            if not 0 < factor <= _LARGEST_FACTOR:
                rule = f"must be above 0, at most {_LARGEST_FACTOR}"
                raise InputError("--slow", f"{device}:{factor}", rule, "3:1.2 makes device 3 take 1.2 times")

    @classmethod
    def of(cls, noise: float | None, trials: int | None, seed: int | None, slow: str | None) -> Jitter:
        """From the command line, None where an option was not given."""
        given = {name: value for name, value in (("trials", trials), ("seed", seed)) if value is not None}
        return cls(noise or 0.0, slow=None if slow is None else cls.parse_slow(slow), **given)

    @classmethod
    def parse_slow(cls, text: str) -> dict[int, float]:
        """`3:1.2,5:2` as factors by device. Raises InputError."""
        slow: dict[int, float] = {}
        for part in text.split(","):
            name, _, factor = part.partition(":")
            try:
                device, times = int(name), float(factor)
            except ValueError:
                raise InputError("--slow", text, "must be DEVICE:FACTOR, …", "write 3:1.2,5:2") from None
            if device in slow:
                raise InputError("--slow", text, f"names device {device} twice", "give each device once")
            slow[device] = times
        return slow


@dataclass(frozen=True, eq=False)
class Study:
    """Step lengths of all trials, int64 [trials] in ns, beside that of the undisturbed plan; unit_ns as printed."""

    jitter: Jitter
    undisturbed_ns: int
    makespan_ns: NDArray[np.int64]
    unit_ns: int

    @property
    def undisturbed(self) -> float:
        """Step length without noise and slow devices, in seconds (or units)."""
        return self.undisturbed_ns / self.unit_ns

    @property
    def mean(self) -> float:
        """Mean step length in seconds (or units)."""
        return float(self.makespan_ns.mean()) / self.unit_ns

    def percentile(self, percent: float) -> float:
        """The step length that so many per cent of trials do not exceed, linear between two, in seconds (or units)."""
        return float(np.percentile(self.makespan_ns, percent)) / self.unit_ns

    def as_json(self) -> dict[str, float | int]:
        """Plain values."""
        return {
            "noise": self.jitter.noise,
            "trials": self.jitter.trials,
            "seed": self.jitter.seed,
            "undisturbed_seconds": self.undisturbed,
            "mean_seconds": self.mean,
            "p50_seconds": self.percentile(50),
            "p95_seconds": self.percentile(95),
            "max_seconds": self.percentile(100),
        }


def jitter_text(found: Mapping[str, float | int], unit: str) -> str:
    """What a study found, in a sentence; `found` as `Study.as_json` gives it."""
    shown = format_seconds if unit == "s" else lambda value: f"{value:.4g} units"
    mean, middle, most = (shown(float(found[f"{name}_seconds"])) for name in ("mean", "p50", "p95"))
    longer = float(found["mean_seconds"]) / float(found["undisturbed_seconds"]) - 1
    return (
        f"{found['trials']} trials (seed {found['seed']}): mean {mean} ({longer:+.1%} over undisturbed), "
        f"p50 {middle}, p95 {most}"
    )


def study(
    plan: Plan,
    costs: CostTable,
    network: Network,
    jitter: Jitter,
    *,
    communication: Communication = OVERLAPPED,
    tell: Callable[[int], None] = lambda count: None,
) -> Study:
    """Runs a plan `jitter.trials` times in the compiled engine; `tell(1)` after each.

    The order of sends and receives is that of the undisturbed plan. Raises InputError where a slow device is none
    of the plan's, PlanError as `simulate` does.
    """
    factors = _factors(plan, jitter)
    costs, network = _finer(costs, network)
    run = _runner(plan, costs, network, communication)
    makespans = np.empty(jitter.trials, dtype=np.int64)
    for trial in range(jitter.trials):
        generator = np.random.default_rng([jitter.seed, trial])
        makespans[trial] = run(disturbed(costs, plan, factors, jitter.noise, generator))
        tell(1)
    return Study(jitter, run(costs), makespans, costs.unit_ns)


def disturbed(
    costs: CostTable, plan: Plan, factors: NDArray[np.float64], noise: float, generator: np.random.Generator
) -> CostTable:
    """A cost table with a class for each micro-batch, so that every op has a duration of its own.

    factors float64 [p]: how many times as long each device takes; noise: relative standard deviation.
    """
    classes = costs.class_of_microbatch
    device = plan.placement.device_of[plan.placement.direction_of]
    duration = costs.duration_ns[:, classes] * factors[device][np.newaxis, :, :, np.newaxis]
    if noise:
        spread = np.log1p(noise**2)
        duration = duration * generator.lognormal(-spread / 2, np.sqrt(spread), duration.shape)
    return replace(
        costs,
        duration_ns=np.rint(duration).astype(np.int64),
        activation_bytes=costs.activation_bytes[classes],
        weight_activation_bytes=costs.weight_activation_bytes[classes],
        transient_bytes=costs.transient_bytes[:, classes],
        kv_bytes=costs.kv_bytes[classes],
        kv_gradient_bytes=costs.kv_gradient_bytes[classes],
        boundary_bytes=costs.boundary_bytes[classes],
        class_of_microbatch=np.arange(len(classes), dtype=np.int32),
    )


def _runner(plan: Plan, costs: CostTable, network: Network, communication: Communication) -> Callable[[CostTable], int]:
    if not communication.lowers:
        return lambda table: simulate(plan, table, network).makespan_ns
    from pipesim.engine.lowered import lower_for, simulate_lowered

    lowered = lower_for(plan, costs, network, communication)
    return lambda table: simulate_lowered(lowered, table, network, communication).makespan_ns


def _factors(plan: Plan, jitter: Jitter) -> NDArray[np.float64]:
    factors = np.ones(plan.shape.devices)
    for device, factor in (jitter.slow or {}).items():
        if not 0 <= device < plan.shape.devices:
            raise InputError("--slow", f"{device}:{factor}", f"must name a device 0..{plan.shape.devices - 1}")
        factors[device] = factor
    return factors


def _finer(costs: CostTable, network: Network) -> tuple[CostTable, Network]:
    """Unit costs in units of at least a million ns; a byte stays a ns of port time."""
    if costs.unit == "s" or costs.unit_ns >= _FINE_NS:
        return costs, network
    scale = _FINE_NS
    finer = replace(
        costs,
        duration_ns=costs.duration_ns * scale,
        boundary_bytes=costs.boundary_bytes * scale,
        host_overhead_ns=costs.host_overhead_ns * scale,
        unit_ns=costs.unit_ns * scale,
    )
    return finer, replace(network, latency_ns=network.latency_ns * scale)
