"""Where an entry, its message, or the first record at or after a time lies in this replica's files.

Entries are the same in all replicas, and so are their messages; the files are not. Entries with the
same index and the same leader epoch in two logs are the same, and so are all before them.
Source: the log matching property, Ongaro and Ousterhout, "In Search of an Understandable Consensus
Algorithm", 2014, section 5.3.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from spark_stream.consistency.entries import Kind, first_at_or_after
from spark_stream.consistency.ids import EntryIndex, Offset
from spark_stream.errors import EntriesGone, InvalidRequest
from spark_stream.storage.format.chunks import Stored
from spark_stream.storage.segment.segment import Segment


def segment_with(segments: Sequence[Segment], entry: EntryIndex, directory: Path) -> Segment:
    """Return the segment with this entry; for the log's end, the last one.

    Raises:
        EntriesGone: the log starts after it, or ends before it.
    """
    place = bisect_right(segments, entry, key=lambda segment: segment.first.entry) - 1
    if place < 0 or entry > segments[place].end.entry:
        raise EntriesGone(
            f"{directory} has the entries {segments[0].first.entry} to"
            f" {segments[-1].end.entry - 1}, and not {entry}"
        )
    return segments[place]


def located_in(
    segment: Segment, indexes: np.ndarray, epoch: int, *, doubted: bool = False
) -> Stored | None:
    """Return where the messages of these entries lie if all are in this segment, else None.

    ``indexes``: runs of entries, (first, count), int64, shape (runs, 2), rising. ``epoch``: the
    leader epoch of the last one where it was looked up; this log may have another entry there.
    ``doubted``: check the messages as well.

    Raises:
        DamagedSegment: an entry among them is damaged, or its batch is, if ``doubted``.
        StorageFailure: the file is gone.
        InvalidRequest: there are no runs, or they do not rise, or name an entry without a batch.
    """
    firsts, counts = indexes[:, 0] - segment.first.entry, indexes[:, 1]
    ends = firsts + counts
    if not len(indexes) or (counts < 1).any() or (firsts[1:] < ends[:-1]).any():
        raise InvalidRequest("runs of entries rise, and each has an entry at least")
    table = segment.table
    if firsts[0] < 0 or ends[-1] > len(table):
        return None
    segment.check_rows(int(firsts[0]), int(ends[-1]))
    if table[ends[-1] - 1]["leader_epoch"] != epoch:
        return None
    before = np.cumsum(counts) - counts
    places = np.repeat(firsts - before, counts) + np.arange(int(counts.sum()))
    if (table[places]["kind"] != Kind.DATA).any():
        raise InvalidRequest("an entry that is not a batch has no place in a file")
    if doubted:
        segment.check_batches(places)
    return segment.locate(places)


def first_offset_at(
    segments: Iterable[Segment], timestamp: int, column: str | None, start: Offset
) -> Offset | None:
    """Return the first offset from ``start`` whose timestamp is at or after this one, or None.

    ``column`` has the records' own timestamps; None if records have the timestamp of their entry.

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
