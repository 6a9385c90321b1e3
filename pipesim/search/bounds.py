"""What a configuration needs at least, known before its plan is made."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from pipesim.costs.from_model import model_costs
from pipesim.plan import PipelineShape
from pipesim.scenario import load_cluster, load_model
from pipesim.schedules import schedule_named

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pipesim.costs.table import CostTable
    from pipesim.plan import Plan
    from pipesim.scenario import Scenario


def least_memory(scenario: Scenario) -> tuple[int, int]:
    """Bytes of the fullest device: static ones, and with them the least that any order of ops holds at its peak.

    Before the first backward of a micro-batch all its forwards are done, so every device then holds what all its
    stages keep of all subsequences. Raises InputError where model, cluster and cut do not go together.
    """
    shape = scenario.shape()
    costs = model_costs(scenario, load_model(scenario.model), load_cluster(scenario.cluster), shape)
    plan = _smallest_plan(scenario.schedule, shape.devices, shape.stages_per_device)
    static = costs.static_bytes_of_devices(plan)
    return int(static.max()), int((static + _one_microbatch(costs, plan)).max())


def within(scenario: Scenario, memory_limit_bytes: int, static_bytes: int) -> Scenario:
    """The scenario with what static bytes leave for activations, where its schedule plans within a limit."""
    if "memory_limit_bytes" not in schedule_named(scenario.schedule).options:
        return scenario
    return replace(scenario, memory_limit_bytes=max(1, memory_limit_bytes - static_bytes))


def _one_microbatch(costs: CostTable, plan: Plan) -> NDArray[np.int64]:
    """int64 [devices]: what a device keeps of one micro-batch, of the direction that needs more there."""
    stages = (costs.activation_bytes.sum(axis=2) + costs.kv_bytes).min(axis=0)
    held = np.zeros((plan.placement.directions, plan.shape.devices), dtype=np.int64)
    for direction, devices in enumerate(plan.placement.device_of):
        np.add.at(held[direction], devices, stages)
    most: NDArray[np.int64] = held.max(axis=0)
    return most


@lru_cache(maxsize=1024)
def _smallest_plan(schedule: str, devices: int, stages_per_device: int) -> Plan:
    """A plan that shows where a schedule puts its stages."""
    return schedule_named(schedule).plan(PipelineShape(devices, devices, stages_per_device))
