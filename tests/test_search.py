"""The search: tries all that the rules allow, sets aside only what cannot fit, and ranks the rest."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from pipesim.cli.search import _split
from pipesim.errors import InputError
from pipesim.report.search import as_json, limits, print_found
from pipesim.scenario import Scenario, load_cluster, load_model
from pipesim.search import Configuration, Found, search
from pipesim.search.bounds import least_memory
from pipesim.search.space import Refusals, Space, candidates

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30
BASE = Scenario(model="tiny", cluster="h100", seq_len=4096)
SCHEDULES = ["gpipe", "1f1b", "interleaved", "seq1f1b", "seq1f1b-interleaved", "bsipipe"]
SPACE = Space(8, 16, BASE, {"subsequences": [2, 4]}, SCHEDULES)


@pytest.fixture(scope="module")
def everything() -> Found:
    """A search that memory does not limit: all that the rules allow is simulated."""
    return search(SPACE, 10**15)


def layout_of(s: Scenario) -> tuple[int, int, int, int]:
    return s.tp, s.devices, s.dp, s.microbatches


# --- what is tried -------------------------------------------------------------------------------------------------


def test_layouts_are_all_that_the_rules_allow() -> None:
    """By brute force: tp within a node and dividing the heads, tp·p·dp the GPUs, dp dividing the batch."""
    model, cluster = load_model("tiny"), load_cluster("h100")
    expected = set()
    for tp, p, dp in product(range(1, 9), repeat=3):
        fits_gpus = tp * p * dp == 8 and cluster.gpus_per_node % tp == 0
        fits_model = model.heads % tp == 0 and model.kv_heads % tp == 0 and 2 <= p <= model.layers
        if fits_gpus and fits_model and 16 % dp == 0:
            expected.add((tp, p, dp, 16 // dp))
    assert {layout_of(s) for s in candidates(SPACE, Refusals())} == expected


def test_each_candidate_is_tried_once_and_has_no_more_stages_than_layers() -> None:
    found = candidates(SPACE, Refusals())
    assert len(found) == len(set(found))
    assert {s.schedule for s in found} == set(SCHEDULES)
    assert max(s.shape().stages for s in found) <= load_model("tiny").layers


def test_choices_limit_what_is_tried() -> None:
    space = Space(8, 16, BASE, {"tp": [2], "dp": [1], "recompute": ["full"], "stages_per_device": [2]}, SCHEDULES)
    found = candidates(space, Refusals())
    assert {layout_of(s) for s in found} == {(2, 4, 1, 16)}
    assert {s.recompute for s in found} == {"full"}
    assert {s.stages_per_device for s in found} <= {None, 2}


def test_rules_that_refuse_a_layout_are_counted_with_an_example() -> None:
    refusals = Refusals()
    candidates(Space(64, 7, BASE), refusals)
    reasons = {reason: (count, example) for reason, count, example in refusals}
    assert reasons["tp must divide the 8 GPUs of a node"][0] > 0
    assert reasons["dp · micro-batch size does not divide the batch of 7"][0] > 0


@pytest.mark.parametrize(("gpus", "batch", "match"), [(0, 1, "--gpus"), (8, 0, "--global-batch"), (1, 1, "pipeline")])
def test_a_space_with_nothing_in_it_is_refused(gpus: int, batch: int, match: str) -> None:
    with pytest.raises(InputError, match=match):
        search(Space(gpus, batch, BASE))


# --- what is set aside ---------------------------------------------------------------------------------------------


def test_the_bound_on_memory_is_never_above_what_a_simulation_needs(everything: Found) -> None:
    assert {c.scenario.schedule for c in everything.configurations} == set(SCHEDULES)
    for configuration in everything.configurations:
        static, least = least_memory(configuration.scenario)
        assert 0 < static < least <= configuration.memory_bytes


def test_a_limit_loses_nothing_that_fits(everything: Found) -> None:
    """What plans within a limit makes other plans under another limit, so the other schedules are compared."""
    fixed = [c for c in everything.configurations if c.scenario.schedule != "bsipipe"]
    limit = sorted(c.memory_bytes for c in fixed)[len(fixed) // 3]
    limited = search(SPACE, limit)
    expected = [(c.scenario, c.seconds) for c in fixed if c.memory_bytes <= limit]
    kept = [(c.scenario, c.seconds) for c in limited.best(10**6) if c.scenario.schedule != "bsipipe"]
    assert sorted(map(str, kept)) == sorted(map(str, expected))
    assert 0 < len(kept) < len(fixed)
    assert all(c.memory_bytes <= limit for c in limited.best(10**6))


def test_all_candidates_are_accounted_for(everything: Found) -> None:
    limited = search(SPACE, min(c.memory_bytes for c in everything.configurations) * 2)
    by_rule = {reason for reason, _, _ in _refusals_of_rules()}
    refused = sum(count for reason, count, _ in limited.refusals if reason not in by_rule)
    assert len(limited.best(10**6)) + refused == limited.considered
    assert refused > 0


def _refusals_of_rules() -> list[tuple[str, int, str]]:
    refusals = Refusals()
    candidates(SPACE, refusals)
    return list(refusals)


def test_where_nothing_fits_the_answer_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    found = search(SPACE, 1)
    assert found.best() == ()
    print_found(found)
    assert "nothing fits" in capsys.readouterr().out


def test_processes_find_what_one_process_finds(everything: Found) -> None:
    found = search(SPACE, 10**15, workers=2)
    rows = [[c.row for c in f.configurations] for f in (found, everything)]
    assert sorted(map(str, rows[0])) == sorted(map(str, rows[1]))


# --- ranking -------------------------------------------------------------------------------------------------------


def configuration(seconds: float, gib: int, *, fits: bool = True, **choices: Any) -> Configuration:
    row = {"makespan_seconds": seconds, "peak_memory_bytes": gib * GIB, "ideal_seconds": seconds / 2,
           "exposed_communication_seconds": seconds / 8}  # fmt: skip
    return Configuration(Scenario(**choices), row, fits)


def found_of(*configurations: Configuration) -> Found:
    ordered = tuple(sorted(configurations, key=lambda c: (c.seconds, c.memory_bytes)))
    return Found(SPACE, 80 * GIB, ordered, len(ordered), ())


def test_the_front_holds_exactly_what_is_not_beaten_in_both(everything: Found) -> None:
    keys = {(c.seconds, c.memory_bytes) for c in everything.configurations}
    unbeaten = {a for a in keys if not any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in keys)}
    front = [(c.seconds, c.memory_bytes) for c in everything.front()]
    assert len(front) == len(set(front)) > 1
    assert set(front) == unbeaten


def test_the_best_are_the_fastest_that_fit() -> None:
    found = found_of(configuration(3, 10), configuration(1, 90, fits=False), configuration(2, 20))
    assert [c.seconds for c in found.best()] == [2, 3]
    assert [c.seconds for c in found.best(1)] == [2]


def test_what_limits_a_configuration() -> None:
    """Half the step is computing, an eighth waiting for links; memory is a limit where it forbids a faster one
    of the same GPUs."""
    mine = configuration(3, 10, tp=2, devices=4)
    other_gpus = configuration(1, 90, fits=False, tp=4, devices=2)
    assert limits(found_of(mine, other_gpus), mine) == "compute 50.0%, bubble 37.5%, links 12.5%"
    forbidden = configuration(2, 90, fits=False, tp=2, devices=4, schedule="gpipe", recompute="none")
    told = limits(found_of(mine, other_gpus, forbidden), mine)
    assert told.endswith("memory: gpipe recompute none would be 1.50x as fast but needs 90.00 GiB")


# --- output --------------------------------------------------------------------------------------------------------


def test_the_json_has_what_was_asked_and_found(everything: Found) -> None:
    document = as_json(everything)
    assert (document["gpus"], document["global_batch"], document["model"]) == (8, 16, "tiny")
    assert document["considered"] == document["simulated"] == len(everything.configurations)
    assert len(document["best"]) == 10
    seconds = [c["makespan_seconds"] for c in document["best"]]
    assert seconds == sorted(seconds)
    assert all(c["tp"] * c["devices"] * c["dp"] == 8 for c in document["best"])


def test_the_report_names_the_best_and_the_refused(everything: Found, capsys: pytest.CaptureFixture[str]) -> None:
    print_found(everything)
    out = capsys.readouterr().out
    assert "fastest that fits" in out
    assert "one device is no pipeline" in out
    assert max(len(line) for line in out.splitlines() if "compute" not in line) <= 160


def test_the_picture_is_drawn(everything: Found, tmp_path: Path) -> None:
    from pipesim.plot.search import save_search

    for ending in ("png", "svg"):
        save_search(everything, tmp_path / f"s.{ending}")
        assert (tmp_path / f"s.{ending}").stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"microbatches": "4"}, "--microbatches"),
        ({"unit_costs": "1,2"}, "--unit-costs"),
        ({"memory_limit_bytes": "1GiB"}, "--memory"),
        ({"seq_len": "1k,2k"}, "one value"),
    ],
)
def test_options_that_are_not_for_a_search_are_refused(options: dict[str, str | None], match: str) -> None:
    with pytest.raises(InputError, match=match):
        _split(options)


def test_options_are_split_into_what_is_given_and_what_is_chosen_from() -> None:
    assert _split({"seq_len": "8k", "tp": "1,2", "recompute": "full"}) == (
        {"seq_len": 8192},
        {"tp": [1, 2], "recompute": ["full"]},
    )
