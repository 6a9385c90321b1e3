"""What follows the backwards: sums over replicas and pairs, the optimizer, and the ports they share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipesim.communication import Communication
from pipesim.costs.table import CostTable, StepCosts
from pipesim.costs.unit import UnitCosts, unit_costs
from pipesim.engine import simulate
from pipesim.errors import InputError
from pipesim.metrics import measure
from pipesim.network import NO_PORT, Network, ReplicaLinks
from pipesim.plan import Kind, PipelineShape
from pipesim.plot.gantt import gantt_figure, synchronisation_entries
from pipesim.plot.lanes import pieces
from pipesim.scenario import Scenario, run
from pipesim.schedules import build_plan
from pipesim.synchronisation import synchronise
from pipesim.trace import trace_events
from tests.strategies import Case, cases

if TYPE_CHECKING:
    from pipesim.timeline import Timeline

RATE = 10**9  # one byte per ns


def with_step(costs: CostTable, gradient: int, parameters: int = 0, optimizer_ns: int = 0) -> CostTable:
    stages = costs.duration_ns.shape[2]
    columns = (np.full(stages, value, dtype=np.int64) for value in (gradient, parameters, optimizer_ns))
    return replace(costs, step=StepCosts(*columns))


def ring(devices: int, dp: int, latency_ns: int = 0, ports: tuple[list[int], list[int]] | None = None) -> ReplicaLinks:
    nowhere = [NO_PORT] * devices
    out_port, in_port = ports or (nowhere, nowhere)
    return ReplicaLinks(
        dp,
        np.full(devices, RATE, dtype=np.int64),
        np.full(devices, latency_ns, dtype=np.int64),
        np.array(out_port, dtype=np.int32),
        np.array(in_port, dtype=np.int32),
    )


def timeline_of(
    schedule: str, shape: PipelineShape, gradient: int = 8, optimizer_ns: int = 0, **links: str
) -> Timeline:
    costs, network = unit_costs(UnitCosts.of(100, 200, **links), shape)
    return simulate(build_plan(schedule, shape), with_step(costs, gradient, gradient // 2, optimizer_ns), network)


def spans_of(timeline: Timeline, what: str) -> list[tuple[int, int, int, int]]:
    return [(s.device, s.stage, s.start_ns, s.end_ns) for s in timeline.synchronisation if s.what == what]


def test_one_replica_and_one_direction_end_with_the_optimizer() -> None:
    done = synchronise(timeline_of("1f1b", PipelineShape(2, 2), optimizer_ns=7))
    assert {span.what for span in done.synchronisation} == {"optimizer"}
    ends = [int(done.end_ns[done.plan.device == d].max()) for d in (0, 1)]
    assert spans_of(done, "optimizer") == [(1, -1, ends[1], ends[1] + 7), (0, -1, ends[0], ends[0] + 7)]
    assert done.makespan_ns == ends[0] + 7
    assert done.exposed_synchronisation_ns == 7


@pytest.mark.parametrize("dp", [2, 4])
def test_an_all_reduce_sends_twice_the_part_of_the_others(dp: int) -> None:
    """2(n-1)/n of 40 bytes at a byte per ns, and 2(n-1) latencies of 3 ns, from the last backward on."""
    plain = timeline_of("1f1b", PipelineShape(2, 2), gradient=40)
    done = synchronise(plain, ring(2, dp, latency_ns=3))
    took = 2 * 40 * (dp - 1) // dp + 2 * (dp - 1) * 3
    for device, stage, start, end in spans_of(done, "replicas"):
        assert device == stage
        assert start == int(plain.end_ns[plain.plan.device == device].max())
        assert end - start == took
    assert done.exposed_synchronisation_ns == took


def test_a_distributed_optimizer_scatters_updates_its_part_and_gathers() -> None:
    plain = timeline_of("1f1b", PipelineShape(2, 2), gradient=40, optimizer_ns=10)
    done = synchronise(plain, ring(2, 4), distributed_optimizer=True)
    took = {what: {end - start for *_, start, end in spans_of(done, what)} for what in ("replicas", "parameters")}
    assert took == {"replicas": {30}, "parameters": {15}}  # 3/4 of the gradients, 3/4 of half as many bytes
    assert {end - start for *_, start, end in spans_of(done, "optimizer")} == {3}  # a quarter, rounded up


def test_eager_sums_of_early_stages_hide_behind_the_last_backwards() -> None:
    """Device 0 of an interleaved plan ends stage 2 before stage 0: its sum runs beside ops, not after them."""
    plain = timeline_of("interleaved", PipelineShape(2, 4, 2), gradient=40)
    eager, late = (synchronise(plain, ring(2, 2), when) for when in ("eager", "end"))
    first = {(device, stage): start for device, stage, start, _ in spans_of(eager, "replicas")}
    assert first[0, 2] == int(plain.end_ns[(plain.plan.stage == 2) & (plain.plan.kind == Kind.B)].max())
    assert first[0, 2] < first[0, 0]
    assert (eager.exposed_synchronisation_ns, late.exposed_synchronisation_ns) == (40, 40)
    assert min(start for *_, start, _ in spans_of(late, "replicas")) == int(plain.end_ns[plain.plan.device == 1].max())


def test_copies_of_a_stage_exchange_their_gradients() -> None:
    """BitPipe: each pair of devices sums its stages both ways at once, when both copies are done."""
    plain = timeline_of("bitpipe", PipelineShape(4, 4, 2), gradient=50, transfer="4", latency="2")
    unit = plain.unit_ns
    done = synchronise(plain)
    pairs = spans_of(done, "pair")
    assert sorted(stage for device, stage, _, _ in pairs) == sorted([*range(8), *range(8)])
    plan = plain.plan
    for device, stage, start, end in pairs:
        assert device in plan.placement.device_of[:, stage]
        last = int(plain.end_ns[(plan.stage == stage) & (plan.kind == Kind.B)].max())
        assert start >= last
        assert end - start >= 50 + 2 * unit
    assert done.exposed_synchronisation_ns >= 50 + 2 * unit


def test_messages_of_the_pipeline_go_first() -> None:
    """A sum of 30 ns asked at 10 takes what messages at 15..25 and 40..60 leave of the port: 10..15, 25..40, 60..70."""
    from pipesim.synchronisation import _Ports

    plan = build_plan("gpipe", PipelineShape(2, 2))
    costs, network = unit_costs(UnitCosts.of(10, 10, transfer="10"), plan.shape)
    timeline = simulate(plan, costs, network)
    sent = np.flatnonzero(timeline.transfer_start_ns >= 0)[:2]
    begin, end = np.full(len(plan), -1), np.full(len(plan), -1)
    begin[sent], end[sent] = [15, 40], [25, 60]
    ports = _Ports(replace(timeline, transfer_start_ns=begin, transfer_end_ns=end))
    port = int(network.out_port[0, 1])
    assert ports.take((port, NO_PORT), 10, 30) == (10, 70)
    assert ports.take((port, NO_PORT), 10, 5) == (70, 75)  # the next sum waits for the first
    assert ports.take((NO_PORT, NO_PORT), 10, 5) == (10, 15)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases(), st.integers(1, 3), st.booleans(), st.booleans(), st.integers(0, 20))
def test_nothing_starts_before_what_it_needs(
    case: Case, dp: int, eager: bool, distributed: bool, gradient: int
) -> None:
    network = Network.uniform(case.plan.shape.devices, 1, RATE)
    plain = simulate(case.plan, with_step(case.costs, gradient, gradient, 3), network)
    links = ring(case.plan.shape.devices, dp, 1) if dp > 1 else None
    done = synchronise(plain, links, "eager" if eager else "end", distributed_optimizer=distributed)
    assert (done.end_ns == plain.end_ns).all()
    plan, last = plain.plan, {}
    for device in range(plan.shape.devices):
        rows = plan.device == device
        last[device] = int(plain.end_ns[rows].max(initial=0))
    sums = [span for span in done.synchronisation if span.what in ("replicas", "pair")]
    for span in done.synchronisation:
        assert span.end_ns >= span.start_ns
        if span.what == "optimizer":
            own = [s.end_ns for s in sums if s.device == span.device]
            assert span.start_ns >= max([last[span.device], *own])
    computes = (plan.kind == Kind.B) | (plan.kind == Kind.W)
    for span in sums:
        # Both copies of a stage may sit on one device; each has a span of its own.
        copies = np.flatnonzero(plan.placement.device_of[:, span.stage] == span.device)
        rows = [computes & (plan.stage == span.stage) & (plan.direction == copy) for copy in copies]
        assert span.start_ns >= min(int(plain.end_ns[row].max(initial=0)) for row in rows)
        if not eager:
            assert span.start_ns >= last[span.device]
    assert done.makespan_ns >= plain.makespan_ns


def test_mirrored_pairs_sum_inside_the_node() -> None:
    """16 devices on two nodes: side by side the copies of a stage exchange over nvlink, and wait less at the end."""
    base = Scenario(schedule="bitpipe", devices=16, microbatches=16, synchronisation="eager")
    exposed = {m: run(replace(base, mapping=m)).timeline.exposed_synchronisation_ns for m in ("linear", "mirrored")}
    assert exposed["mirrored"] < exposed["linear"]


def test_gradients_of_a_model_are_counted() -> None:
    case = Scenario(devices=8, tp=2, recompute="none").case()
    assert case.costs.step is not None
    parameters = int(case.costs.step.parameter_bytes.sum()) // 2
    model = 8_030_261_248  # llama3-8b
    norms = (2 * 32 + 1) * 4096  # counted on both GPUs of a device
    assert parameters == model + norms
    assert (case.costs.step.gradient_bytes == 2 * case.costs.step.parameter_bytes).all()


def test_costs_without_gradients_are_refused() -> None:
    plan = build_plan("1f1b", PipelineShape(2, 2))
    costs, network = unit_costs(UnitCosts.of(1, 2), plan.shape)
    with pytest.raises(InputError, match="knows no bytes of gradients"):
        synchronise(simulate(plan, costs, network))
    with pytest.raises(InputError, match="one of eager, end"):
        synchronise(timeline_of("1f1b", PipelineShape(2, 2)), when="later")


def test_synchronisation_is_in_metrics_and_trace() -> None:
    """Exposed seconds after the last op; in the trace an asynchronous event of each piece, beside the ops."""
    done = synchronise(timeline_of("1f1b", PipelineShape(2, 2), gradient=40, optimizer_ns=5), ring(2, 2))
    found = measure(done)
    assert found.exposed_synchronisation_seconds == 45 / done.unit_ns
    assert found.makespan_seconds == done.makespan_ns / done.unit_ns
    begins = [event for event in trace_events(done) if event["ph"] == "b"]
    assert sorted((event["tid"], event["name"]) for event in begins) == [
        (0, "optimizer"), (0, "replicas"), (1, "optimizer"), (1, "replicas"),
    ]  # fmt: skip
    assert {event["id"] for event in begins} == {event["id"] for event in trace_events(done) if event["ph"] == "e"}


def test_metrics_say_how_messages_went() -> None:
    plan = build_plan("1f1b", PipelineShape(2, 2))
    costs, network = unit_costs(UnitCosts.of(1, 2), plan.shape)
    names = [measure(simulate(plan, costs, network, communication=Communication.named(name))).communication
             for name in ("overlapped", "blocking", "fused", "queued")]  # fmt: skip
    assert names == [
        "overlapped",
        "blocking, producer-order",
        "fused, fused",
        "overlapped, producer-order, queue per direction",
    ]


def test_charts_show_what_follows_the_backwards() -> None:
    """A legend entry and a box for each kind, in the figure and in the page; nothing of it without."""
    pytest.importorskip("plotly")
    from pipesim.plot.html import gantt_page

    plain = timeline_of("bitpipe", PipelineShape(4, 4, 2), gradient=400, optimizer_ns=500)
    done = synchronise(plain, ring(4, 2), distributed_optimizer=True)
    assert [kind.what for kind in pieces(done)] == ["replicas", "pair", "optimizer", "parameters"]
    assert sum(len(kind.device) for kind in pieces(done)) == len(done.synchronisation)
    names = [name for name, _ in synchronisation_entries([done])]
    words = {text.get_text() for text in gantt_figure([done]).legends[0].get_texts()}
    assert set(names) <= words
    assert synchronisation_entries([plain]) == []
    assert not set(names) & {text.get_text() for text in gantt_figure([plain]).legends[0].get_texts()}
    page = gantt_page([done])
    assert all(name in page for name in names)
    assert "sum over replicas" not in gantt_page([plain])
