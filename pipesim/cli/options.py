"""The options that say which scenario to simulate, written once; every command that takes them shares these.

Values arrive as text and are parsed here, so that every wrong one is answered in the same single line.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipesim.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pipesim.scenario import Scenario

Parse = Callable[[str, str], Any]
SHAPE, COSTS, RUN = "Shape", "Costs", "Run"


@dataclass(frozen=True)
class ScenarioOption:
    """One option: the field it sets, its flags, how its text is read, and its help."""

    name: str
    flags: tuple[str, ...]
    metavar: str
    help: str
    panel: str
    parse: Parse
    listable: bool = True


def _positive(text: str, where: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise InputError(where, text, "must be a whole number", "write 1, 2, 4, …") from None
    if value < 1:
        raise InputError(where, text, "must be at least 1")
    return value


def _above_zero(text: str, where: str) -> float:
    from pipesim.units import parse_fraction

    value = parse_fraction(text, where)
    if value <= 0:
        raise InputError(where, text, "must be above 0")
    return float(value)


def _count(text: str, where: str) -> int:
    from pipesim.units import parse_count

    return parse_count(text, where)


def _bytes(text: str, where: str) -> int:
    from pipesim.units import parse_bytes

    return parse_bytes(text, where)


def _exact(text: str, where: str) -> Fraction:
    from pipesim.units import parse_fraction

    return parse_fraction(text, where)


def _text(text: str, where: str) -> str:
    if not text.strip():
        raise InputError(where, repr(text), "must not be empty")
    return text


def _switch(text: str, where: str) -> bool:
    return bool(one_of("on", "off")(text, where) == "on")


def one_of(*choices: str) -> Parse:
    """Parses one of the given words."""

    def parse(text: str, where: str) -> str:
        if text not in choices:
            raise InputError(where, text, "no such choice", f"one of {', '.join(choices)}")
        return text

    return parse


OPTIONS: tuple[ScenarioOption, ...] = (
    ScenarioOption("devices", ("--devices", "-p"), "P", "Pipeline devices.", SHAPE, _positive),
    ScenarioOption(
        "microbatches",
        ("--microbatches", "-m"),
        "M",
        "Micro-batches of a step and replica. [2p]",
        SHAPE,
        _positive,
    ),
    ScenarioOption("stages_per_device", ("--stages-per-device", "-v"), "V", "Stages on each device.", SHAPE, _positive),
    ScenarioOption(
        "subsequences", ("--subsequences", "-k"), "K", "Subsequences of each micro-batch.", SHAPE, _positive
    ),
    ScenarioOption(
        "in_flight",
        ("--in-flight",),
        "C",
        "Micro-batches whose activations a device may hold (bsipipe).",
        SHAPE,
        _above_zero,
    ),
    ScenarioOption(
        "memory_limit_bytes",
        ("--memory-limit",),
        "SIZE",
        "The same limit as activation bytes of a device, e.g. 60GiB (bsipipe).",
        SHAPE,
        _bytes,
    ),
    ScenarioOption("variant", ("--variant",), "NAME", "Variant of a schedule (bitpipe: code, figure).", SHAPE, _text),
    ScenarioOption(
        "unit_costs",
        ("--unit-costs",),
        "F,B|F,I,W",
        "Times of one micro-batch on one device's whole share, in units of your own.",
        COSTS,
        _text,
        listable=False,
    ),
    ScenarioOption("latency", ("--latency",), "T", "Unit costs: pure delay of each hop.", COSTS, _exact),
    ScenarioOption(
        "transfer",
        ("--transfer",),
        "T",
        "Unit costs: port time of one micro-batch's boundary tensor; a subsequence takes T/k.",
        COSTS,
        _exact,
    ),
    ScenarioOption("model", ("--model",), "NAME|FILE", "Model preset, or a Hugging Face config.json.", COSTS, _text),
    ScenarioOption("cluster", ("--cluster",), "NAME|FILE", "Cluster preset, or a JSON file.", COSTS, _text),
    ScenarioOption("seq_len", ("--seq-len",), "N", "Tokens of a sequence: 65536 or 64k.", COSTS, _count),
    ScenarioOption("micro_batch_size", ("--micro-batch-size",), "N", "Sequences of a micro-batch.", COSTS, _positive),
    ScenarioOption("tp", ("--tp",), "N", "Tensor parallelism: GPUs acting as one device.", COSTS, _positive),
    ScenarioOption("dp", ("--dp",), "N", "Data-parallel replicas.", COSTS, _positive),
    ScenarioOption(
        "partition",
        ("--partition",),
        "NAME",
        "Cut of a sequence: flops (equal FLOPs), even, or authors (Seq1F1B's rounding). [flops]",
        COSTS,
        one_of("even", "flops", "authors"),
    ),
    ScenarioOption(
        "layers",
        ("--layer-split",),
        "LAYOUT",
        "Layers of each stage: even, balanced (the head counts as layers), 8,8,7,7, or Megatron's 'Et|(tt|)*6,tL'. "
        "[even]",
        COSTS,
        _text,
        listable=False,
    ),
    ScenarioOption(
        "recompute",
        ("--recompute",),
        "NAME",
        "Activations to recompute: none, selective, full, or auto: none where it fits. [auto]",
        COSTS,
        one_of("auto", "none", "selective", "full"),
    ),
    ScenarioOption(
        "sequence_parallel",
        ("--sequence-parallel",),
        "on|off",
        "Split norms and residuals over the tensor-parallel GPUs.",
        COSTS,
        _switch,
    ),
    ScenarioOption(
        "distributed_optimizer",
        ("--distributed-optimizer",),
        "on|off",
        "Spread optimizer state over the data-parallel replicas.",
        COSTS,
        _switch,
    ),
    ScenarioOption(
        "efficiency",
        ("--efficiency",),
        "NAME=X,…",
        "Constants of the analytic model to replace; --explain lists them.",
        COSTS,
        _text,
        listable=False,
    ),
    ScenarioOption("profile", ("--profile",), "FILE", "Measured kernel times (see calibrate).", COSTS, _text),
    ScenarioOption(
        "engine",
        ("--engine",),
        "NAME",
        "compiled or reference (SimPy).",
        RUN,
        one_of("compiled", "reference"),
    ),
    ScenarioOption(
        "communication",
        ("--communication",),
        "NAME",
        "overlapped: devices compute on; blocking: busy with each send and receive; fused: those between two ops "
        "start together; queued: overlapped, each device's sends in order, and its receives.",
        RUN,
        one_of("overlapped", "blocking", "fused", "queued"),
    ),
    ScenarioOption(
        "synchronisation",
        ("--synchronisation",),
        "NAME",
        "Gradient sums (over replicas, over both copies of bidirectional schedules), optimizer: none, eager or end. "
        "[eager with a model]",
        RUN,
        one_of("none", "eager", "end"),
    ),
    ScenarioOption(
        "mapping",
        ("--mapping",),
        "NAME|SLOTS",
        "Devices on GPUs: linear, mirrored (r beside p-1-r), auto, or the slot of each device as 0,2,3,1.",
        COSTS,
        _text,
        listable=False,
    ),
    ScenarioOption(
        "rank_order",
        ("--rank-order",),
        "ORDER",
        "Numbering of GPUs, fastest axis first: tp-dp-pp or tp-pp-dp.",
        COSTS,
        one_of("tp-dp-pp", "tp-pp-dp"),
    ),
)

_UNIT_ONLY = ("unit_costs", "latency", "transfer")
_MODEL_ONLY = ("model", "cluster", "seq_len", "micro_batch_size", "tp", "dp", "partition", "layers", "recompute",
               "sequence_parallel", "distributed_optimizer", "profile", "efficiency", "synchronisation", "mapping",
               "rank_order")  # fmt: skip


def by_name() -> dict[str, ScenarioOption]:
    """The options by the name of their field."""
    return {option.name: option for option in OPTIONS}


def scenario_from(values: Mapping[str, Any], schedule: str = "1f1b") -> Scenario:
    """A scenario from parsed values by field name; None and absent mean the default.

    Raises InputError where unit costs and a model are given at once.
    """
    from pipesim.costs.unit import UnitCosts
    from pipesim.scenario import Scenario

    given = {name: value for name, value in values.items() if value is not None}
    _refuse_mixed_costs(given)
    unit = given.pop("unit_costs", None)
    delays = {name: given.pop(name, Fraction(0)) for name in ("latency", "transfer")}
    if unit is not None:
        given["unit_costs"] = UnitCosts.parse(unit, **delays)
    given.setdefault("microbatches", 2 * given.get("devices", _default("devices")))
    return Scenario(schedule=schedule, **given)


def _default(name: str) -> int:
    from pipesim.scenario import Scenario

    return int(next(f.default for f in fields(Scenario) if f.name == name))  # type: ignore[arg-type]


def _refuse_mixed_costs(given: Mapping[str, Any]) -> None:
    known = by_name()
    if "unit_costs" in given:
        for name in _MODEL_ONLY:
            if name in given:
                raise InputError(
                    known[name].flags[0],
                    str(given[name]),
                    "does not go with --unit-costs",
                    "give unit costs or a model, not both",
                )
    for name in ("latency", "transfer"):
        if name in given and "unit_costs" not in given:
            raise InputError(known[name].flags[0], str(given[name]), "needs --unit-costs", "add --unit-costs 1,2")


def parse_values(texts: Mapping[str, str | None], offered: Sequence[ScenarioOption] = OPTIONS) -> dict[str, Any]:
    """Option texts to values, by field name. Raises InputError on the first wrong one."""
    known = {option.name: option for option in offered}
    return {name: known[name].parse(text, known[name].flags[0]) for name, text in texts.items() if text is not None}


def takes_scenario(
    *, lists: bool = False, offered: Sequence[ScenarioOption] = OPTIONS
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command the scenario options offered; it receives `options`, the texts given, by field name.

    With `lists` the help says that options take comma-separated lists.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())
        shared = [_parameter(option, lists=lists) for option in offered]

        @functools.wraps(command)
        def wrapper(**arguments: Any) -> Any:
            texts = {option.name: arguments.pop(option.name) for option in offered}
            return command(**arguments, options=texts)

        kept = [parameter for parameter in own if parameter.name != "options"]
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in [*kept, *shared]]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


def _parameter(option: ScenarioOption, *, lists: bool) -> inspect.Parameter:
    listed = lists and option.listable
    declared = typer.Option(
        *option.flags,
        metavar=f"{option.metavar},…" if listed else option.metavar,
        help=option.help,
        rich_help_panel=option.panel,
        show_default=False,
    )
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[str | None, declared],
    )
