"""Records given one by one, until they are a batch.

The lists grow by one item a record and are turned into Arrow arrays all at once; this is the one
place of the client where rows are touched one by one, because they come one by one.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_stream.client.writing.partitioner import partitions_of
from spark_stream.client.writing.promises import Promise
from spark_stream.wire.schemas import DEFAULT_SCHEMA, HEADERS_TYPE, TIMESTAMP_TYPE


@dataclass(slots=True)
class Pending:
    """The records of one default-schema topic that are not sent yet."""

    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: list[list[tuple[str, bytes | None]] | None] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    partitions: list[int] = field(default_factory=list)
    futures: list[Promise] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    size: int = 0
    since: float = 0.0
    headed: bool = False
    placed: bool = False

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] | None,
        timestamp: int,
        partition: int | None,
        size: int,
        future: Promise,
    ) -> None:
        """Adds a record; ``timestamp`` in microseconds, ``size`` in bytes."""
        if not self.futures:
            self.since = time.monotonic()
        self.keys.append(key)
        self.values.append(value)
        self.headers.append(headers)
        self.timestamps.append(timestamp)
        self.partitions.append(-1 if partition is None else partition)
        self.futures.append(future)
        self.sizes.append(size)
        self.size += size
        self.headed |= bool(headers)
        self.placed |= partition is not None

    def batch(self) -> pa.RecordBatch:
        """The records as one batch, in the order in which they came."""
        rows = len(self.futures)
        headers = (
            pa.array(
                [
                    None if each is None else [{"key": k, "value": v} for k, v in each]
                    for each in self.headers
                ],
                HEADERS_TYPE,
            )
            if self.headed
            else pa.nulls(rows, HEADERS_TYPE)
        )
        arrays = [
            pa.array(self.keys, pa.binary()),
            pa.array(self.values, pa.binary()),
            headers,
            pa.array(np.array(self.timestamps, np.int64), pa.int64()).cast(TIMESTAMP_TYPE),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=DEFAULT_SCHEMA)

    def places(self, batch: pa.RecordBatch, partitions: int, keyless: int) -> npt.NDArray[np.int32]:
        """The partition of each record: the one it names, else its key's, else ``keyless``."""
        found = partitions_of(batch.column("key"), partitions, keyless)
        if self.placed:
            named = np.array(self.partitions, np.int32)
            found = np.where(named >= 0, named, found)
        return found


def split(
    batch: pa.RecordBatch, places: npt.NDArray[np.int32]
) -> Iterator[tuple[int, pa.RecordBatch, npt.NDArray[np.int64]]]:
    """The batch by partition: (partition, its rows in their order, their row numbers).

    The rows are put in order once, and each part is a slice of that: it keeps the memory of all.
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
    """The same order in numbers of 8 or 16 bits, which NumPy sorts by their digits, if they fit."""
    if last - first >= 1 << 16:
        return places
    return (places - first).astype(np.min_scalar_type(last - first))


def _taken(batch: pa.RecordBatch, order: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """The batch's rows in this order. A column of nulls alone is in any order."""
    rows = pa.array(order)
    columns = [
        column if column.null_count == len(column) else column.take(rows)
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
