"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipesim.schedules import Schedule
from pipesim.schedules._order import one_stage_plan

if TYPE_CHECKING:
    from pipesim.plan import PipelineShape, Plan


def generate(shape: PipelineShape) -> Plan:
    """m forwards, then m backwards in the same order of micro-batches."""
    return one_stage_plan("gpipe", shape, lambda device: shape.units)


SCHEDULE = Schedule(
    name="gpipe",
    title="all forwards, then all backwards",
    published=2018,
    source="Huang et al., GPipe, arXiv 1811.06965, section 2.3",
    generate=generate,
)
