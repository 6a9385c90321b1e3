"""What an engine is told about links: latency, bandwidth and the shared ports of every pair of devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipesim.units import NS_PER_S

if TYPE_CHECKING:
    from numpy.typing import NDArray

NO_PORT = -1
_LARGEST_IN_INT64 = (2**63 - 1) // NS_PER_S


@dataclass(frozen=True, eq=False)
class Network:
    """Links between p devices.

    latency_ns int64 [p, p]; bytes_per_second int64 [p, p], 0 = takes no time;
    out_port, in_port int32 [p, p]: the port a message leaves and enters by (NO_PORT = never contended);
    port_names [ports]; link_kinds [p][p], e.g. "nvlink" or "network".
    """

    latency_ns: NDArray[np.int64]
    bytes_per_second: NDArray[np.int64]
    out_port: NDArray[np.int32]
    in_port: NDArray[np.int32]
    port_names: tuple[str, ...] = ()
    link_kinds: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def uniform(cls, devices: int, latency_ns: int = 0, bytes_per_second: int = 0) -> Network:
        """Every device has one outgoing and one incoming port, all pairs are alike; the default is free."""
        square = (devices, devices)
        here = np.arange(devices, dtype=np.int32)
        names = [f"{way} of device {d}" for way in ("out", "in") for d in range(devices)]
        return cls(
            np.full(square, latency_ns, dtype=np.int64),
            np.full(square, bytes_per_second, dtype=np.int64),
            np.broadcast_to(here[:, np.newaxis], square).copy(),
            np.broadcast_to(here[np.newaxis, :] + devices, square).astype(np.int32),
            tuple(names),
            (("link",) * devices,) * devices,
        )

    @property
    def devices(self) -> int:
        """How many devices it joins."""
        return int(self.latency_ns.shape[0])

    def hold_ns(
        self, size_bytes: NDArray[np.int64], source: NDArray[np.int32], destination: NDArray[np.int32]
    ) -> NDArray[np.int64]:
        """int64 [messages]: how long each message keeps its ports, rounded up to a nanosecond."""
        rate = self.bytes_per_second[source, destination]
        wide = len(size_bytes) > 0 and int(size_bytes.max()) > _LARGEST_IN_INT64
        exact = size_bytes.astype(object) if wide else size_bytes
        held = -(-(exact * NS_PER_S) // np.maximum(rate, 1))
        return np.where(rate > 0, held, 0).astype(np.int64)


@dataclass(frozen=True, eq=False)
class ReplicaLinks:
    """The ring of each device's data-parallel replicas, [p] each; dp = 1: there is none.

    bytes_per_second int64: the slowest link of the ring; latency_ns int64; out_port, in_port int32: ports of the
    pipeline's network that the ring uses too, NO_PORT where it meets no message of the pipeline.
    """

    dp: int
    bytes_per_second: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    out_port: NDArray[np.int32]
    in_port: NDArray[np.int32]

    @classmethod
    def none(cls, devices: int) -> ReplicaLinks:
        """One replica only."""
        nothing, nowhere = np.zeros(devices, dtype=np.int64), np.full(devices, NO_PORT, dtype=np.int32)
        return cls(1, nothing, nothing, nowhere, nowhere)
