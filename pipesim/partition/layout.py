"""Reading of Megatron's layout strings, `Et|(tt|)*6,tL`; knows no model.

layout = item*            commas and spaces mean nothing
item   = atom ['*' count]
atom   = 'E' embedding | 't' layer | 'm' multi-token-prediction layer | 'L' head and loss
       | '|' end of a stage | '(' item* ')'
"""

from __future__ import annotations

from dataclasses import dataclass

from pipesim.errors import InputError
from pipesim.partition.layers import LayerPartition

_ATOMS = "EtmL|"
_LONGEST = 100_000  # atoms of a written-out layout; a model has hundreds
_DEEPEST = 100  # brackets


@dataclass
class _Reader:
    """A cursor over the text; positions in errors count from 1."""

    text: str
    at: int = 0

    def refuse(self, rule: str, at: int | None = None) -> InputError:
        place = f"layout, position {(self.at if at is None else at) + 1}"
        return InputError(place, self.text, rule, "an example: Et|(tt|)*6,tL")

    def peek(self) -> str:
        """The next character that means something, "" at the end."""
        while self.at < len(self.text) and self.text[self.at] in ", ":
            self.at += 1
        return self.text[self.at] if self.at < len(self.text) else ""

    def items(self, opened_at: int | None = None) -> str:
        """Everything up to the end, or up to the bracket that closes the one opened there."""
        written = ""
        while (char := self.peek()) not in ("", ")"):
            written += self.item(char)
            if len(written) > _LONGEST:
                raise self.refuse(f"must have at most {_LONGEST} parts when written out")
        if char == ")" and opened_at is None:
            raise self.refuse("closes a bracket that was not opened")
        if char == "" and opened_at is not None:
            raise self.refuse("opens a bracket that is not closed", opened_at)
        return written

    def item(self, char: str) -> str:
        start = self.at
        self.at += 1
        if char == "(":
            atom = self.items(opened_at=start)
            self.at += 1
        elif char in _ATOMS:
            atom = char
        else:
            raise self.refuse(f"{char!r} is none of E t m L | ( ) *", start)
        return atom * self.count(len(atom)) if self.peek() == "*" else atom

    def count(self, size: int) -> int:
        """The number after a star."""
        star = self.at
        self.at += 1
        digits = ""
        while (char := self.peek()) and char in "0123456789":
            digits += char
            self.at += 1
        if not digits.strip("0"):
            raise self.refuse("a star must be followed by a count of at least 1", star)
        if len(digits) > 6 or int(digits) * size > _LONGEST:
            raise self.refuse(f"must have at most {_LONGEST} parts when written out", star)
        return int(digits)


def layout_partition(text: str, devices: int | None = None) -> LayerPartition:
    """The partition a layout string describes.

    Raises InputError with the position of a syntax error; when the order is not E, t, m, L over the whole
    model; or when the number of stages is not a multiple of `devices`.
    """
    if text.count("(") > _DEEPEST:
        raise InputError("layout", text, f"must have at most {_DEEPEST} brackets")
    written = _Reader(text).items()
    _check_order(text, written.replace("|", ""))
    stages = written.split("|")
    if devices is not None and len(stages) % devices:
        rule = f"has {len(stages)} stages, must be a multiple of {devices} devices"
        raise InputError("layout", text, rule)
    mtp = tuple(stage.count("m") for stage in stages)
    return LayerPartition(
        layers_per_stage=tuple(stage.count("t") for stage in stages),
        embedding_stage=next(s for s, stage in enumerate(stages) if "E" in stage),
        head_stage=next(s for s, stage in enumerate(stages) if "L" in stage),
        mtp_layers_per_stage=mtp if any(mtp) else (),
    )


def _check_order(text: str, parts: str) -> None:
    """One embedding first, one head last, prediction layers after the layers."""
    for atom, name in (("E", "embedding"), ("L", "head")):
        if parts.count(atom) != 1:
            raise InputError("layout", text, f"must have one {name} {atom}, has {parts.count(atom)}")
    if "t" not in parts:
        raise InputError("layout", text, "must have at least one layer t")
    if parts != "".join(sorted(parts, key="EtmL".index)):
        raise InputError("layout", text, "must be in model order: E, then t, then m, then L")
