"""Stored entries as one replica sends them to another, and chunks: the results of a read.

Replicas with equal entries have equal batches, because an entry has the checksum ``data_crc`` of
its batch. ``position`` and ``entry_crc`` may differ: they depend on the place of a batch in the
replica's files.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from spark_stream.batches import crc32c
from spark_stream.consistency.entries import (
    CRC_SPAN,
    Entry,
    Kind,
    Table,
    lone_entry,
    valid_prefix,
)
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.errors import DamagedEntries
from spark_stream.storage.format.codec import first_broken_batch, intact_entries, sealed

OFFSET: Final = "_offset"
TIMESTAMP: Final = "_timestamp"
"""Columns derived from the entries: a record's offset, and its entry's timestamp."""

_MADE: Final = {OFFSET: pa.int64(), TIMESTAMP: pa.timestamp("us", "UTC")}
_COLUMNS: Final = Entry.__struct_fields__
_KINDS: Final = tuple(Kind)


class StoredEntries(Struct, frozen=True):
    """Consecutive entries of a log: their rows, and the concatenated bytes of their batches.

    ``position`` and ``entry_crc`` of the rows are those in the log of their origin.
    """

    rows: Table
    data: pa.Buffer


def digest(tables: Iterable[Table]) -> str:
    """Hash the parts of the entries that are equal in all replicas. Return 32 hexadecimal digits.

    The division of the entries into tables does not matter.
    """
    found = blake2b(digest_size=16)
    for table in tables:
        rows = table.copy()
        rows["position"] = rows["entry_crc"] = 0
        found.update(rows.tobytes())
    return found.hexdigest()


def checked_lone_entry(rows: Table, data: pa.Buffer, end: Boundary, epoch: int) -> Entry | None:
    """Return the only entry if :func:`check_entries` would accept it, else None.

    None means that there are several entries, or that :func:`check_entries` raises an error.
    """
    if len(rows) != 1:
        return None
    row = rows.tobytes()
    found = lone_entry(row[:CRC_SPAN], end.entry, end.offset, epoch)
    if found is None or sealed(row[:CRC_SPAN]) != row:
        return None
    entry, length = found
    sound = data.size == length and (not length or crc32c(data) == entry.data_crc)
    return entry if sound else None


def check_entries(rows: Table, data: pa.Buffer, end: Boundary, epoch: int, place: str) -> None:
    """Check that these entries may be appended to a log that ends at ``end``, in this epoch.

    Both checksums of each entry are computed. ``place`` names the log in messages.

    Raises:
        ValueError: the entries are intact, but do not follow the log's end.
        DamagedEntries: an entry is not intact. The message has the first such entry.
    """
    good = intact_entries(rows)
    first, last = rows[0], rows[-1]
    if good:
        at, under = (int(first["entry_index"]), int(first["base_offset"])), first["leader_epoch"]
        if at != (end.entry, end.offset) or under < epoch:
            raise ValueError(
                f"{place} ends at {end} in epoch {epoch}; the new entries start at entry {at[0]}"
                f" with offset {at[1]}, in epoch {under}"
            )
    start = int(first["position"])
    good = valid_prefix(rows[:good], int(end.entry), int(end.offset), start)
    good = first_broken_batch(rows[:good], data, start)
    if good < len(rows):
        raise DamagedEntries(
            f"{place}: entry {end.entry + good} arrived damaged", entry=end.entry + good
        )
    length = int(last["position"] + last["length"]) - start
    if data.size != length:
        raise DamagedEntries(
            f"{place}: got {data.size} bytes for entries of {length} bytes", entry=int(end.entry)
        )


def entries_of(rows: Table) -> list[Entry]:
    """Convert the rows to entries without a position in a file."""
    columns = [
        [_KINDS[kind] for kind in rows[name].tolist()] if name == "kind" else rows[name].tolist()
        for name in _COLUMNS
    ]
    return [Entry(*values) for values in zip(*columns, strict=True)]


class ChunkPlace(Struct, frozen=True):
    """The place of a chunk's batches: a file that readers on this machine can map.

    ``device`` and ``inode`` identify the file, even if another gets its name later. ``parts`` are
    runs of bytes, (start, length), int64, shape (runs, 2). They have ``entries`` messages, one
    after the other. If ``compressed``, their bodies may be compressed. ``crc`` is the CRC-32C of
    all parts joined. The chunk's rows begin ``lead`` rows after the first row of the first message.

    ``indexes`` are runs of entries, (first, count), int64, shape (runs, 2), the last one of leader
    epoch ``epoch``. In every replica of the partition, these entries have the same messages.
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
    (runs, 2). There are several only if aborted records lie between. ``timestamps`` (microseconds)
    and ``counts`` have one item for each entry of the batch: ``timestamps[i]`` is the greatest
    record timestamp of the ``counts[i]`` rows of entry i. ``scattered``: the offset of every row,
    if a filter has left some out. Then there are no spans. ``stored``: the place of the rows, if
    the read is for places. ``messages``: if the read is for messages, the bytes of the rows'
    ``counts.size`` IPC messages, in parts. With places ``batch`` has no rows, and with messages no
    columns either.

    ``next_offset`` is the start of the next read: after the last row and any aborted or unmatched
    ones that follow. A chunk without rows has only that, and the start of the search as
    ``base_offset``.
    """

    base_offset: Offset
    batch: pa.RecordBatch
    timestamps: np.ndarray
    counts: np.ndarray
    spans: np.ndarray
    next_offset: Offset
    scattered: np.ndarray | None = None
    stored: ChunkPlace | None = None
    messages: tuple[memoryview, ...] = ()

    @property
    def rows(self) -> int:
        """The number of records."""
        return int(self.counts[0] if len(self.counts) == 1 else self.counts.sum())

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
