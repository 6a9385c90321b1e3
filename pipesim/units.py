"""Reading and printing of quantities: counts (64k), bytes (80GiB, 80GB), times; knows no models or plans."""

from __future__ import annotations

import re
from fractions import Fraction

from pipesim.errors import InputError

NS_PER_S = 10**9
GB = 10**9
GIB = 2**30

_COUNT = {"": 1, "k": 2**10, "m": 2**20}
_BYTES = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_LONG_POWER = re.compile(r"[eE][+-]?[0-9_]{4}")
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Z]*)\s*")


def _quantity(text: str, units: dict[str, int], where: str, rule: str, remedy: str) -> int:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2].lower() not in units:
        raise InputError(where, text, rule, remedy)
    value = Fraction(match[1]) * units[match[2].lower()]
    if value.denominator != 1:
        raise InputError(where, text, "must be a whole number", remedy)
    return int(value)


def parse_count(text: str, where: str) -> int:
    """A positive count; `k` is 1024 and `m` 1024², as sequence lengths are written: `64k` = 65536."""
    value = _quantity(text, _COUNT, where, "must be a count", "write 65536 or 64k")
    if value < 1:
        raise InputError(where, text, "must be at least 1")
    return value


def parse_bytes(text: str, where: str) -> int:
    """Bytes with their unit: GB is 10⁹, GiB is 2³⁰; a bare number is bytes."""
    return _quantity(text, _BYTES, where, "must be a size in bytes", "write 80GiB (2^30) or 80GB (10^9)")


def exact_number(text: str) -> Fraction:
    """The number as written. Raises ValueError and ZeroDivisionError; also on powers of ten no computer could hold."""
    if _LONG_POWER.search(text):
        raise ValueError(text)
    return Fraction(text.strip())


def parse_fraction(text: str, where: str, *, minimum: int | None = 0) -> Fraction:
    """An exact number: `0.1` is one tenth, `2/3` is allowed."""
    try:
        value = exact_number(text)
    except (ValueError, ZeroDivisionError):
        raise InputError(where, text, "must be a number", "write 1.5 or 3/2") from None
    if minimum is not None and value < minimum:
        raise InputError(where, text, f"must be at least {minimum}")
    return value


def format_gib(count: float) -> str:
    """Bytes as GiB (2³⁰) with two decimals."""
    return f"{count / GIB:.2f} GiB"


def format_count(count: int) -> str:
    """A count as it is written on the command line: 65536 -> `64k`."""
    for suffix, size in (("m", 2**20), ("k", 2**10)):
        if count >= size and count % size == 0:
            return f"{count // size}{suffix}"
    return str(count)


def format_seconds(seconds: float) -> str:
    """Seconds in the unit a person would pick."""
    for limit, scale, suffix in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if 0 < seconds < limit:
            return f"{seconds * scale:.3g} {suffix}"
    return f"{seconds:.3f} s"
