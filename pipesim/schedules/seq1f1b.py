"""Seq1F1B: 1F1B whose unit of work is a subsequence of a micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipesim.schedules import Schedule
from pipesim.schedules._order import one_stage_plan

if TYPE_CHECKING:
    from pipesim.plan import PipelineShape, Plan


def generate(shape: PipelineShape) -> Plan:
    """Warm-up of min(p-r-2+k, mk) forwards on device r, then pairs; backward runs each micro-batch's subsequences
    from the last to the first. With k = 1 it is 1F1B, op for op."""
    return one_stage_plan("seq1f1b", shape, lambda device: shape.devices - device - 2 + shape.subsequences)


SCHEDULE = Schedule(
    name="seq1f1b",
    title="one forward, one backward over subsequences",
    published=2024,
    source="Sun et al., Seq1F1B, arXiv 2406.03488, section 3.2",
    generate=generate,
    defaults={"subsequences": 4},
)
