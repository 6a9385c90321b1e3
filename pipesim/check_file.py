"""Is a plan file legal, and can its sends and receives hang? Knows no costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipesim.check import check_plan
from pipesim.deadlock import BLOCKING, check_deadlock
from pipesim.errors import MessageOrderError, PlanError
from pipesim.lower import LoweredPlan
from pipesim.lower.check import check_lowered, check_order
from pipesim.lower.csv import read_plan_or_lowered

if TYPE_CHECKING:
    from pathlib import Path

    from pipesim.communication import Communication
    from pipesim.plan import Plan


def check_file(path: Path, communication: Communication = BLOCKING) -> str:
    """Checks a plan file, its sends and receives where it has any, and says what it holds.

    Raises FileError where it cannot be read, PlanError (DeadlockError with the cycle) with everything wrong.
    """
    found = read_plan_or_lowered(path)
    if not isinstance(found, LoweredPlan):
        check_plan(found)
        return f"{path}: legal: {_counts(found)}"
    _check_both(found, communication)
    messages = sum(len(channel.sent) for channel in found.channels())
    return f"{path}: legal: {_counts(found.plan)}, {messages} messages; {_order(found)}"


def _check_both(lowered: LoweredPlan, communication: Communication) -> None:
    """Sends and receives first: a plan cut short to show how it hangs also lacks ops."""
    try:
        check_lowered(lowered)
        check_deadlock(lowered, communication)
    except PlanError as first:
        try:
            check_plan(lowered.plan)
        except PlanError as second:
            raise type(first)(f"{first}\n{second}") from None
        raise
    check_plan(lowered.plan)


def _order(lowered: LoweredPlan) -> str:
    try:
        check_order(lowered)
    except MessageOrderError as error:
        return f"needs tags: {error}"
    return "both ends of every wire keep one order, no tags needed"


def _counts(plan: Plan) -> str:
    shape = plan.shape
    return (
        f"{len(plan)} ops, {shape.devices} devices, {shape.stages} stages, "
        f"{shape.microbatches} micro-batches, {shape.subsequences} subsequences"
    )
