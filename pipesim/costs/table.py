"""The cost table: everything an engine is told about ops and messages; knows no schedule and no hardware."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipesim.units import NS_PER_S

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pipesim.plan import Plan


@dataclass(frozen=True)
class Source:
    """Where one number of a cost table comes from; `--explain` prints these."""

    what: str
    value: str
    origin: str


@dataclass(frozen=True, eq=False)
class StepCosts:
    """What follows the ops of a step: gradients to sum, parameters to spread, the optimizer; int64 [S] each.

    gradient_bytes, parameter_bytes of one copy of a stage on a whole device; optimizer_ns: updating all of it.
    """

    gradient_bytes: NDArray[np.int64]
    parameter_bytes: NDArray[np.int64]
    optimizer_ns: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CostTable:
    """Integer nanoseconds and bytes of every op; C micro-batch classes, S stages, k subsequences.

    duration_ns            int64 [5, C, S, k] by kind (F B I W R)
    activation_bytes       int64 [C, S, k]    F adds them at its start, B frees them at its end
    weight_activation_bytes int64 [C, S, k]   the part that stays from I until W
    transient_bytes        int64 [5, C, S, k] only while the op runs
    kv_bytes               int64 [C, S]       keys/values of a micro-batch, first F to last backward (0 if k = 1)
    kv_gradient_bytes      int64 [C, S]       their gradients, first backward to last (0 if k = 1)
    boundary_bytes         int64 [C, k]       message between neighbouring stages, either way
    static_bytes           int64 [S]          weights, gradients, optimizer state of one copy of a stage
    class_of_microbatch    int32 [m]          micro-batches of unequal size differ in class
    unit_ns                what one printed unit is: 10**9 for seconds
    step                   costs of gradient synchronisation and optimizer, None where they are not known
    """

    duration_ns: NDArray[np.int64]
    activation_bytes: NDArray[np.int64]
    weight_activation_bytes: NDArray[np.int64]
    transient_bytes: NDArray[np.int64]
    kv_bytes: NDArray[np.int64]
    kv_gradient_bytes: NDArray[np.int64]
    boundary_bytes: NDArray[np.int64]
    static_bytes: NDArray[np.int64]
    class_of_microbatch: NDArray[np.int32]
    name: str
    sources: tuple[Source, ...] = ()
    host_overhead_ns: int = 0
    unit_ns: int = NS_PER_S
    unit: str = "s"
    step: StepCosts | None = None

    def durations(self, plan: Plan) -> NDArray[np.int64]:
        """int64 [ops]: nanoseconds of each op of a plan, host overhead included."""
        return self._per_op(plan, self.duration_ns) + self.host_overhead_ns

    def activations(self, plan: Plan) -> NDArray[np.int64]:
        """int64 [ops]: activation bytes of each op's stage and subsequence."""
        return self._per_unit(plan, self.activation_bytes)

    def weight_activations(self, plan: Plan) -> NDArray[np.int64]:
        """int64 [ops]: the part of the activations that stays from I until W."""
        return self._per_unit(plan, self.weight_activation_bytes)

    def transients(self, plan: Plan) -> NDArray[np.int64]:
        """int64 [ops]: bytes that live only while the op runs."""
        return self._per_op(plan, self.transient_bytes)

    def messages(self, plan: Plan) -> NDArray[np.int64]:
        """int64 [ops]: bytes of the message an op would send to a neighbouring stage."""
        return self.boundary_bytes[self.class_of_microbatch[plan.microbatch], plan.subsequence]

    def static_bytes_of_devices(self, plan: Plan) -> NDArray[np.int64]:
        """int64 [devices]: static bytes of every copy of every stage a device holds."""
        held = np.zeros(plan.shape.devices, dtype=np.int64)
        for devices in plan.placement.device_of:
            np.add.at(held, devices, self.static_bytes)
        return held

    def _per_op(self, plan: Plan, table: NDArray[np.int64]) -> NDArray[np.int64]:
        return table[plan.kind, self.class_of_microbatch[plan.microbatch], plan.stage, plan.subsequence]

    def _per_unit(self, plan: Plan, table: NDArray[np.int64]) -> NDArray[np.int64]:
        return table[self.class_of_microbatch[plan.microbatch], plan.stage, plan.subsequence]
