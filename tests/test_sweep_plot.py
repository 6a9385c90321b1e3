"""The picture of a sweep: which point stands for a schedule, what gets a row of its own, what is marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipesim.costs.unit import UnitCosts
from pipesim.plot import sweep as sweep_plot
from pipesim.sweep import grid, sweep
from pipesim.sweep.point import COLUMNS
from pipesim.sweep.store import table_of

if TYPE_CHECKING:
    from pathlib import Path

    from pandas import DataFrame


def row(**values: Any) -> dict[str, Any]:
    base = {"schedule": "seq1f1b", "devices": 4, "microbatches": 8, "model": "tiny", "makespan_seconds": 1.0,
            "bubble_fraction": 0.1, "peak_memory_bytes": 10, "device_memory_bytes": 100, "fits": True}  # fmt: skip
    return dict.fromkeys(COLUMNS) | base | values


@pytest.fixture(scope="module")
def swept() -> DataFrame:
    """Two schedules, of which one cannot take an odd number of devices."""
    costs = [UnitCosts.of(1, 2)]
    return sweep(grid(["1f1b", "bitpipe"], {"unit_costs": costs, "devices": [2, 3, 4], "microbatches": [12, 24]}))


def test_a_point_is_the_fastest_that_fits_of_its_choices() -> None:
    rows = [
        row(subsequences=1, makespan_seconds=3.0),
        row(subsequences=2, makespan_seconds=1.0, peak_memory_bytes=200, fits=False),
        row(subsequences=4, makespan_seconds=2.0),
    ]
    (chosen,) = sweep_plot._chosen(table_of(rows), "devices")
    assert (chosen["makespan_seconds"], chosen["fits"]) == (2.0, True)


def test_where_nothing_fits_it_is_the_smallest_and_marked() -> None:
    rows = [
        row(makespan_seconds=1.0, peak_memory_bytes=300, fits=False),
        row(makespan_seconds=2.0, peak_memory_bytes=200, fits=False),
    ]
    (chosen,) = sweep_plot._chosen(table_of(rows), "devices")
    assert (chosen["peak_memory_bytes"], chosen["fits"]) == (200, False)


def test_the_axis_is_the_sequence_length_where_it_varies_else_the_devices() -> None:
    assert sweep_plot._swept(table_of([row(seq_len=1, devices=2), row(seq_len=2, devices=4)])) == "seq_len"
    assert sweep_plot._swept(table_of([row(devices=2), row(devices=4)])) == "devices"


def test_a_task_has_a_row_unless_it_follows_from_the_axis() -> None:
    follows = table_of([row(devices=2, microbatches=4), row(devices=4, microbatches=8)])
    assert len(sweep_plot._tasks(follows, "devices")[0]) == 1
    free = table_of([row(devices=d, microbatches=m) for d in (2, 4) for m in (8, 2048)])
    assert [name for name, _ in sweep_plot._tasks(free, "devices")[0]] == ["microbatches 8", "microbatches 2k"]


def test_more_tasks_than_there_is_room_for_are_counted() -> None:
    table = table_of([row(devices=2, microbatches=m) for m in range(1, 10)])
    tasks, left_out = sweep_plot._tasks(table, "devices")
    assert (len(tasks), left_out) == (6, 3)
    assert "3 more rows are not drawn" in sweep_plot._caption(table, "devices", left_out)


def test_failures_and_what_does_not_fit_are_explained_in_the_legend(swept: DataFrame) -> None:
    assert [mark.get_label() for mark in sweep_plot._marks(swept)] == ["failed"]
    assert [m.get_label() for m in sweep_plot._marks(table_of([row(fits=False)]))] == ["does not fit"]
    assert sweep_plot._marks(table_of([row()])) == []


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_picture_is_drawn(swept: DataFrame, tmp_path: Path, ending: str) -> None:
    sweep_plot.save_sweep(swept, tmp_path / f"s.{ending}")
    assert (tmp_path / f"s.{ending}").stat().st_size > 1000


def test_a_sweep_in_which_all_fails_is_drawn_too(tmp_path: Path) -> None:
    table = table_of([row(makespan_seconds=None, peak_memory_bytes=None, fits=None, failure="no")])
    sweep_plot.save_sweep(table, tmp_path / "s.png")
    assert (tmp_path / "s.png").exists()


def test_styles_of_schedules_differ() -> None:
    styles = [tuple(sweep_plot.schedule_style(i).values()) for i in range(40)]
    assert len(set(styles)) == 40
