"""Zero Bubble (arXiv 2401.10241) Table 5, column 1F1B, from the measured times of its Table 9.

Run: python -m experiments.papers.zero_bubble
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from pipesim.costs.unit import UnitCosts, unit_costs
from pipesim.engine import simulate
from pipesim.metrics import measure
from pipesim.plan import PipelineShape
from pipesim.schedules import build_plan


@dataclass(frozen=True)
class Setting:
    """One row: times in milliseconds (the paper's B is the input-gradient half) and the printed bubble rate."""

    model: str
    devices: int
    microbatches: int
    forward: str
    input_gradient: str
    weight_gradient: str
    latency: str
    printed: float


SETTINGS = (
    Setting("1.5B", 8, 24, "18.522", "18.086", "9.337", "0.601", 0.2431),
    Setting("1.5B", 8, 32, "18.513", "18.086", "9.331", "0.626", 0.1985),
    Setting("1.5B", 8, 64, "18.546", "18.097", "9.321", "0.762", 0.1240),
    Setting("6.2B", 8, 24, "29.718", "29.444", "19.927", "0.527", 0.2347),
    Setting("6.2B", 8, 32, "29.802", "29.428", "19.53", "0.577", 0.1898),
    Setting("6.2B", 8, 64, "29.935", "29.621", "19.388", "0.535", 0.1091),
    Setting("14.6B", 16, 48, "11.347", "11.248", "8.132", "0.377", 0.2552),
    Setting("14.6B", 16, 64, "11.307", "11.254", "8.101", "0.379", 0.2082),
    Setting("14.6B", 16, 128, "11.325", "11.308", "8.109", "0.378", 0.1251),
    Setting("28.3B", 32, 96, "10.419", "10.207", "7.715", "0.408", 0.2646),
    Setting("28.3B", 32, 128, "10.408", "10.204", "7.703", "0.408", 0.2168),
    Setting("28.3B", 32, 256, "10.402", "10.248", "7.698", "0.46", 0.1352),
)


def bubble_rate(setting: Setting) -> float:
    """1 - m(F+B) / largest span of a device, the paper's definition, for 1F1B."""
    shape = PipelineShape(setting.devices, setting.microbatches)
    costs = UnitCosts.of(setting.forward, setting.input_gradient, setting.weight_gradient, latency=setting.latency)
    table, network = unit_costs(costs, shape)
    metrics = measure(simulate(build_plan("1f1b", shape), table, network))
    work = setting.microbatches * (costs.forward + costs.backward)
    return float(1 - work / Fraction(max(metrics.as_json()["span_seconds"])))


def main() -> None:
    """Prints our rate beside the printed one for every setting."""
    for setting in SETTINGS:
        found = bubble_rate(setting)
        verdict = "reproduced" if round(found, 4) == setting.printed else "MISSED"
        line = f"{setting.model:>6} p={setting.devices:<3} m={setting.microbatches:<4}"
        print(f"{line} {found:.4f} printed {setting.printed:.4f} {verdict}")  # noqa: T201


if __name__ == "__main__":
    main()
