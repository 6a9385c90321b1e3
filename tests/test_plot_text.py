"""Timelines as text, and the pictures in the schedules' docstrings, which must be what is simulated."""

from __future__ import annotations

import importlib
import pkgutil
import re
import textwrap

import pytest

import pipesim.schedules
from pipesim.costs.unit import UnitCosts
from pipesim.plot.text import text_gantt
from pipesim.schedules import build_plan
from tests.simulating import hand_plan, shape_of, unit_timeline

MODULES = sorted(
    module.name for module in pkgutil.iter_modules(pipesim.schedules.__path__) if not module.name.startswith("_")
)
# "p=4 m=4 v=2 F=1 B=2:" and the indented picture below it.
PICTURE = re.compile(r"^((?:\w=\S+ )+\w=\S+):\n\n((?:    .*\n)+)", re.MULTILINE)


@pytest.mark.parametrize("module", MODULES)
def test_picture_of_a_schedule_is_what_is_simulated(module):
    loaded = importlib.import_module(f"pipesim.schedules.{module}")
    found = PICTURE.search((loaded.__doc__ or "") + "\n")
    assert found, f"the docstring of {module} has no picture: text_gantt makes one"
    given = dict(part.split("=") for part in found[1].split())
    shape = shape_of(*(int(given.get(name, 1)) for name in "pmvk"))
    costs = UnitCosts.of(*(given[name] for name in "FBIW" if name in given))
    picture = text_gantt(unit_timeline(build_plan(loaded.SCHEDULE.name, shape), costs), width=102)
    assert textwrap.dedent(found[2]) == picture + "\n"
    assert given["p"] == "4"


def test_names_fill_their_time_and_dots_are_idle():
    timeline = unit_timeline(build_plan("1f1b", shape_of(2, 2)))
    assert text_gantt(timeline, width=40).splitlines() == [
        "0 F0- F1- .   .   B0----- .   B1-----",
        "1 .   F0- B0----- F1- B1----- .   .",
    ]


def test_second_stage_is_small_and_more_stages_are_numbered():
    two = text_gantt(unit_timeline(build_plan("interleaved", shape_of(1, 1, 2))), width=80)
    assert two == "0 F0--- f0--- b0--------- B0---------"
    three = text_gantt(unit_timeline(build_plan("interleaved", shape_of(1, 1, 3))), width=80)
    assert three.split() == ["0", "0F0--", "1F0--", "2F0--", "2B0--------", "1B0--------", "0B0--------"]


def test_opposing_pipelines_count_stages_within_a_direction():
    """Device 0 holds stages 0 and 3 of the way down, 1 and 2 of the way up: small letters are the second ones."""
    text = text_gantt(unit_timeline(build_plan("bitpipe", shape_of(2, 2, 2))), width=80)
    assert [name.strip("-") for name in text.splitlines()[0].split() if name != "."] == [
        "0", "F0", "F1", "f1", "f0", "b0", "b1", "B1", "B0",
    ]  # fmt: skip


def test_units_count_subsequences():
    text = text_gantt(unit_timeline(build_plan("seq1f1b", shape_of(1, 2, 1, 2))), width=80)
    assert [name.strip("-") for name in text.split()[1:]] == ["F0", "F1", "B1", "F2", "B0", "F3", "B3", "B2"]


def test_narrow_text_is_shaded_instead_of_named():
    text = text_gantt(unit_timeline(build_plan("1f1b", shape_of(2, 2))), width=20)
    assert text.splitlines() == ["0 ░░░░....████..████", "1 ..░░████░░████...."]


def test_times_off_any_small_grid_are_shaded():
    costs = UnitCosts.of("1.0001", "2.0003")
    text = text_gantt(unit_timeline(build_plan("gpipe", shape_of(2, 3)), costs), width=62)
    rows = text.splitlines()
    assert rows[0].count("░") == rows[1].count("░") == 15
    assert rows[0].count("█") == rows[1].count("█") == 30


def test_weight_gradients_have_a_shade_of_their_own():
    plan = hand_plan(["0F0 0I0 0W0"], 1, 1)
    assert text_gantt(unit_timeline(plan, UnitCosts.of(1, 1, 1)), width=5) == "0 ░█▓"


def test_nothing_takes_time():
    assert (
        text_gantt(unit_timeline(build_plan("1f1b", shape_of(2, 1)), UnitCosts.of(0, 0)), width=6) == "0 ....\n1 ...."
    )
