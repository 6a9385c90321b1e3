"""The command line: parses, calls, prints. No arithmetic lives here."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from typing import Any

import typer

from pipesim.errors import DependencyMissing, InputError, PipesimError, PlanError

_BAD_INPUT, _FAILED, _INTERRUPTED = 2, 1, 130
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]  # click's ClickException, wherever typer keeps it
assert _USAGE_ERROR.__name__ == "ClickException"

app = typer.Typer(
    name="pipesim",
    help="Simulates pipeline-parallel training schedules: time, bubbles and memory, before you spend a GPU-hour.",
    epilog="Start with [bold]pipesim compare[/bold], then [bold]pipesim simulate 1f1b -p 4 -m 8 "
    "--unit-costs 1,2 --gantt out.png[/bold].",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def pipesim(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    """Common options; a callback of its own so that --version needs no command."""
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"pipesim {installed('pipesim')}")
        raise typer.Exit
    _ = context


_COMMANDS = (
    ("pipesim.cli.simulate", "simulate", "simulate"),
    ("pipesim.cli.compare", "compare", "compare"),
    ("pipesim.cli.sweep", "sweep", "sweep"),
    ("pipesim.cli.search", "search", "search"),
    ("pipesim.cli.frontier", "frontier", "frontier"),
    ("pipesim.cli.check", "check", "check"),
    ("pipesim.cli.topology", "topology", "topology"),
    ("pipesim.cli.catalog", "schedules", "schedules"),
    ("pipesim.cli.catalog", "models", "models"),
    ("pipesim.cli.catalog", "clusters", "clusters"),
    ("calibration.cli", "calibrate", "calibrate"),
    ("calibration.cli_execute", "execute", "execute"),
    ("calibration.cli_execute", "validate", "validate"),
)


def _mount() -> None:
    for module, function, name in _COMMANDS:
        app.command(name)(getattr(importlib.import_module(module), function))
    app.add_typer(importlib.import_module("calibration.cli").profile, name="profile")


def main() -> None:
    """Runs the command line. Exit status 0 done, 2 wrong input (one line says what would do), 1 failed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123  (until the end)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a letter the terminal lacks must not end the run
    try:
        _mount()
    except KeyboardInterrupt:
        sys.exit(_say("interrupted", _INTERRUPTED))
    sys.exit(_run())


def _run(arguments: list[str] | None = None) -> int:
    try:
        result: Any = app(arguments, standalone_mode=False)
        sys.stdout.flush()  # a full disk shows here
    except PipesimError as error:
        wrong_input = isinstance(error, InputError | PlanError | DependencyMissing)
        return _say(str(error), _BAD_INPUT if wrong_input else _FAILED)
    except _USAGE_ERROR as error:
        return _say(" ".join(error.format_message().split()) or "no command given; see --help", _BAD_INPUT)  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        return _say("interrupted", _INTERRUPTED)
    except (OSError, MemoryError) as error:
        return _machine_failed(error)
    if result == _INTERRUPTED:  # typer's answer to Ctrl-C
        return _say("interrupted", _INTERRUPTED)
    return result if isinstance(result, int) else 0


def _machine_failed(error: OSError | MemoryError) -> int:
    """Says what this machine could not do; an output that can no longer be written is left alone from here on."""
    if isinstance(error, MemoryError):
        return _say("out of memory: the step is too large for this machine; take fewer micro-batches", _FAILED)
    if not isinstance(error, BrokenPipeError):  # whose reader has gone, and wants no word
        _say(f"{error.filename or 'output'}: {error.strerror or error}", _FAILED)
    with contextlib.suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's own last flush
    return _FAILED


def _say(message: str, status: int) -> int:
    typer.echo(f"pipesim: {message}", err=True)
    return status
