"""One segment: a file of batches and the table of its entries.

Order of writes in an append: the batch's bytes, then its entry, then (in memory) the entry is
published. A crash between any two leaves bytes that no entry names, which recovery cuts. A failed
write is taken back at once, so the files end where the last published entry says.

Order of steps in a removal: the entries file is renamed, which decides it; then both files go. What
a crash leaves of it, the next open finishes.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from spark_stream.consistency.entries import (
    ENTRY,
    ENTRY_SIZE,
    Entry,
    Kind,
    Table,
    next_offset,
)
from spark_stream.consistency.ids import EntryIndex, Offset
from spark_stream.consistency.leader import Position
from spark_stream.errors import DamagedSegment, IsologError
from spark_stream.storage.codec import END_OF_STREAM, Codec, first_broken_batch, gathered, sealed
from spark_stream.storage.disk import Disk, DiskFile

# Below this a read near the end of a growing file copies; above it the file is mapped again.
_COPY_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SegmentName:
    """Where a segment's two files are."""

    directory: Path
    base_offset: int

    @property
    def arrow(self) -> Path:
        return self.directory / f"{self.base_offset:020d}.arrow"

    @property
    def entries(self) -> Path:
        return self.directory / f"{self.base_offset:020d}.entries"

    @property
    def gone(self) -> Path:
        """The entries file of a segment that is being removed."""
        return self.directory / f"{self.base_offset:020d}.entries.gone"

    def remove(self, disk: Disk) -> None:
        """Deletes both files; readers that mapped them keep what they mapped."""
        disk.rename(self.entries, self.gone)
        disk.sync_directory(self.directory)
        self.finish_removal(disk)

    def finish_removal(self, disk: Disk) -> None:
        """The rest of a removal, once the entries file has the name ``gone``."""
        disk.remove(self.arrow)
        disk.remove(self.gone)


def header_of(codec: Codec, facts: dict[str, str], first: Position) -> bytes:
    """The schema message of a segment that starts at ``first``."""
    places = {"isolog.base_entry": str(first.entry), "isolog.base_offset": str(first.offset)}
    return codec.header(facts | places)


class Segment:
    """A closed segment; :class:`ActiveSegment` is the one that grows.

    Readers need no lock: rows of ``table`` below its length never change, and a longer table is put
    in the place of a shorter one. Which rows are aborted does change, but for rows below the last
    stable offset it does not: whoever drops them reads no further.
    """

    def __init__(
        self,
        disk: Disk,
        name: SegmentName,
        codec: Codec,
        first: Position,
        table: Table,
        *,
        hole_end: int | None = None,
        verified: bool = False,
    ) -> None:
        self.name = name
        self.first = first
        self._disk = disk
        self._codec = codec
        self._table = table
        self._aborted: np.ndarray | None = None
        self._mapped = pa.py_buffer(b"")
        self._hole_end = hole_end
        self._verified: np.ndarray | None = None if verified else np.zeros(len(table), np.bool_)

    @property
    def table(self) -> Table:
        """The published entries."""
        return self._table

    def aborted(self, table: Table) -> np.ndarray | None:
        """Which rows of ``table``, got from here before, are aborted; None: none is."""
        mask = self._aborted
        return None if mask is None else mask[: len(table)]

    def set_aborted(self, mask: np.ndarray | None) -> None:
        """What an open derived from the whole log; shape (rows,)."""
        self._aborted = mask

    def abort(self, transaction: int, producer_id: int, entry: int) -> None:
        """Its batches of this producer id in the transaction are aborted from now on.

        The first of them in the log is the entry with index ``entry``. Under the partition's lock.
        """
        first = max(0, entry - self.first.entry)
        rows = self._table[first:]
        found = (rows["transaction"] == transaction) & (rows["producer_id"] == producer_id)
        found &= rows["kind"] == Kind.DATA
        if not found.any():
            return
        if self._aborted is None:
            self._aborted = self._blank_mask()
        self._aborted[first : first + len(rows)] |= found

    def _blank_mask(self) -> np.ndarray:
        return np.zeros(len(self._table), np.bool_)

    @property
    def end(self) -> Position:
        """The position after the last entry; damaged entries at the end of the segment count."""
        if self._hole_end is not None:
            return Position(EntryIndex(self.first.entry + len(self._table)), Offset(self._hole_end))
        table = self._table
        return Position(
            EntryIndex(self.first.entry + len(table)), next_offset(table, self.first.offset)
        )

    @property
    def sound_end(self) -> int:
        """The offset after the last record that can be read; below ``end`` where damage follows."""
        return next_offset(self._table, self.first.offset)

    @property
    def data_end(self) -> int:
        """The position in the ``.arrow`` file after the last batch, bytes; 0 without entries."""
        table = self._table
        return int(table[-1]["position"] + table[-1]["length"]) if len(table) else 0

    @property
    def size(self) -> int:
        """Bytes of both files."""
        return self.data_end + len(self._table) * ENTRY_SIZE

    @property
    def last_appended(self) -> int | None:
        """The leader's clock at the last append, microseconds; None without entries."""
        return int(self._table[-1]["appended"]) if len(self._table) else None

    def damage(self) -> DamagedSegment:
        """The error for a read that needs the part which is lost."""
        return DamagedSegment(
            f"{self.name.entries}: offsets {self.sound_end} to {self.end.offset - 1} fail their"
            f" checksums; the first good offset after them is {self.end.offset}",
            path=str(self.name.entries),
            first=self.sound_end,
            next=int(self.end.offset),
        )

    def decode(self, places: np.ndarray, columns: list[str] | None) -> tuple[pa.RecordBatch, int]:
        """The batches at these rows of the table, rising, as one; and how many of them it is.

        It is fewer where a later one fails its checksum, or where the batch would be too large in
        memory. What lies between is not looked at.

        Raises:
            DamagedSegment: the first batch fails its checksum.
        """
        data, sound = self._load(places)
        return self._codec.decode(data, sound, columns)

    def blank(self, columns: list[str] | None) -> pa.RecordBatch:
        """A batch without rows, of the same columns as :meth:`decode` gives."""
        schema = self._codec.schema
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        arrays = [pa.nulls(0, field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _load(self, places: np.ndarray) -> tuple[list[memoryview], int]:
        """The checked bytes of the batches at these rows, and how many batches they are."""
        first, last = int(places[0]), int(places[-1]) + 1
        neighbours = last - first == len(places)
        rows = self._table[first:last] if neighbours else self._table[places]
        starts, lengths = rows["position"], rows["length"]
        position = int(starts[0])
        length = int(starts[-1] + lengths[-1]) - position
        data = self._bytes(position, length)
        sound = len(rows)
        trusted = self._verified is None or bool(self._verified[places].all())
        if not trusted or data.size != length:
            sound = first_broken_batch(rows, data, position)
            if sound == 0:
                raise self._batch_damage(rows[0])
            if self._verified is not None:
                self._verified[places[:sound]] = True
            starts, lengths = starts[:sound], lengths[:sound]
            data = data.slice(0, int(starts[-1] + lengths[-1]) - position)
        return gathered(data, starts - position, lengths), sound

    def _batch_damage(self, row: np.void) -> DamagedSegment:
        start, count = int(row["base_offset"]), int(row["count"])
        return DamagedSegment(
            f"{self.name.arrow}: offsets {start} to {start + count - 1} fail their"
            f" checksum; the first offset after them is {start + count}",
            path=str(self.name.arrow),
            first=start,
            next=start + count,
        )

    def _bytes(self, position: int, length: int) -> pa.Buffer:
        """The bytes, or as many of them as the file has."""
        if position + length > self._mapped.size:
            self._mapped = self._disk.map(self.name.arrow)
        mapped = self._mapped
        start = min(position, mapped.size)
        return mapped.slice(start, min(length, mapped.size - start))

    def remove(self) -> None:
        """Deletes both files; readers that mapped them keep what they mapped."""
        self.name.remove(self._disk)


class ActiveSegment(Segment):
    """The last segment of a log: it takes appends. One writer at a time (the partition's lock)."""

    def __init__(
        self, disk: Disk, name: SegmentName, codec: Codec, first: Position, table: Table
    ) -> None:
        super().__init__(disk, name, codec, first, table, verified=True)
        self._arrow: DiskFile = disk.open(name.arrow)
        self._entries: DiskFile = disk.open(name.entries)
        self._grown = np.zeros(max(64, 2 * len(table)), ENTRY)
        self._grown[: len(table)] = table
        self._table = self._grown[: len(table)]
        self._data_end = self.data_end or self._arrow.size()
        self._torn = False
        self._unflushed = len(table) > 0  # an earlier process may have died before it flushed

    @classmethod
    def create(
        cls, disk: Disk, name: SegmentName, codec: Codec, first: Position, facts: dict[str, str]
    ) -> ActiveSegment:
        """A new, empty segment, whose names are on the disk; on an error neither file is there.

        The entries file comes first: an .arrow file never lacks it.
        """
        try:
            disk.write_whole(name.entries, [])
            disk.write_whole(name.arrow, [header_of(codec, facts, first)])
            disk.sync_directory(name.directory)
            return cls(disk, name, codec, first, np.zeros(0, ENTRY))
        except Exception:
            # Left behind, it would end the segment before it, which goes on taking records.
            disk.remove(name.arrow)
            disk.remove(name.entries)
            raise

    @property
    def data_bytes(self) -> int:
        """Where the next batch goes in the ``.arrow`` file."""
        return self._data_end

    def append(self, entry: Entry, message: pa.Buffer | None, *, forced: bool = False) -> None:
        """Writes one entry and its batch (None: a marker has none); on an error neither is there.

        ``forced``: both are on the disk before anybody sees them.

        Raises:
            DiskFull, StorageFailure: nothing was kept, and the next append starts where this did.
        """
        if self._torn:
            self._take_back()
        length = message.size if message is not None else 0
        written = sealed(entry.packed(self._data_end, length))
        try:
            if message is not None:
                self._arrow.write(self._data_end, message)
            self._entries.write(len(self._table) * ENTRY_SIZE, written)
            self._unflushed = True
            if forced:
                self.flush()
        except Exception:
            self._torn = True
            with suppress(IsologError):  # then the next append does it
                self._take_back()
            raise
        self._publish(written)
        self._data_end += length

    def flush(self) -> None:
        """Forces what was appended to the disk: batches first, then the entries that name them."""
        if self._unflushed:
            self._arrow.flush()
            self._entries.flush()
            self._unflushed = False

    def finish(self) -> None:
        """Writes Arrow's end-of-stream mark behind the last batch; an append would replace it."""
        if self._torn:
            self._take_back()
        try:
            self._arrow.write(self._data_end, END_OF_STREAM)
            self._unflushed = True
        except Exception:
            self._torn = True
            raise

    def close(self) -> None:
        """Closes the files; readers that are under way go on with a mapping."""
        self._arrow.close()
        self._entries.close()

    def closed(self) -> Segment:
        """The same segment for readers only. What this process wrote needs no second check."""
        table = np.frombuffer(self._disk.map(self.name.entries), ENTRY, count=len(self._table))
        segment = Segment(self._disk, self.name, self._codec, self.first, table, verified=True)
        segment.set_aborted(self.aborted(table))
        return segment

    def set_aborted(self, mask: np.ndarray | None) -> None:
        if mask is not None:
            longer = self._blank_mask()
            longer[: len(mask)] = mask
            mask = longer
        self._aborted = mask

    def _blank_mask(self) -> np.ndarray:
        return np.zeros(len(self._grown), np.bool_)

    def _publish(self, entry: bytes) -> None:
        rows = len(self._table)
        if rows == len(self._grown):
            grown = np.zeros(2 * rows, ENTRY)
            grown[:rows] = self._grown
            self._grown = grown
            # Before the table: a reader takes the table first, so its mask is never the shorter.
            self.set_aborted(self._aborted)
        self._grown[rows] = np.frombuffer(entry, ENTRY)[0]
        self._table = self._grown[: rows + 1]

    def _take_back(self) -> None:
        self._entries.cut(len(self._table) * ENTRY_SIZE)
        self._arrow.cut(self._data_end)
        self._torn = False

    def _bytes(self, position: int, length: int) -> pa.Buffer:
        if position + length > self._mapped.size and length <= _COPY_BYTES_MAX:
            data = self._arrow.read(position, length)
            if data is not None:  # else a roll closed the file since this reader began
                return data
        return super()._bytes(position, length)
