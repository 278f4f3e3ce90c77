"""Opening a log: its valid part is kept, the rest is cut out, and unfinished steps are finished.

The log is the longest run of segments that follow one another without a hole. The last of them is
valid up to its first failed checksum. A hole is an entry that fails its checksum, a file that is
shorter than its entries require, or a next segment that does not start with the entry and offset at
which this one ends. Entries after the first hole are neither served nor appended to. They are moved
to ``cut`` (``damage``).

A torn write is distinguished from a loss. An entry was certainly in the log if there is an intact
entry after it, a later segment, or a mark of fsyncs behind it (``fsyncs``). If it is missing, the
loss is reported with its numbers of entries and records. If the last entry is complete but fails
its checksum, it may have been acknowledged: that is reported too. An incomplete entry is a write
that never ended.

Order of steps: the segments after the hole are moved, the bytes to be cut are copied, and both are
forced. Then a shorter entries file replaces the longer one, then a shorter ``.arrow`` file. A crash
between two steps leaves the hole in its place, and the next open continues.

An ``.arrow`` file starts with a schema message. Other programs need it, and it has the index of an
empty segment's first entry. No entry's checksum covers it, so it is compared with the schema of the
segment's entries. In the last segment, a damaged schema message is rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from spark_stream.batches import header_length
from spark_stream.consistency.entries import ENTRY, ENTRY_SIZE, Kind, Table
from spark_stream.consistency.ids import EntryIndex, Offset
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.errors import DamagedSegment, IsologError, UnknownSchema
from spark_stream.storage.disk.directory import is_lost, log_note
from spark_stream.storage.disk.disk import Disk
from spark_stream.storage.disk.fsyncs import Fsyncs, FsyncState
from spark_stream.storage.format.codec import (
    END_OF_STREAM,
    Codec,
    first_broken_batch,
    intact_rows,
    moved,
)
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.log.damage import CutFolder, LostTail
from spark_stream.storage.log.segment_files import (
    FoundSegment,
    SegmentFiles,
    finish_replacements,
    last_intact_end,
    whole_rows,
)
from spark_stream.storage.segment.active_segment import ActiveSegment, header_of
from spark_stream.storage.segment.segment import Segment, SegmentName
from spark_stream.storage.settings import Flush

_SECTOR: Final = 512  # bytes that a disk writes all or not at all


class RecoveredSegments(Struct, frozen=True):
    """The segments of a log that was opened, and what the open cut off (``cuts``)."""

    closed: tuple[Segment, ...]
    active: ActiveSegment
    cuts: tuple[LostTail, ...] = ()


class OpenedLog(Struct, frozen=True):
    """An opened log. ``intact``: its files show no loss of acknowledged entries."""

    found: RecoveredSegments
    forcing: Fsyncs
    intact: bool


def open_files(
    directory: Path, log_format: LogFormat, disk: Disk, losing: Callable[[], None]
) -> OpenedLog:
    """Open the existing files.

    ``losing`` is called before the log gives up records that it may have acknowledged.

    Raises:
        DamagedSegment: a file that cannot be rebuilt is missing.
    """
    names = disk.names(directory)
    forcing = Fsyncs(disk, directory, names)
    failed = forcing.state is FsyncState.FAILED
    if failed:
        losing()  # first: the following steps may fail, and then the log does not open
    names = finish_replacements(disk, directory, names)
    files = SegmentFiles(disk, directory, log_format, names)
    found = Recovery(disk, directory, log_format, forcing, files, losing).recovered()
    doubtful = forcing.state is not FsyncState.DONE
    if doubtful:
        found.active.write_again(int(forcing.upto.entry))
    # A process may have died between a write and its fsync. A retry of that batch is acknowledged
    # as a duplicate, so the batch must be on the disk.
    promised = log_format.settings.flush is Flush.BATCH
    unforced = found.active.end.entry > forcing.upto.entry
    if doubtful or (promised and unforced):
        found.active.flush()
        forcing.mark(found.active.end)
    if names and not len(found.active.table):
        # An earlier process may have died during a truncation: make its result durable.
        with suppress(IsologError):  # then the log has failed, and can still be read
            forcing.force_names()
    lost = not names and is_lost(disk, directory, log_note(directory))
    return OpenedLog(found, forcing, not (lost or failed or any(cut.grave for cut in found.cuts)))


class _Tail(Struct, frozen=True):
    """The part of a file that is cut off. ``kept`` is the part that stays.

    ``gone`` does not include a hole at the file's end, but ``size`` does.
    """

    path: Path
    kept: pa.Buffer
    gone: pa.Buffer
    size: int


class Recovery(Struct, frozen=True):
    """The search for the valid segments of one log, and the removal of the others.

    ``losing`` is called before the log gives up entries that it may have acknowledged.
    """

    disk: Disk
    directory: Path
    format: LogFormat
    forcing: Fsyncs
    files: SegmentFiles
    losing: Callable[[], None]

    def recovered(self) -> RecoveredSegments:
        """Cut the log back to its valid part, and return it.

        Raises:
            DamagedSegment: a file is missing, or is not a segment file. The files are unchanged.
        """
        names = self.files.segments()
        if not names:
            return self._new()
        closed: list[Segment] = []
        expected: Boundary | None = None
        for place, name in enumerate(names):
            found = self.files.found(name, expected)
            behind = names[place + 1 :]
            if self._is_left_over(found, behind):
                self._remove(behind.pop())
            if not behind or not self.files.follows(found, behind[0]):
                break
            closed.append(
                Segment(
                    self.disk,
                    name,
                    self._codec_of(found) or self.format.codec,
                    found.first,
                    found.kept,
                    has_tail=found.data_size > found.data_end + len(END_OF_STREAM),
                )
            )
            expected = found.end
        active, cut = self._last(found, behind)
        return RecoveredSegments(tuple(closed), active, () if cut is None else (cut,))

    def _new(self) -> RecoveredSegments:
        """Return a log without files."""
        name, start = SegmentName(self.directory, 0), Boundary(EntryIndex(0), Offset(0))
        active = self._active(name, self.format.codec, start, np.zeros(0, ENTRY))
        once = self.forcing.upto
        if once.entry == 0:
            return RecoveredSegments((), active)
        self.losing()
        self.forcing.mark(start)
        cut = self._cut(name, start, once, reason="no segment is left")
        return RecoveredSegments((), active, (cut,))

    def _active(
        self,
        name: SegmentName,
        codec: Codec,
        first: Boundary,
        table: Table,
        data_end: int | None = None,
    ) -> ActiveSegment:
        return ActiveSegment(
            self.disk,
            name,
            codec,
            first,
            table,
            facts=dict(self.format.facts),
            forcing=self.forcing,
            data_end=data_end,
        )

    def _codec_of(self, found: FoundSegment) -> Codec | None:
        """Return the codec of the segment's batches, or None if it has none."""
        batches = found.kept[found.kept["kind"] == Kind.DATA]
        if not len(batches):
            return None
        try:
            return self.format.codec_of(int(batches[0]["schema"]))
        except UnknownSchema as error:
            raise DamagedSegment(
                f"{found.name.arrow}: {error.message}",
                path=str(found.name.arrow),
                hint="The metadata store's record of the topic is older than its files: restore a"
                " store at least as new as they are.",
            ) from None

    def _is_left_over(self, found: FoundSegment, behind: list[SegmentName]) -> bool:
        """Return whether the only segment after this one is empty and starts before this one ends.

        A failed roll leaves such a segment, and so does a crash during a truncation.
        """
        return (
            len(behind) == 1
            and self.files.starts_within(found, behind[0])
            and self.files.is_empty(behind[0])
        )

    def _remove(self, name: SegmentName) -> None:
        for path in self.files.paths(name):
            self.disk.remove(path)
        self.disk.sync_directory(self.directory)

    def _last(
        self, found: FoundSegment, behind: Sequence[SegmentName]
    ) -> tuple[ActiveSegment, LostTail | None]:
        """Cut off everything after the log's end. Return the last segment, repaired."""
        name = found.name
        data = self.files.data(name)
        header = header_length(data)
        found = replace(found, good=first_broken_batch(found.kept, data))
        if not found.good and header is None and len(found.table):
            raise DamagedSegment(
                f"{name.arrow}: not a segment of Arrow batches, but {name.entries} has"
                f" {len(found.table)} entries",
                path=str(name.arrow),
            )
        codec = self._codec_of(found)
        if codec is None:  # no batch yet: the schema message has the schema of the next ones
            sound = data.slice(0, header or 0)
            known = (each for each in reversed(self.format.codecs) if each.describes(sound))
            codec = next(known, self.format.codec)
            found = self._settled(found, header)
        data_end = found.data_end or int(header or 0)
        cut = self._end_log(found, behind, self._tails(found, data, data_end))
        if not found.good and header is None:
            # The first append makes a new file.
            return self._active(name, codec, found.first, found.kept), cut
        if self._mends_header(found, codec, data, data_end, header):
            reason = "its schema message was damaged, but not its batches"
            cut = cut or self._cut(name, found.end, found.end, reason=reason)
        return self._active(name, codec, found.first, found.kept, data_end), cut

    def _tails(self, found: FoundSegment, data: pa.Buffer, data_end: int) -> list[_Tail]:
        """Return the tails to cut off the two files, first that of the entries, which name batches.

        An interrupted roll leaves an end-of-stream mark, which the next append replaces.
        """
        tails = []
        for path, whole, end in (
            (found.name.entries, found.raw, found.good * ENTRY_SIZE),
            (found.name.arrow, data, data_end),
        ):
            if not whole.size:
                continue  # there may be no file
            size = self.disk.size(path) - end
            stored = max(0, self.disk.stored_size(path) - end)
            gone = whole.slice(min(end, whole.size), min(stored, whole.size - end))
            if size > 0 and not (whole is data and gone.equals(pa.py_buffer(END_OF_STREAM))):
                tails.append(_Tail(path, whole.slice(0, end), gone, size))
        return tails

    def _settled(self, found: FoundSegment, header: int | None) -> FoundSegment:
        """Move the positions of a segment with only markers to the end of its schema message.

        They are wrong if a crash interrupted :meth:`Truncation.in_schema`.
        """
        kept = found.kept
        if header is None or not len(kept) or int(kept[0]["position"]) == header:
            return found
        rows = moved(kept, np.full(len(kept), header, np.int64))
        rest = found.raw.slice(found.good * ENTRY_SIZE)
        self.disk.write_whole(found.name.entries, [rows.tobytes(), rest])
        self.disk.sync_directory(self.directory)
        raw = self.disk.map(found.name.entries)
        return replace(found, raw=raw, table=whole_rows(raw))

    def _end_log(
        self, found: FoundSegment, behind: Sequence[SegmentName], tails: Sequence[_Tail]
    ) -> LostTail | None:
        """Move the segments behind the end to ``cut``, and shorten the last segment's files."""
        end, once = found.end, self._known_end(found, behind)
        if not tails and not behind and once == end:
            return None
        doubtful = _doubtful(found, once)
        if once != end or doubtful:
            self.losing()
        folder = CutFolder(self.disk, self.directory)
        # The newest are moved first, so that a crash leaves no new gap.
        for path in [path for name in reversed(behind) for path in self.files.paths(name)]:
            folder.move(path)
        for tail in tails:
            if np.frombuffer(tail.gone, np.uint8).any():
                folder.copy(tail.path, tail.kept.size, tail.gone)
        if intact_rows(found.table[found.good + 1 :]).any():  # a follower may append them again
            for tail in tails:
                folder.link(tail.path)
        folder.settle()
        for tail in tails:
            self.disk.write_whole(tail.path, [tail.kept])
        self.disk.sync_directory(self.directory)
        if self.forcing.upto.entry > end.entry:
            self.forcing.mark(end)
        return self._cut(
            found.name,
            end,
            once,
            reason="a hole ends the log" if behind else "cut behind the valid prefix",
            doubtful=doubtful,
            size=folder.moved_bytes + sum(tail.size for tail in tails),
            kept_in=folder.kept_in,
        )

    def _known_end(self, found: FoundSegment, behind: Sequence[SegmentName]) -> Boundary:
        """Return the farthest position that the log's end certainly had."""
        known = [found.end, self.forcing.upto, *map(self.files.known_end, behind)]
        known.append(last_intact_end(found.table[found.good :], found.end))
        return Boundary(max(each.entry for each in known), max(each.offset for each in known))

    def _cut(
        self,
        name: SegmentName,
        end: Boundary,
        once: Boundary,
        *,
        reason: str,
        doubtful: int = 0,
        size: int = 0,
        kept_in: str | None = None,
    ) -> LostTail:
        facts = dict(self.format.facts)
        topic, number = facts.get("isolog.topic"), facts.get("isolog.partition")
        return LostTail(
            partition="" if topic is None or number is None else f"{topic}/{number}",
            segment=str(name.arrow),
            reason=reason,
            end=int(end.offset),
            records_lost=once.offset - end.offset,
            entries_lost=once.entry - end.entry,
            entries_doubtful=doubtful,
            bytes_lost=size,
            kept_in=kept_in,
        )

    def _mends_header(
        self, found: FoundSegment, codec: Codec, data: pa.Buffer, data_end: int, header: int | None
    ) -> bool:
        """Rewrite a damaged schema message if possible. Return whether it was damaged."""
        data_start = int(found.kept[0]["position"]) if found.good else int(header or 0)
        if codec.describes(data.slice(0, data_start)):
            return False
        message = header_of(codec, dict(self.format.facts), found.first)
        if not found.good or len(message) == data_start:  # else the batches would have to move
            batches = data.slice(data_start, data_end - data_start)
            self.disk.write_whole(found.name.arrow, [message, batches])
            self.disk.sync_directory(self.directory)
        return True


def _doubtful(found: FoundSegment, once: Boundary) -> int:
    """Count the entries after the known end that are complete but fail their checksum."""
    first = max(found.good, once.entry - found.first.entry)
    rows = found.table[first:]
    broken = np.flatnonzero(~intact_rows(rows)) if len(rows) else ()
    return sum(not _is_unfinished(rows[row], first + int(row)) for row in broken)


def _is_unfinished(entry: np.void, row: int) -> bool:
    """Return whether the entry was never written completely: its part in one sector is blank.

    A row of zeros is included: there the file was extended, but not written.
    """
    raw = entry.tobytes()
    edge = -(row * ENTRY_SIZE) % _SECTOR
    parts = (raw[:edge], raw[edge:], raw[-4:]) if edge < ENTRY_SIZE else (raw, raw[-4:])
    return any(part and not part.strip(b"\0") for part in parts)
