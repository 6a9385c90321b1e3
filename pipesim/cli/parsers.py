"""Texts of options to values, or one line that says what would do; knows no command."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pipesim.errors import InputError

if TYPE_CHECKING:
    from fractions import Fraction

Parse = Callable[[str, str], Any]
"""(text, option as written) -> value; raises InputError."""

_LARGEST = 10**9


def positive(text: str, where: str) -> int:
    """A whole number from 1."""
    try:
        value = int(text)
    except ValueError:
        raise InputError(where, text, "must be a whole number", "write 1, 2, 4, …") from None
    if value < 1:
        raise InputError(where, text, "must be at least 1")
    return value


def above_zero(text: str, where: str) -> float:
    """A number above 0."""
    from pipesim.units import parse_fraction

    value = parse_fraction(text, where)
    if not 0 < value <= _LARGEST:
        raise InputError(where, text, f"must be above 0, at most {_LARGEST}")
    return float(value)


def count(text: str, where: str) -> int:
    """A count: 65536 or 64k."""
    from pipesim.units import parse_count

    return parse_count(text, where)


def size_in_bytes(text: str, where: str) -> int:
    """Bytes with their unit: 80GiB or 80GB."""
    from pipesim.units import parse_bytes

    return parse_bytes(text, where)


def exact(text: str, where: str) -> Fraction:
    """An exact number from 0."""
    from pipesim.units import parse_fraction

    return parse_fraction(text, where)


def words(text: str, where: str) -> str:
    """A text that is not empty."""
    if not text.strip():
        raise InputError(where, repr(text), "must not be empty")
    return text


def switch(text: str, where: str) -> bool:
    """on or off."""
    return bool(one_of("on", "off")(text, where) == "on")


def one_of(*choices: str) -> Parse:
    """Parses one of the given words."""

    def parse(text: str, where: str) -> str:
        if text not in choices:
            raise InputError(where, text, "no such choice", f"one of {', '.join(choices)}")
        return text

    return parse
