"""How sends and receives behave in a simulation: modes, queues, eager messages; knows no plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from pipesim.errors import InputError
from pipesim.lower.policies import POLICIES
from pipesim.lower.steps import Action
from pipesim.plan import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pipesim.lower import LoweredPlan

Mode = Literal["overlapped", "blocking", "fused"]
MODES: tuple[Mode, ...] = ("overlapped", "blocking", "fused")
NAMES = (*MODES, "queued")
Queues = Literal["device", "direction", "peer", "channel", "none"]
QUEUES: tuple[Queues, ...] = ("device", "direction", "peer", "channel", "none")
_POLICY = {"overlapped": "producer-order", "blocking": "producer-order", "fused": "fused"}


def _choose(where: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(where, value, "no such choice", f"one of {', '.join(choices)}")


@dataclass(frozen=True)
class Communication:
    """How a device and its links go about messages.

    mode: "overlapped": a device computes on; "blocking": it is busy with each send and receive until that ends;
    "fused": blocking, with the sends and receives between two ops starting together.
    policy: where sends and receives are placed (`pipesim.lower.policies`; None: "fused" for that mode, else
    "producer-order"); depth: of "early".
    queues, overlapped only: which sends and receives wait for each other in the order of their device: those of
    one "device", of one device and "direction" (sends, receives), of one device and "peer", of one "channel"
    (peer, direction, forward or backward), or "none". None: no queues and no rendezvous, messages go when made.
    eager_bytes: messages up to this size go without waiting for their receive; None: every message waits.
    Raises InputError on a value that is none of these.
    """

    mode: Mode = "overlapped"
    policy: str | None = None
    depth: int = 1
    queues: Queues | None = None
    eager_bytes: int | None = None

    def __post_init__(self) -> None:
        _choose("communication", self.mode, MODES)
        if self.policy is not None:
            _choose("policy", self.policy, tuple(POLICIES))
        if self.queues is not None:
            _choose("queues", self.queues, QUEUES)
            if self.blocks:
                rule = f"{self.mode} devices do one thing at a time and have no queues"
                raise InputError("queues", self.queues, rule, "leave queues out, or use overlapped")

    @classmethod
    def named(cls, name: str) -> Communication:
        """A mode by name, or "queued": overlapped, with one queue for a device's sends and one for its receives."""
        _choose("--communication", name, NAMES)
        return cls(queues="direction") if name == "queued" else cls(name)  # type: ignore[arg-type]

    @property
    def blocks(self) -> bool:
        """Whether a device is busy while it communicates."""
        return self.mode != "overlapped"

    @property
    def lowers(self) -> bool:
        """Whether it takes a lowered plan to simulate this."""
        return self.blocks or self.queues is not None

    @property
    def placed(self) -> str:
        """The policy that places sends and receives."""
        return self.policy or _POLICY[self.mode]

    @property
    def name(self) -> str:
        """As shown in captions."""
        if not self.lowers:
            return self.mode
        eager = "" if self.eager_bytes is None else f", eager to {self.eager_bytes} bytes"
        queues = f", queue per {self.queues}" if self.queues else ""
        return f"{self.mode}, {self.placed}{queues}{eager}"


OVERLAPPED = Communication()


def queue_of_steps(lowered: LoweredPlan, queues: Queues | None) -> NDArray[np.int64]:
    """int64 [steps]: a number shared by the sends and receives of one queue; meaningless for COMPUTE steps."""
    p = lowered.plan.shape.devices
    device: NDArray[np.int64] = lowered.device.astype(np.int64)
    peer: NDArray[np.int64] = device * (p + 1) + lowered.peer + 1
    receives: NDArray[np.int64] = (lowered.action == Action.RECEIVE).astype(np.int64)
    if queues == "device":
        return device
    if queues == "direction":
        return device * 2 + receives
    if queues == "peer":
        return peer
    if queues == "channel":
        backward: NDArray[np.int64] = (lowered.plan.kind[lowered.row] != Kind.F).astype(np.int64)
        return (peer * 2 + receives) * 2 + backward
    return np.arange(len(lowered), dtype=np.int64)
