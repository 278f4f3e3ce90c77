"""One segment: a file of batches and the table of its entries. ``active`` has the one that grows.

Order of steps in a removal: the entries file is renamed, which decides it; then the batches go, and
the renamed file last, each for good before the next. What a crash leaves of it, the next open
finishes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from spark_stream.batches import conformed
from spark_stream.consistency.entries import ENTRY_SIZE, Kind, Table, next_offset
from spark_stream.consistency.ids import EntryIndex, Offset
from spark_stream.consistency.leader import Boundary
from spark_stream.errors import DamagedSegment, IsologError
from spark_stream.storage.chunks import Stored, joined
from spark_stream.storage.codec import Codec, first_broken_batch, gathered
from spark_stream.storage.disk import Disk
from spark_stream.storage.extreme_files import SegmentExtremes
from spark_stream.storage.mapping import MappedFile
from spark_stream.storage.settings import Compression
from spark_stream.storage.stored import StoredEntries

EXTREMES: Final = ".extremes"


@dataclass(frozen=True, slots=True)
class SegmentName:
    """Where a segment's files are."""

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
        """What is known of the values in the batches; it may be missing."""
        return self.directory / f"{self.base_offset:020d}{EXTREMES}"

    @property
    def gone(self) -> Path:
        """The entries file of a segment that is being removed."""
        return self.directory / f"{self.base_offset:020d}.entries.gone"

    def remove(self, disk: Disk, force_names: Callable[[], None]) -> None:
        """Deletes the files; readers that mapped them keep what they mapped."""
        disk.rename(self.entries, self.gone)
        force_names()
        self.finish_removal(disk, force_names)

    def finish_removal(self, disk: Disk, force_names: Callable[[], None]) -> None:
        """The rest of a removal, once the entries file has the name ``gone``."""
        disk.remove(self.arrow)
        force_names()
        disk.remove(self.extremes)
        disk.remove(self.gone)


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
        first: Boundary,
        table: Table,
        *,
        verified: bool = False,
        has_tail: bool = False,
        file: MappedFile | None = None,
        extremes: SegmentExtremes | None = None,
    ) -> None:
        """``has_tail``: its ``.arrow`` file, ``file``, has more bytes than its entries name."""
        self.name = name
        self.first = first
        self.has_tail = has_tail
        self._disk = disk
        self.codec = codec
        self._table = table
        self.extremes = extremes or SegmentExtremes(disk, name.extremes, first, codec.layout)
        self._aborted: np.ndarray | None = None
        self._file = file or MappedFile(disk, name.arrow)
        self._verified: np.ndarray | None = None if verified else np.zeros(len(table), np.bool_)

    @property
    def table(self) -> Table:
        """The published entries."""
        return self._table

    def aborted(self, table: Table) -> np.ndarray | None:
        """Which rows of ``table``, as this segment gave it, are aborted; None: none is."""
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
    def end(self) -> Boundary:
        """The position after the last entry."""
        table = self._table
        return Boundary(
            EntryIndex(self.first.entry + len(table)), next_offset(table, self.first.offset)
        )

    def boundary_of(self, entry: EntryIndex) -> Boundary:
        """The place before the entry with this index, of this segment or the next behind it."""
        table = self._table
        row = entry - self.first.entry
        if row < len(table):
            return Boundary(entry, Offset(int(table[row]["base_offset"])))
        return Boundary(entry, next_offset(table, self.first.offset))

    def stored(
        self, first: EntryIndex, max_bytes: int, upto: EntryIndex | None
    ) -> StoredEntries | None:
        """Entries from ``first`` on, and their bytes; None: this segment has none yet.

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
        rows = table[low:high]
        position = int(rows[0]["position"])
        if int(rows[-1]["position"] + rows[-1]["length"]) - position > max_bytes - rows.nbytes:
            sizes = rows["position"] + rows["length"] - position
            sizes += np.arange(ENTRY_SIZE, rows.nbytes + 1, ENTRY_SIZE)
            rows = rows[: max(1, int(np.searchsorted(sizes, max_bytes, side="right")))]
        length = int(rows[-1]["position"] + rows[-1]["length"]) - position
        data = self._bytes(position, length) if length else pa.py_buffer(b"")
        places = np.arange(low, low + len(rows))
        if self._untrusted(places) or data.size != length:
            sound = self._checked(rows, data, places, position)
            rows = rows[:sound]
            data = data.slice(0, int(rows[-1]["position"] + rows[-1]["length"]) - position)
        return StoredEntries(rows, data)

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

    def decode(
        self, places: np.ndarray, columns: list[str] | None, schema: pa.Schema | None = None
    ) -> tuple[pa.RecordBatch, int]:
        """The batches at these rows of the table, rising, as one; and how many of them it is.

        ``schema``: the topic's as the reader has it; None: the segment's own.

        It is fewer where a later one fails its checksum, or where the batch would be too large in
        memory. What lies between is not looked at.

        Raises:
            DamagedSegment: the first batch fails its checksum.
            SchemaMismatch: a value has no place in that schema.
        """
        data, sound = self._load(places)
        own = self.codec.schema
        if schema is None or schema.equals(own):
            return self.codec.decode(data, sound, columns)
        there = columns
        if columns is not None:
            there = [name for name in columns if name in own.names]
        batch, taken = self.codec.decode(data, sound, there)
        return conformed(batch, projected(schema, columns)), taken

    def locate(self, places: np.ndarray) -> tuple[Stored, int]:
        """Where the batches at these rows of the table lie; and how many of them are sound.

        Raises:
            DamagedSegment: the first batch fails its checksum.
            StorageFailure: the file is gone.
        """
        rows = self._table[places]
        if self._untrusted(places):
            _, sound = self._load(places)
            rows = rows[:sound]
        device, inode = self._disk.identity(self.name.arrow)
        found = Stored(
            path=self.name.arrow,
            device=device,
            inode=inode,
            parts=joined(rows["position"], rows["length"]),
            entries=len(rows),
            first=int(rows[0]["length"]),
            crc=int(rows[0]["data_crc"]),
            compressed=self.codec.compression is not Compression.NONE,
            indexes=joined(rows["entry_index"], np.ones(len(rows), np.int64)),
            epoch=int(rows[-1]["leader_epoch"]),
        )
        return found, len(rows)

    def blank(self, columns: list[str] | None, schema: pa.Schema | None = None) -> pa.RecordBatch:
        """A batch without rows, of the same columns as :meth:`decode` gives."""
        shown = projected(self.codec.schema if schema is None else schema, columns)
        arrays = [pa.nulls(0, field.type) for field in shown]
        return pa.RecordBatch.from_arrays(arrays, schema=shown)

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
        if self._untrusted(places) or data.size != length:
            sound = self._checked(rows, data, places, position)
            starts, lengths = starts[:sound], lengths[:sound]
            data = data.slice(0, int(starts[-1] + lengths[-1]) - position)
        return gathered(data, starts - position, lengths), sound

    def _untrusted(self, places: np.ndarray) -> bool:
        """Whether a batch at these rows may differ from what was written."""
        return self._verified is not None and not self._verified[places].all()

    def distrust(self, rows: slice) -> None:
        """Reads check the batches at these rows of the table again, whoever wrote them."""
        trusted = self._verified
        verified = np.ones(len(self._table), np.bool_) if trusted is None else trusted
        verified[rows] = False
        self._verified = verified

    def _checked(self, rows: Table, data: pa.Buffer, places: np.ndarray, position: int) -> int:
        """How many of these rows, from the first on, have sound batches.

        ``places`` are theirs in the table; ``data`` holds the file from ``position`` on.

        Raises:
            DamagedSegment: the first has not.
        """
        sound = first_broken_batch(rows, data, position)
        if sound == 0:
            raise self._batch_damage(rows[0])
        if self._verified is not None:
            self._verified[places[:sound]] = True
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

    def _bytes(self, position: int, length: int) -> pa.Buffer:
        """The bytes, or as many of them as the file has."""
        mapped = self._file.upto(position + length)
        start = min(position, mapped.size)
        return mapped.slice(start, min(length, mapped.size - start))

    def hold(self) -> None:
        """Maps all batches: who has this segment reads on, whatever becomes of the file's name.

        Raises:
            StorageFailure: the file cannot be mapped.
        """
        self._file.upto(self.data_end)

    def drop_tail(self) -> None:
        """The ``.arrow`` file was replaced by one that ends with the last batch."""
        self.has_tail = False
        self._file.forget()

    def shortened(self, table: Table) -> Segment:
        """The same segment with its first entries only; their bytes stay where they are."""
        shorter = Segment(
            self._disk,
            self.name,
            self.codec,
            self.first,
            table,
            verified=self._verified is None,
            file=MappedFile(self._disk, self.name.arrow, self._file.mapped),
            extremes=self.extremes,
        )
        shorter.has_tail = self.has_tail or self.data_end > shorter.data_end
        shorter.set_aborted(self.aborted(table))
        if self._verified is not None:
            shorter._verified = self._verified[: len(table)].copy()
        return shorter

    def flush(self) -> None:
        """Nothing: a segment is forced before it is closed."""

    def close(self) -> None:
        """Closes what is open: of a closed segment only what readers have learned is written."""
        self.extremes.close()

    def remove(self, force_names: Callable[[], None]) -> None:
        """Deletes the files; readers that have the segment go on with a mapping."""
        self.extremes.stop()
        with suppress(IsologError):  # without its file nothing can be read of it anyway
            self.hold()
        self.name.remove(self._disk, force_names)


def projected(schema: pa.Schema, columns: list[str] | None) -> pa.Schema:
    """The schema of these columns (None: of all)."""
    if columns is None:
        return schema
    return pa.schema([schema.field(name) for name in columns])
