"""The last segment of a log: the one that takes appends.

Order of writes in an append: the batch's bytes, then its entry, then (in memory) the entry is
published. A crash between any two leaves bytes without an entry, which recovery cuts. A failed
write is undone immediately, so that the files end with the last published entry.

Order of writes when its files are made: the entries file, then the ``.arrow`` file with its schema
message, which is forced, then both names are forced. A crash between any two leaves no batch. A
missing file is made before the first entry, and its name is forced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import numpy as np
import pyarrow as pa

from spark_stream.consistency.entries import ENTRY, ENTRY_SIZE, Entry, Table
from spark_stream.consistency.ids import EntryIndex, Offset
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.errors import IsologError, StorageFailure
from spark_stream.storage.disk.disk import Disk, DiskFile
from spark_stream.storage.disk.fsyncs import Fsyncs
from spark_stream.storage.format.codec import (
    END_OF_STREAM,
    Codec,
    EncodedBatch,
    Part,
    moved,
    sealed,
)
from spark_stream.storage.format.min_max import Rows
from spark_stream.storage.segment.segment import Segment, SegmentName

# A read near the end of a growing file copies up to this size. Larger reads map the file again.
_COPY_BYTES_MAX: Final = 1 << 20
_ROWS_MIN: Final = 64
_PROBE: Final = bytes(64 << 10)
_REWRITTEN_BYTES: Final = 8 << 20


def header_of(codec: Codec, facts: dict[str, str], first: Boundary) -> bytes:
    """Build the schema message of a segment that starts at ``first``."""
    places = {"isolog.base_entry": str(first.entry), "isolog.base_offset": str(first.offset)}
    return codec.header(facts | places)


class ActiveSegment(Segment):
    """The last segment of a log. One writer at a time (the partition's lock).

    ``first_appended``: the leader's clock at the first append, microseconds, or None without one.
    ``data_end``: the position of the next batch in the ``.arrow`` file, or None if there are no
    files yet. Then the first append or :meth:`make` makes them. ``facts`` are added to the schema
    message.
    """

    def __init__(
        self,
        disk: Disk,
        name: SegmentName,
        codec: Codec,
        first: Boundary,
        table: Table,
        *,
        facts: dict[str, str],
        forcing: Fsyncs,
        data_end: int | None = None,
    ) -> None:
        super().__init__(disk, name, codec, first, table)
        self._facts = facts
        self._forcing = forcing
        self._data_end = data_end or 0  # 0: no files yet. Else there is a schema message
        self._arrow: DiskFile = disk.open(name.arrow)
        self._entries: DiskFile = disk.open(name.entries)
        self._grow(table, 2 * len(table))
        self._table = self._grown[: len(table)]
        self._complete = self._end.offset > first.offset  # a batch comes after the force of names
        self.first_appended = int(table[0]["appended"]) if len(table) else None
        self._torn = False
        # An earlier process may have died before its fsync.
        self._unforced = len(table) > 0 and self.end.entry > forcing.upto.entry

    @property
    def data_bytes(self) -> int:
        """The position of the next batch in the ``.arrow`` file."""
        return self._data_end

    def make(self) -> None:
        """Make the files of a segment without files. After an error, it still has none."""
        name, header = self.name, header_of(self.codec, self._facts, self.first)
        try:
            self._entries = self._disk.create(name.entries)
            self._arrow = self._disk.create(name.arrow)
            self._arrow.write(0, header)
            self._forcing.force(self._arrow)
            self._forcing.force_names(may_retry=True)
        except IsologError:
            # Left behind, these files would end the segment before, which still takes appends.
            self._disk.remove(name.arrow)
            self._disk.remove(name.entries)
            raise
        self._data_end = len(header)
        self._complete = True

    def make_first(self) -> None:
        """Make the files of a log's first segment if it does not start with entry 0.

        The schema message is made durable first: only this message has the index of that entry.
        """
        self._forcing.make_directory()
        header = header_of(self.codec, self._facts, self.first)
        self._disk.write_whole(self.name.arrow, [header])
        self._forcing.force_names()
        self._data_end = len(header)

    def append(self, entry: Entry, message: EncodedBatch | None, *, forced: bool = False) -> None:
        """Write one entry and its batch (None for a marker), or neither.

        ``forced``: force both to the disk before readers see them.

        Raises:
            DiskFull, StorageFailure: neither was written. The next append has the same position.
        """
        self.make_ready()
        length, parts = (0, ()) if message is None else (message.size, message.parts)
        written = sealed(entry.packed(self._data_end, length))
        self._write(parts, written, forced=forced)
        self._publish(written, 1, entry.count, entry.appended)
        self._data_end += length

    def note_extremes(self, entry: Entry, found: Rows | None) -> None:
        """Record the min/max statistics of an appended batch."""
        if found is not None:
            self.extremes.add(entry.entry_index, entry.count, entry.data_crc, found)

    def append_rows(self, rows: Table, data: pa.Buffer, *, forced: bool = False) -> None:
        """Write valid entries of another replica's log, and the bytes of all their batches.

        Errors, and ``forced``: as for :meth:`append`.
        """
        self.make_ready()
        lengths = rows["length"]
        written = moved(rows, self._data_end + np.cumsum(lengths) - lengths).tobytes()
        self._write((data,) if data.size else (), written, forced=forced)
        self._publish(written, len(rows), int(rows["count"].sum()), int(rows[0]["appended"]))
        self._data_end += data.size

    def flush(self) -> None:
        """Force the appended bytes to the disk: batches first, then their entries.

        Raises:
            StorageFailure: the fsync failed, and so the log has failed.
        """
        if self._unforced:
            self._force()

    def probe(self, *, forced: bool) -> None:
        """Write after the last batch, as an append would, and undo that.

        Args:
            forced: Force the file too.

        Raises:
            DiskFull, StorageFailure: the segment accepts no appends at present.
        """
        self.check_files()
        self.make_ready()
        self._torn = True
        try:
            self._arrow.write(self._data_end, _PROBE)
            if forced:
                self._force()
        except IsologError:
            with suppress(IsologError):
                self._undo_write()
            raise
        self._undo_write()

    def check_files(self) -> None:
        """Check that no file of the segment was removed or replaced by another program.

        An open file accepts writes after its removal, and loses them when it is closed.

        Raises:
            StorageFailure: a file was removed or replaced, so the log has failed. Or the log had
                failed before.
        """
        self._forcing.check()
        lost = self._lost_file()
        if lost is not None:
            raise self._forcing.fail(
                f"{lost}: appends to the segment would be lost; the partition accepts no writes"
                " until it is opened again"
            )

    def _lost_file(self) -> str | None:
        if not self._complete:
            return None
        for path, file in ((self.name.arrow, self._arrow), (self.name.entries, self._entries)):
            try:
                if self._disk.identity(path) != file.identity():
                    return f"{path}: another file has its name"
            except StorageFailure:
                # After a passing error of the disk, the file may still exist.
                with suppress(StorageFailure):
                    if path.name not in self._disk.names(path.parent):
                        return f"{path}: No such file or directory"
        return None

    def write_again(self, entry: int) -> None:
        """Write the entries from the index ``entry`` on, and their batches, again unchanged.

        After a failed fsync, the page cache may have bytes that are not on the disk, and a new
        fsync writes only bytes that are written again. The files' ends must be forced in any case:
        bytes that were undone when the fsync failed could reappear after a power cut.
        """
        there = self._disk.names(self.name.directory)
        self._unforced = self.name.arrow.name in there and self.name.entries.name in there
        rows = self._table[max(0, entry - self.first.entry) :]
        if not len(rows):
            return
        position = int(rows[0]["position"])
        data = self._disk.map(self.name.arrow)
        for part in range(position, self._data_end, _REWRITTEN_BYTES):
            size = min(_REWRITTEN_BYTES, self._data_end - part)
            self._arrow.write(part, data.slice(part, size).to_pybytes())
        self._entries.write((len(self._table) - len(rows)) * ENTRY_SIZE, rows.tobytes())

    def finish(self) -> None:
        """Write Arrow's end-of-stream mark after the last batch. An append would replace it."""
        if self._torn:
            self._undo_write()
        try:
            self._arrow.write(self._data_end, END_OF_STREAM)
            self._unforced = True
        except Exception:
            self._torn = True
            raise

    def close(self) -> None:
        """Close the files. Running reads continue with a mapping."""
        self._arrow.close()
        self._entries.close()
        self.extremes.close()

    def remove(self, force_names: Callable[[], None]) -> None:
        self.hold()
        there = self._disk.names(self.name.directory)
        if not len(self._table) and {self.name.arrow.name, self.name.entries.name} <= set(there):
            # Bytes of a failed append may be on the disk although they were undone. A batch without
            # an entries file would look as if that file had been removed by another program.
            self._undo_write()
            self._forcing.force(self._arrow)
        self.close()
        self.extremes.stop()
        if len(self._table):
            super().remove(force_names)
            return
        # The schema message is removed last: only this message has the start of an empty segment.
        for path in (self.name.extremes, self.name.entries, self.name.arrow):
            if path.name in there:
                self._disk.remove(path)
                force_names()

    def closed(self) -> Segment:
        """Return the same segment as a closed one."""
        table = np.frombuffer(self._disk.map(self.name.entries), ENTRY, count=len(self._table))
        segment = Segment(
            self._disk,
            self.name,
            self.codec,
            self.first,
            table,
            file=self._file,
            extremes=self.extremes,
        )
        segment._end = self._end  # not from the file, which may have changed
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

    def make_ready(self) -> None:
        """Prepare the files for appends, with the segment's start in them.

        Raises:
            DiskFull, StorageFailure: a later call can succeed, unless the log has failed.
        """
        if self._torn:
            self._undo_write()
        if not self._complete:
            self._prepare()

    def _write(self, data: Sequence[Part], rows: bytes, *, forced: bool) -> None:
        """Write batches and their entries after the published ones, or neither."""
        try:
            if data:
                self._arrow.write(self._data_end, *data)
            self._entries.write(len(self._table) * ENTRY_SIZE, rows)
            self._unforced = True
            if forced:
                self._force()
        except Exception:
            self._torn = True
            with suppress(IsologError):  # if this fails, the next append does it
                self._undo_write()
            raise

    def _publish(self, written: bytes, entries: int, records: int, appended: int) -> None:
        rows = len(self._table)
        if rows + entries > len(self._grown):
            room = max(_ROWS_MIN, 2 * len(self._grown), rows + entries)
            self._grow(self._grown, room)
            # Before the table grows: a reader loads the table first, so its mask is long enough.
            self.set_aborted(self._aborted)
        self._raw[rows * ENTRY_SIZE : (rows + entries) * ENTRY_SIZE] = written
        self._table = self._grown[: rows + entries]
        if not rows:
            self.first_appended = appended
        # After the table, so that readers find all entries below the end.
        end = self._end
        self._end = Boundary(EntryIndex(end.entry + entries), Offset(end.offset + records))

    def _grow(self, table: Table, rows: int) -> None:
        """Allocate a table of this many rows. Readers of the old table keep it."""
        grown = np.zeros(rows, ENTRY)
        grown[: len(table)] = table
        self._raw = grown.view(np.uint8).data
        self._grown = grown

    def _prepare(self) -> None:
        """Prepare both files before the first batch.

        An earlier process may have died while it made them. Then there may be only one of them, or
        both, with names or a schema message that were not forced. The file with the schema message
        is kept: it may be the only record of the log's end.
        """
        if not self._data_end:
            self._forcing.make_directory()
            self.make()
            return
        if not len(self._table):
            self._entries = self._disk.create(self.name.entries)
        self._forcing.force(self._arrow)
        self._forcing.force_names(may_retry=True)
        self._complete = True

    def _force(self) -> None:
        self._forcing.force(self._arrow, self._entries)
        self._unforced = False

    def _undo_write(self) -> None:
        self._entries.cut(len(self._table) * ENTRY_SIZE)
        self._arrow.cut(self._data_end)
        self._torn = False

    def _bytes(self, position: int, length: int) -> pa.Buffer:
        if position + length > self._file.mapped.size and length <= _COPY_BYTES_MAX:
            data = self._arrow.read(position, length)
            if data is not None:  # else a roll has closed the file since the read began
                return data
        return super()._bytes(position, length)
