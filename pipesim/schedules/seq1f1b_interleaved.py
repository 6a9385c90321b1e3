"""Seq1F1B-I: interleaved 1F1B whose unit of work is a subsequence of a micro-batch.

p=4 m=2 v=2 k=2 F=1 B=2:

    0 F0 F1 F2 F3 f0 f1 f2 f3 .  .  .  .  .  .  .  b1--- .  b0--- .  b3--- b2--- B1--- B0--- B3--- B2---
    1 .  F0 F1 F2 F3 f0 f1 f2 f3 .  .  .  .  b1--- .  b0--- .  b3--- b2--- B1--- B0--- B3--- B2--- .  .
    2 .  .  F0 F1 F2 F3 f0 f1 f2 f3 .  b1--- .  b0--- .  b3--- b2--- B1--- B0--- B3--- B2--- .  .  .  .
    3 .  .  .  F0 F1 F2 F3 f0 f1 b1--- f2 b0--- f3 b3--- b2--- B1--- B0--- B3--- B2--- .  .  .  .  .  .

Numbers are units (F3: micro-batch 1, subsequence 1), small letters the device's second stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipesim.schedules import Schedule
from pipesim.schedules._order import looped_plan

if TYPE_CHECKING:
    from pipesim.plan import PipelineShape, Plan


def generate(shape: PipelineShape) -> Plan:
    """The interleaved order over subsequences, in groups of about p subsequences, for every m, v and k.

    Where p divides mk and k <= p the warm-up is the authors' (v-1)p + 2(p-r-1) + k-1; elsewhere their formula
    deadlocks and the least legal warm-up is taken. With k = 1 it is interleaved 1F1B, op for op.
    """
    return looped_plan("seq1f1b-interleaved", shape)


SCHEDULE = Schedule(
    name="seq1f1b-interleaved",
    title="interleaved one forward, one backward over subsequences",
    published=2024,
    source="Sun et al., Seq1F1B, arXiv 2406.03488, section 3.3 (Seq1F1B-I); their code, not their figure",
    generate=generate,
    defaults={"stages_per_device": 2, "subsequences": 4},
    note="the authors' warm-up deadlocks where a group cuts a micro-batch or k > p; the order here is ours there",
    note_applies=lambda shape: shape.units % shape.devices != 0 or shape.subsequences > shape.devices,
)
