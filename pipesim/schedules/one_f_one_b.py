"""1F1B: after a short warm-up every device alternates one forward and one backward.

p=4 m=4 F=1 B=2:

    0 F0- F1- F2- F3- .   .   .   .   .   .   B0----- .   B1----- .   B2----- .   B3-----
    1 .   F0- F1- F2- .   .   .   .   B0----- F3- B1----- .   B2----- .   B3----- .   .
    2 .   .   F0- F1- .   .   B0----- F2- B1----- F3- B2----- .   B3----- .   .   .   .
    3 .   .   .   F0- B0----- F1- B1----- F2- B2----- F3- B3----- .   .   .   .   .   .
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipesim.schedules import Schedule
from pipesim.schedules._order import one_stage_plan

if TYPE_CHECKING:
    from pipesim.plan import PipelineShape, Plan


def generate(shape: PipelineShape) -> Plan:
    """Warm-up of min(p-r-1, m) forwards on device r, then (F, B) pairs, then the remaining backwards."""
    return one_stage_plan("1f1b", shape, lambda device: shape.devices - device - 1)


SCHEDULE = Schedule(
    name="1f1b",
    title="one forward, one backward",
    published=2020,
    source="Narayanan et al., PipeDream-Flush, arXiv 2006.09503; Megatron-LM, arXiv 2104.04473, section 2.2.1",
    generate=generate,
)
