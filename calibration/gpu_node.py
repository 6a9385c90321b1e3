"""Everything worth measuring on a node with one GPU, in one run: `python -m calibration.gpu_node --out DIR`.

Parts, each with its JSON written as soon as it is done, so that a node lost half-way loses only the rest:

    environment   device, driver, clocks, versions
    attention     every backend with and without a prefix: is it right, how fast is it
    numerics      subsequences against the whole sequence in the training type
    grids         layer times and bytes, embedding, head, optimizer, held-out points: a profile per model
    one GPU       1f1b, seq1f1b and bsipipe op by op against what was predicted, composed

Under 8 minutes on one GPU: grids stop early enough to leave the last part its time, the calibration ends within
6 minutes. `--smoke` runs all of it small, on the CPU.
Further parts go into PARTS.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

from calibration.fit.show import held_out, summary
from calibration.layer import Stage
from calibration.layer.attention import BACKENDS, attend, pinned
from calibration.measure import DTYPES, Settings, measure
from calibration.measure.comm import given_links
from calibration.measure.environment import provenance
from calibration.measure.timer import CacheFlush, clock_of, time_spans
from calibration.validate.one_gpu_part import one_gpu_validation
from pipesim.model import preset
from pipesim.profile import write_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


RESERVED_SECONDS = 120.0


@dataclass(frozen=True)
class Node:
    """What one run does in `seconds`, of which `reserved` are kept for what follows the grids (file name, settings)."""

    out: Path
    device: str
    dtype: str
    seconds: float
    reserved: float
    attention_sizes: tuple[tuple[int, int], ...]
    heads: tuple[int, int, int]
    numerics_length: int
    grids: tuple[tuple[str, Settings], ...]


def gpu_run(out: Path, minutes: float) -> Node:
    """The real thing: llama3-8b and the Seq1F1B 7b, whole and an eighth of each."""
    grids = tuple(
        (
            f"{name}-{length // 1024}k.json",
            Settings(preset(name), length, subsequences, "cuda", "bfloat16", tps=(1, 8), rounds=2, visit_seconds=0.05),
        )
        for name, length, subsequences in (
            ("llama3-8b", 64 * 1024, (1, 2, 4, 8)),
            ("seq1f1b-7b", 32 * 1024, (1, 2, 4, 8)),
        )
    )
    sizes = ((16384, 0), (8192, 8192), (4096, 61440), (1024, 31744))
    return Node(out, "cuda", "bfloat16", 60 * minutes, RESERVED_SECONDS, sizes, (32, 8, 128), 4096, grids)


def smoke_run(out: Path) -> Node:
    """Every part on the CPU with small shapes; proves that the script runs, its numbers mean nothing."""
    small = replace(preset("tiny"), hidden=64, heads=4, kv_heads=2, head_size=16, feedforward=96, vocab=128)
    settings = Settings(
        small,
        256,
        (1, 2),
        "cpu",
        "float32",
        tps=(1, 2),
        rounds=2,
        repetitions=3,
        warm_ups=1,
        visit_seconds=0.01,
        refuse_unstable=False,
    )
    return Node(out, "cpu", "float32", 45, 0, ((64, 0), (32, 96)), (4, 2, 16), 96, (("smoke-tiny.json", settings),))


def environment(node: Node, _: float) -> dict[str, Any]:
    """Device, driver, versions; memory and properties of the GPU."""
    found: dict[str, Any] = provenance(node.device, DTYPES[node.dtype], "flash", torch.get_num_threads()).model_dump()
    if node.device == "cuda":
        p = torch.cuda.get_device_properties(node.device)
        found["properties"] = {
            "total_memory": p.total_memory,
            "multi_processor_count": p.multi_processor_count,
            "capability": f"{p.major}.{p.minor}",
            "L2_cache_size": p.L2_cache_size,
        }
        found["flash_available"] = torch.backends.cuda.is_flash_attention_available()
    return found


def attention(node: Node, _: float) -> dict[str, Any]:
    """Each backend at each (tokens, prefix): error against float64 on the last rows, seconds, TFLOP/s."""
    rows = []
    for tokens, prefix in node.attention_sizes:
        q, k, v = _qkv(node, tokens, prefix)
        expected = _reference_rows(q, k, v)
        for backend in BACKENDS:
            row: dict[str, Any] = {"backend": backend, "tokens": tokens, "prefix": prefix}
            if backend == "math" and node.device == "cuda":
                continue  # it would hold all scores at once
            try:
                row |= _attention_row(node, backend, (q, k, v), expected)
            except (RuntimeError, torch.OutOfMemoryError) as error:
                row["refused"] = str(error).split("\n")[0]
            rows.append(row)
    return {"rows": rows, "prefix_slowdown": _prefix_slowdown(rows), "pinned": "flash"}


def _qkv(node: Node, tokens: int, prefix: int) -> tuple[Tensor, Tensor, Tensor]:
    heads, kv_heads, size = node.heads
    kind = {"dtype": DTYPES[node.dtype], "device": node.device}
    q = torch.randn(1, tokens, heads, size, **kind, requires_grad=True)
    k, v = (torch.randn(1, prefix + tokens, kv_heads, size, **kind, requires_grad=True) for _ in range(2))
    return q, k, v


@torch.no_grad()
def _reference_rows(q: Tensor, k: Tensor, v: Tensor, rows: int = 16) -> Tensor:
    """The last rows of the attention, by its definition in float64."""
    groups = q.shape[2] // k.shape[2]
    q, k, v = q[0, -rows:].double(), k[0].double(), v[0].double()
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = torch.einsum("shd,thd->hst", q, k) / q.shape[-1] ** 0.5
    ahead = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).triu(k.shape[0] - rows + 1)
    return torch.einsum("hst,thd->shd", scores.masked_fill(ahead, float("-inf")).softmax(-1), v).flatten(1)


def _attention_row(node: Node, backend: str, qkv: tuple[Tensor, Tensor, Tensor], expected: Tensor) -> dict[str, Any]:
    q, k, v = qkv
    done: list[Tensor] = []

    def forward() -> None:
        done[:] = [attend(q, k, v)]

    def backward() -> None:
        torch.autograd.grad(done[0], qkv, torch.ones_like(done[0]))

    with pinned(backend):
        clock = clock_of(node.device, torch.get_num_threads())
        times = time_spans(clock, CacheFlush(node.device), [("F", forward), ("B", backward)], 8)
    got = done[0].detach()[0, -expected.shape[0] :].double()
    error = (got - expected).abs().max() / expected.abs().max()
    f, b = (sorted(times.seconds[op][3:])[2] for op in "FB")
    flops = 2 * q.shape[2] * q.shape[3] * q.shape[1] * (2 * k.shape[1] - q.shape[1])
    return {
        "relative_error": float(error),
        "forward_seconds": f,
        "backward_seconds": b,
        "forward_tflops": flops / f / 1e12,
        "backward_tflops": 2.5 * flops / b / 1e12,
    }


def _prefix_slowdown(rows: list[dict[str, Any]]) -> dict[str, float]:
    """By backend: the rate without a prefix over the lowest rate with one (near 1: a prefix costs its FLOPs only)."""
    found = {}
    for backend in BACKENDS:
        rates = [(r["prefix"], r["forward_tflops"]) for r in rows if r["backend"] == backend and "forward_tflops" in r]
        with_prefix = [rate for prefix, rate in rates if prefix]
        without = [rate for prefix, rate in rates if not prefix]
        if with_prefix and without:
            found[backend] = without[0] / min(with_prefix)
    return found


def numerics(node: Node, _: float) -> dict[str, Any]:
    """Loss and gradients of subsequences against the whole sequence, one layer with embedding and head."""
    heads, kv_heads, size = node.heads
    model = replace(
        preset("tiny"), layers=1, hidden=heads * size, heads=heads, kv_heads=kv_heads, head_size=size, feedforward=512
    )
    length = node.numerics_length
    cuts = {"whole": (length,), "even": (length // 4,) * 4, "unequal": (length // 2, length // 4, length // 4 - 1, 1)}
    results = {name: _loss_and_gradients(node, model, lengths) for name, lengths in cuts.items()}
    whole_loss, whole = results.pop("whole")
    return {
        name: {
            "loss_error": abs(loss / whole_loss - 1),
            "worst_gradient_error": max(float((g - w).norm() / w.norm()) for g, w in zip(found, whole, strict=True)),
        }
        for name, (loss, found) in results.items()
    }


def _loss_and_gradients(node: Node, model: Any, lengths: tuple[int, ...]) -> tuple[float, list[Tensor]]:
    stage = Stage(model, range(1), has_embedding=True, has_head=True, device=node.device, dtype=DTYPES[node.dtype])
    tokens = torch.randint(model.vocab, (1, sum(lengths)), generator=torch.Generator().manual_seed(0)).to(node.device)
    microbatch = stage.new_microbatch(1, lengths)
    parts = tokens.split(list(lengths), dim=1)
    loss = sum(float(stage.forward(microbatch, j, part, part)) for j, part in enumerate(parts))
    for j in reversed(range(len(lengths))):
        stage.backward(microbatch, j)
    return loss, [p.grad.double() for p in stage.parameters() if p.grad is not None]


def grids(node: Node, seconds_left: float) -> dict[str, Any]:
    """A profile per model; earlier ones, which are longer, may take up to twice a later one's share of the time."""
    found: dict[str, Any] = {}
    began = time.monotonic()
    for n, (name, settings) in enumerate(node.grids):
        left = seconds_left - node.reserved - (time.monotonic() - began)
        links = given_links(node.device)
        profile = measure(
            settings, node.out / name, links=links, stop_after=max(1.0, 2 * left / (len(node.grids) - n + 1))
        )
        found[name] = {"summary": summary(profile).split("\n"), "held_out": held_out(profile)}
    return found


PARTS: dict[str, Callable[[Node, float], dict[str, Any]]] = {
    "environment": environment,
    "attention": attention,
    "numerics": numerics,
    "grids": grids,
    "one GPU": one_gpu_validation,
}


def run(node: Node, say: Callable[[str], object] = lambda _: None) -> dict[str, Any]:
    """All parts in order; `node.out/gpu_node.json` is rewritten after each, a part that fails says why in it."""
    began = time.monotonic()
    record: dict[str, Any] = {"schema_version": 1, "device": node.device, "dtype": node.dtype}
    for name, part in PARTS.items():
        start = time.monotonic()
        try:
            result = part(node, node.seconds - (start - began))
        except Exception as error:  # the node is lent for minutes: the other parts still count
            result = {"failed": f"{type(error).__name__}: {error}"}
        record[name] = result | {"took_seconds": round(time.monotonic() - start, 2)}
        write_json(record, node.out / "gpu_node.json")
        say(f"{name}: {record[name]['took_seconds']} s" + (f", {result['failed']}" if "failed" in result else ""))
    return record


def main(
    out: Annotated[Path, typer.Option(help="Folder for the results; made if missing.")] = Path("gpu-node"),
    smoke: Annotated[bool, typer.Option(help="Everything small on the CPU, in a minute.")] = False,
    minutes: Annotated[float, typer.Option(help="Time for all parts.")] = 7.5,
) -> None:
    """Measure this node's GPU; exit status 1 if any part failed."""
    out.mkdir(parents=True, exist_ok=True)
    record = run(smoke_run(out) if smoke else gpu_run(out, minutes), lambda line: typer.echo(line, err=True))
    typer.echo(str(out / "gpu_node.json"))
    if any("failed" in part for part in record.values() if isinstance(part, dict)):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
