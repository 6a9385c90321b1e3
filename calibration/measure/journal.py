"""What an interrupted calibration had done, as lines of JSON; does not know what is measured.

The first line holds the settings; a run continues only under the same. A last line cut short by a kill is dropped.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from pipesim.errors import FileError

if TYPE_CHECKING:
    from pathlib import Path


class Journal:
    """Lines kept beside the profile until it is written."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        """Open or begin; FileError if the file is of a run with other settings."""
        self.path = path
        self.lines = self._read(settings)
        keep = [{"settings": settings}, *self.lines]
        path.write_text("".join(json.dumps(line) + "\n" for line in keep), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")

    def _read(self, settings: dict[str, Any]) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        found: list[dict[str, Any]] = []
        for text in self.path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(text))
            except json.JSONDecodeError:  # the line that a kill cut short
                break
        if not found:
            return []
        if found[0].get("settings") != settings:
            rule = "holds an interrupted calibration with other settings"
            raise FileError(str(self.path), "settings", rule, "give the same options, --fresh, or another --out")
        return found[1:]

    def add(self, line: dict[str, Any]) -> None:
        """Append one line; it is on the disk when this returns."""
        self.lines.append(line)
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Keep the file for the next run."""
        self._file.close()

    def remove(self) -> None:
        """The profile is written; nothing is left to resume."""
        self.close()
        self.path.unlink()
