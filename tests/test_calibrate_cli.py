"""`pipesim calibrate` and `pipesim profile show` as commands: one run through, and every refusal in one line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import typer
from typer.testing import CliRunner

from calibration import cli
from pipesim.errors import DependencyMissing, FileError, InputError
from pipesim.profile import read_profile, write_profile
from tests.calibrating import StepClock, profile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

APP = typer.Typer()
APP.command("calibrate")(cli.calibrate)
APP.add_typer(cli.profile, name="profile")
QUICK = ["--seq-len", "64", "-k", "1,2", "--rounds", "2", "--repetitions", "2", "--no-links"]


@pytest.fixture(autouse=True)
def counting_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from calibration import measure

    threads = torch.get_num_threads()
    monkeypatch.setattr(measure, "clock_of", lambda *_: StepClock())
    yield
    torch.set_num_threads(threads)


def run(*arguments: str) -> str:
    return CliRunner().invoke(APP, list(arguments), catch_exceptions=False, standalone_mode=False).output


def test_calibrate_writes_a_profile_that_show_shows(tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    said = run("calibrate", "--out", str(out), *QUICK)
    assert "held-out points of a layer" in said
    assert f"written: {out}" in said
    found = read_profile(out)
    assert (found.model.name, found.sequence_length, found.grid.subsequences) == ("tiny", 64, [1, 2])
    assert found.links.origin == "given"
    assert "tiny on" in run("profile", "show", str(out))


def test_show_as_json_is_one_document(tmp_path: Path) -> None:
    write_profile(profile(), tmp_path / "p.json")
    assert json.loads(run("profile", "show", str(tmp_path / "p.json"), "--json"))["model"]["name"] == "law"
    run("profile", "show", str(tmp_path / "p.json"), "--plot", str(tmp_path / "p.svg"))
    assert "<svg" in (tmp_path / "p.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-k", "two"], r"--subsequences: two: must be a whole number"),
        (["-k", "0"], r"--subsequences: 0: must be at least 1"),
        (["-k", "100", "--seq-len", "64"], r"sequence length: 64: must be at least subsequences"),
        (["--seq-len", "much"], r"--seq-len: much: must be a count; write 65536 or 64k"),
        (["--model", "nobody"], r"model: nobody: is not a known model"),
        (["--device", "tpu"], r"--device: tpu: must be cpu or cuda"),
        (["--dtype", "int8"], r"--dtype: int8: no such choice; one of float32, bfloat16, float64"),
        (["--partition", "odd"], r"--partition: odd: no such choice; one of even, flops, both"),
        (["--tp", "3"], r"--tp: 3: must divide heads = 4 of tiny"),
        (["--attention", "magic"], r"--attention: magic: no such choice; one of flash"),
        (["--attention", "cudnn"], r"--attention: cudnn: torch \S+ cannot run it on cpu in float32; use --attention"),
        (["--rounds", "0"], r"--rounds: 0: must be at least 1"),
        (["--seed", "-1"], r"--seed: -1: must be at least 0"),
    ],
)
def test_wrong_options_are_refused_in_one_line(tmp_path: Path, options: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        run("calibrate", "--out", str(tmp_path / "p.json"), "--no-links", *options)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_refused_before_measuring(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--out: .*p\.txt: unknown ending; one of \.json"):
        run("calibrate", "--out", str(tmp_path / "p.txt"))
    with pytest.raises(InputError, match="its folder does not exist"):
        run("calibrate", "--out", str(tmp_path / "none" / "p.json"))
    with pytest.raises(InputError, match=r"--plot: p\.doc: unknown ending"):
        run("profile", "show", "p.json", "--plot", "p.doc")


def test_models_that_cannot_be_run_are_refused(tmp_path: Path) -> None:
    gpt = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 128, "vocab_size": 100}
    config = tmp_path / "config.json"
    config.write_text(json.dumps(gpt), encoding="utf-8")
    with pytest.raises(InputError, match=r"--seq-len: 256: .* has 128 learned positions"):
        run("calibrate", "--out", str(tmp_path / "p.json"), "--model", str(config), "--seq-len", "256")


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DependencyMissing, match=r"calibrate needs torch: pip install 'pipesim\[torch\]'"):
        run("calibrate", "--out", str(tmp_path / "p.json"))


@pytest.mark.slow
def test_fresh_forgets_an_interrupted_run(tmp_path: Path) -> None:
    out, journal = tmp_path / "p.json", tmp_path / "p.json.partial"
    journal.write_text('{"settings": {"another": 1}}\n', encoding="utf-8")
    with pytest.raises(FileError, match="--fresh"):
        run("calibrate", "--out", str(out), *QUICK)
    run("calibrate", "--out", str(out), *QUICK, "--fresh")
    assert out.exists()
    assert not journal.exists()
