"""Stored entries as one replica sends them to another, and chunks: the results of a read.

Two replicas are the same where their entries are, apart from ``position`` and ``entry_crc``, which
depend on where a batch lies in a replica's own files. The checksum ``data_crc`` in an entry stands
for the batch's bytes.
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
from spark_stream.consistency.replication.leader import Boundary
from spark_stream.errors import DamagedEntries
from spark_stream.storage.format.codec import first_broken_batch, intact_entries, sealed

OFFSET: Final = "_offset"
TIMESTAMP: Final = "_timestamp"
"""Columns that are made of the entries: a record's offset, and its entry's timestamp."""

_MADE: Final = {OFFSET: pa.int64(), TIMESTAMP: pa.timestamp("us", "UTC")}
_COLUMNS: Final = Entry.__struct_fields__
_KINDS: Final = tuple(Kind)


class StoredEntries(Struct, frozen=True):
    """Consecutive entries of a log: their rows, and the bytes of all their batches in a row.

    ``position`` and ``entry_crc`` of the rows are those of the log that they come from.
    """

    rows: Table
    data: pa.Buffer


def digest(tables: Iterable[Table]) -> str:
    """Hash those parts of the entries that are the same in all replicas: 32 hexadecimal digits.

    How the entries are divided into tables does not matter.
    """
    found = blake2b(digest_size=16)
    for table in tables:
        rows = table.copy()
        rows["position"] = rows["entry_crc"] = 0
        found.update(rows.tobytes())
    return found.hexdigest()


def checked_lone_entry(rows: Table, data: pa.Buffer, end: Boundary, epoch: int) -> Entry | None:
    """Return the only entry if :func:`check_entries` would accept it, else None.

    None means: there are several entries, or the only one is refused and :func:`check_entries` says
    why.
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
        ValueError: the entries are sound, but do not follow the log's end.
        DamagedEntries: some entries are not sound; the message names the first.
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
            f"{place}: entry {end.entry + good} came damaged", entry=end.entry + good
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
