"""A partition's segments as one log: append, read, look up by time, roll, retain, recover.

One writer at a time (the partition's lock, held by the caller); readers take no lock: they work on
the tuple of segments as it was when they began.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from spark_stream.consistency.entries import (
    Entry,
    Kind,
    Table,
    aborted_rows,
    at_offset,
    first_at_or_after,
    open_transactions,
)
from spark_stream.consistency.ids import NO_TRANSACTION, EntryIndex, LeaderEpoch, Offset
from spark_stream.consistency.leader import Position
from spark_stream.consistency.producers import NOBODY, Stamp
from spark_stream.storage.codec import Codec, crc32c
from spark_stream.storage.disk import Disk, OsDisk
from spark_stream.storage.reading import Budget, Chunk, read_segment
from spark_stream.storage.recovery import Cut, lost_markers, open_active, open_closed
from spark_stream.storage.retention import SegmentFacts, removable
from spark_stream.storage.segment import ActiveSegment, Segment, SegmentName
from spark_stream.storage.settings import Flush, LogSettings

UNLIMITED: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch ready to be appended: encoding and checksum are done outside the partition's lock."""

    records: int
    message: pa.Buffer
    crc: int
    timestamp: int


@dataclass(frozen=True)
class LogFormat:
    """What the log of a partition needs to know of its topic.

    ``timestamp_column`` is the column with the records' own timestamps; where a topic has none, a
    record's timestamp is the moment of its append.
    """

    schema: pa.Schema
    settings: LogSettings = field(default_factory=LogSettings)
    timestamp_column: str | None = None
    facts: tuple[tuple[str, str], ...] = ()

    @cached_property
    def codec(self) -> Codec:
        return Codec(self.schema, self.settings.compression)

    def prepare(self, batch: pa.RecordBatch, now: int) -> Prepared:
        """Encodes a batch of the topic's schema; ``now`` in microseconds since the epoch."""
        if batch.num_rows == 0:
            raise ValueError("a batch has at least one record")
        message = self.codec.encode(batch)
        return Prepared(batch.num_rows, message, crc32c(message), self._greatest(batch, now))

    def _greatest(self, batch: pa.RecordBatch, now: int) -> int:
        if self.timestamp_column is None:
            return now
        moments = batch.column(self.timestamp_column).view(pa.int64())
        # Not by to_numpy, which imports pandas: a third of a second, once, and memory for good.
        values = np.frombuffer(moments.buffers()[1], np.int64, len(moments), 8 * moments.offset)
        return int(values.max())


class PartitionLog:
    """The log of one partition in one directory."""

    def __init__(
        self,
        directory: Path,
        log_format: LogFormat,
        segments: tuple[Segment, ...],
        active: ActiveSegment,
        cuts: tuple[Cut, ...],
        disk: Disk,
    ) -> None:
        self.directory = directory
        self.format = log_format
        self.cuts = cuts
        self._disk = disk
        self._closed = segments
        self._active = active
        tables = self.tables()
        for segment, mask in zip(self.segments, aborted_rows(tables), strict=True):
            segment.set_aborted(mask)
        # (transaction, producer id) without a marker -> the index of its first entry
        self._open = open_transactions(tables)

    @classmethod
    def open(cls, directory: Path, log_format: LogFormat, disk: Disk | None = None) -> PartitionLog:
        """Opens or makes a log; what recovery cut or found damaged is in ``cuts``.

        Raises:
            DamagedSegment: a file that cannot be rebuilt is missing.
        """
        disk = disk or OsDisk()
        disk.make_directory(directory)
        names = disk.names(directory)
        for name in names:
            whole, dot, ending = name.rpartition(".")
            if not dot or not _is_segment(whole):
                continue
            if ending == "new":  # a replacement that a crash kept from its place
                disk.remove(directory / name)
            if ending == "gone" and whole.endswith(
                ".entries"
            ):  # a removal that a crash left half done
                SegmentName(directory, _base(whole)).finish_removal(disk)
        names = disk.names(directory)
        bases = sorted({_base(name) for name in names if _is_segment(name)})
        codec, facts = log_format.codec, dict(log_format.facts)
        if not bases:
            first = SegmentName(directory, 0)
            start = Position(EntryIndex(0), Offset(0))
            active = ActiveSegment.create(disk, first, codec, start, facts)
            return cls(directory, log_format, (), active, (), disk)
        closed: list[Segment] = []
        cuts: list[Cut | None] = []
        entry: int | None = None
        for base, following in itertools.pairwise(bases):
            segment, cut = open_closed(disk, SegmentName(directory, base), codec, entry, following)
            if closed and cuts[-1] is None:
                cuts[-1] = lost_markers(closed[-1], segment)
            # Behind a hole the next segment says itself which entry it starts with.
            entry = int(segment.end.entry) if cut is None else None
            closed.append(segment)
            cuts.append(cut)
        active, cut = open_active(disk, SegmentName(directory, bases[-1]), codec, entry, facts)
        if closed and cuts[-1] is None:
            cuts[-1] = lost_markers(closed[-1], active)
        found = tuple(each for each in (*cuts, cut) if each is not None)
        return cls(directory, log_format, tuple(closed), active, found, disk)

    # -- bounds ---------------------------------------------------------------------------------

    @property
    def start(self) -> Position:
        """The first position that is left."""
        return (*self._closed, self._active)[0].first

    @property
    def end(self) -> Position:
        """The position of the next entry."""
        return self._active.end

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(segment.size for segment in self._closed) + self._active.size

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, oldest first; the last one is the one that grows."""
        # The active one is taken first: a roll meanwhile then shows it twice, rather than not once.
        active = self._active
        return (*(each for each in self._closed if each.name != active.name), active)

    def tables(self) -> list[Table]:
        """The entries tables of all segments, oldest first, as they are now."""
        return [segment.table for segment in self.segments]

    # -- writing --------------------------------------------------------------------------------

    def append(
        self, batch: Prepared, leader_epoch: LeaderEpoch, now: int, stamp: Stamp = NOBODY
    ) -> Offset:
        """Appends one batch and returns the offset of its first record; ``stamp``: who wrote it.

        Raises:
            DiskFull, StorageFailure: nothing of the batch is kept; a later append can succeed.
        """
        self._make_room(batch.message.size, now)
        end = self.end
        entry = Entry(
            entry_index=end.entry,
            base_offset=end.offset,
            timestamp=batch.timestamp,
            appended=now,
            count=batch.records,
            leader_epoch=leader_epoch,
            data_crc=batch.crc,
            producer_id=stamp.producer_id,
            producer_epoch=stamp.epoch,
            base_sequence=stamp.sequence,
            transaction=stamp.transaction,
        )
        self._active.append(entry, batch.message, forced=self._forced)
        if stamp.transaction != NO_TRANSACTION:
            key = (stamp.transaction, stamp.producer_id)
            self._open.setdefault(key, int(end.entry))
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
        """Ends what the producer id wrote in the transaction: ``kind`` is COMMIT or ABORT.

        After an ABORT its batches are aborted at once. The marker takes no offset.

        Raises:
            DiskFull, StorageFailure: no marker is kept; a later call can succeed.
        """
        if kind is Kind.DATA:
            raise ValueError("a marker is COMMIT or ABORT")
        self._make_room(0, now)
        end = self.end
        entry = Entry(
            entry_index=end.entry,
            base_offset=end.offset,
            timestamp=now,
            appended=now,
            count=0,
            leader_epoch=leader_epoch,
            data_crc=0,
            kind=kind,
            producer_id=producer_id,
            producer_epoch=epoch,
            transaction=transaction,
        )
        self._active.append(entry, None, forced=self._forced)
        first = self._open.pop((transaction, producer_id), None)
        if kind is Kind.ABORT and first is not None:
            for segment in reversed(self.segments):
                segment.abort(transaction, producer_id, first)
                if segment.first.entry <= first:
                    break

    @property
    def _forced(self) -> bool:
        return self.format.settings.flush is Flush.BATCH

    def _make_room(self, length: int, now: int) -> None:
        active, settings = self._active, self.format.settings
        if active.end.offset == active.first.offset:
            return  # without a record a new segment would have the same name
        full = active.data_bytes + length > settings.segment_bytes
        many = len(active.table) >= settings.segment_entries
        if full or many or self._expired(now, settings.segment_ms):
            self.roll()

    def _expired(self, now: int, age_ms: int) -> bool:
        table = self._active.table
        return len(table) > 0 and now - int(table[0]["appended"]) > age_ms * 1000

    def roll(self) -> None:
        """Closes the active segment and starts the next; does nothing without records in it.

        Making the next segment comes last of what can fail: an error leaves the active one active.
        """
        active = self._active
        if active.end.offset == active.first.offset:
            return
        active.finish()
        if self.format.settings.flush is not Flush.NONE:
            active.flush()
        closed = active.closed()
        name = SegmentName(self.directory, int(active.end.offset))
        following = ActiveSegment.create(
            self._disk, name, self.format.codec, active.end, dict(self.format.facts)
        )
        self._closed = (*self._closed, closed)
        self._active = following
        active.close()

    def flush(self) -> None:
        """Forces everything appended to the disk."""
        self._active.flush()

    def close(self) -> None:
        """Flushes and closes the files; the log can be opened again."""
        self._active.flush()
        self._active.close()

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
    ) -> Iterator[Chunk]:
        """The records of ``[start, end)`` in order, in batches of a good size.

        ``max_bytes`` counts stored bytes; at least one record is given. The range must lie between
        the log's start and end. ``committed``: aborted records are left out and count against
        neither limit; the range must lie below the last stable offset. Where that leaves nothing
        of a stretch, a chunk without rows says how far the read got: unless a limit or damage ends
        the read, the last chunk's ``next_offset`` is ``end``.

        Raises:
            DamagedSegment: the next record of the range is damaged.
        """
        budget = Budget(max_records, max_bytes)
        position = start
        for segment in self.segments:
            if position >= end or budget.spent():
                return
            if position >= segment.end.offset:
                continue
            for chunk in read_segment(segment, position, end, columns, budget, committed):
                position = chunk.next_offset
                yield chunk
            if position < min(end, segment.end.offset):
                return  # the budget is spent, or damage follows

    def has_aborted(self, start: Offset, end: Offset) -> bool:
        """Whether a record of ``[start, end)`` is known to be aborted. Looks at no record."""
        for segment in self.segments:
            table = segment.table
            mask = segment.aborted(table)
            if mask is None or start >= segment.end.offset or end <= segment.first.offset:
                continue
            first = max(0, at_offset(table, start))
            if mask[first : at_offset(table, end - 1) + 1].any():
                return True
        return False

    def offset_at(self, timestamp: int) -> Offset | None:
        """The first offset whose record has a timestamp at or after this one; None: no record has.

        Microseconds since the epoch. Timestamps need not rise with offsets: the first in the order
        of offsets is meant, as with Kafka's offsetsForTimes.
        """
        column = self.format.timestamp_column
        for segment in self.segments:
            table = segment.table
            row = first_at_or_after(table, timestamp)
            if row is None:
                continue
            base = int(table[row]["base_offset"])
            if column is None:
                return Offset(base)
            batch, _ = segment.decode(np.array([row]), [column])
            late = batch.column(0).cast(pa.int64()).to_numpy(zero_copy_only=False) >= timestamp
            return Offset(base + int(np.argmax(late)))
        return None

    # -- housekeeping ---------------------------------------------------------------------------

    def housekeep(self, now: int, last_stable_offset: Offset) -> int:
        """Rolls an old active segment, removes what retention lets go, says how many segments."""
        settings = self.format.settings
        last = self._active.last_appended
        idle_too_long = (
            settings.retention_ms >= 0
            and last is not None
            and now - last > settings.retention_ms * 1000
        )
        if self._expired(now, settings.segment_ms) or idle_too_long:
            self.roll()
        closed = self._closed
        facts = [
            SegmentFacts(each.size, each.last_appended, int(each.end.offset)) for each in closed
        ]
        gone = removable(facts, self._active.size, settings, now, int(last_stable_offset))
        if gone:
            self._closed = closed[gone:]
            for segment in closed[:gone]:
                segment.remove()
        return gone


def _is_segment(name: str) -> bool:
    base, dot, kind = name.partition(".")
    numbered = base.isascii() and base.isdigit() and len(base) == 20
    return bool(dot) and numbered and kind in ("arrow", "entries")


def _base(segment_file: str) -> int:
    return int(segment_file.partition(".")[0])
