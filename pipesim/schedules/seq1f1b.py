"""Seq1F1B: 1F1B whose unit of work is a subsequence of a micro-batch.

p=4 m=4 k=2 F=1 B=2:

    0 F0 F1 F2 F3 F4 .  .  .  .  .  .  B1--- F5 B0--- F6 B3--- F7 B2--- .  B5--- .  B4--- .  B7--- B6---
    1 .  F0 F1 F2 F3 .  .  .  .  B1--- F4 B0--- F5 B3--- F6 B2--- F7 B5--- .  B4--- .  B7--- B6--- .  .
    2 .  .  F0 F1 F2 .  .  B1--- F3 B0--- F4 B3--- F5 B2--- F6 B5--- F7 B4--- .  B7--- B6--- .  .  .  .
    3 .  .  .  F0 F1 B1--- F2 B0--- F3 B3--- F4 B2--- F5 B5--- F6 B4--- F7 B7--- B6--- .  .  .  .  .  .

Numbers are units: F5 is the forward of micro-batch 2, subsequence 1.
"""

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
