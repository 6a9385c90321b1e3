"""Compiled kernels: announced when they are compiled, silent when they come from disk, working without a disk."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from numba.core import caching

from pipesim.compiled_cache import announced, kernel

if TYPE_CHECKING:
    from pathlib import Path

MODULE = """
from pipesim.compiled_cache import announced, kernel

@kernel
def double(x):
    return 2 * x

@kernel(error_model="numpy")
def quadruple(x):
    return double(double(x))

if __name__ == "__main__":
    with announced("test kernels"):
        print(quadruple(3))
    with announced("test kernels"):
        print(quadruple(4))
"""


def test_the_first_process_says_that_it_compiles_and_the_second_finds_it_on_disk(tmp_path: Path) -> None:
    file = tmp_path / "kernels.py"
    file.write_text(MODULE)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    told = []
    for _ in range(2):
        done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=True, env=environment)
        assert done.stdout.split() == ["12", "16"]
        told.append(done.stderr)
    assert told[0].count("compiling the test kernels (first use only)") == 1
    assert told[0].count("compiled the test kernels in") == 1
    assert told[1] == ""


def test_where_no_folder_can_be_written_kernels_work_and_are_announced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])

    @kernel
    def triple(x: int) -> int:
        return 3 * x

    with announced("nothing on disk"):
        assert triple(4) == 12
    assert "compiling the nothing on disk" in capsys.readouterr().err


def test_an_error_inside_the_block_is_passed_on_and_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="as it is"), announced("nothing"):
        raise ValueError("as it is")
    assert capsys.readouterr().err == ""
