"""A partition's log in a list: what is appended is kept as it came, no file is written.

For simulated runs that are about a partition and its broker, not about files. It does what
``PartitionLog`` does as far as anybody can see (``tests/testing/test_list_log.py`` runs both, side
by side); a segment is a place in the list, and a power cut (:meth:`ListLog.crash`) takes entries
from the end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from spark_stream.consistency.entries import ENTRY, ENTRY_SIZE, Entry, Kind, Table
from spark_stream.consistency.ids import NO_TRANSACTION, EntryIndex, LeaderEpoch, Offset
from spark_stream.consistency.leader import Boundary
from spark_stream.consistency.producers import NOBODY, Stamp
from spark_stream.errors import EntriesGone, IsologError, StorageFailure
from spark_stream.storage.aside import Cut
from spark_stream.storage.checking import Piece, Suspect
from spark_stream.storage.chunks import Chunk
from spark_stream.storage.codec import sealed
from spark_stream.storage.filtering import RowFilter
from spark_stream.storage.flush_timer import FlushTimer
from spark_stream.storage.log_format import UNLIMITED, LogFormat, Prepared, marker_at
from spark_stream.storage.reading import Budget
from spark_stream.storage.replica_log import ReplicaLog
from spark_stream.storage.retention import SegmentFacts, due_by_age, removable
from spark_stream.storage.settings import Flush
from spark_stream.storage.stored import StoredEntries, check_entries, entries_of


@dataclass(slots=True)
class _Kept:
    """An entry, its place in the table of its segment, and its batch (None: a marker's)."""

    entry: Entry
    row: bytes
    message: pa.Buffer | None

    @property
    def size(self) -> int:
        return ENTRY_SIZE + (self.message.size if self.message is not None else 0)

    @property
    def end(self) -> Offset:
        return Offset(self.entry.base_offset + self.entry.count)


class ListLog(ReplicaLog):
    """A log in memory; ``forced`` is the index below which no crash takes an entry."""

    def __init__(self, log_format: LogFormat, directory: Path = Path("/memory")) -> None:
        self.directory = directory
        self.format = log_format
        self.cuts: tuple[Cut, ...] = ()
        self.forced = 0
        self._intact = True
        self._failed: StorageFailure | None = None
        self._tell_failure: Callable[[], None] = lambda: None
        self._flush_timer = FlushTimer()
        self._entries: list[_Kept] = []
        self._segments = [Boundary(EntryIndex(0), Offset(0))]  # where each starts
        self._aborted: set[tuple[int, int]] = set()
        self._data_bytes = 0  # of the last segment

    # -- what happens to it ------------------------------------------------------------------------

    def crash(self, entries: int) -> None:
        """Power goes and comes back; so many entries (at least the forced ones) are left in all."""
        kept = max(entries, self.forced) - self.start.entry
        del self._entries[max(0, kept) :]
        end = self.end.entry
        self._segments = [each for each in self._segments if each.entry <= end]
        self._derive()
        self._failed = None
        self.forced = int(end)

    def fail(self, error: StorageFailure) -> None:
        """A force fails: the log takes no more."""
        self._failed = error
        self._tell_failure()

    def when_failed(self, tell: Callable[[], None]) -> None:
        self._tell_failure = tell
        if self._failed is not None:
            tell()

    def reopen(self) -> None:
        """A broker opens it anew: what could not be forced is written once more."""
        self._intact = self._failed is None
        if self._failed is not None:
            self._failed = None
            self.forced = int(self.end.entry)

    def entries_from(self, index: int) -> list[Entry]:
        """The entries from this index on."""
        return [each.entry for each in self._entries[max(0, index - self.start.entry) :]]

    # -- the log -----------------------------------------------------------------------------------

    @property
    def failed(self) -> StorageFailure | None:
        return self._failed

    @property
    def intact(self) -> bool:
        return self._intact

    @property
    def hole(self) -> EntryIndex | None:
        return None  # what is in memory does not rot

    def check_stored(self) -> Iterator[Piece]:
        return iter(())

    def confirm(self, suspect: Suspect) -> bool:
        return False

    @property
    def start(self) -> Boundary:
        return self._segments[0]

    @property
    def end(self) -> Boundary:
        if not self._entries:
            return self._segments[-1]
        last = self._entries[-1]
        return Boundary(EntryIndex(last.entry.entry_index + 1), last.end)

    @property
    def size(self) -> int:
        return sum(each.size for each in self._entries)

    def tables(self) -> list[Table]:
        rows = np.frombuffer(b"".join(each.row for each in self._entries), ENTRY)
        edges = [each.entry - self.start.entry for each in self._segments[1:]]
        return list(np.split(rows, edges))

    def boundary_of(self, entry: EntryIndex) -> Boundary:
        self._check_index(entry)
        if entry == self.end.entry:
            return self.end
        kept = self._entries[entry - self.start.entry]
        return Boundary(entry, Offset(kept.entry.base_offset))

    def append(
        self, batch: Prepared, leader_epoch: LeaderEpoch, now: int, stamp: Stamp = NOBODY
    ) -> Offset:
        self._check()
        self._make_room(batch.message.size, now)
        end = self.end
        entry = batch.entry_at(end, leader_epoch, now, stamp)
        self._keep(entry, batch.message.joined())
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
        self._check()
        self._make_room(0, now)
        entry = marker_at(self.end, kind, producer_id, epoch, transaction, leader_epoch, now)
        self._keep(entry, None)
        self._note(entry)

    def append_entries(self, rows: Table, data: pa.Buffer) -> list[Entry]:
        self._check()
        if not len(rows):
            return []
        epoch = self._entries[-1].entry.leader_epoch if self._entries else 0
        check_entries(rows, data, self.end, epoch, str(self.directory))
        taken: list[Entry] = []
        read = 0
        try:
            for entry, length in zip(entries_of(rows), rows["length"].tolist(), strict=True):
                self._make_room(length, entry.appended)
                self._keep(entry, data.slice(read, length) if length else None)
                self._note(entry)
                taken.append(entry)
                read += length
        except IsologError:
            if not taken:
                raise
        return taken

    def take_back(self) -> list[Entry]:
        return []  # without damage nothing is kept

    def truncate(self, to: EntryIndex) -> Boundary:
        self._check()
        end = self.boundary_of(to)
        if end != self.end:
            del self._entries[to - self.start.entry :]
            self._segments = [each for each in self._segments if each.entry <= to]
            if self._segments[-1].offset < end.offset:
                self._segments.append(end)
            self._derive()
            self.forced = int(to)
        return end

    def reset(self, start: Boundary) -> None:
        self._check()
        self._entries.clear()
        self._segments = [start]
        self._derive()
        self.forced = int(start.entry)

    def check_files(self) -> None:
        self._check()

    def probe(self) -> None:
        self._check()

    def roll(self) -> None:
        self._check()
        if self.end.offset > self._segments[-1].offset:
            self.forced = int(self.end.entry)
            self._segments.append(self.end)
            self._data_bytes = 0

    def flush(self) -> None:
        self._check()
        self.forced = int(self.end.entry)

    def next_flush_due(self, monotonic: float) -> float | None:
        if self._failed is not None:
            return None
        return self._flush_timer.next_due(self.format.settings, monotonic)

    def flush_if_due(self, monotonic: float) -> None:
        if self._failed is None and self._flush_timer.take_due(self.format.settings, monotonic):
            self.flush()

    def housekeep(self, now: int, last_stable_offset: Offset) -> int:
        if self._failed is not None:
            return 0
        settings, active = self.format.settings, self._of_segment(-1)
        idle_us = settings.retention_ms * 1000
        idle = active and 0 <= idle_us < now - active[-1].entry.appended
        if idle or self._expired(active, now):
            self.roll()
        facts = [
            SegmentFacts(
                sum(each.size for each in kept),
                kept[-1].entry.appended if kept else None,
                int(self._segments[number + 1].offset),
            )
            for number in range(len(self._segments) - 1)
            for kept in [self._of_segment(number)]
        ]
        active_size = sum(each.size for each in self._of_segment(-1))
        gone = removable(facts, active_size, settings, now, int(last_stable_offset))
        del self._entries[: self._segments[gone].entry - self.start.entry]
        del self._segments[:gone]
        return gone

    def drop_tail(self) -> None:
        return None

    def housekeeping_due(self) -> int | None:
        if self._failed is not None:
            return None
        active, oldest = self._of_segment(-1), None
        appended = [each.entry.appended for each in active]
        if not active or active[-1].end == self._segments[-1].offset:
            appended = []
        if len(self._segments) > 1:
            kept = self._of_segment(0)
            oldest = kept[-1].entry.appended if kept else 0
        first, last = (appended[0], appended[-1]) if appended else (None, None)
        return due_by_age(self.format.settings, first, last, oldest)

    def close(self, *, forced: bool = True) -> None:
        if forced:
            self._check()
            self.forced = int(self.end.entry)

    def read(
        self,
        start: Offset,
        end: Offset,
        columns: Sequence[str] | None = None,
        max_records: int = UNLIMITED,
        max_bytes: int = UNLIMITED,
        *,
        committed: bool = False,
        rows: RowFilter | None = None,
        locating: bool = False,
        encoded: bool = False,
        schema: pa.Schema | None = None,  # that of all simulated topics, which none changes
    ) -> Iterator[Chunk]:
        if rows is not None or locating:
            raise NotImplementedError("no client of the simulator filters, or maps files")
        if start < self.start.offset:
            raise EntriesGone(f"{self.directory} does not have the offset {start}")
        budget = Budget(max_records, max_bytes)
        first = bisect_right(self._entries, start, key=lambda kept: kept.end)
        for kept in self._entries[first:]:
            if budget.spent() or start >= end:
                return
            if kept.message is None:
                continue
            upto = min(kept.end, end)
            if committed and self._is_aborted(kept):
                chunk = self._nothing(start, upto, columns)
            else:
                upto = min(upto, Offset(start + max(1, budget.records)))
                chunk = self._chunk(kept, start, upto, columns)
                budget.started = True
                budget.records -= upto - start
                budget.bytes -= max(1, kept.message.size * (upto - start) // kept.entry.count)
            start = upto
            yield chunk

    def locate(self, indexes: np.ndarray, epoch: int, *, doubted: bool = False) -> None:
        return None  # its entries are in no file

    def read_entries(
        self, first: EntryIndex, max_bytes: int, upto: EntryIndex | None = None
    ) -> StoredEntries | None:
        self._check_index(first)
        bounds = [*(each.entry for each in self._segments[1:]), self.end.entry]
        last = bounds[min(bisect_right(bounds, first), len(bounds) - 1)]
        last = last if upto is None else min(last, upto)
        found = self._entries[first - self.start.entry : max(first, last) - self.start.entry]
        sizes = np.cumsum([each.size for each in found])
        found = found[: max(1, int(np.searchsorted(sizes, max_bytes, side="right")))]
        if not found:
            return None
        rows = np.frombuffer(b"".join(each.row for each in found), ENTRY)
        data = b"".join(memoryview(each.message) for each in found if each.message is not None)
        return StoredEntries(rows, pa.py_buffer(data))

    def has_aborted(self, start: Offset, end: Offset) -> bool:
        return any(
            self._is_aborted(each)
            for each in self._entries
            if each.message is not None and each.entry.base_offset < end and each.end > start
        )

    def offset_at(self, timestamp: int) -> Offset | None:
        column = self.format.timestamp_column
        for kept in self._entries:
            if kept.message is None or kept.entry.timestamp < timestamp:
                continue
            base = Offset(kept.entry.base_offset)
            if column is None:
                return base
            moments = self._decoded(kept, [column]).column(0).cast(pa.int64())
            late = moments.to_numpy(zero_copy_only=False) >= timestamp
            return Offset(base + int(np.argmax(late)))
        return None

    # -- within ------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed.again()

    def _check_index(self, entry: int) -> None:
        if not self.start.entry <= entry <= self.end.entry:
            raise EntriesGone(f"{self.directory} does not have the entry {entry}")

    def _keep(self, entry: Entry, message: pa.Buffer | None) -> None:
        position = 0
        if self._entries and entry.entry_index > self._segments[-1].entry:
            last = np.frombuffer(self._entries[-1].row, ENTRY)[0]
            position = int(last["position"] + last["length"])
        row = sealed(entry.packed(position, 0 if message is None else message.size))
        self._entries.append(_Kept(entry, row, message))
        self._data_bytes += 0 if message is None else message.size
        if self.format.settings.flush is Flush.BATCH:
            self.forced = entry.entry_index + 1

    def _note(self, entry: Entry) -> None:
        if entry.kind is Kind.ABORT:
            self._aborted.add((entry.transaction, entry.producer_id))

    def _derive(self) -> None:
        """What is known of the entries that are left."""
        self._aborted = set()
        for each in self._entries:
            self._note(each.entry)
        self._data_bytes = sum(each.size - ENTRY_SIZE for each in self._of_segment(-1))

    def _of_segment(self, number: int) -> list[_Kept]:
        bounds = [*(each.entry for each in self._segments), self.end.entry]
        number %= len(self._segments)
        first = self.start.entry
        return self._entries[bounds[number] - first : bounds[number + 1] - first]

    def _make_room(self, length: int, now: int) -> None:
        settings = self.format.settings
        count = self.end.entry - self._segments[-1].entry
        oldest = [self._entries[-count]] if count else []
        full = self._data_bytes + length > settings.segment_bytes
        if full or count >= settings.segment_entries or self._expired(oldest, now):
            self.roll()

    def _expired(self, active: list[_Kept], now: int) -> bool:
        age_us = self.format.settings.segment_ms * 1000
        return bool(active) and now - active[0].entry.appended > age_us

    def _is_aborted(self, kept: _Kept) -> bool:
        pair = (kept.entry.transaction, kept.entry.producer_id)
        return kept.entry.transaction != NO_TRANSACTION and pair in self._aborted

    def _decoded(self, kept: _Kept, columns: Sequence[str] | None) -> pa.RecordBatch:
        message: Any = kept.message
        batch, _ = self.format.codec.decode([memoryview(message)], 1, columns)
        return batch

    def _chunk(
        self, kept: _Kept, start: Offset, upto: Offset, columns: Sequence[str] | None
    ) -> Chunk:
        lead, rows = start - kept.entry.base_offset, upto - start
        return Chunk(
            start,
            self._decoded(kept, columns).slice(lead, rows),
            np.array([kept.entry.timestamp], np.int64),
            np.array([rows], np.int64),
            np.array([[start, rows]], np.int64),
            upto,
        )

    def _nothing(self, start: Offset, upto: Offset, columns: Sequence[str] | None) -> Chunk:
        schema = self.format.codec.schema
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        none = np.zeros(0, np.int64)
        blank = pa.RecordBatch.from_arrays(
            [pa.nulls(0, each.type) for each in schema], schema=schema
        )
        return Chunk(start, blank, none, none, np.zeros((0, 2), np.int64), upto)
