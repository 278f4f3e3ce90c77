"""A partition's segments as one log: append, read, look up by time, roll, retain, recover.

There is one writer at a time (the caller holds the partition's lock). Readers take no lock: each
works on the tuple of segments at its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from spark_stream.consistency.entries import Entry, JudgedTable, Kind, Table
from spark_stream.consistency.ids import NO_TRANSACTION, EntryIndex, LeaderEpoch, Offset
from spark_stream.consistency.partition.producers import NOBODY, Stamp
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.errors import IsologError, StorageFailure
from spark_stream.storage.disk.disk import HOST_DISK, Disk
from spark_stream.storage.format.codec import Codec, EncodedBatch
from spark_stream.storage.format.log_format import UNLIMITED, LogFormat, PreparedBatch, marker_at
from spark_stream.storage.format.stored import (
    Chunk,
    ChunkPlace,
    StoredEntries,
    check_entries,
    checked_lone_entry,
    entries_of,
)
from spark_stream.storage.log.damage import CutSegments, Damage
from spark_stream.storage.log.reading import (
    AbortedBatches,
    Budget,
    ReadPlan,
    first_offset_at,
    has_aborted,
    located_in,
    read_segments,
    segment_with,
)
from spark_stream.storage.log.recovery import OpenedLog, open_files
from spark_stream.storage.log.retention import (
    FlushTimer,
    SegmentFacts,
    due_by_age,
    is_too_old,
    removable,
    rows_of_one_schema,
    rows_that_fit,
)
from spark_stream.storage.log.truncation import ShorterCopy, Truncation
from spark_stream.storage.segment.active_segment import ActiveSegment
from spark_stream.storage.segment.checks import CheckedPiece, Suspect, is_sound, pieces
from spark_stream.storage.segment.filtering import Filtering, RecordFilter
from spark_stream.storage.segment.segment import Segment
from spark_stream.storage.settings import Flush

_FIRST: Final = Offset(0)


class PartitionLog:
    """The log of one partition in one directory."""

    def __init__(
        self, directory: Path, log_format: LogFormat, opened: OpenedLog, disk: Disk
    ) -> None:
        self.directory = directory
        self.format = log_format
        self.cuts = opened.found.cuts
        self.intact = opened.intact
        """Whether the open found all entries that the log has a record of, and no fsync had failed.

        A crash of the machine can remove the last entries of a log without a trace. Then only other
        replicas have a record of its end."""
        self._disk = disk
        self._forcing = opened.forcing
        self._flush_timer = FlushTimer()
        self._damage = Damage()
        self._cut_segments = CutSegments(disk, directory, log_format)
        self._truncation = Truncation(disk, directory, log_format, opened.forcing)
        self._put(opened.found.closed, opened.found.active)
        self._aborted = AbortedBatches(self.segments)

    def _put(self, closed: tuple[Segment, ...], active: ActiveSegment) -> None:
        """Replace all segments in one step: readers take no lock."""
        self._active = active
        self._segments: tuple[Segment, ...] = (*closed, active)

    @classmethod
    def open(
        cls,
        directory: Path,
        log_format: LogFormat,
        disk: Disk = HOST_DISK,
        losing: Callable[[], None] = lambda: None,
    ) -> PartitionLog:
        """Open a log. Its losses are in ``cuts``. A new log gets its files with its first entry.

        ``losing``: as in :class:`~spark_stream.storage.logs.FileLogs`.

        Raises:
            DamagedSegment: a file that cannot be rebuilt is missing.
        """
        return cls(directory, log_format, open_files(directory, log_format, disk, losing), disk)

    @property
    def failed(self) -> StorageFailure | None:
        """The failure after which the log accepts no appends until it is opened again, or None."""
        return self._forcing.failed

    def when_failed(self, callback: Callable[[], None]) -> None:
        """Set the callback for the log's failure. Call it if the log has failed already.

        It may be called under the caller's lock, and in the middle of an append.
        """
        self._forcing.when_failed = callback
        if self.failed is not None:
            callback()

    # -- bounds ---------------------------------------------------------------------------------

    @property
    def start(self) -> Boundary:
        """The position of the first entry."""
        return self._segments[0].first

    @property
    def end(self) -> Boundary:
        """The position of the next entry."""
        return self._active.end

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, oldest first. The last one takes appends."""
        return self._segments

    @property
    def _closed(self) -> tuple[Segment, ...]:
        return self._segments[:-1]

    def tables(self) -> list[Table]:
        """Return the current entries tables of all segments, oldest first."""
        return [segment.table for segment in self.segments]

    def boundary_of(self, entry: EntryIndex) -> Boundary:
        """Return the position before the entry with this index, from the log's start to its end.

        Raises:
            EntriesGone: the log starts after it, or ends before it.
        """
        return self._segment_of(entry).boundary_of(entry)

    def _segment_of(self, entry: EntryIndex) -> Segment:
        """Return the segment with this entry. The last one also has the log's end."""
        return segment_with(self.segments, entry, self.directory)

    # -- writing --------------------------------------------------------------------------------

    def append(
        self, batch: PreparedBatch, leader_epoch: LeaderEpoch, now: int, stamp: Stamp = NOBODY
    ) -> Offset:
        """Append one batch, and return its first record's offset. ``stamp``: its producer.

        Raises:
            DiskFull, StorageFailure: the batch is not appended. A later append can succeed, unless
                the log has ``failed``.
        """
        self._forcing.check()
        self._make_room(batch.message.size, now, self.format.codec_of(batch.schema))
        end = self.end
        entry = batch.entry_at(end, leader_epoch, now, stamp)
        self._write(entry, batch.message)
        self._active.note_extremes(entry, batch.extremes)
        return end.offset

    def mark(
        self,
        kind: Kind,
        producer_id: int,
        epoch: int,
        transaction: int,
        leader_epoch: LeaderEpoch,
        now: int,
    ) -> None:
        """Append the marker that ends a producer's part of a transaction: COMMIT or ABORT.

        An ABORT also marks the producer's batches as aborted. The marker takes no offset.

        Raises:
            DiskFull, StorageFailure: the marker is not appended. A later call can succeed, unless
                the log has ``failed``.
        """
        self._forcing.check()
        self._make_room(0, now)
        entry = marker_at(self.end, kind, producer_id, epoch, transaction, leader_epoch, now)
        self._write(entry, None)

    def append_entries(self, rows: Table, data: pa.Buffer) -> list[Entry]:
        """Append entries and markers from :meth:`read_entries` of the leader's log.

        All of them are checked before the first write. Return the appended entries. If the disk
        refuses a later entry, return only the earlier ones (at least one). The next call raises the
        error. A segment's age is computed from the entries' times of append.

        Raises:
            ValueError: the rows do not start at the log's end.
            DamagedEntries: a checksum fails, or the rows are not a valid table. No entry is
                appended.
            UnknownSchema: :attr:`format` lacks the first batch's schema. No entry is appended.
            DiskFull, StorageFailure: no entry is appended. A later call can succeed, unless the log
                has ``failed``.
        """
        self._forcing.check()
        if not len(rows):
            return []
        end, epoch = self.end, self._last_epoch
        lone = checked_lone_entry(rows, data, end, epoch)
        if lone is not None:
            codec = self.format.codec_of(lone.schema) if lone.count else None
            self._make_room(data.size, lone.appended, codec)
            self._write(lone, EncodedBatch.of(data) if data.size else None)
            self._cut_segments.drop_restored(self._segments)
            return [lone]
        check_entries(rows, data, end, epoch, str(self.directory))
        taken = read = 0
        try:
            while taken < len(rows):
                of_schema, version = rows_of_one_schema(rows[taken:])
                codec = None if version is None else self.format.codec_of(version)
                self._use_schema(codec)
                fit = self._fitting(of_schema)
                if not fit:
                    self.roll(codec)
                    fit = self._fitting(of_schema)
                part = of_schema[:fit]
                length = int(part["length"].sum())
                self._active.append_rows(part, data.slice(read, length), forced=self._forced)
                if self._forced:
                    self._forcing.mark(self._active.end)
                taken, read = taken + fit, read + length
        except IsologError:
            if not taken:
                raise
        entries = entries_of(rows[:taken])
        for entry in entries:
            self._aborted.on_appended(entry, self._segments)
        self._cut_segments.drop_restored(self._segments)
        return entries

    def restore_cut_entries(self) -> list[Entry]:
        """Append intact entries that were cut at damage and follow the log's end. Return them.

        A follower calls this if its leader's copy of the next entry is damaged. If a later leader
        does not have the entries, :meth:`truncate` removes them again.

        Raises:
            DiskFull, StorageFailure: as for :meth:`append_entries`, if not even one is appended.
        """
        taken: list[Entry] = []
        try:
            while (found := self._cut_segments.entries_after(self._segments)) is not None:
                taken += self.append_entries(found.rows, found.data)
        except IsologError:
            if not taken:
                raise
        return taken

    def _fitting(self, rows: Table) -> int:
        """Return the number of leading rows that fit into the active segment."""
        active = self._active
        return rows_that_fit(
            rows,
            self.format.settings,
            entries=len(active.table),
            data_bytes=active.data_bytes,
            first_appended=active.first_appended,
            has_record=active.end.offset > active.first.offset,
        )

    @property
    def _last_epoch(self) -> int:
        """The epoch of the last entry, or 0 without one."""
        tables = (segment.table for segment in reversed(self._segments))
        return next((int(table[-1]["leader_epoch"]) for table in tables if len(table)), 0)

    def truncate(self, to: EntryIndex) -> Boundary:
        """Remove the entry with this index and all later ones. Return the new end.

        If the log is damaged, the removed entries are kept for :meth:`restore_cut_entries` until
        the log has them again. Reads that have begun continue with the old files. After a crash the
        log ends here or at a later entry that it had. The steps are in ``truncation``.

        Raises:
            EntriesGone: the log starts after the entry, or ends before it.
            DiskFull, StorageFailure: the log is unchanged, or has ``failed``.
        """
        self._forcing.check()
        boundary = self.boundary_of(to)
        if boundary == self.end:
            return boundary
        if self.hole is not None:
            self._cut_segments.keep([each for each in self._segments if each.end.entry > to])
        gone = [each.table[max(0, to - each.first.entry) :] for each in self._segments]
        self._put(*self._truncation.cut(self._closed, self._active, boundary))
        self._damage.drop_from(boundary.entry)
        if any((table["transaction"] != NO_TRANSACTION).any() for table in gone):
            self._aborted.derive(self._segments)
        return boundary

    def reset(self, start: Boundary) -> None:
        """Empty the log, and set its start.

        If the log is damaged, the removed entries are kept, as by :meth:`truncate`. After a crash
        the log has an older part of its entries, or is empty and begins at ``start`` or at 0. The
        steps are in ``truncation``.

        Raises:
            DiskFull, StorageFailure: the log is unchanged, or has ``failed``.
        """
        self._forcing.check()
        if self.hole is not None:
            self._cut_segments.keep(self._segments)
        self._put((), self._truncation.empty(self._closed, self._active, start))
        self._damage.drop_from(EntryIndex(0))
        self._aborted.derive(self._segments)

    @property
    def _forced(self) -> bool:
        """Whether every append is forced to the disk before readers see it."""
        return self.format.settings.flush is Flush.BATCH

    def _write(self, entry: Entry, message: EncodedBatch | None) -> None:
        forced = self._forced
        self._active.append(entry, message, forced=forced)
        if forced:
            self._forcing.mark(self._active.end)
        self._aborted.on_appended(entry, self._segments)

    def _make_room(self, length: int, now: int, codec: Codec | None = None) -> None:
        """Roll if the next entry requires it. ``codec``: of its batch, or None for a marker."""
        active, settings = self._active, self.format.settings
        if codec is not None and codec.version != active.codec.version:
            self._use_schema(codec)
            return
        if active.end.offset == active.first.offset:
            return  # without a record a new segment would have the same name
        full = active.data_bytes + length > settings.segment_bytes
        many = len(active.table) >= settings.segment_entries
        if full or many or self._expired(now, settings.segment_ms):
            self.roll(codec)

    def _use_schema(self, codec: Codec | None) -> None:
        """Make the active segment one of this schema, because each segment has exactly one."""
        active = self._active
        if codec is None or codec.version == active.codec.version:
            return
        if active.end.offset > active.first.offset:
            self.roll(codec)
        else:
            self._put(self._closed, self._truncation.in_schema(active, codec))

    def _expired(self, now: int, age_ms: int) -> bool:
        first = self._active.first_appended
        return first is not None and now - first > age_ms * 1000

    def roll(self, codec: Codec | None = None) -> None:
        """Close the active segment and start the next, unless it has no records.

        ``codec``: for the next segment's batches, by default that of the topic's present schema.

        The closed segment is forced to the disk before the next one exists, so a log never
        continues after entries that a power cut can remove. The creation of the next segment is the
        last step that can fail: after an error the active segment is still active.
        """
        self._forcing.check()
        active = self._active
        if active.end.offset == active.first.offset:
            return
        active.finish()
        active.flush()
        self._forcing.mark(active.end)
        closed = active.closed()
        following = self._truncation.segment(active.end, codec or self.format.codec)
        following.make()
        self._put((*self._closed, closed), following)
        active.close()

    def flush(self) -> None:
        """Force all appended entries to the disk.

        Raises:
            StorageFailure: an fsync failed, now or before. The log has ``failed``.
        """
        self._forcing.check()
        self._active.flush()
        self._forcing.mark(self._active.end)

    def check_files(self) -> None:
        """Check that the files of the active segment still have their names.

        Raises:
            StorageFailure: a file was removed or replaced, or the log had ``failed`` before.
        """
        self._active.check_files()

    def probe(self) -> None:
        """Check that the log accepts appends, by a write that is undone.

        Raises:
            DiskFull, StorageFailure: the write failed. A later call can succeed, unless the log has
                ``failed``.
        """
        self._active.probe(forced=self.format.settings.flush is not Flush.NONE)

    def next_flush_due(self, monotonic: float) -> float | None:
        """Return the time at which the appended entries must be forced, or None without a limit.

        ``monotonic`` is the present time in seconds. The result is on the same clock.
        """
        if self.failed is not None:
            return None
        return self._flush_timer.next_due(self.format.settings, monotonic)

    def flush_if_due(self, monotonic: float) -> None:
        """Force the appended entries if a flush is due. Errors: as for :meth:`flush`."""
        if self.failed is None and self._flush_timer.take_due(self.format.settings, monotonic):
            self.flush()

    def close(self, *, forced: bool = True) -> None:
        """Close the files. The log can be opened again.

        Args:
            forced: Force the appended entries first. False: the files will be removed.

        Raises:
            StorageFailure: the log has ``failed``. Its files are closed.
        """
        try:
            if forced:
                self.check_files()
                self.flush()
        finally:
            for segment in self._segments:
                segment.close()
            self._forcing.close(forced=forced)

    # -- reading --------------------------------------------------------------------------------

    def read(
        self,
        start: Offset,
        end: Offset,
        columns: Sequence[str] | None = None,
        max_records: int = UNLIMITED,
        max_bytes: int = UNLIMITED,
        *,
        committed: bool = False,
        rows: RecordFilter | None = None,
        locating: bool = False,
        encoded: bool = False,
        schema: pa.Schema | None = None,
    ) -> Iterator[Chunk]:
        """Read the records of ``[start, end)`` in order, in batches of a good size.

        ``max_bytes`` limits stored bytes. At least one record is read. The range must lie between
        the log's start and end. ``committed``: aborted records are left out and count against
        neither limit. The range must lie below the last stable offset. A stretch without any row
        left gives a chunk without rows, with the position of the read. Unless a limit or damage
        ends the read, the last chunk's ``next_offset`` is ``end``.

        ``rows``: read only the rows that match this filter, and skip batches that have none of
        them. ``max_records`` counts the matching rows.

        ``locating``: chunks have the places of their rows instead of rows. Not with ``rows``.

        ``encoded``: instead of rows, chunks may have their stored messages, as whole batches if
        possible. The bytes never change, because no file that is mapped is changed.

        ``schema``: the reader's schema of the topic, by default the present one. All records get
        this schema.

        Raises:
            DamagedSegment: the next record of the range is damaged.
            EntriesGone: the log begins after ``start`` because retention has removed a segment.
            SchemaMismatch: a record has a value that does not fit the reader's schema.
        """
        budget, log_format = Budget(max_records, max_bytes), self.format
        schema = log_format.schema if schema is None else schema
        filtering = None
        if rows is not None:
            filtering = Filtering(rows, schema, log_format.timestamp_column)
        wanted = ReadPlan(schema, columns, committed, filtering, locating, encoded)
        with self._damage.recorded():
            yield from read_segments(self.segments, start, end, wanted, budget)

    def read_entries(
        self, first: EntryIndex, max_bytes: int, upto: EntryIndex | None = None
    ) -> StoredEntries | None:
        """Return the stored entries from ``first`` to before ``upto``, by default the log's end.

        Return at least one entry, and more only up to ``max_bytes`` of rows and data, all from one
        segment, or None if there is no entry yet. Any thread may call this. The result never
        changes.

        Raises:
            EntriesGone: the log starts after ``first``, or ends before it.
            DamagedSegment: the batch of ``first`` is damaged.
        """
        with self._damage.recorded():
            return self._segment_of(first).stored(first, max_bytes, upto)

    def locate(
        self, indexes: np.ndarray, epoch: int, *, doubted: bool = False
    ) -> ChunkPlace | None:
        """Return the places of these entries' messages in their file.

        Return None if they are in several files, or if the last one has another leader epoch, which
        means that it is another entry.

        ``indexes``: runs of entries, (first, count), int64, shape (runs, 2), ascending. Only the
        writer may call this, so no file is replaced during the call. The reader checks the
        messages. If they are ``doubted``, this checks them too.

        Raises:
            EntriesGone: the log starts after the first, or ends before it.
            DamagedSegment: an entry is damaged, or its batch is, if ``doubted``.
            StorageFailure: the file does not exist.
            InvalidRequest: the runs are malformed, or name an entry that is not a batch.
        """
        with self._damage.recorded():
            segment = self._segment_of(EntryIndex(int(indexes[0, 0])))
            return located_in(segment, indexes, epoch, doubted=doubted)

    @property
    def hole(self) -> EntryIndex | None:
        """The first entry whose batch was found damaged, or None."""
        return self._damage.first(self.start.entry) if self._damage else None

    def check_stored(self) -> Iterator[CheckedPiece]:
        """Read and check entries and batches from the disk. One thread at a time, without a lock.

        An entry that fails its checksum is a suspect, for :meth:`confirm`.
        """
        return pieces(self._disk, self._segments)

    def confirm(self, suspect: Suspect) -> bool:
        """Return whether the suspect is in the log and damaged. If so, record it (``hole``).

        Only the writer may call this, so no file is replaced during the call.
        """
        if not self.start.entry <= suspect.entry < self.end.entry:
            return False
        if is_sound(self._disk, self._segment_of(suspect.entry), suspect.entry):
            return False
        self._damage.add(suspect.entry)
        return True

    def judged_tables(self) -> list[JudgedTable]:
        """Return the entries tables, the oldest first, each with a mask of its aborted rows."""
        found = []
        for segment in self.segments:
            table = segment.table  # before the mask, which may be longer
            found.append((table, segment.aborted(table)))
        return found

    def has_aborted(self, start: Offset, end: Offset) -> bool:
        """Return whether ``[start, end)`` has aborted records. Read none of them."""
        return any(has_aborted(segment, start, end) for segment in self.segments)

    def offset_at(self, timestamp: int, start: Offset = _FIRST) -> Offset | None:
        """Return the first offset from ``start`` whose record's timestamp is at or after this one.

        Return None without such a record. Timestamps are in microseconds since the epoch. They may
        be unordered: this returns the least such offset, as Kafka's offsetsForTimes does.
        """
        with self._damage.recorded():
            return first_offset_at(self.segments, timestamp, self.format.timestamp_column, start)

    # -- housekeeping ---------------------------------------------------------------------------

    def housekeep(
        self,
        now: int,
        last_stable_offset: Offset,
        trimmed: Offset = _FIRST,
        tiered: Offset = _FIRST,
    ) -> int:
        """Apply retention and roll an old active segment. Return the number of removed segments.

        ``trimmed``: no segment is kept below this offset. ``tiered``: the offset up to which tables
        have all records. Does nothing once the log has ``failed``.

        Raises:
            DiskFull, StorageFailure: some segments may have been removed. Or as for
                :meth:`check_files`.
        """
        if self.failed is not None:
            return 0
        self.check_files()
        limits = int(last_stable_offset), int(trimmed), int(tiered)
        gone = self._evict(now, *limits)  # first: a roll may need the space
        settings, last = self.format.settings, self._active.last_appended
        hidden = self._active.first.offset < self._active.end.offset <= trimmed
        old = self._expired(now, settings.segment_ms) or is_too_old(settings, last, now)
        if not (old or hidden):
            return gone
        self.roll()
        return gone + self._evict(now, *limits)

    def held_back(self, now: int, last_stable_offset: Offset, tiered: Offset) -> tuple[int, int]:
        """Return the number and bytes of segments that only tables without their records hold.

        For any thread.
        """
        settings, closed = self.format.settings, self._closed
        if not settings.needs_table:
            return 0, 0
        facts = _facts_of(closed)
        first, end = (
            removable(facts, self._active.size, settings, now, int(last_stable_offset), 0, int(at))
            for at in (tiered, last_stable_offset)
        )
        return end - first, sum(each.size for each in facts[first:end])

    def _evict(self, now: int, limit: int, trimmed: int, tiered: int) -> int:
        """Remove the segments that retention does not keep, and return their number."""
        settings, closed = self.format.settings, self._closed
        facts = _facts_of(closed)
        gone = removable(facts, self._active.size, settings, now, limit, trimmed, tiered)
        for place, segment in enumerate(closed[:gone], 1):
            if place == len(closed):
                self._active.make_ready()  # it becomes the only record of the log's start
            self._put(closed[place:], self._active)
            segment.remove(self._forcing.force_names)
        return gone

    def drop_tail(self) -> Callable[[], None] | None:
        """Copy a file without the tail that a truncation left in it. Return None without a tail.

        A copy may take long and needs no lock. One thread at a time. The returned function replaces
        the file by the copy. Only the writer may call it.

        Raises:
            DiskFull, StorageFailure: the file is unchanged.
        """
        for segment in self._closed:
            if segment.has_tail and self.failed is None:
                copy = ShorterCopy(self._disk, segment)
                return lambda: copy.settle(self._closed, self._forcing)
        return None

    def housekeeping_due(self) -> int | None:
        """Return the time of the next work of :meth:`housekeep` because of age, or None.

        Microseconds, on the clock of the appends. A removal that is held back, by the last stable
        offset or a table, stays due.
        """
        if self.failed is not None:
            return None
        active, closed = self._active, self._closed
        if any(segment.has_tail for segment in closed):
            return 0
        first = last = None
        if active.end.offset > active.first.offset:  # else it cannot roll
            first, last = active.first_appended, active.last_appended
        oldest = closed[0].last_appended or 0 if closed else None
        return due_by_age(self.format.settings, first, last, oldest)


def _facts_of(closed: Sequence[Segment]) -> list[SegmentFacts]:
    return [SegmentFacts(each.size, each.last_appended, int(each.end.offset)) for each in closed]
