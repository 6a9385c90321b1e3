"""`pipesim calibrate` and `pipesim profile show`: parses, calls, prints; loads torch only when it measures."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipesim.errors import DependencyMissing, ExecutionError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from calibration.measure import Progress, Settings

profile = typer.Typer(help="Looks into calibration profiles.", no_args_is_help=True)

# A command of its own would be called without its name: this keeps `profile show`.
profile.callback()(lambda: None)

_LONGEST = 2**26  # tokens; longer sequences would not fit any GPU, and choosing their points takes for ever


def calibrate(
    out: Annotated[Path, typer.Option("--out", "-o", help="The profile to write: .json.")],
    model: Annotated[str, typer.Option(help="Model preset, or a Hugging Face config.json.")] = "tiny",
    seq_len: Annotated[str, typer.Option(help="Tokens of a sequence: 65536 or 64k.")] = "2k",
    subsequences: Annotated[str, typer.Option("--subsequences", "-k", help="Subsequence counts: 1,2,4.")] = "1,2,4",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float64. [float32 on cpu, bfloat16 on cuda]")] = "",
    partition: Annotated[str, typer.Option(help="Cuts whose subsequences are timed: even, flops or both.")] = "both",
    tp: Annotated[str, typer.Option(help="Tensor-parallel sizes whose share of a layer is timed, e.g. 1,8.")] = "1",
    micro_batch_size: Annotated[str, typer.Option(help="Sequences of a micro-batch.")] = "1",
    layers: Annotated[str, typer.Option(help="Distinct layers in one timed run.")] = "2",
    rounds: Annotated[str, typer.Option(help="Times the whole grid is visited.")] = "3",
    repetitions: Annotated[str, typer.Option(help="Most repetitions of an op in a visit.")] = "10",
    threads: Annotated[str, typer.Option(help="CPU threads of torch.")] = "1",
    attention: Annotated[str, typer.Option(help="Attention kernels: flash, cudnn, efficient or math.")] = "flash",
    links: Annotated[bool, typer.Option(help="Time messages between two processes (cpu), or two GPUs.")] = True,
    seed: Annotated[str, typer.Option(help="Seed of weights, data and order.")] = "0",
    fresh: Annotated[bool, typer.Option(help="Forget what an interrupted run left beside --out.")] = False,
) -> None:
    """Times a model's layers on this machine and writes a profile that --profile reads.

    An interrupted run goes on where it stopped when the same command is given again.
    Example: pipesim calibrate --model tiny --seq-len 2k -k 1,2,4 --device cpu --out p.json
    """
    _refuse_unwritable(out)
    _need_torch()
    settings = _settings(
        model=model, seq_len=seq_len, subsequences=subsequences, device=device, dtype=dtype, partition=partition,
        tp=tp, micro_batch_size=micro_batch_size, layers=layers, rounds=rounds, repetitions=repetitions,
        threads=threads, attention=attention, seed=seed,
    )  # fmt: skip
    from calibration.fit.show import summary
    from calibration.measure import journal_path, measure

    if fresh:
        journal_path(out).unlink(missing_ok=True)
    found = measure(settings, out, links=_links(settings, links), report=_progress())
    typer.echo(summary(found))
    typer.echo(f"written: {out}")


@profile.command("show")
def show(
    file: Annotated[Path, typer.Argument(help="A profile.")],
    plot: Annotated[Path | None, typer.Option(help="Times against tokens with fits: .png, .svg or .pdf.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The tables as one JSON document, without samples.")] = False,
) -> None:
    """Shows what a profile holds: where it is from, times, fits with their residuals, bytes, links."""
    from calibration.fit.show import save_plot, shown, shown_json
    from pipesim.profile import read_profile

    if plot is not None:
        _refuse_ending("--plot", plot, ".png", ".svg", ".pdf")
    found = read_profile(file)
    typer.echo(shown_json(found) if as_json else shown(found))
    if plot is not None:
        save_plot(found, plot)


def _settings(**text: str) -> Settings:
    """Options to settings; InputError on the first wrong one."""
    from calibration.layer.attention import BACKENDS
    from calibration.measure import DTYPES, Settings, check_device
    from pipesim.model import load
    from pipesim.units import parse_count

    check_device(text["device"])
    dtype = text["dtype"] or ("bfloat16" if text["device"].startswith("cuda") else "float32")
    cuts = {"even": ("even",), "flops": ("flops",), "both": ("even", "flops")}
    model = load(text["model"])
    if model.experts:
        raise InputError("--model", model.name, "has experts; only dense layers can be timed", "use a dense model")
    length = parse_count(text["seq_len"], "--seq-len")
    if length > _LONGEST:
        raise InputError("--seq-len", text["seq_len"], f"must be at most {_LONGEST} tokens", "write 64k or 1m")
    if model.position == "learned" and length > model.max_positions:
        raise InputError("--seq-len", length, f"{model.name} has {model.max_positions} learned positions")
    return Settings(
        model=model,
        sequence_length=length,
        subsequences=_counts(text["subsequences"], "--subsequences"),
        device=text["device"],
        dtype=_one_of(dtype, "--dtype", DTYPES),
        cuts=cuts[_one_of(text["partition"], "--partition", cuts)],
        tps=_counts(text["tp"], "--tp"),
        micro_batch_size=_count(text["micro_batch_size"], "--micro-batch-size"),
        layers=_count(text["layers"], "--layers"),
        rounds=_count(text["rounds"], "--rounds"),
        repetitions=_count(text["repetitions"], "--repetitions"),
        threads=_count(text["threads"], "--threads"),
        backend=_one_of(text["attention"], "--attention", BACKENDS),
        seed=_count(text["seed"], "--seed", least=0),
    )


def _count(text: str, where: str, least: int = 1) -> int:
    try:
        value = int(text)
    except ValueError:
        raise InputError(where, text, "must be a whole number") from None
    if value < least:
        raise InputError(where, text, f"must be at least {least}")
    return value


def _counts(text: str, where: str) -> tuple[int, ...]:
    return tuple(sorted({_count(part, where) for part in text.split(",")}))


def _one_of(text: str, where: str, choices: Any) -> str:
    if text not in choices:
        raise InputError(where, text, "no such choice", f"one of {', '.join(choices)}")
    return text


def _links(settings: Settings, wanted: bool) -> Any:
    """Measured between two processes or two GPUs if there are such, else given."""
    import torch

    from calibration.measure import DTYPES
    from calibration.measure.comm import given_links, largest_message, measure_links

    cuda = settings.device.startswith("cuda")
    if not wanted or (cuda and torch.cuda.device_count() < 2):
        return given_links(settings.device)
    token = settings.model.hidden * settings.micro_batch_size * DTYPES[settings.dtype].itemsize
    try:
        return measure_links("nccl" if cuda else "gloo", largest_message([settings.sequence_length * token]))
    except ExecutionError as error:  # kernels can be timed without links
        return given_links(settings.device).model_copy(update={"note": f"{error}: links are given"})


def _progress() -> Callable[[Progress], None]:
    """A counting line on a terminal; every tenth of the way elsewhere."""
    tenths = set()

    def report(progress: Progress) -> None:
        line = f"{progress.done}/{progress.total} points, {progress.seconds_left:.0f} s left"
        if sys.stderr.isatty():
            typer.echo(f"\r\033[K{line}" + ("\n" if progress.done == progress.total else ""), nl=False, err=True)
        elif (tenth := 10 * progress.done // progress.total) not in tenths:
            tenths.add(tenth)
            typer.echo(line, err=True)

    return report


def _need_torch() -> None:
    for name in ("torch", "scipy"):
        if importlib.util.find_spec(name) is None:
            raise DependencyMissing(f"calibrate needs {name}: pip install 'pipesim[torch]'")


def _refuse_unwritable(out: Path) -> None:
    _refuse_ending("--out", out, ".json")
    if not out.parent.is_dir():
        raise InputError("--out", str(out), "its folder does not exist", f"make {out.parent} first")
    if out.is_dir():
        raise InputError("--out", str(out), "is a folder", "name a file in it")


def _refuse_ending(option: str, path: Path, *endings: str) -> None:
    if path.suffix not in endings:
        raise InputError(option, str(path), "unknown ending", f"one of {', '.join(endings)}")
