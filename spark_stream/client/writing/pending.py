"""Gathers records that come one by one into a batch.

The lists grow by one item a record and are converted to Arrow arrays all at once; this is the only
place of the client that handles single rows, because they come one by one.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct, field

from spark_stream.client.writing.outcomes import Outcomes, RecordPromise
from spark_stream.client.writing.partitioner import partitions_of
from spark_stream.schema.schemas import DEFAULT_SCHEMA, HEADERS_TYPE, TIMESTAMP_TYPE
from spark_stream.transport.loop import Timer

Headers = list[tuple[str, bytes | None]]

Part = tuple[int, pa.RecordBatch, npt.NDArray[np.int64]]
"""A partition, its rows, and their indexes in the whole batch."""


class Pending(Struct):
    """The records of one default-schema topic that are not sent yet.

    ``room``: what is reserved for them in the producer's buffer. ``left``: how much of that is
    still unused: a smaller record needs neither more room nor another batch. ``largest``: the size
    limit of such a record. ``counted``: how many of the records the buffer has counted.
    ``flushes``: how many flushes had begun before the first record was taken.
    """

    outcomes: Outcomes
    partitions: int = 0
    largest: int = 0
    room: int = 0
    left: int = 0
    counted: int = 0
    flushes: int = 0
    timer: Timer | None = None
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    moments: list[int] = field(default_factory=list)
    _headed: list[tuple[int, Headers]] = field(default_factory=list)
    _placed: list[tuple[int, int]] = field(default_factory=list)
    _timed: list[tuple[int, int]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The size of the records in bytes."""
        return self.room - self.left

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
    ) -> RecordPromise:
        """Add a record; ``timestamp`` in microseconds, None for now."""
        row = len(self.values)
        try:
            self._append(row, key, value, partition, headers, timestamp)
        except BaseException:  # of a signal handler
            self.cut(row)
            raise
        return RecordPromise(self.outcomes, row)

    def cut(self, row: int) -> None:
        """Remove a row that is the last one, and not complete."""
        for each in (self.keys, self.values, self.moments):
            del each[row:]
        for listed in (self._placed, self._headed, self._timed):
            if listed and listed[-1][0] >= row:
                listed.pop()

    def _append(
        self,
        row: int,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        headers: Headers | None,
        timestamp: int | None,
    ) -> None:
        if partition is not None:
            self._placed.append((row, partition))
        if headers:
            self._headed.append((row, headers))
        if timestamp is not None:
            self._timed.append((row, timestamp))
        self.keys.append(key)
        self.values.append(value)
        self.moments.append(time.time_ns())

    def batch(self) -> pa.RecordBatch:
        """Return the records as one batch, in the order in which they came."""
        rows = len(self.values)
        arrays = [
            _binary(self.keys) if self._keyed else _no_keys(rows),
            _binary(self.values),
            self._headers(rows),
            self._timestamps(rows),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=DEFAULT_SCHEMA)

    def _timestamps(self, rows: int) -> pa.Array:
        if rows == 1 and not self._timed:
            moments = pa.py_buffer(_LONG.pack(self.moments[0] // 1000))
        else:
            values = np.array(self.moments, np.int64) // 1000
            for row, moment in self._timed:
                values[row] = moment
            moments = pa.py_buffer(values)
        return pa.Array.from_buffers(TIMESTAMP_TYPE, rows, [None, moments])

    def _headers(self, rows: int) -> pa.Array:
        if not self._headed:
            return _no_headers(rows)
        found: list[list[dict[str, str | bytes | None]] | None] = [None] * rows
        for row, headers in self._headed:
            found[row] = [{"key": name, "value": value} for name, value in headers]
        return pa.array(found, HEADERS_TYPE)

    @property
    def _keyed(self) -> bool:
        return self.keys.count(None) < len(self.keys)

    def parts(self, partitions: int, keyless: int) -> list[Part]:
        """Split the records by partition: the one they name, else their key's, else ``keyless``."""
        batch = self.batch()
        if not self._keyed and not self._placed:
            return [(keyless, batch, np.arange(len(batch)))]
        places = partitions_of(batch.column("key"), partitions, keyless)
        for row, partition in self._placed:
            places[row] = partition
        return list(split(batch, places))


# A lone record should be fast: Arrow does not have to inspect a list, and arrays that are always
# the same are made in advance.


def _binary(values: list[bytes | None]) -> pa.Array:
    value = values[0]
    if len(values) > 1 or value is None:
        return pa.array(values, _BINARY)
    offsets = pa.py_buffer(_OFFSETS.pack(0, len(value)))
    return pa.Array.from_buffers(_BINARY, 1, [None, offsets, pa.py_buffer(value)])


def _no_keys(rows: int) -> pa.Array:
    return _ONE_WITHOUT_KEY if rows == 1 else pa.nulls(rows, _BINARY)


def _no_headers(rows: int) -> pa.Array:
    return _ONE_WITHOUT_HEADERS if rows == 1 else pa.nulls(rows, HEADERS_TYPE)


_BINARY: Final = pa.binary()
_OFFSETS: Final = struct.Struct("<2i")
_LONG: Final = struct.Struct("<q")
_ONE_WITHOUT_KEY: Final = pa.nulls(1, _BINARY)
_ONE_WITHOUT_HEADERS: Final = pa.nulls(1, HEADERS_TYPE)


def split(batch: pa.RecordBatch, places: npt.NDArray[np.int32]) -> Iterator[Part]:
    """Split the batch by partition; the rows of each part keep their order.

    The rows are sorted once, and each part is a slice of that: it keeps the memory of all.
    """
    first, last = int(places.min()), int(places.max())
    if first == last:
        yield first, batch, np.arange(len(places))
        return
    order = np.argsort(_narrowed(places, first, last), kind="stable")
    ordered = places[order]
    sorted_batch = _taken(batch, order)
    edges = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(order)]
    for start, end in itertools.pairwise(edges):
        yield int(ordered[start]), sorted_batch.slice(start, end - start), order[start:end]


def _narrowed(places: npt.NDArray[np.int32], first: int, last: int) -> npt.NDArray[np.integer]:
    """Return the places in 8 or 16 bits, in the same order, if they fit: NumPy sorts these fast."""
    if last - first >= 1 << 16:
        return places
    return (places - first).astype(np.min_scalar_type(last - first))


def _taken(batch: pa.RecordBatch, order: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Return the batch's rows in this order; columns of nulls alone are not reordered."""
    # Not pa.array(order): it imports pandas.
    rows = pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)])
    columns = [
        column if column.null_count == len(column) else column.take(rows)
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
