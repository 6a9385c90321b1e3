"""BitPipe: two opposing V-shaped pipelines over micro-batches, in basic units of p micro-batches.

Stages of p = 4: a micro-batch goes down and back over the same devices, the other direction is its mirror image.

    device 0   down 0 and 7, up 3 and 4         down: 0 > 1 > 2 > 3
    device 1   down 1 and 6, up 2 and 5                         v
    device 2   down 2 and 5, up 1 and 6               7 < 6 < 5 < 4
    device 3   down 3 and 4, up 0 and 7         up: the same from device 3

p=4 m=4 v=2 F=1 B=2:

    0 F0 F1 .  F2 f2 F3 f3 f0 b0--- f1 b1--- .  b2--- B2--- b3--- B3--- B0--- .  .  B1---
    1 .  F0 F2 F1 F3 f2 f0 f3 f1 .  b0--- b2--- b1--- b3--- B2--- B0--- B3--- B1--- .  .
    2 .  F2 F0 F3 F1 f0 f2 f1 f3 .  b2--- b0--- b3--- b1--- B0--- B2--- B1--- B3--- .  .
    3 F2 F3 .  F0 f0 F1 f1 f2 b2--- f3 b3--- .  b0--- B0--- b1--- B1--- B2--- .  .  B3---

Small letters are ops of the second stage on a micro-batch's way; 0 and 1 go down, 2 and 3 up.

In a basic unit the first p/2 micro-batches go down, the rest up. With U = p/2 and n the device's distance from
the middle (U-r on the first half, r-U+1 on the second), "own" the direction that enters on the device's half, and
first and second its stages on that direction's way, a device visits

    forward    n own first; (other first, own first) x (U-n); (other first, other second) x n;
               (own second, other second) x (U-n); n own second
    backward   own second x n; (other second, own second) x (U-n); (other second, other first) x n;
               (own first, other first) x (U-n); own first x n

Warm-up is p + p/2 + min(r, p-1-r) forwards, then (F, B) pairs, then the backwards. Units are joined so that the
next one's first forwards run among this one's last backwards.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from pipesim.errors import InputError, ShapeError
from pipesim.plan import Kind, Op, Placement, Plan
from pipesim.schedules import Schedule

if TYPE_CHECKING:
    from pipesim.plan import PipelineShape

_VARIANTS = ("code", "figure")
_OWN, _OTHER = 0, 1


def generate(shape: PipelineShape, variant: str = "code") -> Plan:
    """The order of BitPipe's published code or, with variant "figure", of its published figure.

    The figure lets one forward of the next unit go before the last backward of this one on the two edge devices:
    p = 4, m = 8 then takes 53 instead of 54 stage forwards. Raises ShapeError unless p is even and divides m.
    """
    _refuse(shape, variant)
    up = np.arange(shape.microbatches) % shape.devices >= shape.devices // 2
    placement = Placement.opposing_v(shape, up.astype(np.int8))
    orders = [_order(shape, device, figure=variant == "figure") for device in range(shape.devices)]
    return Plan.from_orders("bitpipe", shape, placement, orders)


def _refuse(shape: PipelineShape, variant: str) -> None:
    if variant not in _VARIANTS:
        raise InputError("--variant", variant, "bitpipe has no such variant", f"one of {', '.join(_VARIANTS)}")
    p, m = shape.devices, shape.microbatches
    if p % 2:
        raise ShapeError("--devices/-p", p, "bitpipe needs an even number", f"{p + 1} would do")
    if m % p:
        raise ShapeError(
            "--microbatches/-m", m, f"bitpipe needs a multiple of the {p} devices", f"{(m // p + 1) * p} would do"
        )


def _order(shape: PipelineShape, device: int, *, figure: bool) -> list[Op]:
    """One device's ops: warm-up, then for each basic unit its pairs and the seam to the next unit."""
    p, units = shape.devices, shape.microbatches // shape.devices
    edge_distance = min(device, p - 1 - device)
    warmup = p + p // 2 + edge_distance
    pairs = 2 * p - warmup
    forwards = deque(op for unit in range(units) for op in _visits(p, device, unit, Kind.F))
    backwards = deque(op for unit in range(units) for op in _visits(p, device, unit, Kind.B))
    order = _taken(forwards, warmup)
    for unit in range(units):
        order += _paired(forwards, backwards, pairs)
        if unit + 1 == units:
            break
        order += _taken(backwards, warmup - pairs + 1)
        order += _paired(forwards, backwards, pairs - 1)
        if figure and edge_distance == 0 and pairs > 1:
            order.insert(-1, forwards.popleft())
            order += _taken(forwards, warmup - pairs)
        else:
            order += _taken(forwards, warmup - pairs + 1)
    return order + list(backwards)


def _taken(ops: deque[Op], number: int) -> list[Op]:
    """Takes the first ops off."""
    return [ops.popleft() for _ in range(number)]


def _paired(forwards: deque[Op], backwards: deque[Op], pairs: int) -> list[Op]:
    return [op for _ in range(pairs) for op in (forwards.popleft(), backwards.popleft())]


def _visits(p: int, device: int, unit: int, kind: Kind) -> list[Op]:
    """A device's forwards or backwards of one basic unit, in order; each stage takes its micro-batches in turn."""
    half = p // 2
    on_first_half = device < half
    n = half - device if on_first_half else device - half + 1
    down = (device, 2 * p - 1 - device)
    up = (p - 1 - device, p + device)
    stages = (down, up) if on_first_half else (up, down)
    first_of = {_OWN: 0 if on_first_half else half, _OTHER: half if on_first_half else 0}
    microbatches = {(way, turn): count(unit * p + first_of[way]) for way in first_of for turn in (0, 1)}
    return [Op(kind, stages[way][turn], next(microbatches[way, turn])) for way, turn in _pattern(kind, half, n)]


def _pattern(kind: Kind, half: int, n: int) -> list[tuple[int, int]]:
    """(direction, first or second stage) of each visit; the backward meets the stages the other way round."""
    first, second = (0, 1) if kind == Kind.F else (1, 0)
    return (
        [(_OWN, first)] * n
        + [(_OTHER, first), (_OWN, first)] * (half - n)
        + [(_OTHER, first), (_OTHER, second)] * n
        + [(_OWN, second), (_OTHER, second)] * (half - n)
        + [(_OWN, second)] * n
    )


SCHEDULE = Schedule(
    name="bitpipe",
    title="two opposing V-shaped pipelines over micro-batches",
    published=2024,
    source="Wu et al., BitPipe, arXiv 2410.19367, and its published code",
    generate=generate,
    fixed={"stages_per_device": 2},
    options=frozenset({"variant"}),
)
