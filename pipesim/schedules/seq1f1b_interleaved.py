"""Seq1F1B-I: interleaved 1F1B whose unit of work is a subsequence of a micro-batch."""

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
)
