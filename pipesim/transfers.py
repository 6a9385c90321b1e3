"""Which op's message goes to which op on another device; knows no times and no links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipesim.dependencies import ABSENT, producers, remote_producers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pipesim.plan import Plan


@dataclass(frozen=True)
class Transfers:
    """The messages between devices, in order of receiver: rows of the plan, int64 [transfers] each."""

    sender: NDArray[np.int64]
    receiver: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.sender)


def transfers_of(plan: Plan) -> Transfers:
    """Every message of a legal plan."""
    remote = remote_producers(plan, producers(plan))
    receiver = np.flatnonzero(remote != ABSENT)
    return Transfers(remote[receiver].astype(np.int64), receiver)
