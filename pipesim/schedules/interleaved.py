"""Interleaved 1F1B: v smaller stages on each device, so that warm-up and cool-down cost 1/v.

p=4 m=4 v=2 F=1 B=2:

    0 F0 F1 F2 F3 f0 f1 f2 f3 .  .  .  .  .  .  b0--- .  b1--- .  b2--- .  b3--- B0--- B1--- B2--- B3---
    1 .  F0 F1 F2 F3 f0 f1 f2 f3 .  .  .  b0--- .  b1--- .  b2--- .  b3--- B0--- B1--- B2--- B3--- .  .
    2 .  .  F0 F1 F2 F3 f0 f1 f2 .  b0--- f3 b1--- .  b2--- .  b3--- B0--- B1--- B2--- B3--- .  .  .  .
    3 .  .  .  F0 F1 F2 F3 f0 b0--- f1 b1--- f2 b2--- f3 b3--- B0--- B1--- B2--- B3--- .  .  .  .  .  .

Capital letters are ops of the device's first stage, small ones of its second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipesim.schedules import Schedule
from pipesim.schedules._order import looped_plan

if TYPE_CHECKING:
    from pipesim.plan import PipelineShape, Plan


def generate(shape: PipelineShape) -> Plan:
    """1F1B over groups of about p micro-batches that pass all v stages of a device one after the other.

    Any m: where p divides m this is Megatron's order with warm-up (v-1)p + 2(p-r-1); elsewhere the groups differ
    by at most one micro-batch and the warm-up is the least legal one.
    """
    return looped_plan("interleaved", shape)


SCHEDULE = Schedule(
    name="interleaved",
    title="interleaved one forward, one backward",
    published=2021,
    source="Narayanan et al., Megatron-LM, arXiv 2104.04473, section 2.2.2",
    generate=generate,
    defaults={"stages_per_device": 2},
    note="Megatron-LM and torch refuse a number of micro-batches that p does not divide; the order here is ours",
    note_applies=lambda shape: shape.microbatches % shape.devices != 0,
)
