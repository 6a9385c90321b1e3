"""The frontier: its points, which of them nothing beats, its table, JSON, picture and refusals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pipesim.costs.unit import UnitCosts
from pipesim.errors import InputError, ShapeError
from pipesim.frontier import Frontier, frontier, points_at_most, refusals
from pipesim.plot.frontier import save_frontier
from pipesim.scenario import Scenario, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pipesim.frontier import FrontierPoint

UNIT = Scenario(devices=4, microbatches=8, unit_costs=UnitCosts.of(1, 2))


@pytest.fixture(scope="module")
def traced() -> Frontier:
    return frontier(UNIT, limits=[2, 3], subsequences=[2, 4])


def _of(found: Frontier, schedule: str) -> list[FrontierPoint]:
    return [point for point in found.points if point.metrics.schedule == schedule]


def test_every_limit_and_count_has_a_point(traced: Frontier) -> None:
    """A wider limit is left out only where a tighter one already reaches the bound."""
    for count in (2, 4):
        line = [point for point in _of(traced, "bsipipe") if point.metrics.subsequences == count]
        assert [point.in_flight for point in line] in ([2, 3], [2])
        assert len(line) == 2 or line[0].optimality_gap == 0
        assert all(max(point.metrics.peak_in_flight) <= (point.in_flight or 0) for point in line)


def test_other_schedules_are_as_they_are_on_their_own(traced: Frontier) -> None:
    (one_f_one_b,) = _of(traced, "1f1b")
    assert one_f_one_b.metrics == run(UNIT).metrics
    assert one_f_one_b.metrics.makespan_seconds == 3 * (8 + 3)
    assert [point.metrics.subsequences for point in _of(traced, "seq1f1b")] == [2, 4]
    assert one_f_one_b.in_flight is None


def test_what_is_on_the_frontier_is_beaten_by_nothing(traced: Frontier) -> None:
    def beats(a: FrontierPoint, b: FrontierPoint) -> bool:
        one, other = (a.memory, a.metrics.makespan_seconds), (b.memory, b.metrics.makespan_seconds)
        return one != other and one[0] <= other[0] and one[1] <= other[1]

    on = [point for point in traced.points if point.on_frontier]
    assert on
    assert not any(beats(a, b) for a in traced.points for b in on)
    for point in traced.points:
        if not point.on_frontier:
            same = [
                o
                for o in on
                if (o.memory, o.metrics.makespan_seconds) == (point.memory, point.metrics.makespan_seconds)
            ]
            assert same or any(beats(other, point) for other in on)


def test_bounds_are_below_times(traced: Frontier) -> None:
    for point in traced.points:
        assert point.optimality_gap is not None
        assert point.lower_bound_seconds <= point.metrics.makespan_seconds
        expected = point.metrics.makespan_seconds / point.lower_bound_seconds - 1
        assert point.optimality_gap == pytest.approx(expected, abs=1e-12)


def test_table_and_json_are_sorted_by_time(traced: Frontier) -> None:
    catalog = traced.catalog()
    times = [row["makespan_seconds"] for row in catalog.rows]
    assert times == sorted(times)
    assert {"in_flight_limit", "optimality_gap", "lower_bound_seconds", "on_frontier"} <= set(catalog.rows[0])
    assert all(column.text(row[column.key]) is not None for row in catalog.rows for column in catalog.columns)
    assert traced.caption == "unit costs F=1 B=2; p=4 m=8"
    assert "times as fast as the best other schedule" in traced.closing_sentence()


def test_picture_in_each_format(traced: Frontier, tmp_path: Path) -> None:
    for ending, head in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        path = tmp_path / f"frontier{ending}"
        save_frontier(traced, path)
        assert path.read_bytes().startswith(head)


def test_picture_names_costs_and_schedules(traced: Frontier, tmp_path: Path) -> None:
    import matplotlib as mpl

    path = tmp_path / "frontier.svg"
    with mpl.rc_context({"svg.fonttype": "none"}):
        save_frontier(traced, path)
    text = path.read_text(encoding="utf-8")
    for words in ("unit costs F=1 B=2; p=4 m=8", "step time (units)", "bsipipe k=4", "seq1f1b", "1f1b", "bitpipe"):
        assert f">{words}" in text


def test_schedules_that_cannot_are_named_with_the_reason() -> None:
    found = frontier(Scenario(devices=4, microbatches=6, unit_costs=UnitCosts.of(1, 2)), [3], [2])
    assert not _of(found, "bitpipe")
    assert any("bitpipe" in line and "multiple of the 4 devices" in line for line in refusals(found))


@pytest.mark.parametrize(
    ("changes", "schedules", "error"),
    [
        ({"devices": 3}, ["1f1b"], ShapeError),
        ({"microbatches": 6}, ["bitpipe"], ShapeError),
        ({"memory_limit_bytes": 10}, ["1f1b"], InputError),
    ],
)
def test_refusals(changes: dict[str, Any], schedules: list[str], error: type[Exception]) -> None:
    values: dict[str, Any] = {"devices": 4, "microbatches": 8, "unit_costs": UnitCosts.of(1, 2)} | changes
    with pytest.raises(error):
        frontier(Scenario(**values), [3], [2], schedules)


def test_progress_counts_to_the_total() -> None:
    told: list[int] = []
    frontier(UNIT, [2, 3], [2, 4], ["1f1b", "seq1f1b"], told.append)
    assert sum(told) == points_at_most([2, 3], [2, 4], ["1f1b", "seq1f1b"]) == 4 + 1 + 2


def test_a_real_model_counts_bytes_and_says_what_fits() -> None:
    scenario = Scenario(devices=4, microbatches=8, model="llama3-8b", cluster="h100", seq_len=32 * 1024)
    found = frontier(scenario, [2, 4], [4], ["1f1b", "seq1f1b"])
    assert found.in_bytes
    for point in found.points:
        assert point.memory == max(point.metrics.peak_memory_bytes)
        assert point.recompute in ("none", "full")
        assert point.metrics.fits == (point.memory <= (point.metrics.memory_limit_bytes or 0))
    assert "llama3-8b on h100" in found.caption
    assert "GiB" in found.closing_sentence()


@pytest.fixture
def command() -> Callable[..., Any]:
    """Runs `frontier` as the command line does, without mounting the other commands."""
    import typer
    from typer.testing import CliRunner

    from pipesim.cli.frontier import frontier as function

    app = typer.Typer()
    app.command()(function)

    def invoke(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["--unit-costs", "1,2", "-p", "4", "-m", "4", *arguments])

    return invoke


def test_command_prints_a_table_and_draws(command: Callable[..., Any], tmp_path: Path) -> None:
    picture = tmp_path / "frontier.png"
    done = command("-k", "2", "--in-flight", "2,3", "--schedule", "1f1b,bitpipe", "--plot", str(picture))
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("unit costs F=1 B=2; p=4 m=4\n")
    for words in ("bsipipe", "1f1b", "bitpipe", "over", "fastest"):
        assert words in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_command_as_json_is_one_document(command: Callable[..., Any]) -> None:
    done = command("-k", "2", "--in-flight", "3", "--schedule", "1f1b", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert sorted(row["schedule"] for row in rows) == ["1f1b", "bsipipe"]
    assert [row["in_flight_limit"] for row in rows if row["schedule"] == "bsipipe"] == [3]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-m", "4,8"], "--microbatches: 4,8: takes one value here; lists are for --in-flight and --subsequences"),
        (["--plot", "frontier.txt"], "--plot: frontier.txt: unknown ending; one of .png, .svg, .pdf"),
        (["--plot", "no/such/frontier.png"], "its folder does not exist; make no/such first"),
        (["--in-flight", "0"], "--in-flight: 0: must be above 0"),
    ],
)
def test_command_refuses_in_one_line(command: Callable[..., Any], arguments: list[str], words: str) -> None:
    raised = command(*arguments).exception
    assert isinstance(raised, InputError)
    assert words in str(raised)
