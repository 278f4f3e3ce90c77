"""The recorded high watermarks of a broker's partitions: one file per broker.

A partition's *mark* is its high watermark and the epoch of the entry before that. A mark stays true
even if this broker's logs change: a log that has this entry of this epoch has everything that is
committed before it, because two logs that share an entry are equal up to it
(``consistency.replication.epochs``). So a log uses a mark only if it has that entry, the file may
be out of date, and no mark has to be written before a log is truncated.

The file ``committed.json`` is a line with a CRC-32C, then one line of JSON. It is replaced as a
whole. An unreadable file counts as empty.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Set
from pathlib import Path
from typing import Final, NamedTuple

from spark_stream.batches import crc32c
from spark_stream.consistency.ids import EntryIndex, LeaderEpoch
from spark_stream.errors import IsologError
from spark_stream.loggers import logger_of
from spark_stream.storage.disk.disk import HOST_DISK, Disk

NAME: Final = "committed.json"

logger = logger_of(__name__)


class Mark(NamedTuple):
    """A high watermark: the entries below ``entry`` are committed. The last one has this epoch."""

    entry: EntryIndex
    epoch: LeaderEpoch


class CommittedMarks:
    """The marks of one broker, for any thread.

    If a partition could not be opened since the broker started, its mark stays in the file.
    """

    def __init__(self, directory: Path, disk: Disk = HOST_DISK) -> None:
        self._disk = disk
        self._path = directory / NAME
        self._lock = threading.Lock()  # held during a write of the file too
        self._marks = self._read()
        self._is_new = False

    def recall(self, key: str) -> Mark | None:
        """Return the mark of a partition, or None if there is none."""
        with self._lock:
            return self._marks.get(key)

    def note(self, key: str, mark: Mark) -> None:
        """Set the mark of a partition. :meth:`write` writes it to the disk."""
        with self._lock:
            if self._marks.get(key) != mark:
                self._marks[key] = mark
                self._is_new = True

    def forget(self, key: str) -> None:
        """Drop the mark of a partition without a replica here."""
        with self._lock:
            self._is_new |= self._marks.pop(key, None) is not None

    def keep_topics(self, ids: Set[str]) -> None:
        """Drop the marks of all topics but these."""
        with self._lock:
            kept = {key: each for key, each in self._marks.items() if key.split("/")[0] in ids}
            self._is_new |= len(kept) < len(self._marks)
            self._marks = kept

    def write(self, *, forced: bool) -> None:
        """Write the marks if one has changed. ``forced``: fsync them.

        Raises:
            DiskFull, StorageFailure: the file is unchanged. The next call tries again.
        """
        with self._lock:
            if self._is_new:
                self._write(forced=forced)
                self._is_new = False

    def _write(self, *, forced: bool) -> None:
        text = json.dumps(self._marks, separators=(",", ":")).encode()
        data = b"%08x\n%s\n" % (crc32c(text), text)
        if forced:
            self._disk.write_whole(self._path, [data])
            self._disk.sync_directory(self._path.parent)
        else:
            fresh = self._path.with_name(NAME + ".new")
            file = self._disk.create(fresh)
            try:
                file.write(0, data)
            finally:
                file.close()
            self._disk.rename(fresh, self._path)

    def _read(self) -> dict[str, Mark]:
        try:
            if NAME not in self._disk.names(self._path.parent):
                return {}
            crc, text = bytes(self._disk.map(self._path)).splitlines()
            if int(crc, 16) != crc32c(text):
                raise ValueError("wrong checksum")
            return {
                key: Mark(EntryIndex(int(entry)), LeaderEpoch(int(epoch)))
                for key, (entry, epoch) in json.loads(text).items()
            }
        except (IsologError, ValueError, TypeError, AttributeError) as error:
            logger.warning("ignoring unreadable high watermarks in %s: %s", self._path, error)
            return {}
