"""`pipesim sweep` and `pipesim search` as a user calls them: what is printed, written and refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pandas as pd
import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run

SEARCH = "search --model tiny --cluster h100 --gpus 8 --seq-len 4k --global-batch 8 --schedule 1f1b,seq1f1b --workers 1"


def test_sweep_writes_a_row_a_combination_and_a_picture(run: Run, tmp_path: Path) -> None:
    out, picture = tmp_path / "s.csv", tmp_path / "s.png"
    line = "sweep --unit-costs 1,2 --schedule 1f1b,seq1f1b -p 2,4 -m 4:8:4 -k 1,2"
    status, told, err = run(line, "--out", out, "--plot", picture)
    assert (status, told, err) == (0, f"{out}: 12 points\n", "")
    table = pd.read_csv(out)
    assert table["makespan_seconds"][0] == (4 + 2 - 1) * 3
    assert list(table["schedule"]) == ["1f1b"] * 4 + ["seq1f1b"] * 8
    assert picture.stat().st_size > 1000


def test_sweep_of_a_model_takes_lists_of_its_options(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "s.parquet"
    line = "sweep --model tiny --cluster h100,a100 --seq-len 1k:4k:x2 --tp 1,2 --schedule 1f1b -p 2 -m 4"
    assert run(line, "--out", out)[0] == 0
    table = pd.read_parquet(out)
    assert len(table) == 2 * 3 * 2
    assert table["failure"].isna().all()
    assert table["tokens_per_second"].gt(0).all()


def test_sweep_counts_failures(run: Run, tmp_path: Path) -> None:
    status, told, _ = run("sweep --unit-costs 1,2 --schedule bitpipe -p 3,4 -m 8", "--out", tmp_path / "s.csv")
    assert (status, told.endswith("2 points, 1 of them failed, each with its reason\n")) == (0, True)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sweep --unit-costs 1,2 --schedule 9f9b --out s.csv", ["9f9b", "no such schedule"]),
        ("sweep --unit-costs 1,2 -p 4:2 --out s.csv", ["--devices", "4:2"]),
        ("sweep --unit-costs 1,2 --out s.txt", ["--out", "s.txt", ".csv"]),
        ("sweep --unit-costs 1,2 --out no/such/folder/s.csv", ["--out", "folder"]),
        ("sweep --unit-costs 1,2 --out s.csv --plot s.txt", ["--plot", ".png"]),
        ("sweep --unit-costs 1,2 --out s.csv --workers 0", ["--workers", "at least 1"]),
        ("sweep --model no-model --out s.csv", ["no-model"]),
        ("search --gpus 8 --global-batch 8 --memory lots", ["--memory", "lots"]),
        ("search --gpus 8 --global-batch 8 --schedule 9f9b", ["9f9b"]),
        ("search --gpus 0 --global-batch 8", ["--gpus"]),
        ("search --gpus 8 --global-batch 8 -m 4", ["--microbatches", "--global-batch"]),
        ("search --gpus 8 --global-batch 8 --plot s.txt", ["--plot", ".png"]),
        ("search --gpus 8 --global-batch 7 --dp 8", ["nothing to try", "batch of 7"]),
    ],
)
def test_wrong_input_is_one_line_and_exit_status_2(
    run: Run, line: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = run(line)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    for word in words:
        assert word in err
    assert list(tmp_path.iterdir()) == []


def test_search_prints_one_json_document_and_writes_all_that_was_tried(run: Run, tmp_path: Path) -> None:
    out, picture = tmp_path / "s.csv", tmp_path / "s.svg"
    status, told, _ = run(SEARCH, "--json", "--out", out, "--plot", picture)
    found = json.loads(told)
    assert status == 0
    assert found["best"][0]["makespan_seconds"] == min(pd.read_csv(out)["makespan_seconds"])
    assert len(pd.read_csv(out)) == found["simulated"]
    assert picture.stat().st_size > 1000


def test_search_prints_tables(run: Run) -> None:
    status, told, _ = run(SEARCH, "--memory", "60GiB")
    assert status == 0
    for words in ("fastest that fits", "front of time and memory", "refused or set aside", "compute"):
        assert words in told


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("search --gpus 1000000000000 --global-batch 8", "--gpus: 1000000000000: must be at least 1, at most 1000000"),
        ("search --gpus 8 --global-batch 8 --workers 0", "--workers: 0: must be at least 1"),
        ("sweep --out {0}/s.csv --unit-costs 1,2 -p 1:9999 -m 1:9999 -k 1:9999", "must be at most 1000000"),
        ("profile", "no command given"),
    ],
)
def test_spaces_no_machine_could_search_are_refused(run: Run, tmp_path: Path, line: str, says: str) -> None:
    status, out, err = run(line.format(tmp_path))
    assert (status, len(err.splitlines())) == (2, 1), (out, err)
    assert says in err
