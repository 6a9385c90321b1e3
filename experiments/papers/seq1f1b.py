"""Seq1F1B (arXiv 2406.03488): throughput of the 7B model on 32 A100 (tp 8, p 4), analytic costs, untouched.

The printed numbers are those of the authors' own plot data; OOM where they ran out of memory. TFLOPS are counted
the authors' way. The layout (tp 8, p 4) is inferred from their vocabulary padding and memory granularity.
Run: python -m experiments.papers.seq1f1b
"""

from __future__ import annotations

from dataclasses import dataclass

from pipesim.flops import seq1f1b_model_flops
from pipesim.scenario import Outcome, Scenario, load_model, run

METHODS = ("1f1b", "interleaved", "seq1f1b", "seq1f1b-interleaved")
GPUS = 32


@dataclass(frozen=True)
class Row:
    """TFLOPS per GPU as printed, by method in the order of METHODS; None is out of memory or unusable."""

    seq_len: int
    microbatches: int
    printed: tuple[float | None, ...]


ROWS = (
    Row(32768, 8, (99.67, 109.55, 110.62, 97.69)),
    Row(32768, 16, (114.45, 116.46, 115.34, 95.55)),
    Row(65536, 8, (107.49, 119.96, 124.62, 117.75)),
    Row(65536, 16, (123.95, 128.70, None, 117.98)),  # the Seq1F1B cell contradicts its own tokens/s
    Row(131072, 8, (None, None, 136.72, 135.06)),
    Row(131072, 16, (None, None, 142.08, 136.58)),
)


def simulate_cell(row: Row, method: str) -> Outcome:
    """The cell of one method: k = 4 cut as the authors cut, v = 2, no recomputation, distributed optimizer."""
    scenario = Scenario(
        devices=4,
        microbatches=row.microbatches,
        stages_per_device=2,
        subsequences=4,
        model="seq1f1b-7b",
        cluster="a100",
        seq_len=row.seq_len,
        tp=8,
        partition="authors",
        recompute="none",
        distributed_optimizer=True,
    )
    return run(scenario.fitted(method))


def tflops(outcome: Outcome) -> float:
    """TFLOPS per GPU the authors' way: three forwards, embedding and softmax counted."""
    scenario = outcome.scenario
    tokens = scenario.microbatches * scenario.seq_len
    work = seq1f1b_model_flops(load_model(scenario.model), tokens, scenario.seq_len)
    return work / outcome.metrics.makespan_seconds / GPUS / 1e12


def main() -> None:
    """Prints ours beside theirs, the ratio, and whether the order of methods agrees."""
    for row in ROWS:
        found = [tflops(simulate_cell(row, method)) for method in METHODS]
        cells = [
            f"{method} {ours:6.1f} / " + (f"{theirs:6.1f} = {ours / theirs:.2f}" if theirs else "    OOM       ")
            for method, ours, theirs in zip(METHODS, found, row.printed, strict=True)
        ]
        agree = _same_order(found, row.printed)
        print(f"{row.seq_len:>7} m={row.microbatches:<3}", "  ".join(cells), f" pairs in order: {agree}")  # noqa: T201


def _same_order(found: list[float], printed: tuple[float | None, ...]) -> str:
    known = [(theirs, ours) for theirs, ours in zip(printed, found, strict=True) if theirs is not None]
    pairs = [(a, b) for i, a in enumerate(known) for b in known[i + 1 :]]
    agreeing = sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in pairs)
    return f"{agreeing} of {len(pairs)}"


if __name__ == "__main__":
    main()
