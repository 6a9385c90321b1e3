"""The house has one way through: a room imports only rooms above it, and heavy libraries stay out of start-up."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pipesim

HOUSE = Path(pipesim.__file__).parent
HEAVY = ("torch", "pandas", "matplotlib", "plotly", "numba", "scipy", "pydantic", "simpy", "dask", "distributed")
# From the front door to the back: a module may import what stands before it, or beside it on its own line.
FLOORS = (
    "errors units files json_files forkserver",
    "model flops cluster partition presets",
    "plan network dependencies compiled_cache cluster_network",
    "check costs.table costs.unit profile transfers",
    "costs lower communication program deadlock topology mapping",
    "schedules bounds timeline plan_csv lower.csv check_file",
    "engine memory synchronisation link_load",
    "metrics",
    "scenario jitter",
    "compare frame trace sweep search frontier plot report",
    "cli",
)


def _floor(module: str) -> int | None:
    parts = module.removeprefix("pipesim.").split(".")
    for name in (".".join(parts[:2]), parts[0], parts[0].split("_")[0]):
        for level, names in enumerate(FLOORS):
            if name in names.split():
                return level
    return None


def _imports_at_start(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        n.module for n in tree.body if isinstance(n, ast.ImportFrom) and n.module and n.module.startswith("pipesim")
    ]


def test_rooms_import_only_rooms_above_them() -> None:
    for path in sorted(HOUSE.rglob("*.py")):
        module = ".".join(path.relative_to(HOUSE.parent).with_suffix("").parts).removesuffix(".__init__")
        if module == "pipesim":
            continue
        here = _floor(module)
        assert here is not None, f"{module} stands on no floor: give it one in this test"
        for imported in _imports_at_start(path):
            there = _floor(imported) if imported != "pipesim" else 0
            assert there is not None
            assert there <= here, f"{module} imports {imported}, which stands behind it"


def test_torch_stays_in_calibration() -> None:
    for path in HOUSE.rglob("*.py"):
        assert "import torch" not in path.read_text(encoding="utf-8"), path


def test_start_up_is_light() -> None:
    code = "import sys, pipesim, pipesim.cli as c; c._mount(); print([m for m in sys.argv[1:] if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code, *HEAVY], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
