"""Profile files: what is written is read back, what is wrong is refused in one line, models are matched by shape."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest

from calibration.fit.show import held_out, save_plot, shown, shown_json, summary
from pipesim.errors import FileError, InputError
from pipesim.model import preset
from pipesim.profile import CalibrationProfile, as_json, read_profile, write_json, write_profile
from tests.calibrating import MODEL, law, profile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from calibration.grid import Point


@pytest.fixture(scope="module")
def found() -> CalibrationProfile:
    return profile()


def test_a_profile_is_read_back_as_it_was(found: CalibrationProfile, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    write_profile(found, path)
    assert read_profile(path) == found
    assert read_profile(path).model == MODEL


def test_a_changed_file_is_read_again(found: CalibrationProfile, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    write_profile(found, path)
    read_profile(path)
    write_profile(found.model_copy(update={"notes": ["another"]}), path)
    assert read_profile(path).notes == ["another"]


def test_each_record_has_a_line_of_its_own(found: CalibrationProfile, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    write_profile(found, path)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert sum('"p90_seconds"' in line for line in lines) == len(found.times)
    assert sum(line.startswith(' "provenance":') for line in lines) == 1


def test_writing_a_nan_fails_and_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json({"x": float("nan")}, path)
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def change(data: dict[str, Any], place: str, value: Any) -> None:
    """Set, or with `...` delete, the field at a dotted place."""
    *path, last = place.split(".")
    at: Any = data
    for key in path:
        at = at[int(key)] if isinstance(at, list) else at[key]
    if value is ...:
        del at[last]
    else:
        at[int(last) if isinstance(at, list) else last] = value


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("times.0.seconds", -0.001, r"times\.0\.seconds: -0\.001: must be greater than 0"),
        ("samples.3.seconds.0.1", -1.0, r"samples\.3\.seconds\.0\.1: -1\.0: must be greater than 0"),
        ("times.0.seconds", 0, r"times\.0\.seconds: 0: must be greater than 0"),
        ("fits.0.b", -1e-9, r"fits\.0\.b: -1e-09: must be greater than or equal to 0"),
        ("memory.0.activation", -1, r"memory\.0\.activation: -1: must be greater than or equal to 0"),
        ("times.0.tokens", 1.5, r"times\.0\.tokens: 1\.5: must be a valid integer"),
        ("times.0.stable", "yes", r"times\.0\.stable: \"yes\": must be a valid boolean"),
        ("schema_version", 2, r"schema_version: 2: must be 1, the version this pipesim reads"),
        ("schema_version", ..., r"schema_version: missing: must be 1"),
        ("provenance.device", ..., r"provenance\.device: missing: is required"),
        ("provenance.git_commit", ..., r"provenance\.git_commit: missing: is required"),
        ("provenance.date", "", r"provenance\.date: \"\": String should have at least 1 character"),
        ("time_unit", "ms", r"time_unit: \"ms\": must be 's'"),
        ("size_unit", "MB", r"size_unit: \"MB\": must be 'byte'"),
        ("clock", "sundial", r"clock: \"sundial\": must be 'thread CPU time'"),
        ("stability", ..., r"stability: missing: is required"),
        ("model.hidden", 0, r"model\.hidden: 0: must be at least 1"),
        ("extra", 1, r"extra: 1: is not a field of this file"),
        ("times", [], r"must hold at least one time of a layer's F"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(
    found: CalibrationProfile, tmp_path: Path, place: str, value: Any, message: str
) -> None:
    data, path = as_json(found), tmp_path / "p.json"
    change(data, place, value)
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(FileError, match=message) as refused:
        read_profile(path)
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_a_nan_in_a_file_is_refused(found: CalibrationProfile, tmp_path: Path, word: str) -> None:
    data, path = as_json(found), tmp_path / "p.json"
    change(data, "times.0.seconds", "HERE")
    path.write_text(json.dumps(data).replace('"HERE"', word), encoding="utf-8")
    with pytest.raises(FileError, match=f"{word} is not a JSON number"):
        read_profile(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "nonsense"])
def test_what_is_no_profile_at_all_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FileError, match=r"p\.json"):
        read_profile(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        read_profile(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [("hidden", 128), ("heads", 8), ("kv_heads", 4), ("head_size", 32), ("feedforward", 97), ("vocab", 129),
     ("activation", "gelu"), ("norm", "layernorm"), ("position", "learned"), ("qk_norm", True),
     ("attention_bias", True), ("parallel_residual", True)],
)  # fmt: skip
def test_another_models_shapes_are_refused_in_one_line(found: CalibrationProfile, field: str, value: Any) -> None:
    extra = {"max_positions": 4096} if field == "position" else {}
    other = replace(MODEL, name="other", **{field: value}, **extra)
    with pytest.raises(InputError, match=rf"--profile: p\.json: is of law with {field} = ") as refused:
        found.check_model(other, "p.json")
    assert "calibrate with --model other" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_another_layer_count_name_or_tying_is_fine(found: CalibrationProfile) -> None:
    found.check_model(replace(MODEL, name="deep", layers=80, tied_embeddings=True, source="elsewhere"))


def test_the_table_comes_first_then_the_fit_and_each_says_so(found: CalibrationProfile) -> None:
    exact = found.seconds(1, "layer", "F", 512, 512)
    between = found.seconds(1, "layer", "F", 500, 77)
    outside = found.seconds(1, "layer", "F", 4096, 0)
    assert (exact.origin, between.origin, outside.origin) == ("measured", "fit", "fit, extrapolated")
    assert found.seconds(2, "layer", "F", 512, 512) is None


def test_the_table_is_preferred_even_where_the_fit_disagrees() -> None:
    def bumpy(point: Point, op: str) -> float:
        return law(point, op) * (1.5 if (point.tokens, point.prefix) == (512, 512) else 1.0)

    found = profile(seconds=bumpy)
    row = found.seconds(1, "layer", "F", 512, 512)
    fit = next(f for f in found.fits if (f.part, f.quantity) == ("layer", "F"))
    assert row.value > 1.2 * fit.value(512, 512)


def test_what_is_shown_names_origin_verdict_and_residuals(found: CalibrationProfile) -> None:
    text = shown(found)
    for part in ("law", "thread CPU time", "stable", "held-out points of a layer: rms error", "made for tests", "·s·c"):
        assert part in text
    assert summary(found).count("\n") < 10
    assert held_out(found.model_copy(update={"held_out": None})).endswith("none")


def test_json_for_people_has_no_samples(found: CalibrationProfile) -> None:
    data = json.loads(shown_json(found))
    assert "samples" not in data
    assert len(data["times"]) == len(found.times)


@pytest.mark.parametrize("edit", [lambda p: p, lambda p: p.model_copy(update={"fits": []})])
def test_the_plot_is_drawn_whole(
    found: CalibrationProfile, tmp_path: Path, edit: Callable[[CalibrationProfile], CalibrationProfile]
) -> None:
    from matplotlib import pyplot as plt

    path = tmp_path / "p.png"
    save_plot(edit(found), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert plt.get_fignums() == []


def committed_profiles() -> list[Path]:
    import calibration

    return sorted((files(calibration) / "profiles").glob("*.json"))


def test_a_profile_of_the_tiny_model_is_committed() -> None:
    assert "tiny-cpu.json" in [path.name for path in committed_profiles()]


@pytest.mark.parametrize("path", committed_profiles(), ids=lambda path: path.name)
def test_committed_profiles_are_read_and_predict_what_they_never_saw(path: Path) -> None:
    found = read_profile(path)
    assert found.provenance.command.startswith("pipesim calibrate")
    assert found.provenance.git_commit
    assert found.held_out is not None
    assert found.held_out.rms <= 0.10
    found.check_model(preset(found.model.name))
    for k in found.grid.subsequences:
        for j in range(k):
            s = found.sequence_length // k
            assert found.seconds(1, "layer", "B", s, j * s).origin.startswith("measured")
