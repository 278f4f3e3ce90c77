"""A closed segment: a file of batches and the table of its entries.

Order of steps in a removal: the entries file is renamed, which decides the removal. Then the
``.arrow`` file is removed, and the renamed file last. Each step is forced before the next. The next
open finishes a removal that a crash interrupted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from spark_stream.batches import conformed, crc32c
from spark_stream.consistency.entries import (
    CRC_SPAN,
    ENTRY_SIZE,
    Entry,
    Kind,
    Table,
    lone_entry,
    next_offset,
)
from spark_stream.consistency.ids import EntryIndex, Offset
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.errors import DamagedSegment, IsologError
from spark_stream.storage.disk.disk import Disk
from spark_stream.storage.format.codec import (
    Codec,
    first_broken_batch,
    gathered,
    intact_entries,
    intact_rows,
    joined_runs,
    run_crc,
    sealed,
)
from spark_stream.storage.format.stored import ChunkPlace, StoredEntries
from spark_stream.storage.segment.min_max_files import SegmentExtremes
from spark_stream.storage.settings import Compression

_NOTHING = pa.py_buffer(b"")


class GrowingFileMap:
    """A segment's ``.arrow`` file as readers see it: mapped at the first need, by any thread.

    The file grows at its end, or not at all. Readers may hold a segment long after the log has
    removed it. By then its file may be deleted, or its name may belong to another file. So a file
    is mapped before it is removed or replaced: a mapped file is not looked up by name again.
    """

    __slots__ = ("_disk", "_lock", "_mapped", "_path")

    def __init__(self, disk: Disk, path: Path, mapped: pa.Buffer = _NOTHING) -> None:
        """Start with an existing mapping, if there is one."""
        self._disk = disk
        self._path = path
        self._mapped = mapped
        self._lock = Lock()

    @property
    def mapped(self) -> pa.Buffer:
        """The mapped part of the file."""
        return self._mapped

    def upto(self, size: int) -> pa.Buffer:
        """Return the file mapped up to this size at least, or to its end."""
        mapped = self._mapped
        if mapped.size >= size:
            return mapped
        with self._lock:
            if self._mapped.size < size:
                self._mapped = self._disk.map(self._path)
            return self._mapped

    def drop(self) -> None:
        """Drop the mapping: the file was replaced by an equal one. Readers that hold it keep it."""
        with self._lock:
            self._mapped = _NOTHING


EXTREMES: Final = ".extremes"
_NEAR_ENTRIES: Final = 64  # the range of a search for an intact entry near a damaged one


class SegmentName(Struct, frozen=True):
    """The paths of a segment's files."""

    directory: Path
    base_offset: int

    @property
    def arrow(self) -> Path:
        return self.directory / f"{self.base_offset:020d}.arrow"

    @property
    def entries(self) -> Path:
        return self.directory / f"{self.base_offset:020d}.entries"

    @property
    def extremes(self) -> Path:
        """The min/max statistics of the batches. The file may be missing."""
        return self.directory / f"{self.base_offset:020d}{EXTREMES}"

    @property
    def gone(self) -> Path:
        """The entries file of a segment that is being removed."""
        return self.directory / f"{self.base_offset:020d}.entries.gone"

    def remove(self, disk: Disk, force_names: Callable[[], None]) -> None:
        """Delete the files. Readers that mapped them keep their mappings."""
        disk.rename(self.entries, self.gone)
        force_names()
        self.finish_removal(disk, force_names)

    def finish_removal(self, disk: Disk, force_names: Callable[[], None]) -> None:
        """Finish a removal, once the entries file has the name ``gone``."""
        disk.remove(self.arrow)
        force_names()
        disk.remove(self.extremes)
        disk.remove(self.gone)


class Segment:
    """A closed segment. :class:`ActiveSegment` takes appends.

    Readers need no lock: rows of ``table`` below its length never change, and a longer table
    replaces a shorter one. More rows may become aborted, but only at or above the last stable
    offset, and readers that leave out aborted rows stop there.
    """

    def __init__(
        self,
        disk: Disk,
        name: SegmentName,
        codec: Codec,
        first: Boundary,
        table: Table,
        *,
        has_tail: bool = False,
        file: GrowingFileMap | None = None,
        extremes: SegmentExtremes | None = None,
    ) -> None:
        """``has_tail``: the ``.arrow`` file, ``file``, has bytes after those of the entries."""
        self.name = name
        self.first = first
        self.has_tail = has_tail
        self._disk = disk
        self.codec = codec
        self._table = table
        self.extremes = extremes or SegmentExtremes(disk, name.extremes, first, codec.layout)
        self._aborted: np.ndarray | None = None
        self._file = file or GrowingFileMap(disk, name.arrow)
        # Kept: every append reads it, and a closed segment's last entry may get damaged on disk.
        self._end = Boundary(EntryIndex(first.entry + len(table)), next_offset(table, first.offset))

    @property
    def table(self) -> Table:
        """The published entries."""
        return self._table

    def aborted(self, table: Table) -> np.ndarray | None:
        """Return the mask of aborted rows of ``table``, a table of this segment, or None."""
        mask = self._aborted
        return None if mask is None else mask[: len(table)]

    def set_aborted(self, mask: np.ndarray | None) -> None:
        """Set the mask of aborted rows, derived from the whole log, shape (rows,)."""
        self._aborted = mask

    def abort(self, transaction: int, producer_id: int, entry: int) -> None:
        """Mark the batches of this producer id in the transaction as aborted.

        The first such batch in the log has the index ``entry``. The caller holds the partition's
        lock.
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
    def end(self) -> Boundary:
        """The position after the last published entry."""
        return self._end

    def boundary_of(self, entry: EntryIndex) -> Boundary:
        """Return the position before the entry with this index, up to the segment's end.

        Raises:
            DamagedSegment: the entry is damaged, and so is the one before it.
        """
        table, row = self._table, entry - self.first.entry
        if row == len(table):
            return self._end
        if not row:
            return self.first
        if intact_entries(table[row : row + 1]):
            return Boundary(entry, Offset(int(table[row]["base_offset"])))
        return Boundary(entry, next_offset(self.sound_rows(row - 1, row), self.first.offset))

    def sound_rows(self, low: int, high: int) -> Table:
        """Return the entries from row ``low`` to before ``high``, up to the first damaged one.

        Raises:
            DamagedSegment: row ``low`` is damaged.
        """
        rows = self._table[low:high]
        good = intact_entries(rows)
        if not good and len(rows):
            raise self._entry_damage(low)
        return rows[:good]

    def check_rows(self, low: int, high: int) -> None:
        """Check the entries from row ``low`` to before ``high``.

        Raises:
            DamagedSegment: an entry is damaged. The error has the first such entry.
        """
        good = low + intact_entries(self._table[low:high])
        if good < high:
            raise self._entry_damage(good)

    def stored(
        self, first: EntryIndex, max_bytes: int, upto: EntryIndex | None
    ) -> StoredEntries | None:
        """Return entries from ``first`` on, and their bytes, or None without such entries.

        Raises:
            DamagedSegment: the batch of ``first`` is damaged.
        """
        table = self._table
        low = first - self.first.entry
        most = max(1, max_bytes // ENTRY_SIZE)
        high = min(len(table), low + most)
        if upto is not None:
            high = min(high, upto - self.first.entry)
        if low >= high:
            return None
        rows = self.sound_rows(low, high)
        position = int(rows[0]["position"])
        if int(rows[-1]["position"] + rows[-1]["length"]) - position > max_bytes - rows.nbytes:
            sizes = rows["position"] + rows["length"] - position
            sizes += np.arange(ENTRY_SIZE, rows.nbytes + 1, ENTRY_SIZE)
            rows = rows[: max(1, int(np.searchsorted(sizes, max_bytes, side="right")))]
        length = int(rows[-1]["position"] + rows[-1]["length"]) - position
        data = self._bytes(position, length) if length else pa.py_buffer(b"")
        sound = self._sound_batches(rows, data, position)
        if sound < len(rows):
            rows = rows[:sound]
            data = data.slice(0, int(rows[-1]["position"] + rows[-1]["length"]) - position)
        return StoredEntries(rows, data)

    @property
    def data_end(self) -> int:
        """The position in the ``.arrow`` file after the last batch, in bytes. 0 without entries."""
        table = self._table
        return int(table[-1]["position"] + table[-1]["length"]) if len(table) else 0

    @property
    def size(self) -> int:
        """Bytes of both files."""
        return self.data_end + len(self._table) * ENTRY_SIZE

    @property
    def last_appended(self) -> int | None:
        """The leader's clock at the last append, microseconds. None without entries."""
        return int(self._table[-1]["appended"]) if len(self._table) else None

    def decode(
        self, places: np.ndarray, columns: list[str] | None, schema: pa.Schema | None = None
    ) -> tuple[pa.RecordBatch, int]:
        """Decode the batches at these ascending rows into one. Return it and their number.

        ``schema``: the reader's schema of the topic, by default the segment's schema.

        The number is lower if a later batch fails its checksum, or if the result would be too large
        in memory. Rows in between are not read.

        Raises:
            DamagedSegment: the first batch fails its checksum.
            SchemaMismatch: a value does not fit that schema.
        """
        data, sound = self._load(places)
        own = self.codec.schema
        if schema is None or schema.equals(own):
            return self.codec.decode(data, sound, columns)
        there = columns
        if columns is not None:
            stored = set(own.names)
            there = [name for name in columns if name in stored]
        batch, taken = self.codec.decode(data, sound, there)
        return conformed(batch, projected(schema, columns)), taken

    def encoded(self, places: np.ndarray) -> tuple[tuple[memoryview, ...], int]:
        """Return the stored messages at these rows, in parts, and their number.

        The number is lower if a later message fails its checksum. Errors: as for :meth:`decode`.
        """
        parts, sound = self._load(places)
        return tuple(parts), sound

    def last_encoded(self, start: Offset) -> tuple[Entry, memoryview] | None:
        """Return the last entry and its stored message, if its batch is intact and from ``start``.

        None also for a marker and an aborted batch. A reader that waits for the next records finds
        them here, in a fifth of the time of :meth:`encoded` and of the search before it.
        """
        table, aborted = self._table, self._aborted
        place = len(table) - 1
        if place < 0 or (aborted is not None and aborted[place]):
            return None
        row = table[place : place + 1]
        raw = row.tobytes()
        found = lone_entry(raw[:CRC_SPAN], self.first.entry + place, start, 0)
        if found is None or not found[1] or sealed(raw[:CRC_SPAN]) != raw:
            return None
        entry, length = found
        data = self._bytes(int(row["position"][0]), length)
        is_intact = data.size == length and crc32c(data) == entry.data_crc
        return (entry, memoryview(data)) if is_intact else None

    def check_batches(self, places: np.ndarray) -> None:
        """Check the batches at these rows of the table.

        Raises:
            DamagedSegment: a batch fails its checksum. The error has the first such batch.
        """
        while len(places):
            _, sound = self._load(places)
            places = places[sound:]

    def locate(self, places: np.ndarray) -> ChunkPlace:
        """Return the place of the batches at these rows of the table.

        Their readers must check them: a byte may change until then.

        Raises:
            StorageFailure: the file does not exist.
        """
        rows = self._table[places]
        device, inode = self._disk.identity(self.name.arrow)
        return ChunkPlace(
            path=self.name.arrow,
            device=device,
            inode=inode,
            parts=joined_runs(rows["position"], rows["length"]),
            entries=len(rows),
            crc=run_crc(rows),
            compressed=self.codec.compression is not Compression.NONE,
            indexes=joined_runs(rows["entry_index"], np.ones(len(rows), np.int64)),
            epoch=int(rows[-1]["leader_epoch"]),
        )

    def blank(self, columns: list[str] | None, schema: pa.Schema | None = None) -> pa.RecordBatch:
        """Return an empty batch with the columns of :meth:`decode`."""
        shown = projected(self.codec.schema if schema is None else schema, columns)
        arrays = [pa.nulls(0, field.type) for field in shown]
        return pa.RecordBatch.from_arrays(arrays, schema=shown)

    def _load(self, places: np.ndarray) -> tuple[list[memoryview], int]:
        """Return the checked bytes of the batches at these rows, and the number of batches."""
        first, last = int(places[0]), int(places[-1]) + 1
        neighbours = last - first == len(places)
        rows = self._table[first:last] if neighbours else self._table[places]
        starts, lengths = rows["position"], rows["length"]
        position = int(starts[0])
        length = int(starts[-1] + lengths[-1]) - position
        data = self._bytes(position, length)
        sound = self._sound_batches(rows, data, position)
        if sound < len(rows):
            starts, lengths = starts[:sound], lengths[:sound]
            data = data.slice(0, int(starts[-1] + lengths[-1]) - position)
        return gathered(data, starts - position, lengths), sound

    def _sound_batches(self, rows: Table, data: pa.Buffer, position: int) -> int:
        """Return the number of leading rows with intact batches.

        ``data`` is the file from ``position`` on. Every read checks it: bytes that were intact
        recently may be read from the disk again, and differ.

        Raises:
            DamagedSegment: the first batch is not intact.
        """
        sound = first_broken_batch(rows, data, position)
        if sound == 0:
            raise self._batch_damage(rows[0])
        return sound

    def _batch_damage(self, row: np.void) -> DamagedSegment:
        start, count = int(row["base_offset"]), int(row["count"])
        return DamagedSegment(
            f"{self.name.arrow}: offsets {start} to {start + count - 1} fail their"
            f" checksum; the first offset after them is {start + count}",
            path=str(self.name.arrow),
            first=start,
            next=start + count,
            entry=int(row["entry_index"]),
        )

    def _entry_damage(self, row: int) -> DamagedSegment:
        """Build the error about an entry. The intact entries around it determine its offsets."""
        table = self._table
        before, behind = table[max(0, row - 1) : row], table[row + 1 : row + 1 + _NEAR_ENTRIES]
        start = next_offset(before[: intact_entries(before)], self.first.offset)
        intact = np.flatnonzero(intact_rows(behind))
        after = int(behind[intact[0]]["base_offset"]) if len(intact) else int(self._end.offset)
        entry = self.first.entry + row
        return DamagedSegment(
            f"{self.name.entries}: entry {entry} fails its checksum; it may have the offsets"
            f" {start} to {after - 1}; the first offset after them is {after}",
            path=str(self.name.entries),
            first=int(start),
            next=after,
            entry=int(entry),
        )

    def _bytes(self, position: int, length: int) -> pa.Buffer:
        """Return the bytes, or fewer at the file's end."""
        mapped = self._file.upto(position + length)
        start = min(position, mapped.size)
        return mapped.slice(start, min(length, mapped.size - start))

    def hold(self) -> None:
        """Map all batches, so that readers of this segment can continue after the file's removal.

        Raises:
            StorageFailure: the file cannot be mapped.
        """
        self._file.upto(self.data_end)

    def drop_tail(self) -> None:
        """Adopt the ``.arrow`` file that replaced the old one. It ends with the last batch."""
        self.has_tail = False
        self._file.drop()

    def shortened(self, table: Table) -> Segment:
        """Return the same segment with only its first entries. The ``.arrow`` file is unchanged."""
        shorter = Segment(
            self._disk,
            self.name,
            self.codec,
            self.first,
            table,
            file=GrowingFileMap(self._disk, self.name.arrow, self._file.mapped),
            extremes=self.extremes,
        )
        shorter.has_tail = self.has_tail or self.data_end > shorter.data_end
        shorter.set_aborted(self.aborted(table))
        return shorter

    def flush(self) -> None:
        """Do nothing: a segment is forced before it is closed."""

    def close(self) -> None:
        """Close the file of statistics, the only one that a closed segment writes."""
        self.extremes.close()

    def remove(self, force_names: Callable[[], None]) -> None:
        """Delete the files. Readers of the segment continue with a mapping."""
        self.extremes.stop()
        with suppress(IsologError):  # an unreadable file is lost for its readers anyway
            self.hold()
        self.name.remove(self._disk, force_names)


def projected(schema: pa.Schema, columns: list[str] | None) -> pa.Schema:
    """Return the schema of these columns. None means all columns."""
    if columns is None:
        return schema
    return pa.schema([schema.field(name) for name in columns])
