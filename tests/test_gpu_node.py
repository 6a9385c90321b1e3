"""The script for a GPU node: every part of its smoke run works, and a part that fails loses no other."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from calibration import gpu_node  # noqa: E402  (torch may be missing)
from calibration import measure as measuring  # noqa: E402
from pipesim.profile import read_profile  # noqa: E402
from tests.calibrating import StepClock  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def counting_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several wait for each other where the machine has other work
    for module in (gpu_node, measuring):
        monkeypatch.setattr(module, "clock_of", lambda *_: StepClock())
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_the_smoke_run_does_every_part(tmp_path: Path) -> None:
    said: list[str] = []
    node = gpu_node.smoke_run(tmp_path)
    record = gpu_node.run(replace(node, seconds=1e9), said.append)
    assert json.loads((tmp_path / "gpu_node.json").read_text(encoding="utf-8")) == record
    assert [line.split(":")[0] for line in said] == list(gpu_node.PARTS)
    assert [record[name]["failed"] for name in gpu_node.PARTS if "failed" in record[name]] == []
    flash = [row for row in record["attention"]["rows"] if row["backend"] == "flash"]
    assert [row["prefix"] for row in flash] == [0, 96]
    assert max(row["relative_error"] for row in flash) < 1e-5
    assert record["attention"]["prefix_slowdown"]["flash"] > 0
    for cut in ("even", "unequal"):
        assert record["numerics"][cut]["loss_error"] < 1e-5
        assert record["numerics"][cut]["worst_gradient_error"] < 1e-4
    found = read_profile(tmp_path / "smoke-tiny.json")
    assert found.tensor_parallel == (1, 2)
    assert found.notes == []
    assert found.links.origin == "given"
    assert "one cpu device" in found.links.note


def test_a_failing_part_is_recorded_and_the_rest_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []

    def fails(*_: Any) -> dict[str, Any]:
        raise RuntimeError("no such kernel")

    def last(*_: Any) -> dict[str, Any]:
        seen.append(set(json.loads((tmp_path / "gpu_node.json").read_text(encoding="utf-8"))))
        return {"ran": True}

    monkeypatch.setattr(gpu_node, "PARTS", {"environment": gpu_node.environment, "attention": fails, "grids": last})
    record = gpu_node.run(gpu_node.smoke_run(tmp_path))
    assert record["attention"]["failed"] == "RuntimeError: no such kernel"
    assert record["grids"]["ran"] is True
    assert {"environment", "attention"} <= seen[0]  # each part is on the disk before the next begins


def test_a_wrong_backend_would_be_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Attention with the mask in the other corner: right without a prefix, wrong behind one."""

    def upper_left(q: Any, k: Any, v: Any) -> Any:
        return (
            torch.nn.functional.scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
            )
            .transpose(1, 2)
            .flatten(2)
        )

    monkeypatch.setattr(gpu_node, "attend", upper_left)
    rows = gpu_node.attention(gpu_node.smoke_run(tmp_path), 1.0)["rows"]
    errors = {row["prefix"]: row["relative_error"] for row in rows if row["backend"] == "math"}
    assert errors[0] < 1e-5
    assert errors[96] > 0.1


def test_the_real_run_measures_both_models_and_both_shares(tmp_path: Path) -> None:
    node = gpu_node.gpu_run(tmp_path, 7.5)
    names = {settings.model.name: settings for _, settings in node.grids}
    assert set(names) == {"llama3-8b", "seq1f1b-7b"}
    for settings in names.values():
        assert settings.tps == (1, 8)
        assert (settings.device, settings.dtype, settings.backend) == ("cuda", "bfloat16", "flash")
        assert any(point.held_out for point in settings.points())
    assert node.seconds < 480
    assert node.seconds - node.reserved < 360
