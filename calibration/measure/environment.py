"""Where and with what a measurement was made; measures nothing."""

from __future__ import annotations

import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

from pipesim.profile_records import Provenance


def _output(*command: str) -> str:
    """First line a command prints; empty if it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False, cwd=_HERE)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().split("\n")[0] if done.returncode == 0 else ""


_HERE = Path(__file__).parent


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def command_line() -> str:
    """How this process was started, without the folder of the program."""
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])


def git_commit() -> str:
    """The commit of the working tree this file is in, with + where it was changed; empty outside one."""
    commit = _output("git", "rev-parse", "HEAD")
    return commit + (
        "+" if commit and _output("git", "status", "--porcelain", "--untracked-files=no", "--", ".") else ""
    )


def provenance(device: str, dtype: torch.dtype, backend: str, threads: int) -> Provenance:
    """Everything that identifies a measurement on `device`, now."""
    cuda = device.startswith("cuda")
    smi = ("nvidia-smi", "--format=csv,noheader", "-i", str(torch.device(device).index or 0))
    return Provenance(
        device=torch.cuda.get_device_name(device) if cuda else _cpu_name(),
        device_kind="cuda" if cuda else "cpu",
        driver=f"{_output(*smi, '--query-gpu=driver_version')}, CUDA {torch.version.cuda}" if cuda else "",
        torch=str(torch.__version__),
        python=platform.python_version(),
        dtype=str(dtype).removeprefix("torch."),
        gradient_dtype=str(dtype).removeprefix("torch."),
        attention_backend=backend,
        threads=threads,
        clocks=_output(*smi, "--query-gpu=clocks.sm,clocks.mem,clocks.max.sm,power.limit") if cuda else "",
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        git_commit=git_commit(),
        command=command_line(),
    )
