"""pipesim: a discrete-event simulator of pipeline-parallel training schedules.

    >>> import pipesim
    >>> shape = pipesim.PipelineShape(devices=4, microbatches=8)
    >>> costs, network = pipesim.unit_costs(pipesim.UnitCosts.of(1, 2), shape)
    >>> timeline = pipesim.simulate(pipesim.build_plan("1f1b", shape), costs, network)
    >>> pipesim.measure(timeline).as_json()["makespan_seconds"]
    33.0

Names are imported when they are first used, so that importing pipesim stays light.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Case": "pipesim.scenario",
    "ClusterSpec": "pipesim.cluster",
    "Communication": "pipesim.communication",
    "CostTable": "pipesim.costs.table",
    "DeadlockError": "pipesim.errors",
    "InputError": "pipesim.errors",
    "Kind": "pipesim.plan",
    "LoweredPlan": "pipesim.lower",
    "MessageOrderError": "pipesim.errors",
    "Metrics": "pipesim.metrics",
    "ModelSpec": "pipesim.model",
    "Network": "pipesim.network",
    "Op": "pipesim.plan",
    "Outcome": "pipesim.scenario",
    "PipelineShape": "pipesim.plan",
    "PipesimError": "pipesim.errors",
    "Placement": "pipesim.plan",
    "Plan": "pipesim.plan",
    "PlanError": "pipesim.errors",
    "RankOrder": "pipesim.topology",
    "Scenario": "pipesim.scenario",
    "Schedule": "pipesim.schedules",
    "ShapeError": "pipesim.errors",
    "Space": "pipesim.search.space",
    "StepFacts": "pipesim.metrics",
    "Timeline": "pipesim.timeline",
    "Topology": "pipesim.topology",
    "UnitCosts": "pipesim.costs.unit",
    "all_schedules": "pipesim.schedules",
    "build_plan": "pipesim.schedules",
    "check_deadlock": "pipesim.deadlock",
    "check_plan": "pipesim.check",
    "compare_schedules": "pipesim.compare",
    "grid": "pipesim.sweep",
    "measure": "pipesim.metrics",
    "read_lowered": "pipesim.lower.csv",
    "read_plan": "pipesim.plan_csv",
    "read_trace": "pipesim.trace_read",
    "register": "pipesim.schedules",
    "run": "pipesim.scenario",
    "save_gantt": "pipesim.plot",
    "save_memory": "pipesim.plot",
    "save_spans": "pipesim.frame",
    "save_trace": "pipesim.trace",
    "simulate": "pipesim.engine",
    "simulate_lowered": "pipesim.engine.lowered",
    "synchronise": "pipesim.synchronisation",
    "text_gantt": "pipesim.plot.text",
    "unit_costs": "pipesim.costs.unit",
    "write_lowered": "pipesim.lower.csv",
    "write_plan": "pipesim.plan_csv",
}

__all__ = sorted(_HOME)  # noqa: PLE0605  (a list, sorted from the one table above)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'pipesim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *globals()]
