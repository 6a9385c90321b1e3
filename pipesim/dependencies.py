"""What each op needs before it may start, written once; knows no time and no links.

    F(s,i,j)      needs F(s-1,i,j) and F(s,i,j-1)
    B or I (s,i,j) needs F(s,i,j) (its recomputation R where there is one), B/I(s+1,i,j) and B/I(s,i,j+1)
    R(s,i,j)      needs F(s,i,j)
    W(s,i,j)      needs I(s,i,j)

i is the micro-batch, j the subsequence. Later subsequences read the keys and values of earlier ones, so the
backward of a micro-batch runs from its last subsequence to its first. Only the neighbour stage can be on
another device: an op has at most one remote producer and at most one transfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipesim.plan import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pipesim.plan import Plan

ABSENT = -1
FORWARD, BACKWARD, WEIGHT, RECOMPUTE = range(4)
ROLE_OF_KIND = np.array([FORWARD, BACKWARD, BACKWARD, WEIGHT, RECOMPUTE], dtype=np.int8)


@dataclass(frozen=True)
class Producers:
    """The rows each row needs, int32 [ops] each, ABSENT where there is none.

    own: same stage and unit (B after F or R, W after I); stage: the neighbour stage; sequence: the neighbour
    subsequence.
    """

    own: NDArray[np.int32]
    stage: NDArray[np.int32]
    sequence: NDArray[np.int32]

    def of(self, row: int) -> list[int]:
        """The rows one row needs."""
        needed = (int(self.own[row]), int(self.stage[row]), int(self.sequence[row]))
        return [producer for producer in needed if producer != ABSENT]


def unit_keys(plan: Plan) -> NDArray[np.int64]:
    """int64 [ops]: (stage·m + micro-batch)·k + subsequence, the cell of each op in a dense table."""
    shape = plan.shape
    key = plan.stage.astype(np.int64)
    key *= shape.microbatches
    key += plan.microbatch
    key *= shape.subsequences
    key += plan.subsequence
    return key


def row_tables(plan: Plan, keys: NDArray[np.int64]) -> dict[int, NDArray[np.int32]]:
    """For each role present in the plan, int32 [stages·m·k]: the row that plays it in each cell."""
    cells = plan.shape.stages * plan.shape.units
    roles = ROLE_OF_KIND[plan.kind]
    tables = {}
    for role in (FORWARD, BACKWARD, WEIGHT, RECOMPUTE):
        rows = np.flatnonzero(roles == role)
        if len(rows) or role in (FORWARD, BACKWARD):
            tables[role] = np.full(cells, ABSENT, dtype=np.int32)
            tables[role][keys[rows]] = rows
    return tables


def producers(plan: Plan) -> Producers:
    """The rows each op needs. The plan's ops must lie within its shape (see `check`)."""
    keys = unit_keys(plan)
    tables = row_tables(plan, keys)
    result = Producers(*(np.full(len(plan), ABSENT, dtype=np.int32) for _ in range(3)))
    stride = plan.shape.units
    last_stage, last_subsequence = plan.shape.stages - 1, plan.shape.subsequences - 1

    def look_up(into: NDArray[np.int32], rows: NDArray[np.int64], role: int, offset: int) -> None:
        into[rows] = tables[role][keys[rows] + offset]

    forward = np.flatnonzero(plan.kind == Kind.F)
    look_up(result.stage, forward[plan.stage[forward] > 0], FORWARD, -stride)
    look_up(result.sequence, forward[plan.subsequence[forward] > 0], FORWARD, -1)

    backward = np.flatnonzero((plan.kind == Kind.B) | (plan.kind == Kind.I))
    look_up(result.own, backward, FORWARD, 0)
    look_up(result.stage, backward[plan.stage[backward] < last_stage], BACKWARD, stride)
    look_up(result.sequence, backward[plan.subsequence[backward] < last_subsequence], BACKWARD, 1)

    if RECOMPUTE in tables:
        recomputed = backward[tables[RECOMPUTE][keys[backward]] != ABSENT]
        look_up(result.own, recomputed, RECOMPUTE, 0)
        look_up(result.own, np.flatnonzero(plan.kind == Kind.R), FORWARD, 0)
    if WEIGHT in tables:
        look_up(result.own, np.flatnonzero(plan.kind == Kind.W), BACKWARD, 0)
    return result


def remote_producers(plan: Plan, needs: Producers) -> NDArray[np.int32]:
    """int32 [ops]: the row on another device whose transfer each op waits for, ABSENT where there is none."""
    there = needs.stage != ABSENT
    remote = there & (plan.device[needs.stage] != plan.device)
    return np.where(remote, needs.stage, ABSENT).astype(np.int32)


def neighbour_stage(kind: Kind, stage: int) -> int:
    """The stage that receives the output of an op: one up for a forward, one down for a backward."""
    return stage + 1 if kind == Kind.F else stage - 1
