"""Every error pipesim raises on purpose; knows nothing of what raises it.

PipesimError
├── InputError         a value from outside breaks a rule (exit status 2)
│   ├── ShapeError     a schedule cannot take this shape
│   └── FileError      a file cannot be read, or says something impossible
├── PlanError          a plan breaks the rules of its shape
│   └── DeadlockError  a plan in which devices wait for each other for ever
├── DependencyMissing  an optional package is not installed
└── ExecutionError     a run on real ranks failed
"""

from __future__ import annotations

_MOST_SHOWN = 300


def _in_a_line(text: str) -> str:
    """The text without what would break the line or flood it."""
    shown = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text[: _MOST_SHOWN + 1])
    return shown if len(shown) <= _MOST_SHOWN else shown[:_MOST_SHOWN] + "…"


class PipesimError(Exception):
    """Base of all errors raised on purpose; its text is one line fit for a user unless said otherwise."""


class InputError(PipesimError):
    """A value from outside breaks a rule: says where, the value, the rule and what would do."""

    def __init__(self, where: str, value: object, rule: str, remedy: str = "") -> None:
        self.where, self.value, self.rule, self.remedy = where, value, rule, remedy
        shown = _in_a_line(value) if isinstance(value, str) else repr(value)
        super().__init__(f"{where}: {shown}: {rule}" + (f"; {remedy}" if remedy else ""))


class ShapeError(InputError):
    """A schedule cannot take this shape."""


class FileError(InputError):
    """A file cannot be read, or a field of it breaks a rule; `where` is file and field."""


class PlanError(PipesimError):
    """A plan breaks the rules; the text is a line per violation, then the grid with the places marked."""


class DeadlockError(PlanError):
    """Devices wait for each other for ever; the text names each stuck device, its op and what it waits for."""


class MessageOrderError(PlanError):
    """Both ends of a wire disagree on the order of messages; the text names the two that would be swapped."""


class DependencyMissing(PipesimError):  # noqa: N818  (the name of a state, shown to users as such)
    """An optional package is not installed; the text names the extra to install."""


class ExecutionError(PipesimError):
    """A run on real ranks failed; the text names the rank and the op."""
