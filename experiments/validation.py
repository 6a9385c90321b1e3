"""Predicted against executed, on two ranks of this machine's CPU: four schedules of the tiny model.

Each is timed op by op, simulated, then executed five times; claims: median makespan within 10 %, no op out of order.
Two quiet cores are needed; `load` is the one-minute average before each schedule. The spread beside each error
is how far apart the executed steps are among themselves; the replay error is what remains with the executed
durations in place of the predicted ones.
Run: python -m experiments.validation [FOLDER for a picture of each]
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from calibration.execute.commands import Files
from calibration.execute.faults import RankPool
from calibration.execute.options import Choices
from calibration.validate import Validation, validate

DEVICES, MICROBATCHES = 2, 4
CASES = {
    "seq1f1b": {"subsequences": 4},
    "1f1b": {},
    "interleaved": {"stages_per_device": 2},
    "bsipipe": {"subsequences": 4},
}


@dataclass(frozen=True)
class Row:
    """One schedule's outcome."""

    schedule: str
    load: float
    validation: Validation

    @property
    def spread(self) -> float:
        """(slowest - fastest) / median of the executed steps."""
        steps = self.validation.comparison.makespans_measured_seconds
        return (max(steps) - min(steps)) / self.validation.comparison.makespan_measured_seconds

    def as_markdown(self) -> str:
        """A row of the table in README.md."""
        c = self.validation.comparison
        cells = (
            self.schedule,
            f"{1e3 * c.makespan_predicted_seconds:.0f} ms",
            f"{1e3 * c.makespan_measured_seconds:.0f} ms",
            f"{c.makespan_error:+.1%}",
            f"{self.spread:.1%}",
            f"{c.replay_error:+.1%}",
            f"{c.start_error.median:.1%} / {c.start_error.p90:.1%}",
            f"{c.duration_error.median:.1%} / {c.duration_error.p90:.1%}",
            str(len(c.order_violations)),
            f"{c.bubble_fraction_predicted:.1%} / {c.bubble_fraction_measured:.1%}",
            " ".join(f"{error:+.1%}" for error in c.memory_errors),
            f"{self.load:.1f}",
        )
        return f"| {' | '.join(cells)} |"


HEADINGS = (
    "schedule",
    "predicted",
    "executed",
    "error",
    "steps' spread",
    "replay error",
    "op start, median / p90",
    "op duration, median / p90",
    "out of order",
    "bubble, predicted / executed",
    "memory error by device",
    "load",
)


def validated(schedule: str, pool: RankPool) -> Row:
    """Predicts and executes one schedule."""
    values = {"devices": DEVICES, "microbatches": MICROBATCHES, "model": "tiny", **CASES[schedule]}
    choices = Choices.of(values, schedule)
    plan = choices.plan()
    load = os.getloadavg()[0]
    return Row(schedule, load, validate(plan, choices.workload(plan.shape), pool))


def main(folder: Path | None = None) -> None:
    """Prints the table; with a folder, draws each prediction above its execution."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|" + "---|" * len(HEADINGS)]
    with RankPool(DEVICES) as pool:
        for schedule in CASES:
            row = validated(schedule, pool)
            lines.append(row.as_markdown())
            if folder is not None:
                found = row.validation
                pair = [found.predicted, found.execution.timeline]
                Files(gantt=folder / f"validation_{schedule}.png").write(pair)
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
