"""Lists and ranges of option values, as a sweep or a search takes them: `4,8,16`, `4:16`, `8:64:8`, `16k:128k:x2`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipesim.cli.options import by_name
from pipesim.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipesim.cli.parsers import Parse

_RANGED = (
    "devices",
    "microbatches",
    "stages_per_device",
    "subsequences",
    "seq_len",
    "micro_batch_size",
    "tp",
    "dp",
)
_MOST = 10_000
_RANGE_RULE = "must be FIRST:LAST, FIRST:LAST:STEP or FIRST:LAST:xFACTOR"


def parse_lists(texts: Mapping[str, str | None]) -> dict[str, list[Any]]:
    """Option texts to lists of values, by field name; each value once, in the order given.

    Raises InputError on the first wrong value.
    """
    options = by_name()
    lists = {}
    for name, text in texts.items():
        if text is None:
            continue
        option = options[name]
        if not option.listable:
            lists[name] = [option.parse(text, option.flags[0])]
            continue
        values: list[Any] = []
        for part in text.split(","):
            ranged = name in _RANGED and ":" in part
            values += (_range if ranged else _single)(part, option.parse, option.flags[0])
        lists[name] = list(dict.fromkeys(values))
    return lists


def names_of(text: str) -> list[str] | None:
    """Schedule names from a list; None for `all`."""
    names = [name.strip() for name in text.split(",")]
    return None if names == ["all"] else names


def _single(text: str, parse: Parse, where: str) -> list[Any]:
    return [parse(text.strip(), where)]


def _range(text: str, parse: Parse, where: str) -> list[int]:
    first, last, *steps = text.split(":")
    low, high = int(parse(first, where)), int(parse(last, where))
    if len(steps) > 1 or high < low:
        raise InputError(where, text, _RANGE_RULE, "the last not below the first: 4:16, 8:64:8 or 16k:128k:x2")
    step = steps[0] if steps else "1"
    factor = int(parse(step[1:], where)) if step.startswith("x") else 1
    if step.startswith("x") and factor < 2:
        raise InputError(where, text, "the factor must be at least 2")
    added = 0 if step.startswith("x") else int(parse(step, where))
    values = [low]
    while (following := values[-1] * factor + added) <= high:
        values.append(following)
        if len(values) > _MOST:
            raise InputError(where, text, f"has more than {_MOST} values", "take larger steps")
    return values
