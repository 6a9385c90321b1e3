"""The public face: README's Python example runs as printed, and every function that takes a file takes its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pipesim
from tests.simulating import shape_of, unit_timeline

README = Path(pipesim.__file__).parent.parent / "README.md"


def test_the_example_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})  # it is ours, and this is what a reader does with it
    assert 0 < float(capsys.readouterr().out) < 1
    assert (tmp_path / "bsipipe.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (lambda timeline, path: pipesim.save_gantt([timeline], path), "step.svg"),
        (lambda timeline, path: pipesim.save_memory([timeline], path), "step.svg"),
        (lambda timeline, path: pipesim.save_trace([timeline], path), "step.json"),
        (pipesim.save_spans, "step.csv"),
        (lambda timeline, path: pipesim.write_plan(timeline.plan, path), "step.csv"),
    ],
)
def test_a_file_may_be_named_by_text_or_path(tmp_path, write, name):
    timeline = unit_timeline(pipesim.build_plan("1f1b", shape_of(2, 2)))
    found = []
    for kind, folder in ((str, "text"), (Path, "path")):
        (tmp_path / folder).mkdir()
        write(timeline, kind(tmp_path / folder / name))
        found.append((tmp_path / folder / name).read_bytes())
    assert found[0] == found[1] != b""


def test_a_trace_may_be_read_by_text_or_path(tmp_path):
    timeline = unit_timeline(pipesim.build_plan("1f1b", shape_of(2, 2)))
    pipesim.save_trace([timeline], tmp_path / "step.json")
    by_text, by_path = (pipesim.read_trace(kind(tmp_path / "step.json")) for kind in (str, Path))
    assert by_text.names == by_path.names
    assert len(by_text.names) == len(timeline.plan)
