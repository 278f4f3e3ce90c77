"""Min/max statistics of a segment's batches: in memory, and in a file beside the table.

The file is derived from the batches, and correctness does not depend on it. It may be missing,
damaged, shorter than the table, or of an earlier segment of the same name: each of its rows has a
checksum, and the checksums of its batches, and rows that fit no batch are ignored. A batch without
a row is read. The file is never forced, and after an error of the disk it gets no more rows.

The leader's appends add rows, and so do filtered reads of batches without a row. Rows are written
in the order of these additions.
"""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from spark_stream.consistency.entries import Table
from spark_stream.consistency.pruning import Extremes
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.errors import IsologError
from spark_stream.storage.disk.disk import Disk, DiskFile
from spark_stream.storage.format.min_max import RECORDS_MIN, Layout, Rows

_MAGIC: Final = b"isoextr1"
_HEADER: Final = struct.Struct("<8sqqII")  # magic, base entry, base offset, mark, bytes of a row
HEADER_BYTES: Final = _HEADER.size


class _Known(Struct, frozen=True):
    """The rows that fit the first ``entries`` entries of a table, and the number of all rows."""

    rows: Rows
    seen: int
    entries: int


class SegmentExtremes:
    """The statistics of one segment, for any thread. The leader adds under its lock."""

    def __init__(self, disk: Disk, path: Path, first: Boundary, layout: Layout) -> None:
        self.layout = layout
        self._disk = disk
        self._path = path
        self._first = int(first.entry)
        self._header = _HEADER.pack(
            _MAGIC, first.entry, first.offset, layout.mark, layout.row.itemsize
        )
        self._lock = threading.Lock()
        self._stored: Rows | None = None  # the file's rows, once it was read
        self._fresh: list[bytes] = []  # rows added since
        self._file: DiskFile | None = None
        self._end = 0
        self._writes = True
        self._known: _Known | None = None

    def add(self, entry: int, records: int, data_crc: int, columns: Rows) -> None:
        """Add the min/max of the entry with this index."""
        self._keep([self.layout.packed_one(entry, records, data_crc, columns)])

    def known(self, table: Table, first: int, last: int, name: str) -> Extremes | None:
        """Return a column's min/max in these rows of the table, or None without statistics."""
        if name not in self.layout.names:
            return None
        rows = self._fitting(table)
        if not len(rows):
            return None
        known = rows["columns"][:, self.layout.names.index(name)]["known"] != 0
        owners = _owners(rows, known, self._first, first, last)
        if not (owners >= 0).any():
            return None
        return self.layout.extremes(rows, owners, name)

    def add_batch(
        self,
        table: Table,
        places: npt.NDArray[np.int64],
        batch: pa.RecordBatch,
        names: Sequence[str],
    ) -> None:
        """Compute and add the min/max of these columns. ``batch``: all records of the entries."""
        wanted = [
            name for name in names if name in self.layout.names and name in batch.schema.names
        ]
        if not wanted or batch.num_rows < RECORDS_MIN:
            return
        counts = table["count"][places].astype(np.int64)
        ends = np.cumsum(counts)
        # A row for each group of neighbours: one large batch, or several small ones.
        apart = np.flatnonzero(
            (places[1:] != places[:-1] + 1)
            | ((ends[:-1] // RECORDS_MIN) != (ends[1:] // RECORDS_MIN))
        )
        edges = [0, *(apart + 1).tolist(), len(places)]
        before = [0, *ends.tolist()]
        rows = self._fitting(table)
        packed = []
        for low, high in itertools.pairwise(edges):
            start, records = before[low], before[high] - before[low]
            if records < RECORDS_MIN:
                continue
            first, last = int(places[low]), int(places[high - 1]) + 1
            new = [name for name in wanted if not self._covers(rows, name, first, last)]
            if new:
                columns = self.layout.described(batch.slice(start, records), new)
                index = self._first + first
                packed.append(self.layout.packed(index, table[first:last], columns))
        if packed:
            self._keep(packed)

    def _covers(self, rows: Rows, name: str, first: int, last: int) -> bool:
        known = rows["columns"][:, self.layout.names.index(name)]["known"] != 0
        return bool((_owners(rows, known, self._first, first, last) >= 0).all())

    def stop(self) -> None:
        """Stop writing, because the file will be removed."""
        with self._lock:
            self._writes = False
            self._close()

    def close(self) -> None:
        """Close the file. A later call opens it again."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _keep(self, packed: list[bytes]) -> None:
        with self._lock:
            if self._stored is not None:  # else they are read from the file on demand
                self._fresh += packed
            if not self._writes:
                return
            try:
                file = self._file or self._open()
                data = b"".join(packed)
                file.write(self._end, data)
                self._end += len(data)
            except IsologError:
                self._writes = False
                self._close()

    def _open(self) -> DiskFile:
        """Open the file for more rows. The caller holds the lock."""
        size = self._size_there()
        if size is None:
            self._file = self._disk.create(self._path)
            self._file.write(0, self._header)
            self._end = HEADER_BYTES
        else:
            self._file = self._disk.open(self._path)
            rows = (size - HEADER_BYTES) // self.layout.row.itemsize
            self._end = HEADER_BYTES + rows * self.layout.row.itemsize
        return self._file

    def _size_there(self) -> int | None:
        """Return the size of the file, or None if its segment or its columns are others."""
        if self._path.name not in self._disk.names(self._path.parent):
            return None
        data = self._disk.map(self._path)
        if data.size < HEADER_BYTES or data.slice(0, HEADER_BYTES).to_pybytes() != self._header:
            return None
        return int(data.size)

    def _load(self) -> Rows:
        """Load the file's rows with a right checksum. The caller holds the lock."""
        nothing = np.zeros(0, self.layout.row)
        with suppress(IsologError):
            if self._size_there() is not None:
                return self.layout.intact(self._disk.map(self._path).slice(HEADER_BYTES))
        return nothing

    def _fitting(self, table: Table) -> Rows:
        """Return the rows that describe the entries of this table."""
        with self._lock:
            if self._stored is None:
                self._stored = self._load()
            stored, fresh, known = self._stored, len(self._fresh), self._known
            seen = len(stored) + fresh
            if known is not None and (known.seen, known.entries) == (seen, len(table)):
                return known.rows
            if fresh:
                stored = self._merged(stored)
                self._stored, self._fresh = stored, []
        rows = _fitting(stored, table, self._first)
        self._known = _Known(rows, seen, len(table))
        return rows

    def _merged(self, stored: Rows) -> Rows:
        return np.concatenate((stored, np.frombuffer(b"".join(self._fresh), self.layout.row)))


def _fitting(rows: Rows, table: Table, base: int) -> Rows:
    if not len(rows) or not len(table):
        return rows[:0]
    first, count = rows["first"] - base, rows["entries"].astype(np.int64)
    within = (first >= 0) & (count > 0) & (first + count <= len(table))
    rows, first, count = rows[within], first[within], count[within]
    joined = np.concatenate((np.zeros(1, np.uint32), np.bitwise_xor.accumulate(table["data_crc"])))
    records = np.concatenate((np.zeros(1, np.int64), np.cumsum(table["count"], dtype=np.int64)))
    last = first + count
    fits = (joined[last] ^ joined[first]) == rows["data_crcs"]
    fits &= (records[last] - records[first]) == rows["records"]
    found: Rows = rows[fits]
    return found


def _owners(
    rows: Rows, chosen: npt.NDArray[np.bool_], base: int, first: int, last: int
) -> npt.NDArray[np.int64]:
    """Return the row of each entry of ``[first, last)``, or -1 without a row."""
    owners = np.full(last - first, -1, np.int64)
    low = rows["first"] - base
    high = low + rows["entries"]
    numbers = np.flatnonzero(chosen & (low < last) & (high > first))
    low, high = np.maximum(low[numbers], first), np.minimum(high[numbers], last)
    counts = high - low
    before = np.cumsum(counts) - counts
    places = np.arange(int(counts.sum())) + np.repeat(low - before - first, counts)
    owners[places] = np.repeat(numbers, counts)
    return owners
