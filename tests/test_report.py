"""Reports: the closing sentence in every case, tables without lost text, one JSON document."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pipesim.compare import Comparison, compare_schedules
from pipesim.costs.unit import UnitCosts
from pipesim.metrics import Throughput
from pipesim.report import (
    catalog_of_clusters,
    catalog_of_models,
    catalog_of_schedules,
    print_comparison,
    print_explanation,
    print_json,
    print_outcome,
    show,
)
from pipesim.report.words import closing_sentence, cut_text, listed, percent, shape_text, size_text, time_text
from pipesim.scenario import Scenario
from tests.simulating import unit_metrics

GIB = 2**30
FIVE = ("gpipe", "1f1b", "interleaved", "seq1f1b", "seq1f1b-interleaved")


def row(schedule, seconds, need=None, limit=80 * GIB):
    """Metrics of a made-up schedule that takes some seconds and needs some GiB."""
    found = unit_metrics("1f1b", 2, 2)
    return replace(
        found,
        schedule=schedule,
        unit="s",
        makespan_seconds=seconds,
        peak_memory_bytes=((need or 0) * GIB, 1),
        memory_limit_bytes=limit,
        fits=None if need is None else need * GIB <= limit,
    )


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([("a", 2, 10)], "a is fastest (2.000 s a step) and fits in 80.00 GiB."),
        ([("a", 2, 90)], "a is fastest (2.000 s a step) but does not fit in 80.00 GiB: it needs 90.00 GiB."),
        (
            [("a", 2, 10), ("b", 3, 10)],
            "a is fastest (2.000 s a step) and fits in 80.00 GiB; so does b.",
        ),
        (
            [("a", 2, 10), ("b", 3, 10), ("c", 4, 80)],
            "a is fastest (2.000 s a step) and fits in 80.00 GiB; so do all the others.",
        ),
        (
            [("a", 2, 10), ("b", 3, 81), ("c", 4, 90)],
            "a is fastest (2.000 s a step) and fits in 80.00 GiB; b and c do not.",
        ),
        (
            [("a", 2, 10), ("b", 3, 81), ("c", 4, 9), ("d", 5, 9)],
            "a is fastest (2.000 s a step) and fits in 80.00 GiB; so do all the others but b.",
        ),
        (
            [("a", 2, 10), ("b", 3, 81), ("c", 4, 90), ("d", 5, 9)],
            "a is fastest (2.000 s a step) and fits in 80.00 GiB; of the others only d.",
        ),
        (
            [("a", 2, 90), ("b", 3, 10), ("c", 4, 90)],
            "a is fastest (2.000 s a step) but needs 90.00 GiB, more than the 80.00 GiB there are; "
            "only b fits (3.000 s a step).",
        ),
        (
            [("a", 2, 90), ("b", 4, 10), ("c", 3, 20)],
            "a is fastest (2.000 s a step) but needs 90.00 GiB, more than the 80.00 GiB there are; "
            "b and c fit, and of these c is fastest (3.000 s a step).",
        ),
        (
            [("a", 2, 90), ("b", 4, 85)],
            "a is fastest (2.000 s a step) but does not fit in 80.00 GiB, nor does any other: "
            "b needs least, 85.00 GiB.",
        ),
        ([("a", 2, 10), ("b", 2, 10)], "a and b are fastest (2.000 s a step) and fit in 80.00 GiB."),
    ],
)
def test_closing_sentence_says_which_is_fastest_and_which_fits(rows, sentence):
    assert closing_sentence([row(*values) for values in rows]) == sentence


def test_closing_sentence_without_a_limit_says_who_holds_least():
    rows = [unit_metrics("gpipe", 4, 8), unit_metrics("1f1b", 4, 8), unit_metrics("seq1f1b", 4, 8, 1, 2)]
    assert closing_sentence(rows) == (
        "seq1f1b is fastest (28.5 units a step); "
        "seq1f1b holds fewest activations (2.5 micro-batches in flight at most)."
    )


def test_a_tie_names_both():
    rows = [unit_metrics("gpipe", 4, 8), unit_metrics("1f1b", 4, 8)]
    assert closing_sentence(rows).startswith("gpipe and 1f1b are fastest (33 units a step); 1f1b holds fewest")


def test_cells():
    found = unit_metrics("seq1f1b-interleaved", 4, 8, 2, 4)
    assert (shape_text(found), cut_text(found)) == ("p=4 m=8 v=2 k=4", "v=2 k=4")
    assert cut_text(unit_metrics("1f1b", 4, 8)) == ""
    assert (percent(3 / 11), percent(None)) == ("27.3%", "-")
    assert (time_text(28.5, "unit"), time_text(2.5, "s")) == ("28.5", "2.500 s")
    assert (size_text(80 * GIB), size_text(12)) == ("80.00 GiB", "12 bytes")
    assert (listed(["a"]), listed(["a", "b", "c"])) == ("a", "a, b and c")


def compare(names=FIVE, **more) -> Comparison:
    scenario = Scenario(devices=4, microbatches=8, unit_costs=UnitCosts.of(1, 2), **more)
    return compare_schedules(scenario, names)


def test_comparison_has_a_row_a_schedule_and_ends_with_the_sentence(capsys):
    print_comparison(compare())
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert "unit costs F=1 B=2; p=4 m=8" in lines[0]
    rows = {line.split()[0]: line.split() for line in lines[:-1] if line.strip().startswith(FIVE)}
    assert rows["1f1b"][1:] == ["33", "27.3%", "37.5%", "0.0%", "4"]
    assert rows["seq1f1b-interleaved"][1:] == ["v=2", "k=4", "25.125", "4.5%", "4.7%", "0.0%", "1.75"]
    assert "MFU" not in out
    assert lines[-1].startswith("seq1f1b-interleaved is fastest (25.125 units a step)")
    assert "Megatron-LM and torch refuse" not in out


def test_a_note_is_shown_where_it_applies(capsys):
    print_comparison(compare_schedules(Scenario(devices=4, microbatches=9, unit_costs=UnitCosts.of(1, 2)), FIVE))
    assert "interleaved: Megatron-LM and torch refuse" in capsys.readouterr().out


def test_comparison_with_a_model_has_throughput_and_memory(capsys):
    comparison = compare(("1f1b",))
    metrics = replace(
        comparison.outcomes[0].metrics,
        throughput=Throughput(8000, 1000, 400, 0.4),
        peak_memory_bytes=(60 * GIB,) * 4,
        memory_limit_bytes=80 * GIB,
        fits=True,
    )
    outcome = replace(comparison.outcomes[0], metrics=metrics)
    print_comparison(Comparison((outcome,), (("bitpipe", "devices: [3]: must be even"),)))
    out = capsys.readouterr().out
    assert "MFU" in out
    assert next(line.split() for line in out.splitlines() if line.strip().startswith("1f1b")) == [
        "1f1b", "33", "1,000", "40.0%", "27.3%", "37.5%", "0.0%", "60.0", "yes",
    ]  # fmt: skip
    assert "bitpipe is left out: devices: [3]: must be even" in out
    assert "…" not in out


def test_one_run_shows_totals_devices_and_the_order(capsys):
    print_outcome(compare(("1f1b",)).outcomes[0])
    out = capsys.readouterr().out
    assert "1f1b  p=4 m=8" in out
    assert "33  (ideal 24)" in out
    assert "27.3% of the time, 37.5% over ideal" in out
    assert next(line.split() for line in out.splitlines() if line.split()[:1] == ["3"]) == [
        "3", "24", "9", "72.7%", "0", "1", "1",
    ]  # fmt: skip
    assert "3 .  .  .  F0 B0--- F1 B1---" in out


def test_json_is_one_document_and_never_nan(capsys):
    print_json({"rows": [unit_metrics("1f1b", 2, 2).as_json()]})
    assert json.loads(capsys.readouterr().out)["rows"][0]["makespan_seconds"] == 9
    with pytest.raises(ValueError, match="JSON"):
        print_json({"x": float("nan")})


def test_explanation_names_value_and_origin(capsys):
    print_explanation(compare(("1f1b",)).outcomes[0].case.costs, to_stderr=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "op times" in captured.err
    assert "--unit-costs" in captured.err


@pytest.mark.parametrize(
    ("catalog", "names"),
    [
        (catalog_of_schedules, FIVE),
        (catalog_of_models, ("llama3-8b", "gpt3-175b")),
        (catalog_of_clusters, ("a100", "h100")),
    ],
)
def test_catalogs_as_table_and_as_json(catalog, names, capsys):
    show(catalog())
    table = capsys.readouterr().out
    show(catalog(), as_json=True)
    document = json.loads(capsys.readouterr().out)
    listed_names = {entry["name"] for rows in document.values() for entry in rows}
    assert set(names) <= listed_names
    assert all(name in table for name in names)
