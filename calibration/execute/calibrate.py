"""Times the ops of a plan on the ranks that will run it: every (kind, size, stage, subsequence), without waits.

All ranks compute at once, round by round, so that they share caches, memory and cores as they do in a step. A round
runs one micro-batch of each size through each of a rank's stages: F up, then B (or I, then W) down the subsequences.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import distributed

from calibration.execute.bytes import StageBytes, byte_tables, sizes_of_stages
from calibration.execute.clock import clock_of, longer_ns
from calibration.execute.costs import classes_of, table, table_shape
from calibration.execute.ranks import Phase
from calibration.execute.workload import stage_data
from pipesim.network import Network
from pipesim.plan import Kind
from pipesim.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from calibration.execute.channels import Routes
    from calibration.execute.faults import RankPool
    from calibration.execute.ranks import Rank
    from calibration.execute.workload import Workload
    from calibration.layer import Stage
    from pipesim.costs.table import CostTable
    from pipesim.plan import Plan

WARM_UPS, ROUNDS, PINGS = 2, 7, 24
LOW = 0.1  # of round trips: what is above waits for the machine, not for the link

Cell = tuple[Kind, int, int, int]
"""Kind, class of micro-batch size, stage, subsequence."""


def calibrated_costs(plan: Plan, workload: Workload, pool: RankPool) -> CostTable:
    """Costs for exactly this plan on these ranks: medians of ROUNDS rounds. Raises ExecutionError."""
    timed = pool.run(time_on_rank, plan, workload, label=plan.label)
    samples: dict[Cell, list[int]] = defaultdict(list)
    for of_rank, _ in timed:
        for cell, times in of_rank.items():
            samples[cell] += times
    sizes = {cell: found for _, of_rank in timed for cell, found in of_rank.items()}
    shape = table_shape(plan, workload)
    duration = medians(samples, shape)
    name = f"{workload.model.name}, {workload.seq_len} tokens, {workload.dtype}, timed on {pool.backend} ranks"
    origin = f"median of {ROUNDS} rounds on the same ranks"
    return table(workload, duration, name, origin, **byte_tables(sizes, shape))


def measured_network(plan: Plan, routes: Routes, costs: CostTable, pool: RankPool) -> Network:
    """Latency and rate of each pair of ranks that exchanges messages, both ways alike; every device has two ports."""
    probes = _probes(costs)
    network = Network.uniform(plan.shape.devices)
    for found in pool.run(ping_on_rank, routes, probes, label=plan.label):
        for (a, b), times in found.items():
            for here, there in ((a, b), (b, a)):
                network.latency_ns[here, there], network.bytes_per_second[here, there] = _line(probes, times)
    return network


def _line(probes: Sequence[int], times_ns: Sequence[int]) -> tuple[int, int]:
    """Latency in ns and bytes per second through two points; no rate where more bytes took no more time."""
    (small, large), (small_ns, large_ns) = probes, times_ns
    if large_ns <= small_ns:
        return max(times_ns), 0
    rate = (large - small) * NS_PER_S // (large_ns - small_ns)
    return max(0, large_ns - large * NS_PER_S // max(rate, 1)), max(rate, 1)


def time_on_rank(
    rank: Rank, plan: Plan, workload: Workload
) -> tuple[dict[Cell, list[int]], dict[tuple[int, int], StageBytes]]:
    """The task: nanoseconds of each round of each cell of this rank's stages; bytes by (class, stage)."""
    stages = {s: workload.stage(s, rank.device) for s, on in _holders(plan) if rank.number in on}

    def beat() -> None:
        rank.at(Phase.PREPARING)

    return time_stages(plan, workload, stages, rank.barrier, beat), sizes_of_stages(workload, stages, beat)


def time_stages(
    plan: Plan,
    workload: Workload,
    stages: dict[int, Stage],
    before_round: Callable[[], None] = lambda: None,
    beat: Callable[[], None] = lambda: None,
) -> dict[Cell, list[int]]:
    """Nanoseconds of each round of each cell of some stages, the kinds of backward that the plan has.

    `before_round` may wait for others; `beat` says that work goes on, once a micro-batch.
    """
    splits = [split for split, kind in ((True, Kind.I), (False, Kind.B)) if (plan.kind == kind).any()]
    distinct, _ = classes_of(workload.microbatch_sizes)
    samples: dict[Cell, list[int]] = defaultdict(list)
    for n in range(WARM_UPS + ROUNDS):
        before_round()
        for number, stage in stages.items():
            for c, size in enumerate(distinct):
                for split in splits:
                    beat()
                    for cell, took in _one_microbatch(stage, workload, number, c, size, split=split):
                        if n >= WARM_UPS:
                            samples[cell].append(took)
    return dict(samples)


def medians(samples: dict[Cell, list[int]], shape: tuple[int, ...]) -> NDArray[np.int64]:
    """int64 [5, C, S, k]: the median of each cell, 0 where nothing was timed."""
    duration = np.zeros(shape, dtype=np.int64)
    for cell, times in samples.items():
        duration[cell] = round(float(np.median(times)))
    return duration


def _holders(plan: Plan) -> Iterator[tuple[int, list[int]]]:
    return enumerate(plan.placement.device_of.T.tolist())


def _one_microbatch(
    stage: Stage, workload: Workload, number: int, c: int, size: int, *, split: bool
) -> list[tuple[Cell, int]]:
    """Every op of one micro-batch of one stage, in order, with its nanoseconds."""
    clock = clock_of(stage.device)
    microbatch = stage.new_microbatch(size, workload.lengths)
    data = [stage_data(stage, size, length) for length in workload.lengths]
    clock.begin()
    marks, cells = [(clock.mark(), time.perf_counter_ns())], []

    def done(kind: Kind, j: int) -> None:
        marks.append((clock.mark(), time.perf_counter_ns()))
        cells.append((kind, c, number, j))

    for j, (x, _, targets) in enumerate(data):
        stage.forward(microbatch, j, x, targets)
        done(Kind.F, j)
    for j in reversed(range(len(data))):
        if split:
            stage.backward_input(microbatch, j, data[j][1])
            done(Kind.I, j)
            stage.backward_weight(microbatch, j)
            done(Kind.W, j)
        else:
            stage.backward(microbatch, j, data[j][1])
            done(Kind.B, j)
    return list(zip(cells, longer_ns(clock, marks).tolist(), strict=True))


def _probes(costs: CostTable) -> tuple[int, int]:
    """Two message sizes from which a latency and a rate follow."""
    largest = int(costs.boundary_bytes.max())
    smallest = int(costs.boundary_bytes.min())
    return (smallest if smallest < largest else max(1, largest // 4)), largest


def ping_on_rank(rank: Rank, routes: Routes, probes: Sequence[int]) -> dict[tuple[int, int], list[int]]:
    """The task: for each pair of neighbours in turn, half a low quantile of the round trips of each size, in ns."""
    found = {}
    for pair in sorted({(min(wire[:2]), max(wire[:2])) for wire in routes.wires}):
        group = rank.open_group(("ping", *pair), pair)
        rank.barrier()
        if rank.number in pair:
            found[pair] = [_round_trip_ns(rank, pair, group, size) // 2 for size in probes]
    return found


def _round_trip_ns(rank: Rank, pair: tuple[int, int], group: Any, size: int) -> int:
    first, (other,) = rank.number == pair[0], [n for n in pair if n != rank.number]
    tensor = torch.zeros(size, dtype=torch.uint8, device=rank.device)
    clock = clock_of(rank.device)
    clock.begin()
    marks = [clock.mark()]
    for _ in range(PINGS):
        if first:
            distributed.send(tensor, other, group=group)
        distributed.recv(tensor, other, group=group)
        if not first:
            distributed.send(tensor, other, group=group)
        marks.append(clock.mark())
    return int(np.quantile(np.diff(clock.nanoseconds(marks))[WARM_UPS:], LOW))
