"""From a range of offsets to few, well-sized Arrow batches.

Neighbouring entries are read together, up to a size, and arrive as one batch: a log of one-row
batches reads nearly as fast as one of large batches. No loop here touches a row; the loops are over
runs of entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from spark_stream.consistency.entries import Kind, Table, at_offset, next_offset
from spark_stream.consistency.ids import Offset
from spark_stream.errors import DamagedSegment
from spark_stream.storage.segment import Segment

# Large enough that a batch's fixed costs vanish, small enough that a few of them fit anywhere.
RUN_BYTES_MAX: Final = 2 << 20
# Entries that are this large alone gain nothing from being copied together with a neighbour.
_ALONE_BYTES_MIN: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive records: ``batch`` has the wanted columns, its first row has ``base_offset``.

    ``timestamps`` (microseconds) and ``counts`` have one item for each entry the batch came from:
    ``timestamps[i]`` is the greatest record timestamp of the ``counts[i]`` rows of entry i.
    """

    base_offset: Offset
    batch: pa.RecordBatch
    timestamps: np.ndarray
    counts: np.ndarray

    @property
    def next_offset(self) -> Offset:
        return Offset(self.base_offset + self.batch.num_rows)


@dataclass(slots=True)
class Budget:
    """How much a read may still take. The first record is always given, whatever its size."""

    records: int
    bytes: int
    started: bool = False

    def spent(self) -> bool:
        return self.started and (self.records <= 0 or self.bytes <= 0)


def runs(table: Table, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Rows ``first`` to ``last`` (exclusive) as ranges of data entries that are read in one go."""
    rows = table[first:last]
    data = rows["kind"] == Kind.DATA
    lengths = rows["length"]
    ends = np.cumsum(lengths)
    row = 0
    while row < len(rows):
        if not data[row]:
            row += 1
            continue
        stop = row + 1
        if lengths[row] < _ALONE_BYTES_MIN:
            start = int(ends[row] - lengths[row])
            stop = max(stop, int(np.searchsorted(ends, start + RUN_BYTES_MAX, side="right")))
            breaks = ~data[row:stop] | (lengths[row:stop] >= _ALONE_BYTES_MIN)
            if breaks.any():
                stop = row + max(1, int(breaks.argmax()))
        yield first + row, first + stop
        row = stop


def read_segment(
    segment: Segment, start: Offset, end: Offset, columns: Sequence[str] | None, budget: Budget
) -> Iterator[Chunk]:
    """The records of ``[start, end)`` in this segment, in order, until the budget is spent.

    Raises:
        DamagedSegment: the first record of the range fails its checksum. Where a later one does,
            what is good before it is given, and the next read meets the damage.
    """
    try:
        for chunk in _chunks(segment, start, end, columns, budget):
            start = chunk.next_offset
            yield chunk
        if start < min(end, segment.end.offset) and not budget.spent():
            raise segment.damage()
    except DamagedSegment:
        if not budget.started:
            raise


def _chunks(
    segment: Segment, start: Offset, end: Offset, columns: Sequence[str] | None, budget: Budget
) -> Iterator[Chunk]:
    table = segment.table
    end = min(end, Offset(segment.sound_end))
    if start >= end:
        return
    wanted = None if columns is None else list(columns)
    for begin, stop in runs(table, at_offset(table, start), at_offset(table, end - 1) + 1):
        rows = table[begin:stop]
        stops = min(end, next_offset(rows, start))
        while start < stops:
            if budget.spent():
                return
            chunk = _chunk(segment, rows, begin, start, end, wanted, budget)
            start = chunk.next_offset
            yield chunk


def _chunk(
    segment: Segment,
    rows: Table,
    begin: int,
    start: Offset,
    end: Offset,
    columns: list[str] | None,
    budget: Budget,
) -> Chunk:
    base = int(rows[0]["base_offset"])
    counts = rows["count"].astype(np.int64)
    total = int(counts.sum())
    size = int(rows["length"].sum())
    skip = max(0, start - base)
    take = min(end - base, total) - skip
    take = min(take, max(1, budget.records))
    if size > budget.bytes:
        take = min(take, max(1, total * max(0, budget.bytes) // size))
    # Only the entries that the rows come from are loaded, and maybe not all of them.
    edges = np.cumsum(counts)
    low = int(np.searchsorted(edges, skip, side="right"))
    high = int(np.searchsorted(edges, skip + take, side="left")) + 1
    batch, stop = segment.decode(begin + low, begin + high, columns)
    high = stop - begin
    take = min(take, int(edges[high - 1]) - skip)
    lead = skip - int(edges[low] - counts[low])
    if lead or take != batch.num_rows:
        batch = batch.slice(lead, take)
    budget.started = True
    budget.records -= take
    budget.bytes -= max(1, size * take // total)
    inside = np.clip(edges[low:high], skip, skip + take)
    return Chunk(
        Offset(base + skip),
        batch,
        rows["timestamp"][low:high],
        np.diff(inside, prepend=skip),
    )
