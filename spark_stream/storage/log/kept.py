"""Segments that a log gave up at a damaged entry, kept until the log has their entries again.

A follower with a damaged entry cuts its log there, and takes what follows from its leader. That
leader may turn out to be damaged too, at a later entry of which this log has just given up a sound
copy. So the files of the segments that are cut first get a second name, in ``cut/healing-N``, which
copies nothing; entries that the leader cannot give are taken from there. A kept segment is removed
once the log has its last entry again. Segments that an open has set aside (``aside``) are read as
well, and never removed.

**Which entry fits.** Entries of one index and one epoch are the same in all logs, and so is all
that lies before them. A kept entry may follow the log's last entry if the kept entry before it has
the epoch of the log's last one, or if the kept entry itself has that epoch. If the present leader
does not have such an entry, the next agreement with the leader cuts it off
(``consistency.replication.follower``), as it does with any follower's log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from spark_stream.consistency.entries import Entry, Table
from spark_stream.consistency.replication.leader import Boundary
from spark_stream.errors import DamagedSegment, IsologError
from spark_stream.storage.disk.aside import FOLDER
from spark_stream.storage.disk.disk import Disk
from spark_stream.storage.format.codec import intact_entries
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.format.stored import StoredEntries
from spark_stream.storage.log.looking import SegmentFiles
from spark_stream.storage.segment.segment import Segment

HEALING: Final = "healing-"
_MAX_BYTES: Final = 1 << 20  # of entries that are taken at once


class KeptSegments:
    """What is kept for one log. The log's writer calls this."""

    def __init__(self, disk: Disk, directory: Path, log_format: LogFormat) -> None:
        """Find what earlier processes have kept."""
        self._disk = disk
        self._above = directory / FOLDER
        self._format = log_format
        self._segments: list[Segment] = []
        for name in disk.names(self._above):
            folder = self._above / name
            if name.startswith(HEALING):
                self._finish(folder)
            self._segments += self._found(folder)

    def keep(self, segments: Sequence[Segment]) -> None:
        """Keep these segments of the log, the last of which may be the active one.

        Segments already kept, because an earlier cut failed later on, are not kept again.

        Raises:
            DiskFull, StorageFailure: keeping them failed; the log is as it was.
        """
        missing = [each for each in segments if len(each.table) and not self._has(each)]
        if not missing:
            return
        folder = self._above / f"{HEALING}{self._next_number()}"
        self._disk.make_directory(folder)
        try:
            for segment in missing:
                segment.flush()
                for path in (segment.name.arrow, segment.name.entries):
                    self._disk.link(path, folder / path.name)
            self._disk.sync_directory(folder)
        except IsologError:
            with suppress(IsologError):
                self._disk.remove_tree(folder)
            raise
        self._segments += self._found(folder)

    def _finish(self, folder: Path) -> None:
        """Remove lone files of pairs that a process was linking, or removing, when it died."""
        names = self._disk.names(folder)
        stems = Counter(Path(name).stem for name in names)
        with suppress(IsologError):
            for name in names:
                if stems[Path(name).stem] == 1:
                    self._disk.remove(folder / name)
            self._disk.remove_empty_directory(folder)

    def _has(self, segment: Segment) -> bool:
        table = segment.table.tobytes()
        return any(
            each.first == segment.first and each.table.tobytes() == table for each in self._segments
        )

    def take_back(
        self,
        log: Callable[[], Sequence[Segment]],
        append: Callable[[Table, pa.Buffer], list[Entry]],
    ) -> list[Entry]:
        """Append the sound entries that may follow the log, and return them.

        ``log`` returns the log's segments.

        Raises:
            DiskFull, StorageFailure: As for ``append``, if it fails for the first of them.
        """
        taken: list[Entry] = []
        try:
            while (found := self._entries_behind(log())) is not None:
                taken += append(found.rows, found.data)
        except IsologError:
            if not taken:
                raise
        return taken

    def _entries_behind(self, log: Sequence[Segment]) -> StoredEntries | None:
        if not self._segments:
            return None
        end = log[-1].end
        epoch_before = _epoch_of(log, end.entry - 1)
        for segment in reversed(self._segments):
            if self._fits(segment, end, epoch_before):
                with suppress(DamagedSegment):
                    return segment.stored(end.entry, _MAX_BYTES, None)
        return None

    def drop_healed(self, log: Sequence[Segment]) -> None:
        """Remove kept segments that the log with these segments has again, if the disk allows."""
        for segment in list(self._segments):
            if not self._is_healed(segment, log):
                continue
            self._segments.remove(segment)
            folder = segment.name.directory
            with suppress(IsologError):  # it is tried again after the next open
                log[-1].flush()  # the entries that the log has again may be in memory only
                self._disk.remove(segment.name.arrow)
                self._disk.remove(segment.name.entries)
                self._disk.remove_empty_directory(folder)
                self._disk.remove_empty_directory(self._above)

    def _is_healed(self, segment: Segment, log: Sequence[Segment]) -> bool:
        folder, after = segment.name.directory, segment.end.entry
        log_end = log[-1].end.entry
        if not folder.name.startswith(HEALING) or after > log_end:
            return False
        kept = _of_folder(self._segments, folder)
        if after == log_end and _epoch_of(kept, after) is not None:
            return False  # the epoch of its last entry says whether the next kept one fits
        evicted = after <= log[0].first.entry
        return evicted or _epoch_of(log, after - 1) == int(segment.table[-1]["leader_epoch"])

    def _fits(self, segment: Segment, end: Boundary, epoch_before: int | None) -> bool:
        row = end.entry - segment.first.entry
        rows = segment.table[max(0, row) : max(0, row) + 1]
        if row < 0 or not intact_entries(rows):
            return False
        there = int(rows[0]["entry_index"]), int(rows[0]["base_offset"])
        if there != (end.entry, end.offset):
            return False
        if end.entry == 0:
            return True
        kept = _of_folder(self._segments, segment.name.directory)
        before = _epoch_of(kept, end.entry - 1)
        same = int(rows[0]["leader_epoch"]) if before is None else before
        return same == epoch_before

    def _next_number(self) -> int:
        names = (name.removeprefix(HEALING) for name in self._disk.names(self._above))
        return max((int(name) for name in names if name.isdecimal()), default=0) + 1

    def _found(self, folder: Path) -> list[Segment]:
        """Return the complete segments in a folder, whatever else is in it."""
        files = SegmentFiles(self._disk, folder, self._format, self._disk.names(folder))
        found = []
        for name in files.segments():
            with suppress(IsologError):  # a file is missing, or nothing tells where it starts
                told = files.found(name, None)
                if len(told.table):
                    codec = self._format.codec  # not used: stored batches are copied as they are
                    found.append(Segment(self._disk, name, codec, told.first, told.table))
        return found


def _of_folder(segments: Sequence[Segment], folder: Path) -> list[Segment]:
    return [each for each in segments if each.name.directory == folder]


def _epoch_of(segments: Sequence[Segment], entry: int) -> int | None:
    """Return the epoch of an entry; None if the segments do not have it, or it is damaged."""
    for segment in reversed(segments):
        row = entry - segment.first.entry
        if 0 <= row < len(segment.table):
            rows = segment.table[row : row + 1]
            return int(rows[0]["leader_epoch"]) if intact_entries(rows) else None
    return None
