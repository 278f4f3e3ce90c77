"""A segment's ``.arrow`` file as its readers see it: mapped when they need it, any thread.

Readers may hold a segment long after the log has given it up. By then its file may be gone, or
another one may have its name. So whoever removes or replaces a file maps it first: what is mapped
once is not looked up by name again.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock

import pyarrow as pa

from spark_stream.storage.disk.disk import Disk

_NOTHING = pa.py_buffer(b"")


class GrowingFileMap:
    """One file that grows at its end, or not at all."""

    __slots__ = ("_disk", "_lock", "_mapped", "_path")

    def __init__(self, disk: Disk, path: Path, mapped: pa.Buffer = _NOTHING) -> None:
        """Start with an existing mapping, if there is one."""
        self._disk = disk
        self._path = path
        self._mapped = mapped
        self._lock = Lock()

    @property
    def mapped(self) -> pa.Buffer:
        """The file as far as it was mapped."""
        return self._mapped

    def upto(self, size: int) -> pa.Buffer:
        """Return the file mapped up to this size at least, or to its end."""
        mapped = self._mapped
        if mapped.size >= size:
            return mapped
        with self._lock:
            if self._mapped.size < size:
                self._mapped = self._disk.map(self._path)
            return self._mapped

    def forget(self) -> None:
        """Drop the mapping: the file was replaced by an equal one. Readers that hold it keep it."""
        with self._lock:
            self._mapped = _NOTHING
