"""The search for a short schedule of opposing pipelines: greedy starts, then passes from both ends of time.

A schedule read backwards in time is a schedule of the mirrored problem, in which backwards are forwards and memory
freed is memory taken. Scheduling in turn from the end and from the start, each pass preferring what the one before
put latest, closes the gaps that a single greedy pass leaves (forward-backward improvement, known from project
scheduling under limited resources: Li and Willis, 1992). Knows `Problem` only: no plan, no cost table.
Deterministic: seeded, and its effort counts ops, not seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipesim.schedules._listing import NEVER, Problem, list_schedule
from pipesim.schedules._problem import by_unit, flipped, mirrored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_SEED = 2406
_OPS_TO_SCHEDULE = 6_000_000  # a second or two of compiled scheduling
_FEWEST_PASSES, _MOST_PASSES = 17, 2000
_ROUNDS, _PATIENCE = 8, 2
_FAMILY = 8
_UNBOUNDED = 1 << 40


class Start(NamedTuple):
    """A rule to begin with, and the windows of its streams; `kept`: the windows bind the later passes too."""

    rule: str
    slope: float
    extra: float
    kept: bool


# Chosen greedily from 11 rules x 33 windows x 2, each the best addition over 39 shapes (p 2-16, m 4-24, k 1-16,
# in-flight limits 1.5-8): these find all that the 726 find. Order is by what each adds.
STARTS = (
    Start("shallow backward first", 0.2, 0.75, kept=False),
    Start("shallow backward first", 0.2, 2.25, kept=True),
    Start("deep forward first", 0.25, 0.75, kept=False),
    Start("age 6", 0.15, 0, kept=True),
    Start("age 0.5", 0.2, 0.75, kept=True),
    Start("shallow backward first", 0.25, 1.5, kept=True),
    Start("old backward first", 0.15, 2.25, kept=True),
    Start("shallow backward first", 0.15, 0, kept=False),
    Start("deep forward first", 0.2, 2.25, kept=True),
    Start("deep forward first", 0.25, 2.25, kept=False),
    Start("age 6", 0.2, 2.25, kept=True),
    Start("shallow backward first", 0.25, 0, kept=False),
    Start("shallow backward first", 0.8, 0.75, kept=True),
    Start("old backward first", 0.25, 0, kept=False),
    Start("old forward first", 0.4, 0, kept=True),
)


@dataclass(frozen=True, eq=False)
class Found:
    """A complete schedule: makespan and start int64 [ops] in nanoseconds; the windows its passes obey."""

    makespan: int
    start: NDArray[np.int64]
    window: NDArray[np.int64]


@dataclass(eq=False)
class _Search:
    """The state of one search: both views of the problem, how good is good enough, and the passes left."""

    problem: Problem
    mirror: Problem
    bound: int
    passes: int
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(_SEED))

    def pass_(self, problem: Problem, priority: NDArray[np.int64], window: NDArray[np.int64]) -> Found:
        """One list scheduling; where devices get stuck, again with the guard that lets none."""
        start = np.empty(len(priority), dtype=np.int64)
        makespan = NEVER
        for guarded in (False, True):
            if makespan == NEVER:
                self.passes -= 1
                makespan = int(list_schedule(problem, priority, window, guarded, start))
        return Found(makespan, start, window)

    def round(self, found: Found, noise: int = 0) -> Found:
        """A pass from the end and one from the start; noise, in sixteenths of a nanosecond, disturbs the first."""
        problem = self.problem
        latest_first = flipped(problem, -(found.start + problem.duration)) * 16
        if noise:
            latest_first += self.random.integers(0, noise, len(latest_first))
        back = self.pass_(self.mirror, latest_first, found.window)
        from_start = back.makespan - flipped(problem, back.start) - problem.duration
        return self.pass_(problem, from_start, found.window)

    def settled(self, found: Found) -> Found:
        """The best of a few rounds, while they help."""
        best, current, idle = found, found, 0
        for _ in range(_ROUNDS):
            if self.is_over(best) or idle == _PATIENCE:
                break
            current = self.round(current)
            idle = 0 if current.makespan < best.makespan else idle + 1
            best = min(best, current, key=_makespan)
        return best

    def is_over(self, best: Found) -> bool:
        return best.makespan <= self.bound or self.passes <= 0

    def starts(self) -> Iterator[Found]:
        """The greedy starts, settled, as long as passes last."""
        everything = np.full((2, self.problem.stages), _UNBOUNDED, dtype=np.int64)
        for start in STARTS:
            window = _window(self.problem, start.slope, start.extra)
            first = self.pass_(self.problem, _priority(self.problem, start.rule), window)
            yield self.settled(Found(first.makespan, first.start, window if start.kept else everything))

    def disturbed(self, family: list[Found]) -> Found:
        """Rounds with noise over the best found so far, each replaced by what is not worse, until passes end."""
        family = sorted(family, key=_makespan)[:_FAMILY]
        best, grain = family[0], 16 * max(1, int(self.problem.duration.mean()))
        while not self.is_over(best):
            for place, member in enumerate(family):
                child = self.round(member, noise=grain << int(self.random.integers(0, 5)))
                if child.makespan <= member.makespan:
                    family[place] = child
                best = min(best, child, key=_makespan)
                if self.is_over(best):
                    break
        return best


def search(problem: Problem, bound: int) -> Found:
    """The shortest schedule found; stops early at one as short as `bound` nanoseconds.

    Always finds one where every limit holds all that a single micro-batch claims.
    """
    passes = min(max(_OPS_TO_SCHEDULE // len(problem.duration), _FEWEST_PASSES), _MOST_PASSES)
    state = _Search(problem, mirrored(problem), bound, passes)
    family: list[Found] = []
    for found in state.starts():
        family.append(found)
        if state.is_over(found):
            return min(family, key=_makespan)
    return state.disturbed(family)


def _makespan(found: Found) -> int:
    return found.makespan


def _window(problem: Problem, slope: float, extra: float) -> NDArray[np.int64]:
    """int64 [2, stages]: k-1, and `slope` for each stage still to go, and extra; never under k.

    A backward follows its forward by two passes over the stages still to go. In a steady state each stream of a
    device with four runs a unit every four (F + B), so that this is a quarter of a unit a stage, and more where
    messages wait at each.
    """
    to_go = problem.stages - np.arange(problem.stages)
    reach = np.floor(problem.subsequences - 1 + slope * to_go + extra).astype(np.int64)
    return np.tile(np.maximum(reach, problem.subsequences), (2, 1))


def _priority(problem: Problem, rule: str) -> NDArray[np.int64]:
    """int64 [ops]: a priority to begin from; small goes first."""
    role, stage, microbatch, subsequence = np.indices(by_unit(problem, problem.duration).shape)
    k, stages, unit_total = problem.subsequences, problem.stages, len(problem.duration) // (2 * problem.stages)
    place = microbatch * k + np.where(role == 1, k - 1 - subsequence, subsequence)
    depth = place - stage * unit_total  # the deepest first, of one stage the oldest
    last = 2 * stages * unit_total
    if rule == "shallow backward first":
        chosen = np.where(role == 1, stage * unit_total + place - last, depth)
    elif rule == "old backward first":
        chosen = np.where(role == 1, place - last, depth)
    elif rule == "deep forward first":
        chosen = np.where(role == 0, depth, last + place)
    elif rule == "old forward first":
        chosen = 2 * place + role
    else:  # "age w": the longest way to go, against w times the age
        to_go = np.where(role == 0, 3 * stages - stage, 2 * (stage + 1))
        chosen = np.round(4 * float(rule.split()[1]) * place).astype(np.int64) - 4 * to_go
    return np.ascontiguousarray(chosen, dtype=np.int64).reshape(-1)
