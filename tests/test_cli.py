"""The command line: the numbers of the README, one JSON document on stdout, one line for every wrong input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def json_of(run: Any, line: str) -> dict[str, Any]:
    status, out, err = run(f"{line} --json")
    assert (status, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize("engine", ["compiled", "reference"])
def test_1f1b(run: Any, engine: str) -> None:
    found = json_of(run, f"simulate 1f1b -p 4 -m 8 --unit-costs 1,2 --engine {engine}")
    assert found["makespan_seconds"] == 33
    assert found["bubble_fraction"] == 3 / 11
    assert found["bubble_over_ideal"] == 0.375
    assert found["leading_forwards"] == [4, 3, 2, 1]
    assert found["peak_in_flight"] == [4, 3, 2, 1]
    assert found["engine"] == engine


@pytest.mark.parametrize(
    ("line", "makespan"),
    [
        ("1f1b -p 4 -m 8 --latency 0.1", 34.6),
        ("interleaved -p 4 -m 8 -v 2", 28.5),
        ("interleaved -p 4 -m 8 -v 2 --latency 0.1", 29.9),
        ("seq1f1b -p 4 -m 8 -k 2", 28.5),
        ("seq1f1b -p 4 -m 4 -k 2", 16.5),
        ("seq1f1b-interleaved -p 4 -m 8 -v 2 -k 2", 26.25),
        ("1f1b -p 4 -m 2", 15),
        ("interleaved -p 4 -m 3 -v 2", 15),
        ("interleaved -p 4 -m 9 -v 2", 31.5),
        ("interleaved -p 6 -m 3 -v 2", 21),
        ("seq1f1b-interleaved -p 4 -m 5 -v 2 -k 2", 17.25),
        ("seq1f1b-interleaved -p 4 -m 2 -v 2 -k 8", 6.5625),
    ],
)
def test_makespans(run: Any, line: str, makespan: float) -> None:
    assert json_of(run, f"simulate {line} --unit-costs 1,2")["makespan_seconds"] == makespan


def test_json_has_the_promised_keys(run: Any) -> None:
    found = json_of(run, "simulate seq1f1b -p 4 -m 8 -k 4 --model llama3-8b --cluster h100 --seq-len 32k")
    promised = (
        "schedule devices microbatches stages_per_device subsequences engine makespan_seconds ideal_seconds "
        "bubble_fraction bubble_over_ideal busy_seconds span_seconds peak_in_flight peak_activation_bytes "
        "static_bytes fits leading_forwards tokens_per_second tflops_per_gpu mfu"
    )
    assert set(promised.split()) <= set(found)


def test_compare_without_options_tells_which_is_fastest(run: Any) -> None:
    status, out, _ = run("compare")
    assert status == 0
    assert "fastest" in out.strip().splitlines()[-1] or "fastest" in " ".join(out.strip().splitlines()[-4:])
    rows = json_of(run, "compare")["rows"]
    assert {"gpipe", "1f1b", "interleaved", "seq1f1b", "seq1f1b-interleaved"} <= {row["schedule"] for row in rows}
    assert all(row["devices"] == 8 for row in rows)


def test_compare_takes_a_config_json_and_draws(run: Any, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
                "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256,
                "hidden_act": "silu", "tie_word_embeddings": True,
            }
        ),
        encoding="utf-8",
    )  # fmt: skip
    picture, trace = tmp_path / "out.png", tmp_path / "out.json"
    line = f"compare --model {config} --cluster h100 --seq-len 128k -p 8 -m 16 -k 4"
    status, out, err = run(line, "--gantt", picture, "--trace", trace)
    assert (status, err) == (0, "")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert "seq1f1b" in out


def test_outputs_of_a_single_run(run: Any, tmp_path: Path) -> None:
    endings = {"gantt": "svg", "memory": "png", "trace": "json", "spans": "csv", "plan": "plan.csv"}
    files = {name: tmp_path / f"x.{ending}" for name, ending in endings.items()}
    arguments = [part for name, path in files.items() for part in (f"--{name}", path)]
    status, _, err = run("simulate seq1f1b -p 4 -m 4 -k 2 --unit-costs 1,2", *arguments)
    assert (status, err) == (0, "")
    assert all(path.stat().st_size > 0 for path in files.values())
    status, out, _ = run("check", files["plan"])
    assert status == 0
    assert "legal" in out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("simulate 1fb -p 4", "SCHEDULE: 1fb: no such schedule; one of"),
        ("simulate 1f1b -p 0 --unit-costs 1,2", "--devices: 0: must be at least 1"),
        ("simulate 1f1b -p four --unit-costs 1,2", "--devices: four: must be a whole number"),
        ("simulate 1f1b -p 4 -m 8 -k 2 --unit-costs 1,2", "--subsequences/-k: 2: 1f1b takes 1 only; leave the option"),
        ("simulate 1f1b -p 4 -m 8 --unit-costs 1", "--unit-costs: 1: must be two or three numbers; write F,B"),
        ("simulate 1f1b -p 4 -m 8 --unit-costs 1,-2", "must not be negative"),
        ("simulate 1f1b -p 4 --latency 1", "--latency: 1: needs --unit-costs"),
        ("simulate 1f1b -p 4 --unit-costs 1,2 --model llama3-8b", "--model: llama3-8b: does not go with --unit-costs"),
        ("simulate 1f1b --model llama9", "llama9"),
        ("simulate 1f1b --cluster z100", "z100"),
        ("simulate 1f1b --seq-len 64q", "--seq-len: 64q: must be a count; write 65536 or 64k"),
        ("simulate 1f1b --partition odd", "--partition: odd: no such choice; one of even, flops, authors"),
        ("simulate 1f1b -p 64", "must be at most layers = 32"),
        ("simulate 1f1b --engine warp", "--engine: warp: no such choice"),
        ("simulate 1f1b --unit-costs 1,2 --gantt out.bmp", "--gantt: out.bmp: unknown ending; one of .png"),
        ("simulate 1f1b --unit-costs 1,2 --gantt nowhere/out.png", "its folder does not exist"),
        ("simulate", "Missing argument"),
        ("simulate 1f1b --unit-costs 1,2 --trials 9", "--trials: 9: needs --jitter or --slow; add --jitter 0.05"),
        ("simulate 1f1b --unit-costs 1,2 --seed 9", "--seed: 9: needs --jitter or --slow"),
        ("simulate 1f1b --unit-costs 1,2 --slow 0:1,0:2", "--slow: 0:1,0:2: names device 0 twice"),
        ("calibrate --out x.json --seq-len 1000000000000", "--seq-len: 1000000000000: must be at most 67108864 tokens"),
        ("simulate 1f1b --no-such-option", "No such option"),
        ("check nowhere.csv", "nowhere.csv"),
    ],
)
def test_wrong_input_is_answered_in_one_line(run: Any, line: str, says: str) -> None:
    status, out, err = run(line)
    assert (status, out) == (2, "")
    assert len(err.strip().splitlines()) == 1, err
    assert says in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "config.json"),
        ('{"model_type": "llama"}', "is required"),
        ('{"model_type": "bert"}', "bert"),
        (
            '{"model_type": "llama", "hidden_size": -1, "num_hidden_layers": 2, "num_attention_heads": 2,'
            ' "intermediate_size": 8, "vocab_size": 8}',
            "-1",
        ),
    ],
)
def test_wrong_config_json(run: Any, tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content, encoding="utf-8")
    status, _, err = run("simulate 1f1b --model", path)
    assert status == 2
    assert len(err.strip().splitlines()) == 1, err
    assert "config.json" in err
    assert says in err


@pytest.mark.parametrize("content", ["{", '{"gpu": "x"}', '{"name": "x", "peak_bf16_flops": -3}'])
def test_wrong_cluster_json(run: Any, tmp_path: Path, content: str) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(content, encoding="utf-8")
    status, _, err = run("simulate 1f1b --cluster", path)
    assert status == 2
    assert len(err.strip().splitlines()) == 1, err
    assert "cluster.json" in err


@pytest.mark.parametrize(
    ("content", "says"),
    [("0F0,0B0\n0F0", "0F0"), ("0F0,0X0", "0X0"), ("0F0,0W0", "0W0"), ("", "empty"), ("0F0,0F0,0B0", "0F0")],
)
def test_wrong_plan_csv(run: Any, tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "plan.csv"
    path.write_text(content, encoding="utf-8")
    status, _, err = run("check", path)
    assert status == 2
    assert says in err
    assert "Traceback" not in err


def test_help_names_every_command_and_gives_examples(run: Any) -> None:
    _, out, _ = run("--help")
    for command in ("simulate", "compare", "sweep", "search", "frontier", "check", "calibrate", "execute", "validate"):
        assert command in out
    _, out, _ = run("simulate --help")
    assert "pipesim simulate 1f1b -p 4 -m 8 --unit-costs 1,2" in " ".join(out.split())


def test_the_installed_command_answers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from pipesim.cli import main; main()", "--version"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert done.stdout.startswith("pipesim 0.")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("simulate 1f1b --unit-costs 1,2 -p 1000000000", "devices: 1000000000: must be at most 10000"),
        ("simulate 1f1b --unit-costs 1,2 -m 1000000000000", "must be at most 20000000 forwards; fewer micro-batches"),
        ("simulate seq1f1b --unit-costs 1,2 -k 1000000000", "must be at most 20000000 forwards"),
        (
            "simulate bsipipe --unit-costs 1,2 --in-flight 99999999999999999999999",
            "--in-flight: 99999999999999999999999: must be",
        ),
        ("simulate 1f1b --unit-costs 1e30,1", "--unit-costs: unit costs F=1"),
        ("simulate 1f1b --unit-costs 1,2 -m 1.5", "--microbatches: 1.5: must be a whole number"),
        ("simulate 1f1b --unit-costs 1000000000000000000,1", "the step must stay below 2^62"),
        ("simulate 1f1b --unit-costs 1e-30,1", "or fewer digits"),
        ("simulate 1f1b --unit-costs 1,2 --latency 1e9999999999", "--latency: 1e9999999999: must be a number"),
        ("simulate 1f1b --unit-costs 1e9999999999,2", "must be numbers"),
        ("simulate 1f1b -p 2 -m 2 --seq-len 1000000000000", "--seq-len · --micro-batch-size: 1000000000000 · 1"),
        ("simulate 1f1b -p 2 -m 2 --micro-batch-size 1000000000", "the step must stay below 2^62 ns"),
        ("simulate 1f1b -p 2 -m 2 --dp 1000000000", "must be at most 1000000 GPUs; lower --dp"),
        (f"simulate 1f1b --model {'a' * 5000}", "…: is not a known model"),
        (f"simulate 1f1b --cluster {'a' * 5000}", "…: "),
    ],
)
def test_what_no_machine_could_hold_is_refused_in_one_line(run: Any, line: str, says: str) -> None:
    status, out, err = run(line)
    assert (status, out, len(err.strip().splitlines())) == (2, "", 1), err
    assert says in err


def test_a_value_with_line_breaks_stays_in_one_line(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "a\\nb"}', encoding="utf-8")
    status, _, err = run("simulate 1f1b --model", path)
    assert (status, len(err.splitlines())) == (2, 1)
    assert r"a\nb" in err


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("--gantt {0}/one.svg --memory {0}/one.svg", "is also the file of --gantt; name two files"),
        ("--spans {0}/one.csv --plan {0}/x/../one.csv", "is also the file of --spans"),
        ("--gantt {0}/folder.png", "is a folder; name a file in it"),
        ("--gantt {0}/" + "a" * 300 + ".png", "File name too long"),
        ("--slow 0:1e300", "--slow: 0:1e+300: must be above 0, at most 1000"),
        ("--slow=", "must be DEVICE:FACTOR"),
        ("--jitter 0.1 --trials 1000000000000", "--trials: 1000000000000: must be at least 1, at most 1000000"),
    ],
)
def test_nothing_is_written_or_simulated_where_one_output_cannot_be(
    run: Any, tmp_path: Path, more: str, says: str
) -> None:
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "x").mkdir()
    status, out, err = run(f"simulate 1f1b -p 2 -m 2 --unit-costs 1,2 {more.format(tmp_path)}")
    assert (status, out, len(err.splitlines())) == (2, "", 1), err
    assert says in err
    assert {path.name for path in tmp_path.iterdir()} == {"folder.png", "x"}


@pytest.mark.parametrize(
    ("target", "status", "says"),
    [("> /dev/full", 1, "pipesim: output: No space left on device\n"), (">&-", 0, ""), ("| true", 0, "")],
)
def test_an_output_that_cannot_be_written_is_one_line_at_most(target: str, status: int, says: str) -> None:
    line = (
        f'"{sys.executable}" -c "from pipesim.cli import main; main()" simulate 1f1b -p 2 -m 2 --unit-costs 1,2 --json'
    )
    done = subprocess.run(["sh", "-c", f"{line} {target}"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (status, says)


def test_ctrl_c_is_one_line(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipesim.scenario.run", interrupted)
    assert run("simulate 1f1b") == (130, "", "pipesim: interrupted\n")


@pytest.mark.parametrize(("option", "value"), [("--seed", "9" * 30), ("--timeout", "1e400"), ("--steps", "x")])
def test_numbers_of_execute_that_no_rank_could_take(run: Any, option: str, value: str) -> None:
    status, out, err = run(f"execute 1f1b -p 2 -m 2 {option} {value}")
    assert (status, out, len(err.splitlines())) == (2, "", 1), err
    assert f"{option}: {value}: must be" in err
