"""What `pipesim execute` and `pipesim validate` do once their options are read: run, write files, print."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from calibration.execute.engine import Effort, execute
from calibration.execute.faults import RankPool
from calibration.execute.options import Choices
from calibration.execute.plain import agreement, plain_run
from calibration.execute.report import print_comparison, print_execution, print_serial
from calibration.validate import one_gpu, validate
from pipesim.cli.outputs import write_trace
from pipesim.errors import InputError
from pipesim.metrics import measure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from calibration.execute.plain import Agreement
    from calibration.execute.record import Execution
    from calibration.execute.workload import Workload
    from pipesim.costs.table import CostTable
    from pipesim.plan import Plan
    from pipesim.timeline import Timeline


@dataclass(frozen=True)
class Files:
    """Where results go, None where nobody wants them."""

    gantt: Path | None = None
    trace: Path | None = None
    spans: Path | None = None
    plan: Path | None = None

    def write(self, timelines: Sequence[Timeline]) -> None:
        """All timelines in one picture, lanes of a device together, and one trace; spans and plan are the last's."""
        sources = [timeline.source.replace("simulated", "predicted") for timeline in timelines]
        several = len(timelines) > 1
        if self.gantt is not None:
            from pipesim.plot import save_gantt

            save_gantt(timelines, self.gantt, stacked=sources if several else None)
        write_trace(list(map(named, timelines, sources)) if several else timelines, self.trace)
        if self.spans is not None:
            from pipesim.frame import save_spans

            save_spans(timelines[-1], self.spans)
        if self.plan is not None:
            from pipesim.plan_csv import write_plan

            write_plan(timelines[-1].plan, self.plan)


def run_execute(
    values: dict[str, Any], schedule: str, files: Files, *, check: bool, one_gpu: bool, as_json: bool
) -> None:
    """One plan on ranks, or on one device with `one_gpu`."""
    choices = Choices.of(values, schedule)
    plan = choices.plan()
    workload = choices.workload(plan.shape)
    effort = Effort(choices.steps, choices.warm_ups, memory=True, gradients=check)
    if one_gpu:
        _execute_serially(choices, plan, workload, effort, files, as_json=as_json)
        return
    with _pool(choices, plan) as pool:
        execution = execute(plan, workload, pool, effort)
    agrees = agreement(execution, plain_run(workload, choices.device)) if check else None
    report_execution(execution, agrees, files, as_json=as_json)


def report_execution(execution: Execution, agrees: Agreement | None, files: Files, *, as_json: bool) -> None:
    """Writes the files asked for and prints what came out."""
    timeline = execution.timeline
    files.write([timeline])
    if as_json:
        from pipesim.report import print_json

        print_json(execution_json(execution, agrees))
    else:
        print_execution(execution, timeline, agrees)


def execution_json(execution: Execution, agrees: Agreement | None) -> dict[str, Any]:
    """Metrics of the step of median makespan, and what a simulation does not have."""
    memory = [{**asdict(m), "step_bytes": m.step_bytes} for m in execution.memory]
    return measure(execution.timeline).as_json() | {
        "makespans_seconds": [int(makespan) / 1e9 for makespan in execution.makespans_ns],
        "losses": list(execution.losses),
        "gradient_norm": execution.gradient_norm,
        "gradient_sum_seconds": [int(ns) / 1e9 for ns in execution.summing_ns.max(axis=1)],
        "host_overhead_seconds": execution.host_overhead_ns / 1e9,
        "measured_memory": memory,
        "agreement": None if agrees is None else asdict(agrees),
    }


def _execute_serially(
    choices: Choices, plan: Plan, workload: Workload, effort: Effort, files: Files, *, as_json: bool
) -> None:
    run = one_gpu.run_serially(plan, workload, choices.device, effort)
    composed = run.composed()
    files.write([composed])
    agrees = one_gpu.agreement(run, plain_run(workload, choices.device)) if effort.gradients else None
    if as_json:
        from pipesim.report import print_json

        extra = {"loss": run.loss, "agreement": None if agrees is None else asdict(agrees)}
        print_json(measure(composed).as_json() | extra)
    else:
        print_serial(run, composed, agrees)


def run_validate(
    values: dict[str, Any], schedule: str, files: Files, *, profile: Path | None, one_gpu: bool, as_json: bool
) -> None:
    """Predict, execute, compare."""
    choices = Choices.of(values, schedule)
    plan = choices.plan()
    workload = choices.workload(plan.shape)
    effort = Effort(choices.steps, choices.warm_ups)
    given = None if profile is None else profile_costs(choices, workload, plan, profile)
    if one_gpu:
        found = _validate_serially(choices, plan, workload, effort, given)
        predicted, measured, comparison = found.predicted, found.composed, found.comparison
    else:
        with _pool(choices, plan) as pool:
            validation = validate(plan, workload, pool, effort, given)
        predicted, measured = validation.predicted, validation.execution.timeline
        comparison = validation.comparison
    files.write([predicted, measured])
    if as_json:
        from pipesim.report import print_json

        print_json(comparison.as_json() | {"source": measured.source, "costs": predicted.costs.name})
    else:
        print_comparison(comparison, predicted, measured)


def named(timeline: Timeline, what: str) -> Timeline:
    """The same timeline under a name that says which one it is, for a trace that holds both."""
    plan = timeline.plan
    return replace(timeline, plan=replace(plan, schedule=f"{plan.schedule}, {what}"))


def _validate_serially(
    choices: Choices, plan: Plan, workload: Workload, effort: Effort, given: CostTable | None
) -> one_gpu.OneGpuValidation:
    return one_gpu.validate(plan, workload, choices.device, effort=effort, given=given)


def profile_costs(choices: Choices, workload: Workload, plan: Plan, profile: Path) -> CostTable:
    """A profile's times for this plan; static bytes are those of an executed step, which has no optimizer.

    Raises InputError where the profile is of another model or micro-batches are unequal, FileError on a bad file.
    """
    from calibration.execute.costs import static_bytes
    from pipesim.costs.calibrated import calibrated_costs
    from pipesim.costs.from_model import analytic_options
    from pipesim.profile import read_profile
    from pipesim.scenario import load_cluster

    sizes = set(workload.microbatch_sizes)
    if len(sizes) > 1:
        raise InputError("--batch", choices.batch, "gives micro-batches of unequal size, which no profile has")
    read = read_profile(profile)
    if read.provenance.dtype != workload.dtype:
        rule = f"is of {read.provenance.dtype}, the run is in {workload.dtype}"
        raise InputError("--profile", str(profile), rule, f"give --dtype {read.provenance.dtype}")
    scenario = replace(choices.scenario, micro_batch_size=min(sizes), recompute="none")
    costs = calibrated_costs(
        read, choices.model, load_cluster(scenario.cluster), plan.shape,
        workload.partition, workload.lengths, analytic_options(scenario), where=str(profile),
    )  # fmt: skip
    return replace(costs, static_bytes=static_bytes(workload))


def _pool(choices: Choices, plan: Plan) -> RankPool:
    return RankPool(plan.shape.devices, device=choices.device, timeout_s=choices.timeout, port=choices.port)
