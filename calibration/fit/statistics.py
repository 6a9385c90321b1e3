"""From raw samples to a number and whether to trust it; pure, knows neither torch nor models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipesim.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

SPREAD_LIMIT = 1.3
DRIFT_LIMIT = 0.05


@dataclass(frozen=True)
class Summary:
    """Samples without their warm-ups, in the order they were taken."""

    median: float
    p10: float
    p90: float
    drift: float

    @property
    def spread(self) -> float:
        """p90 / median."""
        return self.p90 / self.median

    @property
    def complaints(self) -> list[str]:
        """Why not to trust the median; empty if nothing speaks against it."""
        found = []
        if self.spread > SPREAD_LIMIT:
            found.append(f"spread {self.spread:.2f} is above {SPREAD_LIMIT}")
        if abs(self.drift) > DRIFT_LIMIT:
            found.append(f"drift {self.drift:+.1%} is beyond {DRIFT_LIMIT:.0%}")
        return found


def without_warm_ups(visits: Sequence[Sequence[float]], warm_ups: int, what: str) -> list[float]:
    """The samples of all visits, each without its first `warm_ups`; InputError if a visit has no more than those."""
    for visit in visits:
        if len(visit) <= warm_ups:
            rule = f"must be more than the {warm_ups} warm-ups"
            raise InputError(f"samples of {what}", len(visit), rule, "measure more repetitions")
    kept = [value for visit in visits for value in visit[warm_ups:]]
    if not kept:
        raise InputError(f"samples of {what}", "none", "nothing is left to take a median of", "measure again")
    return kept


def drift(series: Sequence[float]) -> float:
    """How much longer the later half took, by medians: +0.15 is 15 % slower; 0 for fewer than two samples."""
    half = len(series) // 2
    if half == 0:
        return 0.0
    return float(np.median(series[-half:]) / np.median(series[:half]) - 1.0)


def summarise(visits: Sequence[Sequence[float]], warm_ups: int, what: str) -> Summary:
    """Median, 10 % and 90 % quantiles and drift. Raises InputError when too few samples are there."""
    kept = without_warm_ups(visits, warm_ups, what)
    p10, median, p90 = np.quantile(kept, [0.1, 0.5, 0.9])
    return Summary(float(median), float(p10), float(p90), drift(kept))
