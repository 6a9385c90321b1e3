"""Writing of result files: whole or not at all; does not know what is in them."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipesim.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A new file beside `path` to write to, with the same ending; it becomes `path` when the block ends well.

    Raises FileError where the folder cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=".", suffix=path.suffix, dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise _unwritable(path, error) from None
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes text (UTF-8, as is) or bytes to a file, replacing it once all is written. Raises FileError."""
    data = content.encode() if isinstance(content, str) else content
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def _unwritable(path: Path, error: OSError) -> FileError:
    return FileError(str(path), error.strerror or "unwritable", "must be a file that can be written")


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
