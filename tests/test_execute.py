"""Executing plans on ranks: timelines, field cases of messages and gradients, clocks, memory, the commands."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pipesim.errors import InputError
from pipesim.metrics import measure
from pipesim.plan import Op, PipelineShape, Placement, Plan
from pipesim.schedules import build_plan
from tests.executing import GQA, MHA, agreement_of, workload_of
from tests.simulating import hand_plan

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from calibration.execute.faults import RankPool
    from calibration.execute.ranks import Rank
    from calibration.execute.record import Execution

pytestmark = [pytest.mark.torch, pytest.mark.ranks]

TOLERANCE = 1e-10


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    from calibration.execute.faults import RankPool

    with RankPool(4) as made:
        yield made


def executed(plan: Plan, pool: RankPool, steps: int = 1, **options: Any) -> Execution:
    from calibration.execute.engine import Effort, execute

    workload = workload_of(plan, **options)
    return execute(plan, workload, pool, Effort(steps=steps, warm_ups=0, memory=False, gradients=True))


def both_ways_by_hand() -> Plan:
    """Micro-batch 0 goes down, 1 up: each device holds a copy of both stages."""
    shape = PipelineShape(2, 2)
    placement = Placement(np.array([[0, 1], [1, 0]], dtype=np.int32), np.array([0, 1], dtype=np.int8))
    orders = ["0F0 1F1 1B1 0B0", "0F1 1F0 1B0 0B1"]
    return Plan.from_orders("both ways", shape, placement, [[Op.parse(t) for t in row.split()] for row in orders])


HAND_MADE = {
    "late W": hand_plan(["0F0 0F1 0I0 0I1 0W1 0W0", "1F0 1I0 1F1 1I1 1W0 1W1"], 2, 2),
    "B beside I and W": hand_plan(["0F0 0F1 0I0 0B1 0W0", "1F0 1B0 1F1 1I1 1W1"], 2, 2),
    "messages taken in another order": hand_plan(["0F0 0F1 0B0 0B1", "1F1 1B1 1F0 1B0"], 2, 2),
    "one device": hand_plan(["0F0 1F0 1B0 0B0"], 1, 1, 2),
    "both ways": both_ways_by_hand(),
}


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("name", HAND_MADE)
def test_hand_made_plans_have_the_gradients_of_one_process(name: str, tied: bool, pool: RankPool) -> None:
    found = agreement_of(HAND_MADE[name], workload_of(HAND_MADE[name], MHA if tied else GQA), pool)
    assert max(found.loss, found.gradient) < TOLERANCE, found.parameter


def test_the_memory_step_leaves_the_gradients_sent_back_alone(pool: RankPool) -> None:
    from calibration.execute.engine import Effort, execute
    from calibration.execute.plain import agreement, plain_run

    plan = build_plan("1f1b", PipelineShape(2, 2))
    workload = workload_of(plan)
    execution = execute(plan, workload, pool, Effort(steps=2, memory=True, gradients=True))
    assert agreement(execution, plain_run(workload)).gradient < TOLERANCE


def test_a_missing_pair_sum_would_be_seen(pool: RankPool) -> None:
    """The comparison looks at every copy: one device's share of a both-ways plan alone is far off."""
    from calibration.execute.plain import agreement, plain_run

    plan = both_ways_by_hand()
    execution = executed(plan, pool)
    plain = plain_run(execution.workload)
    assert agreement(execution, plain).gradient < TOLERANCE
    halved = [dict(of_device) for of_device in execution.gradients]
    halved[1] = {name: gradient / 2 for name, gradient in halved[1].items()}
    assert agreement(replace(execution, gradients=tuple(halved)), plain).gradient == pytest.approx(0.5)


# Field case O14: with two devices the previous and the next peer are the same process; messages paired first come,
# first served without names had their shapes swapped.


def exchange_crosswise(rank: Rank) -> list[tuple[tuple[int, ...], float]] | None:
    """Rank 0 sends an activation of 7 tokens, then a gradient of 5; rank 1 receives the gradient first."""
    from torch import distributed

    group = rank.open_group("crosswise", (0, 1))
    shapes = {1: (7, 1, 16), 2: (5, 1, 16)}
    if rank.number == 0:
        works = [distributed.isend(torch.full(shapes[tag], float(tag)), 1, group=group, tag=tag) for tag in (1, 2)]
        for work in works:
            work.wait()
    if rank.number != 1:
        return None
    buffers = {tag: torch.zeros(shapes[tag]) for tag in (2, 1)}
    works = [distributed.irecv(buffer, 0, group=group, tag=tag) for tag, buffer in buffers.items()]
    for work in works:
        work.wait()
    return [(tuple(buffers[tag].shape), float(buffers[tag].mean())) for tag in (1, 2)]


def test_field_case_o14_named_messages_find_their_receiver(pool: RankPool) -> None:
    assert pool.run(exchange_crosswise)[1] == [((7, 1, 16), 1.0), ((5, 1, 16), 2.0)]


def test_field_case_o14_two_devices_two_stages_unequal_cut(pool: RankPool) -> None:
    plan = build_plan("seq1f1b-interleaved", PipelineShape(2, 2, 2, 2))
    found = agreement_of(plan, replace(workload_of(plan), lengths=(7, 5)), pool)
    assert max(found.loss, found.gradient) < TOLERANCE


# Field case O16: micro-batches of 3, 3 and 2 sequences kept the first one's buffers in later stages.


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_field_case_o16_unequal_microbatches(schedule: str, pool: RankPool) -> None:
    plan = build_plan(schedule, PipelineShape(3, 3))
    execution = executed(plan, pool, sizes=(3, 3, 2))
    costs = execution.timeline.costs
    sent = costs.messages(plan).tolist()
    assert sorted({(int(i), size) for i, size in zip(plan.microbatch, sent, strict=True)}) == [
        (0, 3 * sent_by_one(execution)), (1, 3 * sent_by_one(execution)), (2, 2 * sent_by_one(execution)),
    ]  # fmt: skip
    found = agreement_of(plan, workload_of(plan, sizes=(3, 3, 2)), pool)
    assert max(found.loss, found.gradient) < TOLERANCE


def sent_by_one(execution: Execution) -> int:
    return execution.workload.seq_len * execution.workload.model.hidden * 8


# Field case O33: gradients divided once a step, summed instead of averaged, or carried over to the next step.


def test_field_case_o33_any_cut_of_a_batch_has_the_same_gradient_norm(pool: RankPool) -> None:
    norms = [
        executed(build_plan("1f1b", PipelineShape(2, m)), pool, sizes=(32 // m,) * m).gradient_norm for m in (4, 16)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=TOLERANCE)


def test_field_case_o33_a_second_step_does_not_add_to_the_first(pool: RankPool) -> None:
    plan = build_plan("seq1f1b", PipelineShape(2, 4, subsequences=2))
    one, two = (executed(plan, pool, steps=steps) for steps in (1, 2))
    assert one.gradient_norm == pytest.approx(two.gradient_norm, rel=TOLERANCE)
    assert two.losses[0] == pytest.approx(two.losses[1], rel=TOLERANCE)


def test_the_norm_is_that_of_every_parameter_once(pool: RankPool) -> None:
    from calibration.execute.plain import plain_run

    for model in (GQA, MHA):  # MHA ties its ends, and both ways every stage lives twice
        execution = executed(both_ways_by_hand(), pool, model=model)
        plain = plain_run(execution.workload)
        wanted = math.sqrt(sum(float((gradient**2).sum()) for gradient in plain.gradients.values()))
        assert execution.gradient_norm == pytest.approx(wanted, rel=TOLERANCE)


def test_a_measured_timeline_is_like_a_simulated_one(pool: RankPool) -> None:
    from calibration.validate.compare import order_violations
    from tests.simulating import unit_metrics

    plan = build_plan("seq1f1b", PipelineShape(4, 4, subsequences=2))
    execution = executed(plan, pool, steps=3)
    for step in range(3):
        timeline = execution.timeline_of(step)
        assert order_violations(timeline) == []
        assert timeline.start_ns.min() == 0
        assert (timeline.end_ns > timeline.start_ns).all()
        assert timeline.makespan_ns == execution.makespans_ns[step]
    found, simulated = measure(execution.timeline), unit_metrics("seq1f1b", 4, 4, k=2)
    assert found.source == "measured"
    assert found.leading_forwards == simulated.leading_forwards
    assert found.peak_in_flight == simulated.peak_in_flight
    assert execution.makespans_ns[execution.median_step] == np.median(execution.makespans_ns)


def test_arrivals_are_after_what_they_carry_was_made_and_no_later_than_it_is_used(pool: RankPool) -> None:
    from pipesim.transfers import transfers_of

    plan = build_plan("1f1b", PipelineShape(3, 4))
    timeline = executed(plan, pool).timeline
    messages = transfers_of(plan)
    assert (timeline.arrival_ns[messages.sender] >= timeline.transfer_start_ns[messages.sender]).all()
    assert (timeline.start_ns[messages.receiver] >= timeline.arrival_ns[messages.sender]).all()
    assert (timeline.arrival_ns >= 0).sum() == len(messages)


SHIFT_NS = 3600 * 10**9


def offset_of_shifted_clock(rank: Rank, host: str) -> int:
    from calibration.execute.clock import offset_ns

    shift = SHIFT_NS * rank.number
    return offset_ns(rank, now=lambda: time.perf_counter_ns() + shift, host=host.format(rank.number))


def test_clocks_of_other_nodes_are_set_to_rank_0(pool: RankPool) -> None:
    offsets = pool.run(offset_of_shifted_clock, "node {}")
    assert offsets[0] == 0
    for number, offset in enumerate(offsets):
        assert abs(offset + SHIFT_NS * number) < 10**9


def test_clocks_of_one_node_are_one(pool: RankPool) -> None:
    assert pool.run(offset_of_shifted_clock, "here") == [0, 0, 0, 0]


def test_ranks_share_out_the_cores_unless_there_are_too_few() -> None:
    from calibration.execute.ranks import cores_of

    assert [cores_of(n, 2, [4, 5]) for n in range(2)] == [[4], [5]]
    assert [cores_of(n, 3, range(8)) for n in range(3)] == [range(2), range(2, 5), range(5, 8)]
    assert [cores_of(n, 4, [0, 1]) for n in range(4)] == [[0, 1]] * 4


class FakeEvent:
    """A CUDA event of a device whose time runs 2 ms an event."""

    ticks = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        FakeEvent.ticks += 1
        self.at = 2.0 * FakeEvent.ticks

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: FakeEvent) -> float:
        return later.at - self.at


def test_events_are_timed_against_one_base_event(monkeypatch: pytest.MonkeyPatch) -> None:
    from calibration.execute.clock import EventClock, clock_of

    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 10**12)
    clock = clock_of(torch.device("cuda"))
    assert isinstance(clock, EventClock)
    clock.begin()
    marks = [clock.mark(), clock.mark()]
    assert clock.nanoseconds(marks).tolist() == [10**12 + 2_000_000, 10**12 + 4_000_000]


def test_memory_is_what_the_cost_table_says(pool: RankPool) -> None:
    """1F1B holds more micro-batches on earlier devices; counted bytes are those of the tensors alive."""
    from calibration.execute.engine import Effort, execute

    plan = build_plan("1f1b", PipelineShape(2, 4))
    workload = replace(workload_of(plan, dtype="float32"), lengths=(256,))
    execution = execute(plan, workload, pool, Effort(steps=1, warm_ups=0))
    predicted = measure(execution.timeline)
    held = [memory.allocated_bytes for memory in execution.memory]
    assert [memory.static_bytes for memory in execution.memory] == list(predicted.static_bytes)
    assert held == pytest.approx(predicted.peak_memory_bytes, rel=0.15)
    assert execution.memory[0].step_bytes > 1.3 * execution.memory[1].step_bytes
    assert all(memory.reserved_bytes > memory.allocated_bytes for memory in execution.memory)


@pytest.mark.parametrize("name", [*HAND_MADE, "bsipipe"])
def test_one_device_runs_all_ops_with_their_true_inputs(name: str) -> None:
    from calibration.execute.engine import Effort
    from calibration.execute.plain import plain_run
    from calibration.validate import one_gpu

    plan = HAND_MADE[name] if name in HAND_MADE else build_plan(name, PipelineShape(2, 4, 2, 2, 4.0))
    workload = workload_of(plan, MHA)
    run = one_gpu.run_serially(plan, workload, "cpu", Effort(steps=1, warm_ups=0, gradients=True))
    found = one_gpu.agreement(run, plain_run(workload))
    assert max(found.loss, found.gradient) < TOLERANCE, found.parameter
    composed = run.composed()
    assert composed.source == "composed"
    assert (composed.end_ns - composed.start_ns).tolist() == run.durations_ns[0].tolist()


def test_one_device_validates_against_costs_timed_beforehand() -> None:
    from calibration.execute.engine import Effort
    from calibration.validate import one_gpu

    plan = build_plan("seq1f1b", PipelineShape(2, 2, subsequences=2))
    found = one_gpu.validate(plan, workload_of(plan), "cpu", effort=Effort(steps=1, warm_ups=0))
    assert found.comparison.order_violations == ()
    assert found.composed.plan.same_ops(found.predicted.plan)
    with pytest.raises(InputError, match="--device: cuda: torch sees no CUDA device here; use --device cpu"):
        one_gpu.run_serially(plan, workload_of(plan), "cuda")


def test_validation_predicts_before_it_runs(pool: RankPool) -> None:
    from calibration.execute.engine import Effort
    from calibration.validate import validate

    plan = build_plan("seq1f1b", PipelineShape(2, 2, subsequences=2))
    found = validate(plan, workload_of(plan, dtype="float32"), pool, Effort(steps=2, warm_ups=0))
    costs, comparison = found.predicted.costs, found.comparison
    assert costs.host_overhead_ns > 0
    assert (costs.duration_ns[:2] > 0).all()
    assert found.predicted.network.latency_ns[0, 1] >= 0
    assert comparison.order_violations == ()
    assert comparison.steps == 2
    assert len(comparison.memory_measured_bytes) == 2


COMMAND = [sys.executable, "-c", "import sys; from pipesim.cli import main; sys.exit(main())"]


def command(*words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=timeout, check=False)


def test_the_command_executes_and_draws(tmp_path: Path) -> None:
    files = {"--gantt": "run.png", "--trace": "run.json", "--spans": "run.csv", "--plan": "plan.csv"}
    words = [word for option, name in files.items() for word in (option, str(tmp_path / name))]
    done = command(
        "execute", "bsipipe", "--model", "tiny", "-p", "4", "-m", "4", "-k", "2", "--device", "cpu",
        "--seq-len", "32", "--hidden", "64", "--steps", "1", "--warm-ups", "0", "--check", *words,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "measured on gloo ranks" in done.stdout
    assert "against the whole model in one process" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files.values())


def test_torchrun_starts_the_same_run() -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    words = ["-m", "calibration.execute", "1f1b", "-p", "2", "-m", "2", "--seq-len", "16", "--hidden", "64"]
    rest = ["--dtype", "float64", "--steps", "1", "--warm-ups", "0", "--check", "--json"]
    done = subprocess.run(
        [*launcher, "--rdzv-endpoint", "127.0.0.1:0", *words, *rest],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    import json

    found = json.loads(done.stdout)
    assert found["source"] == "measured"
    assert found["agreement"]["gradient"] < TOLERANCE


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hidden", "100"], "--hidden: 100: must be a multiple of 64, a group of heads of tiny"),
        (["--dtype", "int8"], "--dtype: int8: no such choice; one of float64, float32, bfloat16"),
        (["--batch", "3"], "microbatches: 4: must be at most the number of samples = 3"),
        (["--port", "70000"], "--port: 70000: must be from 0 to 65535; leave the option out for a free one"),
        (["--layers", "1"], "stages: 2: must be at most layers = 1"),
        (["--device", "cuda"], "--device: cuda: "),
        (["--one-gpu", "--device", "cuda"], "--device: cuda: torch sees no CUDA device here"),
        (["--gantt", "run.doc"], "--gantt: run.doc: unknown ending"),
        (["--model", "nothing"], "nothing: is not a known model"),
    ],
)
def test_wrong_input_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipesim.cli import main

    monkeypatch.setattr(sys, "argv", ["pipesim", "execute", "1f1b", "-p", "2", "-m", "4", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]
