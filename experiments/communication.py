"""What sends, receives and the place of devices cost: llama3-8b on two nodes of 8 H100, as a Markdown table.

    python -m experiments.communication

A row is a schedule on one mapping; its columns are the step under each way of sending, in seconds, with the seconds
that links and rendezvous add to the same plan on free links (exposed communication) behind it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from itertools import product

from pipesim.communication import NAMES
from pipesim.engine import simulate
from pipesim.scenario import Scenario, run
from pipesim.units import format_count

SCHEDULES = ("seq1f1b", "seq1f1b-interleaved", "bsipipe")
MAPPINGS = ("linear", "mirrored", "auto")
GROUPS = ((8, 2), (16, 1))
LENGTHS = (64 * 1024, 128 * 1024)


@dataclass(frozen=True)
class Row:
    """One schedule on one mapping: seconds by way of sending."""

    scenario: Scenario
    free: float
    step: dict[str, float]
    synchronisation: float

    def cells(self) -> list[str]:
        """The cells of the table."""
        s = self.scenario
        shape = [format_count(s.seq_len), f"{s.devices}", f"{s.tp}", s.schedule, s.mapping]
        steps = [f"{self.step[name]:.2f} ({self.step[name] - self.free:+.2f})" for name in NAMES]
        return [*shape, f"{self.free:.2f}", *steps, f"{1000 * self.synchronisation:.0f}"]


def row(scenario: Scenario) -> Row:
    """Simulates one scenario on free links and under each way of sending; gradients are summed as soon as they can."""
    outcome = run(scenario)
    case, timeline = outcome.case, outcome.timeline
    free = simulate(case.plan, case.costs)
    step = {}
    for name in NAMES:
        found = replace(scenario, communication=name).timeline(case)
        step[name] = found.in_units(found.makespan_ns - found.exposed_synchronisation_ns)
    exposed = timeline.in_units(timeline.exposed_synchronisation_ns)
    return Row(scenario, free.in_units(free.makespan_ns), step, exposed)


def main() -> None:
    """Prints the table."""
    names = ["tokens", "p", "tp", "schedule", "mapping", "free links", *NAMES, "sums after, ms"]
    out = sys.stdout
    out.write("| " + " | ".join(names) + " |\n|" + "---|" * 5 + "---:|" * (len(names) - 5) + "\n")
    for length, (devices, tp), schedule, mapping in product(LENGTHS, GROUPS, SCHEDULES, MAPPINGS):
        scenario = Scenario(
            schedule=schedule, devices=devices, microbatches=2 * devices, tp=tp, seq_len=length,
            mapping=mapping, synchronisation="eager",
        )  # fmt: skip
        out.write("| " + " | ".join(row(scenario).cells()) + " |\n")
        out.flush()


if __name__ == "__main__":
    main()
