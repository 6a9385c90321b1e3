"""Shared fixtures: golden files and short ways to simulate with unit costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., tuple[int, str, str]]

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files with what is found")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with a golden file, whole; --update-golden rewrites the file instead."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text

    return compare


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line in this process, further arguments as they are: exit status, stdout, stderr."""
    from pipesim import cli

    if not cli.app.registered_commands:
        cli._mount()

    def call(line: str, *more: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = cli._run([*line.split(), *map(str, more)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call
