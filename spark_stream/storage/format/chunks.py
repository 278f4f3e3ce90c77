"""What a read returns: some records, with their offsets."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from spark_stream.consistency.ids import Offset

OFFSET: Final = "_offset"
TIMESTAMP: Final = "_timestamp"
"""Columns that are made of the entries: a record's offset, and its entry's timestamp."""

_MADE: Final = {OFFSET: pa.int64(), TIMESTAMP: pa.timestamp("us", "UTC")}


class Stored(Struct, frozen=True):
    """Where the batches of a chunk lie: in a file that readers of this machine can map.

    ``device`` and ``inode`` tell the file from another that takes its name later. ``parts`` are
    runs of bytes, (start, length), int64, shape (runs, 2); they hold ``entries`` messages, one
    after the other; if ``compressed``, their bodies may be compressed. ``crc`` is the CRC-32C of
    all parts joined. The chunk's rows begin ``lead`` rows after the first row of the first message.

    The messages are those of the same entries in every replica of the partition: ``indexes`` are
    runs of entries, (first, count), int64, shape (runs, 2), the last one of leader epoch ``epoch``.
    """

    path: Path
    device: int
    inode: int
    parts: np.ndarray
    entries: int
    crc: int
    compressed: bool
    indexes: np.ndarray
    epoch: int
    lead: int = 0


class Chunk(Struct, frozen=True):
    """Records in the order of their offsets: ``batch`` has the wanted columns.

    ``spans`` are the runs of consecutive offsets among its rows: (base offset, count), int64, shape
    (runs, 2); more than one only where aborted records lie between. ``timestamps`` (microseconds)
    and ``counts`` have one item for each entry the batch came from: ``timestamps[i]`` is the
    greatest record timestamp of the ``counts[i]`` rows of entry i. ``scattered``: the offset of
    every row, if a filter has left some out; there are no spans then. ``stored``: where the rows
    lie, if the read asked for that instead of rows. ``messages``: likewise, the bytes of the rows'
    ``counts.size`` IPC messages, in parts. With either of them ``batch`` has no rows.

    ``next_offset`` is where to read on: after the last row and any aborted or unmatched ones that
    follow. A chunk without rows says only that; its ``base_offset`` is where the search began.
    """

    base_offset: Offset
    batch: pa.RecordBatch
    timestamps: np.ndarray
    counts: np.ndarray
    spans: np.ndarray
    next_offset: Offset
    scattered: np.ndarray | None = None
    stored: Stored | None = None
    messages: tuple[memoryview, ...] = ()

    @property
    def rows(self) -> int:
        """The number of records."""
        return int(self.counts.sum())

    def offsets(self) -> np.ndarray:
        """Return the offset of every row, int64, shape (rows,)."""
        if self.scattered is not None:
            return self.scattered
        counts = self.spans[:, 1]
        before = np.cumsum(counts) - counts
        rows = np.arange(self.batch.num_rows, dtype=np.int64)
        return np.asarray(rows + np.repeat(self.spans[:, 0] - before, counts))

    def column(self, name: str) -> pa.Array:
        """Return a column of the batch, or a derived one."""
        if name in self.batch.schema.names:
            return self.batch.column(name)
        made = self.offsets() if name == OFFSET else np.repeat(self.timestamps, self.counts)
        # Not pa.array(made): that imports pandas.
        return pa.Array.from_buffers(_MADE[name], len(made), [None, pa.py_buffer(made)])


def joined(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Join adjacent runs (start, count); int64, shape (runs, 2)."""
    if len(starts) == 1:
        return np.array([[starts[0], counts[0]]])
    apart = np.flatnonzero(starts[1:] != starts[:-1] + counts[:-1]) + 1
    edges = np.concatenate((np.zeros(1, np.int64), apart))
    return np.stack((starts[edges], np.add.reduceat(counts, edges)), axis=1)
