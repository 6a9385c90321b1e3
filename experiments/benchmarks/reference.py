"""The SimPy engine on 32 devices with contended ports and memory: ops per CPU second, and whether it stays linear.

Run: python -m experiments.benchmarks.reference
"""

from __future__ import annotations

import time

from pipesim.costs.unit import UnitCosts, unit_costs
from pipesim.engine import simulate
from pipesim.memory import memory_of
from pipesim.plan import PipelineShape
from pipesim.schedules import build_plan

DEVICES = 32
MICROBATCHES = (512, 2000, 8000)
TARGET = 20_000


def ops_per_cpu_second(microbatches: int) -> tuple[int, float]:
    """Ops of a 1F1B plan, and how many of them a CPU second simulates, memory curves included."""
    shape = PipelineShape(DEVICES, microbatches)
    costs, network = unit_costs(UnitCosts.of(1, 2, latency="0.1", transfer="0.2"), shape)
    plan = build_plan("1f1b", shape)
    start = time.process_time()
    simulate(plan, costs, network, engine="reference")
    memory_of(plan, costs)
    return len(plan), len(plan) / (time.process_time() - start)


def main() -> None:
    """Prints the rates, the verdict, and the slowdown per op from the smallest to the largest plan."""
    found = [ops_per_cpu_second(m) for m in MICROBATCHES]
    for ops, rate in found:
        print(f"{ops:>8,} ops: {rate:>8,.0f} ops per CPU second")  # noqa: T201
    slowest = min(rate for _, rate in found)
    verdict = "met" if slowest >= TARGET else "MISSED"
    print(f"at least {TARGET:,}: {verdict}; per op {found[0][1] / found[-1][1]:.2f} times as long at the most")  # noqa: T201


if __name__ == "__main__":
    main()
