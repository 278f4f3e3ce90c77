"""Writes a history: a file of JSON lines, one event per line (README.md)."""

from __future__ import annotations

import json
import threading
from pathlib import Path


class HistoryWriter:
    """The file of one history."""

    def __init__(self, path: Path, name: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._file = path.open("w", encoding="utf-8")
        self.write("history", name=name)

    def write(self, op: str, **fields: object) -> None:
        """Write an event. Unknown fields (None) are left out."""
        known = {name: value for name, value in fields.items() if value is not None}
        line = json.dumps({"op": op, **known}, separators=(",", ":"), ensure_ascii=False)
        with self._lock:
            self._file.write(line + "\n")

    def close(self) -> None:
        self._file.close()
