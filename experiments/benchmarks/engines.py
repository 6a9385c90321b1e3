"""Speed and memory of both engines, and of torch.distributed.pipelining where it is installed.

Run: python -m experiments.benchmarks.engines [--full]

Every measurement has a process of its own. The SimPy engine is measured up to 1M ops, torch up to 16k; --full
takes both further, which needs some minutes more.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from experiments.benchmarks.one import CUTS, WHAT, Measured

if TYPE_CHECKING:
    from collections.abc import Sequence

SIZES = (2_048, 16_384, 131_072, 1_048_576, 4_194_304)
_LIMIT = {"SimPy": 1_048_576, "SimPy with ports": 131_072, "torch": 16_384}
_FULL_LIMIT = {"SimPy": 4_194_304, "SimPy with ports": 1_048_576, "torch": 131_072}
_MB = 10**6


@dataclass(frozen=True)
class Target:
    """A number that the compiled engine must reach; `of` names the measurement."""

    text: str
    of: str
    at_ops: int
    least_per_second: float


TARGETS = (
    Target("engine alone, no contended port", "compiled", 1_048_576, 5e6),
    Target("engine alone, contended ports", "compiled with ports", 1_048_576, 2.5e6),
    Target("generate + check + simulate + metrics", "whole path", 1_048_576, 2e6),
)
_LEAST_RATIO, _MOST_BYTES = 50, 10**9

Results = dict[tuple[str, int, str], Measured]


def measure_all(*, full: bool = False) -> Results:
    """Measures everything, one process after the other; says on stderr which is next."""
    limits = _FULL_LIMIT if full else _LIMIT
    results: Results = {}
    for ops in SIZES:
        for schedule in CUTS:
            for what in WHAT:
                if ops <= limits.get(what, ops) and _applies(schedule, what):
                    sys.stderr.write(f"{schedule}, {ops} ops, {what}\n")
                    results[schedule, ops, what] = _measure(schedule, ops, what)
    return results


def _applies(schedule: str, what: str) -> bool:
    return what != "torch" or (schedule == "interleaved" and find_spec("torch") is not None)


def _measure(schedule: str, ops: int, what: str) -> Measured:
    command = [sys.executable, "-m", "experiments.benchmarks.one", schedule, str(ops), what]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return Measured(**json.loads(done.stdout))


def table(results: Results) -> str:
    """A Markdown table: ops/s of each measurement, ratio to SimPy, CPU seconds and peak memory."""
    heads = ("schedule", "ops", "compiled", "with ports", "whole path", "SimPy", "SimPy with ports", "torch", "ratio",
             "CPU s, compiled", "CPU s, SimPy", "peak MB, whole path", "peak MB, SimPy")  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for ops in SIZES:
        lines += ["| " + " | ".join(_row(results, schedule, ops)) + " |" for schedule in CUTS]
    return "\n".join(lines)


def _row(results: Results, schedule: str, ops: int) -> list[str]:
    found = {what: results.get((schedule, ops, what)) for what in WHAT}
    compiled, simpy, whole = found["compiled"], found["SimPy"], found["whole path"]
    ratio = f"{simpy.seconds / compiled.seconds:.0f}" if simpy and compiled else "-"
    return [
        schedule,
        f"{compiled.ops:,}" if compiled else "-",
        *(_rate(found[what]) for what in WHAT),
        ratio,
        f"{compiled.cpu_seconds:.4f}" if compiled else "-",
        f"{simpy.cpu_seconds:.2f}" if simpy else "-",
        f"{whole.peak_bytes / _MB:.0f}" if whole else "-",
        f"{simpy.peak_bytes / _MB:.0f}" if simpy else "-",
    ]


def _rate(measured: Measured | None) -> str:
    if measured is None:
        return "-"
    rate = measured.ops / measured.seconds
    return f"{rate / 1e6:.1f}M" if rate >= 1e6 else f"{rate / 1e3:.0f}k"


def verdicts(results: Results) -> list[str]:
    """A line per target: the number and whether it was met in every schedule."""
    lines = []
    for target in TARGETS:
        least = min(_per_second(results, schedule, target.at_ops, target.of) for schedule in CUTS)
        lines.append(_verdict(target.text, f"{least / 1e6:.1f}M ops/s", met=least >= target.least_per_second))
    ratio = min(
        results[schedule, ops, "SimPy"].seconds / results[schedule, ops, "compiled"].seconds
        for schedule, ops, what in results
        if what == "SimPy"
    )
    lines.append(_verdict(f"at least {_LEAST_RATIO} times SimPy", f"{ratio:.0f} times", met=ratio >= _LEAST_RATIO))
    peak = max(results[schedule, SIZES[-1], "whole path"].peak_bytes for schedule in CUTS)
    lines.append(_verdict(f"memory at {SIZES[-1]:,} ops", f"{peak / _MB:.0f} MB", met=peak < _MOST_BYTES))
    return lines


def _per_second(results: Results, schedule: str, ops: int, what: str) -> float:
    return results[schedule, ops, what].ops / results[schedule, ops, what].seconds


def _verdict(text: str, number: str, *, met: bool) -> str:
    return f"{text}: {number}, {'met' if met else 'MISSED'}"


def main(arguments: Sequence[str]) -> None:
    """Prints the table and the verdicts."""
    results = measure_all(full="--full" in arguments)
    sys.stdout.write("\n".join([table(results), "", *verdicts(results)]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
