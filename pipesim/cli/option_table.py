"""The options that say which scenario to simulate, a row each; knows no command."""

from __future__ import annotations

from dataclasses import dataclass

from pipesim.cli.parsers import Parse, above_zero, count, exact, one_of, positive, size_in_bytes, switch, words

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


OPTIONS: tuple[ScenarioOption, ...] = (
    ScenarioOption("devices", ("--devices", "-p"), "P", "Pipeline devices.", SHAPE, positive),
    ScenarioOption(
        "microbatches",
        ("--microbatches", "-m"),
        "M",
        "Micro-batches of a step and replica. [2p]",
        SHAPE,
        positive,
    ),
    ScenarioOption("stages_per_device", ("--stages-per-device", "-v"), "V", "Stages on each device.", SHAPE, positive),
    ScenarioOption("subsequences", ("--subsequences", "-k"), "K", "Subsequences of each micro-batch.", SHAPE, positive),
    ScenarioOption(
        "in_flight",
        ("--in-flight",),
        "C",
        "Micro-batches whose activations a device may hold (bsipipe).",
        SHAPE,
        above_zero,
    ),
    ScenarioOption(
        "memory_limit_bytes",
        ("--memory-limit",),
        "SIZE",
        "The same limit as activation bytes of a device, e.g. 60GiB (bsipipe).",
        SHAPE,
        size_in_bytes,
    ),
    ScenarioOption("variant", ("--variant",), "NAME", "Variant of a schedule (bitpipe: code, figure).", SHAPE, words),
    ScenarioOption(
        "unit_costs",
        ("--unit-costs",),
        "F,B|F,I,W",
        "Times of one micro-batch on one device's whole share, in units of your own.",
        COSTS,
        words,
        listable=False,
    ),
    ScenarioOption("latency", ("--latency",), "T", "Unit costs: pure delay of each hop.", COSTS, exact),
    ScenarioOption(
        "transfer",
        ("--transfer",),
        "T",
        "Unit costs: port time of one micro-batch's boundary tensor; a subsequence takes T/k.",
        COSTS,
        exact,
    ),
    ScenarioOption("model", ("--model",), "NAME|FILE", "Model preset, or a Hugging Face config.json.", COSTS, words),
    ScenarioOption("cluster", ("--cluster",), "NAME|FILE", "Cluster preset, or a JSON file.", COSTS, words),
    ScenarioOption("seq_len", ("--seq-len",), "N", "Tokens of a sequence: 65536 or 64k.", COSTS, count),
    ScenarioOption("micro_batch_size", ("--micro-batch-size",), "N", "Sequences of a micro-batch.", COSTS, positive),
    ScenarioOption("tp", ("--tp",), "N", "Tensor parallelism: GPUs acting as one device.", COSTS, positive),
    ScenarioOption("dp", ("--dp",), "N", "Data-parallel replicas.", COSTS, positive),
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
        words,
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
        switch,
    ),
    ScenarioOption(
        "distributed_optimizer",
        ("--distributed-optimizer",),
        "on|off",
        "Spread optimizer state over the data-parallel replicas.",
        COSTS,
        switch,
    ),
    ScenarioOption(
        "efficiency",
        ("--efficiency",),
        "NAME=X,…",
        "Constants of the analytic model to replace; --explain lists them.",
        COSTS,
        words,
        listable=False,
    ),
    ScenarioOption("profile", ("--profile",), "FILE", "Measured kernel times (see calibrate).", COSTS, words),
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
        words,
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
