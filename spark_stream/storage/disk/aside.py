"""What an open takes out of a log is not deleted but kept in a new folder, ``cut/1``, ``cut/2``, …

Segments after a hole are moved there whole. If a file is shortened, the bytes that leave it are
copied: ``<file>.from.<position>`` has the file's old bytes from that position on. If sound entries
lie after the damage, the whole files are kept too, by a second name: a follower takes from them
what its leader cannot give (``kept``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa
from msgspec import Struct

from spark_stream.storage.disk.disk import Disk

FOLDER: Final = "cut"


class LostTail(Struct, frozen=True):
    """What a log lost when it opened, and where the remains are kept.

    ``entries_lost`` with ``records_lost`` records were certainly in the log: something after
    them, or the mark of what was forced, says so. ``entries_doubtful`` more may have been
    acknowledged or not: each is complete, but fails its checksum.
    """

    segment: str
    end: int
    records_lost: int
    entries_lost: int
    entries_doubtful: int
    bytes_lost: int
    kept_in: str | None
    reason: str
    partition: str = ""

    @property
    def grave(self) -> bool:
        """Whether something is lost that was acknowledged, or may have been."""
        return bool(self.entries_lost or self.records_lost or self.entries_doubtful)

    def __str__(self) -> str:
        doubt = ""
        if self.entries_doubtful:
            doubt = f", and {self.entries_doubtful} more entries that may have been acknowledged"
        kept = f"; what is left of them is kept in {self.kept_in}" if self.kept_in else ""
        where = f"{self.partition}: " if self.partition else ""
        return (
            f"{where}{self.segment}: {self.reason}; the log ends at offset {self.end}, lost are"
            f" {self.entries_lost} entries with {self.records_lost} records{doubt}"
            f" ({self.bytes_lost} bytes){kept}"
        )


class Aside:
    """A folder for what one open takes out of the log; it is made when first needed."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._folder: Path | None = None
        self.moved_bytes = 0

    @property
    def kept_in(self) -> str | None:
        """The folder, or None if nothing was taken out."""
        return None if self._folder is None else str(self._folder)

    def move(self, path: Path) -> None:
        """Move a whole file out of the log."""
        self.moved_bytes += self._disk.size(path)
        self._disk.rename(path, self._place() / path.name)

    def copy(self, path: Path, position: int, tail: pa.Buffer | bytes) -> None:
        """Keep a copy of the file's bytes from ``position`` on."""
        self._disk.write_whole(self._place() / f"{path.name}.from.{position}", [tail])

    def link(self, path: Path) -> None:
        """Keep a whole file that a shorter one is about to replace."""
        self._disk.link(path, self._place() / path.name)

    def settle(self) -> None:
        """Force everything done so far to the disk."""
        if self._folder is not None:
            self._disk.sync_directory(self._folder)
            self._disk.sync_directory(self._directory)

    def _place(self) -> Path:
        if self._folder is None:
            above = self._directory / FOLDER
            taken = [int(name) for name in self._disk.names(above) if name.isdecimal()]
            self._folder = above / str(max(taken, default=0) + 1)
            self._disk.make_directory(self._folder)
        return self._folder
