"""Filtered reads. Batches without a possible match are skipped.

The min/max of a batch's values are those of its segment's statistics. Its offsets and its greatest
timestamp are in the table of entries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from spark_stream.consistency.entries import Table
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.pruning import Batches, Extremes, Flags, Keys
from spark_stream.storage.format.min_max import have_same_keys
from spark_stream.storage.format.stored import OFFSET, TIMESTAMP, Chunk
from spark_stream.storage.segment.segment import Segment


class RecordFilter(Protocol):
    """A filter of records. ``names``: the columns that it reads, stored or derived by the log."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def can_match(self, batches: Batches) -> Flags: ...

    def keeps(self, column: Callable[[str], pa.Array], rows: int) -> pa.Array: ...


class Filtering(Struct, frozen=True):
    """A filter in a log. ``timestamp``: the column with the records' own timestamps, or None."""

    filter: RecordFilter
    schema: pa.Schema
    timestamp: str | None

    def reading(self, wanted: list[str] | None) -> list[str] | None:
        """Return the stored columns to read: the wanted ones, then those of the filter."""
        if wanted is None:
            return None
        more = [name for name in self.filter.names if name in self.schema.names]
        return list(dict.fromkeys([*wanted, *more]))

    def candidates(self, segment: Segment, table: Table, first: int, last: int) -> Flags:
        """Return a mask of the table's entries in ``[first, last)`` that may have a match."""

        def known(name: str) -> Extremes:
            exact = self._of_entries(table[first:last], name)
            found = self._of_values(segment, table, first, last, name)
            if exact is None or found is None:
                return found or exact or Extremes.unknown(last - first)
            return replace(found, greatest=exact.greatest)  # an entry has no least timestamp

        return self.filter.can_match(Batches(last - first, known))

    def _of_values(
        self, segment: Segment, table: Table, first: int, last: int, name: str
    ) -> Extremes | None:
        """Return a column's recorded min/max. The segment may have an earlier schema."""
        if name in self.schema.names and name not in segment.codec.schema.names:
            return Extremes.all_null(last - first)
        if not self._has_same_keys(segment, name):
            return None
        return segment.extremes.known(table, first, last, name)

    def _has_same_keys(self, segment: Segment, name: str) -> bool:
        """Return whether the segment's min/max of a column are valid for the reader's type."""
        own = segment.codec.schema
        if name not in own.names or name not in self.schema.names:
            return False
        return have_same_keys(own.field(name).type, self.schema.field(name).type)

    def _of_entries(self, rows: Table, name: str) -> Extremes | None:
        """Return the min/max of offset or timestamp from the entries, or None for other columns."""
        if name == OFFSET:
            base = rows["base_offset"]
            last = base + rows["count"].astype(np.int64) - 1
            return _extremes(Keys.of_whole(base.copy()), Keys.of_whole(last))
        if name not in (TIMESTAMP, self.timestamp):
            return None
        moments = Keys.of_whole(rows["timestamp"].copy())
        least = moments if self.timestamp is None else Keys.same(0, len(rows))
        return _extremes(least, moments)

    def add_extremes(
        self, segment: Segment, table: Table, places: npt.NDArray[np.int64], batch: pa.RecordBatch
    ) -> None:
        """Add the min/max of batches that were read. ``batch`` has all their records."""
        names = [name for name in self.filter.names if self._has_same_keys(segment, name)]
        segment.extremes.add_batch(table, places, batch, names)

    def applied(self, chunk: Chunk, wanted: list[str] | None, most: int) -> Chunk:
        """Return up to ``most`` matching rows of the chunk, with the wanted columns."""
        rows = chunk.batch.num_rows
        batch = chunk.batch if wanted is None else chunk.batch.select(wanted)
        keeps = self.filter.keeps(chunk.column, rows)
        found = pc.indices_nonzero(keeps)
        places = np.frombuffer(found.buffers()[1], np.uint64, len(found)).astype(np.int64)
        offsets, after = chunk.offsets(), chunk.next_offset
        if len(places) > most:
            places = places[:most]
            after = Offset(int(offsets[places[-1]]) + 1)
        if len(places) < rows and not batch.num_columns:
            batch = batch.slice(0, len(places))
        elif len(places) < rows:
            chosen = [None, pa.py_buffer(places)]
            batch = batch.take(pa.Array.from_buffers(pa.int64(), len(places), chosen))
        edges = np.searchsorted(places, np.cumsum(chunk.counts))
        offsets = offsets[places]
        return replace(
            chunk,
            base_offset=Offset(int(offsets[0])) if len(offsets) else chunk.base_offset,
            batch=batch,
            counts=np.diff(edges, prepend=0),
            spans=np.zeros((0, 2), np.int64),
            next_offset=after,
            scattered=offsets,
        )


def _extremes(least: Keys, greatest: Keys) -> Extremes:
    """Return the min/max of a column without nulls."""
    rows = len(least.high)
    return Extremes(least, greatest, np.zeros(rows, np.bool_), np.ones(rows, np.bool_))
