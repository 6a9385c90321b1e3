"""Draws the pictures of the README into docs/. Run: make figures."""

from __future__ import annotations

from pathlib import Path

from pipesim.cli.options import scenario_from
from pipesim.plot import save_gantt, save_memory
from pipesim.scenario import run

DOCS = Path(__file__).parent.parent / "docs"
FOUR = ("1f1b", "interleaved", "seq1f1b", "bsipipe")


def main() -> None:
    """The four schedules on one time axis, and what a real step holds in memory."""
    base = scenario_from({"devices": 4, "microbatches": 8, "subsequences": 2, "unit_costs": "1,2"})
    save_gantt([run(base.fitted(name)).timeline for name in FOUR], DOCS / "four_schedules.png")
    real = scenario_from({"devices": 8, "microbatches": 16, "seq_len": 128 * 1024})
    outcomes = [run(real.fitted(name)) for name in ("1f1b", "seq1f1b", "bsipipe")]
    limit = outcomes[0].case.facts.memory_limit_bytes if outcomes[0].case.facts else None
    save_memory([outcome.timeline for outcome in outcomes], DOCS / "memory_128k.png", limit_bytes=limit)


if __name__ == "__main__":
    main()
