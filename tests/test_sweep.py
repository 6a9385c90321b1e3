"""Sweeps: every legal combination once, the same table however often they are killed and wherever they run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from pipesim.cli.lists import names_of, parse_lists
from pipesim.cli.options import scenario_from
from pipesim.costs.unit import UnitCosts
from pipesim.errors import FileError, InputError
from pipesim.scenario import Scenario, run
from pipesim.sweep import grid, sweep
from pipesim.sweep import workers as sweep_workers
from pipesim.sweep.point import COLUMNS, key_of, row_of
from pipesim.sweep.store import Journal, journal_beside, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator

UNIT = UnitCosts.of(1, 2)
SMALL = grid(
    ["1f1b", "seq1f1b", "interleaved"],
    {"unit_costs": [UNIT], "devices": [2, 4], "microbatches": [4, 6], "subsequences": [1, 2, 3]},
)
COMMAND = (
    "sweep --unit-costs 1,2 --schedule 1f1b,seq1f1b,interleaved,seq1f1b-interleaved "
    "-p 2,4,8 -m 16,32 -k 1,2 --transfer 0,1/3,1/2 --workers 2 --out"
)


def command(line: str, *more: str) -> list[str]:
    return [sys.executable, "-c", "from pipesim.cli import main; main()", *line.split(), *more]


# --- grids ---------------------------------------------------------------------------------------------------------


def test_a_schedule_appears_once_whatever_values_an_option_has_that_it_does_not_use() -> None:
    assert len(SMALL) == 4 + 4 * 3 + 4
    assert len(set(SMALL)) == len(SMALL)
    assert {s.subsequences for s in SMALL if s.schedule == "1f1b"} == {None}


def test_lists_and_ranges() -> None:
    texts = {"devices": "2,4:6", "seq_len": "16k:128k:x2", "microbatches": "8:30:8", "model": "a,b", "tp": None}
    assert parse_lists(texts) == {
        "devices": [2, 4, 5, 6],
        "seq_len": [16384, 32768, 65536, 131072],
        "microbatches": [8, 16, 24],
        "model": ["a", "b"],
    }
    assert names_of("all") is None
    assert names_of("1f1b, gpipe") == ["1f1b", "gpipe"]


@pytest.mark.parametrize("text", ["8:4", "1:2:3:4", "1:8:x1", "1:99999999", "2:x", ":3"])
def test_wrong_ranges_are_refused_by_the_name_of_their_option(text: str) -> None:
    with pytest.raises(InputError, match="--devices"):
        parse_lists({"devices": text})


def test_a_wrong_name_is_refused_before_anything_runs() -> None:
    with pytest.raises(InputError, match="no such schedule"):
        grid(["1f1b", "2f2b"], {})
    with pytest.raises(InputError, match="no-such-model"):
        sweep([Scenario(model="no-such-model")])


# --- rows ----------------------------------------------------------------------------------------------------------


def test_a_row_has_the_numbers_of_a_single_run() -> None:
    scenario = Scenario("seq1f1b", 4, 8, subsequences=2, unit_costs=UnitCosts.of(1, 2, transfer=1))
    row, metrics = row_of(scenario), run(scenario).metrics
    assert tuple(row) == COLUMNS
    assert row["makespan_seconds"] == metrics.makespan_seconds
    assert row["bubble_fraction"] == metrics.bubble_fraction
    assert row["exposed_communication_seconds"] == max(metrics.exposed_communication_seconds)
    assert (row["stages_per_device"], row["subsequences"]) == (1, 2)
    assert (row["model"], row["seq_len"], row["failure"]) == (None, None, None)


def test_defaults_of_a_schedule_are_shown_in_its_row() -> None:
    assert row_of(Scenario("interleaved", 2, 4, unit_costs=UNIT))["stages_per_device"] == 2


def test_a_point_that_fails_is_a_row_with_its_reason() -> None:
    impossible = Scenario("1f1b", 2, 4, subsequences=2, unit_costs=UNIT)
    table = sweep([impossible, replace(impossible, subsequences=None)])
    assert table["failure"][0].startswith("--subsequences/-k: 2: 1f1b takes 1 only")
    assert pd.isna(table["makespan_seconds"][0])
    assert pd.isna(table["failure"][1])
    assert table["makespan_seconds"][1] == 15


def test_a_fault_of_our_own_in_one_point_is_a_row_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(scenario: Scenario) -> None:
        raise ZeroDivisionError("as happens")

    monkeypatch.setattr("pipesim.sweep.point.run", fail)
    assert row_of(SMALL[0])["failure"] == "ZeroDivisionError: as happens"


def test_the_name_of_a_point_follows_the_content_of_its_files(tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    file.write_text("{}")
    before = key_of(Scenario(model=str(file)))
    file.write_text("{ }")
    assert key_of(Scenario(model=str(file))) != before


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_the_table_in_a_file_is_the_table_returned(tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"s.{ending}"
    table = sweep(SMALL, out)
    read = pd.read_csv(out) if ending == "csv" else pd.read_parquet(out)
    assert list(read["makespan_seconds"]) == list(table["makespan_seconds"])
    assert list(read.columns) == list(COLUMNS)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


class StoppedError(Exception):
    """Stands for whatever ends a sweep early."""


@pytest.mark.parametrize("stop_after", [1, 7, 19])
def test_a_stopped_sweep_goes_on_where_it_stopped_and_ends_in_the_same_file(tmp_path: Path, stop_after: int) -> None:
    sweep(SMALL, tmp_path / "whole.csv")
    counts: list[int] = []

    def stop(count: int) -> None:
        counts.append(count)
        if sum(counts) >= stop_after:
            raise StoppedError

    out = tmp_path / "s.csv"
    with pytest.raises(StoppedError):
        sweep(SMALL, out, report=stop)
    assert not out.exists()
    counts.clear()
    sweep(SMALL, out, report=counts.append)
    assert counts == [stop_after] + [1] * (len(SMALL) - stop_after)
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()


@pytest.mark.parametrize("torn", [b"[", b'["a",{"sch', b"\x00\x00\n", b'["a",{}]'])
def test_a_torn_last_line_of_the_journal_is_dropped(tmp_path: Path, torn: bytes) -> None:
    out, journal = tmp_path / "s.csv", tmp_path / "s.csv.journal"
    points = [(key_of(s), row_of(s)) for s in SMALL[:3]]

    def write_and_stop(found: dict[str, Any], add: list[Any]) -> None:
        with journal_beside(out) as kept:
            assert kept.rows == found
            kept.add(add)
            raise StoppedError

    with pytest.raises(StoppedError):
        write_and_stop(found={}, add=points)
    whole = journal.read_bytes()
    journal.write_bytes(whole + torn)
    with pytest.raises(StoppedError):
        write_and_stop(found=dict(points), add=[])
    assert journal.read_bytes() == whole


def test_a_journal_cut_within_its_first_line_is_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "s.csv.journal").write_bytes(b'{"pipes')
    with journal_beside(tmp_path / "s.csv") as kept:
        assert kept.rows == {}


def test_the_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.csv.journal").write_text('{"pipesim":"0.0.0"}\n')
    with pytest.raises(FileError, match="another version"), journal_beside(tmp_path / "s.csv"):
        pass


def test_two_sweeps_cannot_write_the_same_table_at_once(tmp_path: Path) -> None:
    out = tmp_path / "s.csv"
    with journal_beside(out), pytest.raises(FileError, match="another sweep"), journal_beside(out):
        pass


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown ending"):
        sweep(SMALL, tmp_path / "s.xlsx")


def test_whole_numbers_stay_whole_where_some_are_absent() -> None:
    table = table_of([row_of(SMALL[0]), dict.fromkeys(COLUMNS) | {"schedule": "1f1b"}])
    assert table["devices"].tolist() == [2, pd.NA]
    assert str(table["makespan_seconds"].dtype) == "float64"
    assert len(table_of([])) == 0


# --- processes -----------------------------------------------------------------------------------------------------


def test_processes_give_the_rows_of_one_process(tmp_path: Path) -> None:
    sweep(SMALL, tmp_path / "one.csv")
    sweep(SMALL, tmp_path / "two.csv", workers=2)
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


def test_a_point_whose_process_dies_costs_no_other_point(monkeypatch: pytest.MonkeyPatch) -> None:
    doomed = key_of(SMALL[5])

    def finish(points: Any, workers: int) -> Iterator[tuple[Any, Any]]:
        for first in range(0, len(points), 3):
            batch = points[first : first + 3]
            yield batch, FutureOf(batch, doomed)

    monkeypatch.setattr(sweep_workers, "_as_finished", finish)
    table = sweep(SMALL, workers=2)
    assert table["failure"].notna().tolist() == [i == 5 for i in range(len(SMALL))]
    assert "died" in table["failure"][5]


class FutureOf:
    """A batch that kills its process if it holds the doomed point."""

    def __init__(self, batch: Any, doomed: str) -> None:
        self.batch, self.doomed = batch, doomed

    def result(self) -> Any:
        if any(key == self.doomed for key, _ in self.batch):
            raise BrokenProcessPool
        return sweep_workers.rows_of(self.batch)


@pytest.mark.ranks
@pytest.mark.slow
def test_a_sweep_killed_half_way_completes_the_same_file_and_leaves_no_process(tmp_path: Path) -> None:
    subprocess.run(command(COMMAND, str(tmp_path / "whole.csv")), check=True, capture_output=True)
    out, journal = tmp_path / "s.csv", tmp_path / "s.csv.journal"
    killed = subprocess.Popen(command(COMMAND, str(out)), start_new_session=True, stdout=subprocess.DEVNULL)
    wait_for(lambda: journal.exists() and journal.read_bytes().count(b"\n") > 20)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not out.exists()
    wait_for(lambda: not session_members(killed.pid))
    done = subprocess.run(command(COMMAND, str(out)), check=True, capture_output=True, text=True)
    assert "points" in done.stdout
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not journal.exists()


def session_members(session: int) -> list[int]:
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == session:
                    members.append(int(entry.name))
            except ProcessLookupError:
                continue
    return members


def wait_for(condition: Any, seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


# --- the command ---------------------------------------------------------------------------------------------------


def test_the_command_takes_delays_of_unit_costs_in_lists() -> None:
    values = parse_lists({"unit_costs": "1,2", "transfer": "0,1/2", "devices": "2,4"})
    scenarios = grid(["1f1b"], values, scenario_from)
    assert [(s.devices, s.microbatches, str(s.unit_costs.transfer)) for s in scenarios if s.unit_costs] == [
        (2, 4, "0"),
        (4, 8, "0"),
        (2, 4, "1/2"),
        (4, 8, "1/2"),
    ]


def test_a_journal_in_memory_needs_no_file() -> None:
    with journal_beside(None) as journal:
        journal.add([("a", {})])
        assert isinstance(journal, Journal)
        assert journal.rows == {"a": {}}
