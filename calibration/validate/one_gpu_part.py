"""The part of `calibration.gpu_node` that validates simulations on one GPU: 1F1B, Seq1F1B and BSIPipe, composed.

Each schedule is predicted twice: from the profile that the part before it wrote, whose grid does not hold these cuts,
and from its stages timed alone; then all its ops run in serial steps, each with its true inputs.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from calibration.execute.costs import static_bytes
from calibration.execute.engine import Effort
from calibration.execute.workload import Workload
from calibration.validate import one_gpu
from calibration.validate.compare import compare
from pipesim.engine import simulate
from pipesim.partition import even_layers
from pipesim.plan import PipelineShape
from pipesim.schedules import build_plan, schedule_named

if TYPE_CHECKING:
    from calibration.gpu_node import Node
    from calibration.measure import Settings
    from pipesim.costs.table import CostTable
    from pipesim.network import Network
    from pipesim.plan import Plan

SCHEDULES = ("1f1b", "seq1f1b", "bsipipe")
DEVICES, MICROBATCHES, SUBSEQUENCES, LAYERS = 4, 4, 4, 8
TOKENS = {"cuda": 8 * 1024, "cpu": 64}  # llama3-8b's logits of four micro-batches at once fit in 139 GiB
EFFORT = {"cuda": Effort(steps=3, warm_ups=1), "cpu": Effort(steps=1, warm_ups=0)}
LINK = (5_000, 50 * 10**9)  # given: 5 µs and 50 GB/s, the same in prediction and composition


def one_gpu_validation(node: Node, seconds_left: float) -> dict[str, Any]:
    """Errors of step time, op starts and op durations by schedule; those that time no longer allows are left out."""
    began = time.monotonic()
    name, settings = node.grids[0]
    found: dict[str, Any] = {"model": settings.model.name, "layers": LAYERS, "links": "given", "source": "composed"}
    for schedule in SCHEDULES:
        if time.monotonic() - began > seconds_left:
            found[schedule] = {"left out": "no time left"}
            continue
        found[schedule] = _validated(node, node.out / name, settings, schedule)
    return found


def _validated(node: Node, profile: Any, settings: Settings, schedule: str) -> dict[str, Any]:
    shape = schedule_named(schedule).fit(PipelineShape(DEVICES, MICROBATCHES, 1, SUBSEQUENCES))
    plan = build_plan(schedule, shape)
    workload = workload_of(node, settings, shape)
    network = _links(shape.devices)
    alone = one_gpu.validate(plan, workload, node.device, effort=EFFORT[node.device], network=network)
    result = {"stages timed alone": alone.comparison.as_json(), "loss": alone.run.loss}
    if profile.exists():
        costs = profile_costs(profile, workload, plan)
        predicted = simulate(plan, costs, network)
        result["from the profile"] = compare(predicted, [alone.composed]).as_json()
    return result | {"allocated_bytes": alone.run.allocated_bytes, "lengths": list(workload.lengths)}


def workload_of(node: Node, settings: Settings, shape: PipelineShape) -> Workload:
    """Few layers of the profile's model on a sequence cut as no grid cuts it: 4, 3, 2 and 1 parts of ten."""
    tokens, k = TOKENS[node.device], shape.subsequences
    weights = list(range(k, 0, -1))
    lengths = [tokens * weight // sum(weights) for weight in weights]
    lengths[0] += tokens - sum(lengths)
    model = replace(settings.model, layers=LAYERS)
    sizes = (settings.micro_batch_size,) * shape.microbatches
    return Workload(model, even_layers(LAYERS, shape.stages), tuple(lengths), sizes, dtype=node.dtype)


def profile_costs(profile: Any, workload: Workload, plan: Plan) -> CostTable:
    """What the profile says these ops take."""
    from pipesim.cluster import load
    from pipesim.costs.analytic import AnalyticOptions
    from pipesim.costs.calibrated import calibrated_costs
    from pipesim.profile import read_profile

    options = AnalyticOptions(micro_batch_size=workload.microbatch_sizes[0])
    costs = calibrated_costs(
        read_profile(profile), workload.model, load("h100"), plan.shape, workload.partition, workload.lengths, options
    )
    return replace(costs, static_bytes=static_bytes(workload))


def _links(devices: int) -> Network:
    from pipesim.network import Network

    latency_ns, bytes_per_second = LINK
    return Network.uniform(devices, latency_ns, bytes_per_second)
