"""GPipe: all forwards, then all backwards.

p=4 m=4 F=1 B=2:

    0 F0- F1- F2- F3- .   .   .   .   .   .   .   .   .   B0----- B1----- B2----- B3-----
    1 .   F0- F1- F2- F3- .   .   .   .   .   .   B0----- B1----- B2----- B3----- .   .
    2 .   .   F0- F1- F2- F3- .   .   .   B0----- B1----- B2----- B3----- .   .   .   .
    3 .   .   .   F0- F1- F2- F3- B0----- B1----- B2----- B3----- .   .   .   .   .   .
"""

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
