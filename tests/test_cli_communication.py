"""The command line of communication: plan files that hang, topology, studies of noise; one line for wrong input."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run


HANGS = """\
0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1
1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1
"""


def test_a_file_that_hangs_prints_its_cycle(run: Run, tmp_path: Path) -> None:
    (tmp_path / "hangs.csv").write_text(HANGS)
    status, out, err = run("check", tmp_path / "hangs.csv")
    assert (status, out) == (2, "")
    assert "cycle: 0SEND_F1 (device 0) <- 1SEND_B0 (device 1) <- 0SEND_F1 (device 0)" in err
    assert "Traceback" not in err


def test_the_same_file_runs_with_queues_apart(run: Run, tmp_path: Path) -> None:
    (tmp_path / "hangs.csv").write_text(HANGS)
    assert run("check --queues direction", tmp_path / "hangs.csv")[0] == 0
    assert run("check --queues device", tmp_path / "hangs.csv")[0] == 2
    status, _, err = run("check --queues both", tmp_path / "hangs.csv")
    assert status == 2
    assert "one of device, direction, peer, channel, none" in err


def test_a_good_lowered_file_passes(run: Run, tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text(HANGS.replace("1B0,1SEND_B0,1RECV_F1", "1RECV_F1,1B0,1SEND_B0"))
    status, out, err = run("check", tmp_path / "good.csv")
    assert (status, err) == (0, "")
    assert "8 ops, 2 devices, 2 stages, 2 micro-batches, 1 subsequences, 4 messages" in out
    assert "no tags needed" in out


def test_a_cut_file_shows_its_cycle_and_what_it_lacks(run: Run, tmp_path: Path) -> None:
    """Field case O12, cut after the ops that hang."""
    (tmp_path / "cut.csv").write_text(
        "0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0\n1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,3W0\n"
    )
    status, _, err = run("check", tmp_path / "cut.csv")
    assert status == 2
    assert "cycle: 0SEND_F1 (device 0) <- 1SEND_F0 (device 1) <- 0SEND_F1 (device 0)" in err
    assert "2B0 is missing" in err


def test_topology_prints_map_hops_and_loads(run: Run) -> None:
    status, out, err = run("topology bitpipe -p 16 -m 16 --mapping mirrored --synchronisation eager")
    assert (status, err) == (0, "")
    assert "16 devices × tp 1 × dp 1 = 16 GPUs on 2 nodes of 8, rank order tp-dp-pp" in out
    assert "pairs of copies inside one node: 8 of 8" in out
    assert "node 1  GPU 15       device 8   stages 7, 8, 23, 24" in out
    hops = [line.split() for line in out.splitlines() if " -> " in line]
    assert {(hop[0], hop[2]) for hop in hops if hop[3] == "network"} == {
        ("3", "4"),
        ("4", "3"),
        ("11", "12"),
        ("12", "11"),
    }


def test_topology_as_json(run: Run) -> None:
    status, out, _ = run("topology 1f1b -p 4 -m 4 --tp 2 --dp 2 --rank-order tp-pp-dp --json")
    found = json.loads(out)
    assert status == 0
    assert [device["gpus"] for device in found["devices"]] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert {hop["messages"] for hop in found["hops"]} == {4}
    assert found["ports"][0]["load"] >= found["ports"][-1]["load"] > 0


def test_trials_with_noise(run: Run) -> None:
    status, out, _ = run("simulate 1f1b -p 4 -m 8 --unit-costs 1,2 --jitter 0.05 --trials 20 --json")
    found = json.loads(out)["jitter"]
    assert status == 0
    assert (found["trials"], found["undisturbed_seconds"]) == (20, 33)
    assert 33 < found["mean_seconds"] <= found["p95_seconds"] <= found["max_seconds"] < 45


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("simulate 1f1b --communication often", "--communication: often: no such choice; one of overlapped"),
        ("simulate 1f1b --mapping 0,1", "--mapping: 0,1: must hold each of 0..7 once"),
        ("simulate 1f1b --rank-order pp-tp-dp", "--rank-order"),
        ("simulate 1f1b --unit-costs 1,2 --mapping mirrored", "does not go with --unit-costs"),
        ("simulate 1f1b --unit-costs 1,2 --synchronisation eager", "does not go with --unit-costs"),
        ("simulate 1f1b --jitter x", "--jitter"),
        ("simulate 1f1b --slow 9:2", "--slow: 9:2.0: must name a device 0..7"),
        ("topology 1f1b --unit-costs 1,2", "--unit-costs: 1,2: have no GPUs to sit on; give a model"),
    ],
)
def test_wrong_input_is_answered_in_one_line(run: Run, line: str, message: str) -> None:
    status, out, err = run(line)
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1
