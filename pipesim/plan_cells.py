"""The cells of a plan file, text to values and back; does not know what a whole plan needs.

2F0.3      forward of stage 2, micro-batch 0, subsequence 3 (`2F0` where micro-batches are not cut)
F B I W R  kinds; BW is always a full backward, what B is depends on the file (see `plan_csv`)
0SEND_F0   stage 0 sends the output of its forward, 1RECV_F0: stage 1 takes it; SEND_B, RECV_B: gradients
(2F4;5B1)OVERLAP_F_B            a forward and a backward meant to run at once, read as one after the other
(1SEND_F3;1RECV_B0)GROUP        sends and receives that start together
"""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING, NamedTuple

from pipesim.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

ALONE = -1
_ATOM = re.compile(r"([0-9]{1,9})(F|BW|B|I|W|R|SEND_F|SEND_B|RECV_F|RECV_B)([0-9]{1,9})(?:\.([0-9]{1,9}))?")
_PAIR = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")
_GROUP = re.compile(r"\(([^()]*)\)GROUP")
_FORMS = "write 0F0, 2B0.3, 0I0, 0W0, 0BW0, 0SEND_F0, 1RECV_F0, (0F7;7B3)OVERLAP_F_B, (0SEND_F1;0RECV_B0)GROUP"


class Cell(NamedTuple):
    """One op, send or receive of a file.

    action: as written, "F", "BW", "SEND_F", …; row and column: where it stands, counted from 1;
    group: a number shared by the sends and receives of one GROUP cell, ALONE elsewhere.
    """

    action: str
    stage: int
    microbatch: int
    subsequence: int
    row: int
    column: int
    group: int = ALONE

    @property
    def communicates(self) -> bool:
        """Whether it is a send or a receive."""
        return "_" in self.action

    def __str__(self) -> str:
        cut = f".{self.subsequence}" if self.subsequence else ""
        return f"{self.stage}{self.action}{self.microbatch}{cut}"


def read_cells(path: Path) -> list[list[Cell]]:
    """The cells of each row; spaces are trimmed, empty cells and trailing empty rows mean nothing.

    Raises FileError naming row and column of the first cell that is none of the forms.
    """
    rows = [cells_of_row(path, texts, row) for row, texts in enumerate(_texts(path), 1)]
    while rows and not rows[-1]:
        rows.pop()
    if not rows:
        raise FileError(str(path), "empty", "must hold a row of ops for each device", _FORMS)
    return rows


def cells_of_row(path: Path, texts: Sequence[str], row: int) -> list[Cell]:
    """The cells of one row of texts. Raises FileError as `read_cells` does."""
    return [cell for column, text in enumerate(texts, 1) for cell in _cells(path, text.strip(), row, column)]


def _texts(path: Path) -> list[list[str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise FileError(str(path), error.strerror or "unreadable", "must be a readable file") from None
    except UnicodeDecodeError:
        raise FileError(str(path), "bytes", "must be text in UTF-8") from None
    try:
        return list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise FileError(str(path), str(error), "must be a CSV text") from None


def _cells(path: Path, text: str, row: int, column: int) -> Iterator[Cell]:
    if not text:
        return
    group = ALONE
    parts = [text]
    if pair := _PAIR.fullmatch(text):
        parts = [pair[1], pair[2]]
    elif grouped := _GROUP.fullmatch(text):
        parts, group = grouped[1].split(";"), column
    for part in parts:
        cell = _atom(part.strip(), row, column, group)
        if cell is None or (group != ALONE and not cell.communicates):
            raise FileError(f"{path}: row {row}, column {column}", repr(text)[:80], "is not an op", _FORMS)
        yield cell


def _atom(text: str, row: int, column: int, group: int) -> Cell | None:
    match = _ATOM.fullmatch(text)
    if match is None:
        return None
    return Cell(match[2], int(match[1]), int(match[3]), int(match[4] or 0), row, column, group)
