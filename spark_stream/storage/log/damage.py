"""Damage of a log: the damaged entries found so far, and the files that damage cut out of the log.

A log keeps an entry whose batch fails its checksum: the entry still counts, and its neighbours stay
readable. :class:`Damage` has the entries that a replica must not vouch for. It is in memory only:
after the log is opened again, the damage has to be found again.

**Cut at an open.** A recovery deletes nothing. It keeps the files in a new folder, ``cut/1``,
``cut/2``, … (:class:`CutFolder`). Segments after a hole are moved there whole. If a file is
shortened, the removed bytes are copied: ``<file>.from.<position>`` has the file's old bytes from
that position on. If intact entries lie after the damage, the whole files are kept too, by a second
name: a follower takes from them the entries that its leader cannot give.

**Cut by a follower.** A follower with a damaged entry cuts its log there, and takes the entries
after the cut from its leader. That leader may turn out to be damaged too, at a later entry of which
this log has just cut an intact copy. So the files of the segments are linked first, in
``cut/healing-N``, which copies nothing. Entries that the leader cannot give are taken from there
(:class:`CutSegments`). A kept segment is removed once the log has its last entry again. Segments
that an open has cut are read too, and never removed.

**Which entry fits.** Entries of one index and one epoch are the same in all logs, and so are all
entries before them. A kept entry may follow the log's last entry if the kept entry before it has
the epoch of the log's last one, or if the kept entry itself has that epoch. If the present leader
does not have such an entry, the next agreement with the leader cuts it off
(``consistency.replication.follower``), as it does with any follower's log.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
from msgspec import Struct

from spark_stream.consistency.ids import EntryIndex
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.errors import DamagedSegment, IsologError
from spark_stream.storage.disk.disk import Disk
from spark_stream.storage.format.codec import intact_entries
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.format.stored import StoredEntries
from spark_stream.storage.log.segment_files import SegmentFiles
from spark_stream.storage.segment.segment import Segment

CUT_FOLDER: Final = "cut"


class LostTail(Struct, frozen=True):
    """The loss of a log at its open. ``kept_in``: the folder of the remains.

    ``entries_lost`` with ``records_lost`` records were certainly in the log: an entry after them or
    the mark of fsyncs proves it. ``entries_doubtful`` more may have been acknowledged: each is
    complete, but fails its checksum.
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
        """Whether a lost entry was, or may have been, acknowledged."""
        return bool(self.entries_lost or self.records_lost or self.entries_doubtful)

    def __str__(self) -> str:
        doubt = ""
        if self.entries_doubtful:
            doubt = f", and {self.entries_doubtful} more entries that may have been acknowledged"
        kept = f"; the remains are in {self.kept_in}" if self.kept_in else ""
        where = f"{self.partition}: " if self.partition else ""
        return (
            f"{where}{self.segment}: {self.reason}; the log ends at offset {self.end};"
            f" lost {self.entries_lost} entries with {self.records_lost} records{doubt}"
            f" ({self.bytes_lost} bytes){kept}"
        )


class CutFolder:
    """A folder for the files that one open cuts out of the log. It is made on demand."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._folder: Path | None = None
        self.moved_bytes = 0

    @property
    def kept_in(self) -> str | None:
        """The folder, or None if it was not needed."""
        return None if self._folder is None else str(self._folder)

    def move(self, path: Path) -> None:
        """Move a whole file out of the log."""
        self.moved_bytes += self._disk.size(path)
        self._disk.rename(path, self._place() / path.name)

    def copy(self, path: Path, position: int, tail: pa.Buffer | bytes) -> None:
        """Keep a copy of the file's bytes from ``position`` on."""
        self._disk.write_whole(self._place() / f"{path.name}.from.{position}", [tail])

    def link(self, path: Path) -> None:
        """Keep a whole file, before a shorter one replaces it."""
        self._disk.link(path, self._place() / path.name)

    def settle(self) -> None:
        """Fsync the folder and its name."""
        if self._folder is not None:
            self._disk.sync_directory(self._folder)
            self._disk.sync_directory(self._directory)

    def _place(self) -> Path:
        if self._folder is None:
            above = self._directory / CUT_FOLDER
            taken = [int(name) for name in self._disk.names(above) if name.isdecimal()]
            self._folder = above / str(max(taken, default=0) + 1)
            self._disk.make_directory(self._folder)
        return self._folder


DAMAGE_FOUND: Final = threading.Event()
"""Set once damage was found in any log of this process. Until then, no log has to be checked."""


class Damage:
    """The damaged entries of one log. Any thread adds them, only the writer drops them."""

    def __init__(self) -> None:
        self._entries: frozenset[int] = frozenset()

    def add(self, entry: int) -> None:
        """Record that the batch of the entry with this index fails its checksum."""
        if entry not in self._entries:
            self._entries |= {entry}
            DAMAGE_FOUND.set()

    def __bool__(self) -> bool:
        return bool(self._entries)

    def first(self, start: EntryIndex) -> EntryIndex | None:
        """Return the first damaged entry of a log that starts at ``start``, or None."""
        found = [entry for entry in self._entries if entry >= start]
        return EntryIndex(min(found)) if found else None

    def drop_from(self, entry: EntryIndex) -> None:
        """Drop the damage from this entry on, where the log was truncated."""
        self._entries = frozenset(each for each in self._entries if each < entry)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the damaged entry of a DamagedSegment that the block raises."""
        try:
            yield
        except DamagedSegment as error:
            if "entry" in error.details:
                self.add(int(error.details["entry"]))
            raise


HEALING: Final = "healing-"
_MAX_BYTES: Final = 1 << 20  # of the entries of one call


class CutSegments:
    """The segments kept for one log. Only the log's writer calls this."""

    def __init__(self, disk: Disk, directory: Path, log_format: LogFormat) -> None:
        """Find the segments that earlier processes have kept."""
        self._disk = disk
        self._above = directory / CUT_FOLDER
        self._format = log_format
        self._segments: list[Segment] = []
        for name in disk.names(self._above):
            folder = self._above / name
            if name.startswith(HEALING):
                self._finish(folder)
            self._segments += self._found(folder)

    def keep(self, segments: Sequence[Segment]) -> None:
        """Keep these segments of the log, the last of which may be the active one.

        Segments that are kept already, because an earlier truncation failed, are not kept again.

        Raises:
            DiskFull, StorageFailure: The segments are not kept. The log is unchanged.
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
        """Remove files without their pair, left by a process that died in a link or a removal."""
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

    def entries_after(self, log: Sequence[Segment]) -> StoredEntries | None:
        """Return intact entries that may follow the log with these segments, or None."""
        if not self._segments:
            return None
        end = log[-1].end
        epoch_before = _epoch_of(log, end.entry - 1)
        for segment in reversed(self._segments):
            if self._fits(segment, end, epoch_before):
                with suppress(DamagedSegment):
                    return segment.stored(end.entry, _MAX_BYTES, None)
        return None

    def drop_restored(self, log: Sequence[Segment]) -> None:
        """Remove the kept segments whose entries this log has again, if the disk allows it."""
        for segment in list(self._segments):
            if not self._is_restored(segment, log):
                continue
            self._segments.remove(segment)
            folder = segment.name.directory
            with suppress(IsologError):  # tried again after the next open
                log[-1].flush()  # the log's copies of the entries may be in memory only
                self._disk.remove(segment.name.arrow)
                self._disk.remove(segment.name.entries)
                self._disk.remove_empty_directory(folder)
                self._disk.remove_empty_directory(self._above)

    def _is_restored(self, segment: Segment, log: Sequence[Segment]) -> bool:
        folder, after = segment.name.directory, segment.end.entry
        log_end = log[-1].end.entry
        if not folder.name.startswith(HEALING) or after > log_end:
            return False
        kept = _of_folder(self._segments, folder)
        if after == log_end and _epoch_of(kept, after) is not None:
            return False  # the epoch of its last entry decides whether the next kept one fits
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
        """Return the complete segments in a folder. Other files are ignored."""
        files = SegmentFiles(self._disk, folder, self._format, self._disk.names(folder))
        found = []
        for name in files.segments():
            with suppress(IsologError):  # a file is missing, or its start is unknown
                told = files.found(name, None)
                if len(told.table):
                    codec = self._format.codec  # not used: stored batches are copied unchanged
                    found.append(Segment(self._disk, name, codec, told.first, told.table))
        return found


def _of_folder(segments: Sequence[Segment], folder: Path) -> list[Segment]:
    return [each for each in segments if each.name.directory == folder]


def _epoch_of(segments: Sequence[Segment], entry: int) -> int | None:
    """Return the epoch of an entry, or None if it is damaged or not in the segments."""
    for segment in reversed(segments):
        row = entry - segment.first.entry
        if 0 <= row < len(segment.table):
            rows = segment.table[row : row + 1]
            return int(rows[0]["leader_epoch"]) if intact_entries(rows) else None
    return None
