"""Reads of a log by offset, and look-ups by entry and by time.

A range of offsets is read as few, well-sized Arrow batches.

Neighbouring entries are read together, up to a size, and arrive as one batch: a log of one-row
batches reads nearly as fast as one of large batches. Markers have neither bytes nor offsets, so
they do not end such a run. Small aborted entries do not either: the bytes of the entries around
them are gathered. A long stretch of aborted entries is skipped unread. Loops here iterate over runs
of entries, never over rows.

The look-ups return the place of an entry, of its message, or of the first record at or after a
time. Entries are the same in all replicas, and so are their messages, but the files are not. If two
logs have an entry with the same index and the same leader epoch, it is the same entry, and all
entries before it are the same. Source: the log matching property, Ongaro and Ousterhout, "In Search
of an Understandable Consensus Algorithm", 2014, section 5.3.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from spark_stream.consistency.entries import (
    Entry,
    Kind,
    aborted_rows,
    at_offset,
    first_at_or_after,
    next_offset,
    open_transactions,
)
from spark_stream.consistency.ids import NO_TRANSACTION, EntryIndex, Offset
from spark_stream.errors import DamagedSegment, EntriesGone, InvalidRequest
from spark_stream.storage.format.codec import joined_runs
from spark_stream.storage.format.stored import Chunk, ChunkPlace
from spark_stream.storage.segment.filtering import Filtering
from spark_stream.storage.segment.segment import Segment

# Large enough to make a batch's fixed costs small, small enough for a few of them in any memory.
RUN_BYTES_MAX: Final = 2 << 20
LOCATED_ENTRIES_MAX: Final = 4096
"""The greatest number of entries in a chunk of places, which keeps the response short."""
# From this size on, it is no gain to copy an entry together with a neighbour.
_ALONE_BYTES_MIN: Final = 256 << 10
# To skip this many consecutive bytes of aborted entries costs more than a second run.
_SKIPPED_BYTES_MIN: Final = 256 << 10
# The number of entries that a read examines in one step, small for reads that end early.
_WINDOW_ENTRIES: Final = 1 << 16

_NO_ROWS: Final = pa.RecordBatch.from_arrays([], schema=pa.schema([]))


class Budget(Struct):
    """The rest of a read's limits. The first record is always read, even if it is larger."""

    records: int
    bytes: int
    started: bool = False

    def spent(self) -> bool:
        return self.started and (self.records <= 0 or self.bytes <= 0)


class VisibleBatches(Struct, frozen=True):
    """The visible batches of a range of a segment, one item each.

    ``places``: the rows of their entries. ``starts`` and ``lengths``: bytes in the file. ``until``:
    the end of the range.
    """

    places: np.ndarray
    bases: np.ndarray
    counts: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    timestamps: np.ndarray
    until: Offset

    @classmethod
    def of(
        cls,
        segment: Segment,
        start: Offset,
        end: Offset,
        *,
        committed: bool,
        filtering: Filtering | None = None,
    ) -> VisibleBatches:
        """Return the batches of ``[start, end)``, or of an intact, nonempty first part of it.

        Batches in which no row can match ``filtering`` are left out like aborted ones.

        Raises:
            DamagedSegment: the entry of ``start`` is damaged, or another one that hides it.
        """
        table = segment.table
        aborted = segment.aborted(table) if committed else None
        first, last = at_offset(table, start), at_offset(table, Offset(end - 1)) + 1
        rows = segment.sound_rows(max(0, first), min(last, first + _WINDOW_ENTRIES))
        if not len(rows) or not rows[0]["base_offset"] <= start < next_offset(rows[:1], start):
            # Among intact entries, the search would have found the one with the offset.
            segment.check_rows(0, len(table))
            raise AssertionError(f"{segment.name.entries} has no offset {start}")
        last, end = first + len(rows), min(end, next_offset(rows, start))
        seen = rows["kind"] == Kind.DATA
        if aborted is not None:
            seen &= ~aborted[first:last]
        if filtering is not None:
            seen &= filtering.candidates(segment, table, first, last)
        places = np.flatnonzero(seen)
        whole = len(places) == len(rows)
        columns = (
            rows[name] if whole else rows[name][places]
            for name in ("base_offset", "count", "position", "length", "timestamp")
        )
        bases, counts, starts, lengths, timestamps = columns
        return cls(first + places, bases, counts.astype(np.int64), starts, lengths, timestamps, end)

    def runs(self, entries_max: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of neighbours to read together."""
        if len(self.places) == 1:  # a shortcut for records that are read one by one
            yield 0, 1
            return
        ends = self.starts + self.lengths
        sizes = np.cumsum(self.lengths)  # the bytes between are skipped, and do not count
        large = self.lengths >= _ALONE_BYTES_MIN
        parted = large[1:] | large[:-1] | (self.starts[1:] - ends[:-1] >= _SKIPPED_BYTES_MIN)
        edges = np.flatnonzero(parted) + 1
        low, count = 0, len(self.places)
        while low < count:
            edge = int(np.searchsorted(edges, low, side="right"))
            high = int(edges[edge]) if edge < len(edges) else count
            limit = int(sizes[low] - self.lengths[low]) + RUN_BYTES_MAX
            high = min(high, max(low + 1, int(np.searchsorted(sizes, limit, side="right"))))
            high = min(high, low + entries_max)
            yield low, high
            low = high

    def following(self, item: int) -> Offset:
        """Return the next offset to read after the last row of an item."""
        return Offset(int(self.bases[item + 1])) if item + 1 < len(self.bases) else self.until


class ReadPlan(Struct, frozen=True):
    """The columns (None for all) and the records of a read, and the form of its result.

    ``locating``: return the places of the records instead of records. Then there is no filtering.
    ``encoded``: return the stored messages of batches that are read whole and unchanged.
    """

    schema: pa.Schema
    columns: Sequence[str] | None = None
    committed: bool = False
    filtering: Filtering | None = None
    locating: bool = False
    encoded: bool = False

    def takes_messages(self, segment: Segment) -> bool:
        """Return whether this read can return the messages of a segment unchanged."""
        return (
            self.encoded
            and self.columns is None
            and self.filtering is None
            and segment.codec.schema.equals(self.schema)
        )


def read_segments(
    segments: Iterable[Segment], start: Offset, end: Offset, wanted: ReadPlan, budget: Budget
) -> Iterator[Chunk]:
    """Yield the records of ``[start, end)`` in order, until the budget is spent or damage found.

    With ``filtering``, a chunk has the matching rows, which may be none, and the budget counts the
    bytes read.

    Raises:
        DamagedSegment: the first record of the range fails its checksum. If a later one does, the
            intact records before it are returned, and the next read raises the error.
        EntriesGone: retention has removed the first record of the range.
    """
    position = start
    for segment in segments:
        if position >= end or budget.spent():
            return
        if position >= segment.end.offset:
            continue
        if position < segment.first.offset:
            raise EntriesGone(
                f"{segment.name.arrow.parent} has no offset {position} any more; its first offset"
                f" is {segment.first.offset}"
            )
        try:
            for chunk in _chunks(segment, position, end, wanted, budget):
                position = chunk.next_offset
                yield chunk
        except DamagedSegment:
            if not budget.started:
                raise
            return
        if position < min(end, segment.end.offset):
            return  # the budget is spent


def _chunks(
    segment: Segment, start: Offset, end: Offset, wanted: ReadPlan, budget: Budget
) -> Iterator[Chunk]:
    end = min(end, segment.end.offset)
    if wanted.takes_messages(segment):
        last = _last_chunk(segment, start, end, budget)
        if last is not None:
            yield last
            return
    columns = None if wanted.columns is None else list(wanted.columns)
    while start < end and not budget.spent():
        visible = VisibleBatches.of(
            segment, start, end, committed=wanted.committed, filtering=wanted.filtering
        )
        if not len(visible.places):
            yield _nothing(segment, start, visible.until, columns, wanted.schema)
            start = visible.until
        for low, high in visible.runs(LOCATED_ENTRIES_MAX if wanted.locating else _WINDOW_ENTRIES):
            stops = visible.following(high - 1)
            while start < stops:
                if budget.spent():
                    return
                chunk = _chunk(segment, visible, low, high, start, columns, wanted, budget)
                start = chunk.next_offset
                yield chunk


def _last_chunk(segment: Segment, start: Offset, end: Offset, budget: Budget) -> Chunk | None:
    """Return the message of ``[start, end)`` if it is the segment's last one, whole and intact.

    It is a shortcut for single records, whose time is mostly the fixed costs of arrays.
    """
    found = segment.last_encoded(start)
    if found is None:
        return None
    entry, message = found
    if start + entry.count != end or entry.count > budget.records or len(message) > budget.bytes:
        return None
    budget.started = True
    budget.records -= entry.count
    budget.bytes -= len(message)
    return Chunk(
        start,
        _NO_ROWS,
        np.array([entry.timestamp]),
        np.array([entry.count]),
        np.array([[start, entry.count]]),
        end,
        messages=(message,),
    )


def has_aborted(segment: Segment, start: Offset, end: Offset) -> bool:
    """Return whether this segment has an aborted record of ``[start, end)``. Read no records."""
    table = segment.table
    mask = segment.aborted(table)
    if mask is None or start >= segment.end.offset or end <= segment.first.offset:
        return False
    first = max(0, at_offset(table, start))
    return bool(mask[first : at_offset(table, Offset(end - 1)) + 1].any())


def _nothing(
    segment: Segment, start: Offset, end: Offset, columns: list[str] | None, schema: pa.Schema
) -> Chunk:
    none = np.zeros(0, np.int64)
    return Chunk(start, segment.blank(columns, schema), none, none, np.zeros((0, 2), np.int64), end)


def _chunk(
    segment: Segment,
    visible: VisibleBatches,
    first: int,
    last: int,
    start: Offset,
    columns: list[str] | None,
    wanted: ReadPlan,
    budget: Budget,
) -> Chunk:
    """Read the next chunk from ``start`` on, of the items from ``first`` to before ``last``."""
    items, filtering = slice(first, last), wanted.filtering
    bases, counts, places = visible.bases[items], visible.counts[items], visible.places[items]
    edges = np.cumsum(counts)
    total, size = int(edges[-1]), int(visible.lengths[items].sum())
    at = int(np.searchsorted(bases + counts, start, side="right"))
    skip = int(edges[at] - counts[at]) + max(0, int(start - bases[at]))
    beyond = max(0, int(bases[-1] + counts[-1]) - visible.until)
    most = max(1, budget.records)
    take = total - beyond - skip if filtering else min(total - beyond - skip, most)
    if size > budget.bytes:
        take = min(take, max(1, total * max(0, budget.bytes) // size))
    # Load only entries with wanted rows, perhaps not all of them.
    high = int(np.searchsorted(edges, skip + take, side="left")) + 1
    reading = columns if filtering is None else filtering.reading(columns)
    lead = skip - int(edges[at] - counts[at])
    stored: ChunkPlace | None = None
    messages: tuple[memoryview, ...] = ()
    encodes = as_stored = wanted.takes_messages(segment)
    if as_stored:
        high, take = _whole(edges, at, high, lead, skip, take)
        one = high == at + 1
        encodes = skip + take == edges[high - 1] and not lead and (one or segment.codec.is_plain)
    if encodes:
        messages, taken = segment.encoded(places[at:high])
        batch = _NO_ROWS
    elif wanted.locating:
        stored, taken = segment.locate(places[at:high]), high - at
        batch = segment.blank(columns, wanted.schema)
    else:
        batch, taken = segment.decode(places[at:high], reading, wanted.schema)
    high = at + taken
    if filtering is not None:
        filtering.add_extremes(segment, segment.table, places[at:high], batch)
    take = min(take, int(edges[high - 1]) - skip)
    if stored is not None:
        stored = replace(stored, lead=lead)
    elif not messages and (lead or take != batch.num_rows):
        batch = batch.slice(lead, take)
    budget.started = True
    budget.bytes -= max(1, size * take // total)
    if high == at + 1:
        kept = np.array([take])
    else:
        kept = np.diff(np.clip(edges[at:high], skip, skip + take), prepend=skip)
    froms = bases[at:high].copy()
    froms[0] += lead
    end = Offset(int(froms[-1] + kept[-1]))
    if end == bases[high - 1] + counts[high - 1]:
        end = visible.following(first + high - 1)
    chunk = Chunk(
        Offset(int(froms[0])),
        batch,
        visible.timestamps[first + at : first + high],
        kept,
        joined_runs(froms, kept),
        min(end, visible.until),
        stored=stored,
        messages=messages,
    )
    if as_stored and take == int(edges[high - 1]) - skip:
        behind = first + high
        if behind < len(visible.lengths) and visible.lengths[behind] > budget.bytes:
            budget.bytes = 0  # else each of the next reads would cut a message
    if filtering is not None:
        chunk = filtering.applied(chunk, columns, most)
    budget.records -= take if filtering is None else chunk.batch.num_rows
    return chunk


def _whole(
    edges: np.ndarray, at: int, high: int, lead: int, skip: int, take: int
) -> tuple[int, int]:
    """Separate whole entries from those that are cut, at the front or at the end.

    Return the end of the entries to read now, and the number of their rows.
    """
    if lead:
        high = at + 1
        return high, min(take, int(edges[at]) - skip)
    if skip + take < edges[high - 1] and high > at + 1:
        high -= 1
        return high, int(edges[high - 1]) - skip
    return high, take


def segment_with(segments: Sequence[Segment], entry: EntryIndex, directory: Path) -> Segment:
    """Return the segment with this entry. The last one also has the log's end.

    Raises:
        EntriesGone: the log starts after it, or ends before it.
    """
    place = bisect_right(segments, entry, key=lambda segment: segment.first.entry) - 1
    if place < 0 or entry > segments[place].end.entry:
        raise EntriesGone(
            f"{directory} has no entry {entry}; its entries are {segments[0].first.entry} to"
            f" {segments[-1].end.entry - 1}"
        )
    return segments[place]


def located_in(
    segment: Segment, indexes: np.ndarray, epoch: int, *, doubted: bool = False
) -> ChunkPlace | None:
    """Return the place of these entries' messages if all are in this segment, else None.

    ``indexes``: runs of entries, (first, count), int64, shape (runs, 2), ascending. ``epoch``: the
    leader epoch of the last one in the log of its look-up. This log may have another entry there.
    ``doubted``: check the messages too.

    Raises:
        DamagedSegment: an entry among them is damaged, or its batch is, if ``doubted``.
        StorageFailure: the file does not exist.
        InvalidRequest: there are no runs, or they do not ascend, or an entry has no batch.
    """
    firsts, counts = indexes[:, 0] - segment.first.entry, indexes[:, 1]
    ends = firsts + counts
    if not len(indexes) or (counts < 1).any() or (firsts[1:] < ends[:-1]).any():
        raise InvalidRequest("runs of entries must ascend, and have at least one entry each")
    table = segment.table
    if firsts[0] < 0 or ends[-1] > len(table):
        return None
    segment.check_rows(int(firsts[0]), int(ends[-1]))
    if table[ends[-1] - 1]["leader_epoch"] != epoch:
        return None
    before = np.cumsum(counts) - counts
    places = np.repeat(firsts - before, counts) + np.arange(int(counts.sum()))
    markers = places[table[places]["kind"] != Kind.DATA]
    if len(markers):
        raise InvalidRequest(
            f"entry {segment.first.entry + int(markers[0])} has no batch, and no bytes in a file"
        )
    if doubted:
        segment.check_batches(places)
    return segment.locate(places)


def first_offset_at(
    segments: Iterable[Segment], timestamp: int, column: str | None, start: Offset
) -> Offset | None:
    """Return the first offset from ``start`` whose timestamp is at or after this one, or None.

    ``column`` has the records' timestamps. None: records have the timestamp of their entry.

    Raises:
        DamagedSegment: the batch with that record is damaged, or an entry of its segment or of an
            earlier one.
    """
    for segment in segments:
        table = segment.table
        segment.check_rows(0, len(table))
        first = int(np.searchsorted(table["base_offset"] + table["count"], start, side="right"))
        while (found := first_at_or_after(table[first:], timestamp)) is not None:
            row = first + found
            base = int(table[row]["base_offset"])
            skipped = max(int(start) - base, 0)
            if column is None:
                return Offset(base + skipped)
            batch, _ = segment.decode(np.array([row]), [column])
            times = batch.column(0).cast(pa.int64()).to_numpy(zero_copy_only=False)[skipped:]
            late = times >= timestamp
            if late.any():  # else they are all below ``start``, which only the first batch can have
                return Offset(base + skipped + int(np.argmax(late)))
            first = row + 1
    return None


class AbortedBatches:
    """Marks the aborted batches of one log in its segments. One caller at a time (the writer)."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.derive(segments)

    def derive(self, segments: Sequence[Segment]) -> None:
        """Mark the aborted batches of these segments, which are the whole log."""
        tables = [segment.table for segment in segments]
        for segment, mask in zip(segments, aborted_rows(tables), strict=True):
            segment.set_aborted(mask)
        # (transaction, producer id) without a marker -> the index of its first entry
        self._open = open_transactions(tables)

    def on_appended(self, entry: Entry, segments: Sequence[Segment]) -> None:
        """Add an appended entry, in the order of the log. An ABORT marks its batches."""
        if entry.transaction == NO_TRANSACTION:
            return
        pair = (entry.transaction, entry.producer_id)
        if entry.kind is Kind.DATA:
            self._open.setdefault(pair, entry.entry_index)
            return
        first = self._open.pop(pair, None)
        if entry.kind is Kind.ABORT and first is not None:
            for segment in reversed(segments):
                segment.abort(*pair, first)
                if segment.first.entry <= first:
                    break
