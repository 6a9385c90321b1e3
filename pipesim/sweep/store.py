"""The rows of a sweep on disk: a journal that survives a kill, and the table written whole at the end.

The journal stands beside the table (`s.csv.journal`), a line of JSON per finished point. The same sweep reads it
and runs only what is missing; a line cut off by a kill is dropped. The table is written in the order of the grid,
so a resumed sweep ends in the same bytes as one that ran through.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pipesim.errors import FileError
from pipesim.sweep.point import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from pandas import DataFrame

    Row = dict[str, Any]

_WHOLE_NUMBERS = (
    "devices", "microbatches", "stages_per_device", "subsequences", "memory_limit_bytes", "seq_len",
    "micro_batch_size", "tp", "dp", "peak_activation_bytes", "static_bytes", "peak_memory_bytes",
    "device_memory_bytes",
)  # fmt: skip
_SWITCHES = ("sequence_parallel", "distributed_optimizer", "fits")


class Journal:
    """Finished rows by key; kept in memory, and in a file where there is one."""

    def __init__(self, file: BinaryIO | None = None) -> None:
        self.rows: dict[str, Row] = {}
        self._file = file
        if file is not None:
            self._read(file)

    def add(self, finished: Iterable[tuple[str, Row]]) -> None:
        """Keeps finished points; when this returns they survive a kill or a power cut."""
        finished = list(finished)
        self.rows.update(finished)
        if self._file is not None:
            self._file.write(b"".join(_line([key, row]) for key, row in finished))
            self._file.flush()
            os.fsync(self._file.fileno())

    def _read(self, file: BinaryIO) -> None:
        header = _line({"pipesim": version("pipesim"), "columns": COLUMNS})
        found = file.readline()
        if found != header:
            if found.endswith(b"\n"):
                raise FileError(
                    file.name, "journal of another version", "must be of this one", "delete it to start anew"
                )
            file.seek(0)
            file.truncate()
            file.write(header)
            file.flush()
        self._read_rows(file)

    def _read_rows(self, file: BinaryIO) -> None:
        good = file.tell()
        for line in file:
            try:
                key, row = json.loads(line if line.endswith(b"\n") else b"")
            except ValueError:
                break
            self.rows[key] = row
            good += len(line)
        file.seek(good)
        file.truncate()


@contextmanager
def journal_beside(out: Path | None) -> Iterator[Journal]:
    """The journal of a table to be, removed when the block ends well; without a table it is in memory only.

    Raises FileError where the folder cannot be written or another sweep is at work on the same table.
    """
    if out is None:
        yield Journal()
        return
    path = out.with_name(out.name + ".journal")
    try:
        file = path.open("a+b")
    except OSError as error:
        raise FileError(str(path), error.strerror or "unwritable", "must be a file that can be written") from None
    with file:
        _lock(file, path)
        file.seek(0)
        yield Journal(file)
        path.unlink()


def table_of(rows: Iterable[Row]) -> DataFrame:
    """Rows as a pandas table: whole numbers and switches stay such where some are absent."""
    import pandas as pd

    table = pd.DataFrame(list(rows), columns=list(COLUMNS))
    kinds: dict[str, Any] = dict.fromkeys(_WHOLE_NUMBERS, "Int64") | dict.fromkeys(_SWITCHES, "boolean")
    texts = [name for name in COLUMNS if name not in kinds and table[name].dtype == object]
    numbers = [name for name in texts if not table[name].map(lambda v: isinstance(v, str)).any()]
    return table.astype(kinds | dict.fromkeys(numbers, "float64"))


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _lock(file: BinaryIO, path: Path) -> None:
    with suppress(ImportError):  # no such locks on Windows
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileError(str(path), "in use", "another sweep is writing it", "wait for it or stop it") from None
