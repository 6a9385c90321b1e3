"""Files: whether they are there, and writing of results, whole or not at all; does not know what is in them."""

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
def whole_file(path: Path) -> Iterator[Path]:
    """A new file beside `path` to write to, with the same ending; it becomes `path` when the block ends well.

    A link stays a link. Raises FileError where the folder cannot be written, or `path` is no regular file.
    """
    target = path.resolve()
    if is_there(target) and not target.is_file():
        raise FileError(str(path), "not a regular file", "must be a file that can be replaced")
    try:
        handle, name = tempfile.mkstemp(prefix=".", suffix=path.suffix, dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise _unwritable(path, error) from None
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(target)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        temporary.unlink(missing_ok=True)


def is_there(path: Path) -> bool:
    """Whether the path exists; a name that no file can have is not there either."""
    try:
        return path.exists()
    except OSError:
        return False


def write_text(path: Path, text: str) -> None:
    """Writes a text in UTF-8, whole or not at all. Raises FileError where it cannot be written."""
    with whole_file(path) as temporary:
        temporary.write_bytes(text.encode())


def _unwritable(path: Path, error: OSError) -> FileError:
    return FileError(str(path), error.strerror or "unwritable", "must be a file that can be written")


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
