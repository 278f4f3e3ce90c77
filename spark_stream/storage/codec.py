"""Arrow batches to bytes and back, and the checksums over them. No file is touched here.

A batch is stored as one encapsulated Arrow IPC message. A whole run of neighbouring messages, put
behind the schema message, is again an IPC stream: that is how many small batches become one without
a loop over them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import google_crc32c
import numpy as np
import pyarrow as pa

from spark_stream.consistency.entries import CRC_SPAN, ENTRY_SIZE, Table
from spark_stream.storage.settings import Compression

END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def crc32c(data: pa.Buffer | bytes) -> int:
    """CRC-32C (Castagnoli), unsigned."""
    return int(google_crc32c.value(data))


def sealed(packed: bytes) -> bytes:
    """The bytes of an entry with its own checksum behind them."""
    return packed + crc32c(packed).to_bytes(4, "little")


def intact_entries(table: Table) -> int:
    """How many leading entries have the checksum that they carry."""
    data = table.tobytes()
    value = google_crc32c.value
    actual = np.fromiter(
        (value(data[at : at + CRC_SPAN]) for at in range(0, len(data), ENTRY_SIZE)),
        dtype=np.uint32,
        count=len(table),
    )
    good = actual == table["entry_crc"]
    return len(table) if good.all() else int(good.argmin())


def first_broken_batch(table: Table, data: pa.Buffer, offset_in_file: int = 0) -> int:
    """The first row whose bytes in ``data`` lack their checksum; the table's length where none does.

    ``data`` holds the ``.arrow`` file from ``offset_in_file`` on.
    """
    value = google_crc32c.value
    starts = (table["position"] - offset_in_file).tolist()
    rows = zip(starts, table["length"].tolist(), table["data_crc"].tolist(), strict=True)
    for row, (start, length, crc) in enumerate(rows):
        if length and value(data.slice(start, length)) != crc:
            return row
    return len(table)


@dataclass(frozen=True)
class Codec:
    """How one topic's batches are written and read."""

    schema: pa.Schema
    compression: Compression = Compression.NONE

    def header(self, facts: dict[str, str]) -> bytes:
        """The schema message that a segment starts with; ``facts`` go into the schema's metadata."""
        metadata = dict(self.schema.metadata or {})
        metadata.update({key.encode(): value.encode() for key, value in facts.items()})
        return bytes(self.schema.with_metadata(metadata).serialize())

    def encode(self, batch: pa.RecordBatch) -> pa.Buffer:
        """One batch as an encapsulated IPC message, padded to 8 bytes."""
        if self.compression is Compression.NONE:
            return batch.serialize()
        options = pa.ipc.IpcWriteOptions(compression=str(self.compression))
        sink = pa.BufferOutputStream()
        writer = pa.ipc.new_stream(sink, self.schema, options=options)
        start = sink.tell()
        writer.write_batch(batch)
        return sink.getvalue().slice(start)

    def decode(
        self, messages: pa.Buffer, entries: int, columns: Sequence[str] | None
    ) -> pa.RecordBatch:
        """One batch from ``entries`` neighbouring messages.

        A single uncompressed message is decoded in place: the batch is a view of ``messages``.
        """
        if entries == 1 and self.compression is Compression.NONE:
            batch = pa.ipc.read_record_batch(messages, self.schema)
            return batch if columns is None else batch.select(list(columns))
        wanted = None
        if columns:
            wanted = sorted(self.schema.get_field_index(name) for name in columns)
        stream = pa.py_buffer(
            b"".join((memoryview(self.schema.serialize()), memoryview(messages)))
        )
        options = pa.ipc.IpcReadOptions(included_fields=wanted)
        with pa.ipc.open_stream(stream, options=options) as reader:
            batches = list(reader) if entries == 1 else _joined(reader.read_all())
        batch = batches[0]
        return batch if columns is None else batch.select(list(columns))


def _joined(table: pa.Table) -> list[pa.RecordBatch]:
    if table.num_columns == 0:  # a table without columns forgets its rows when combined
        empty = table.to_batches()
        rows = sum(batch.num_rows for batch in empty)
        return [pa.RecordBatch.from_struct_array(pa.nulls(rows, pa.struct([])))]
    return list(table.combine_chunks().to_batches())


def facts_of(header: pa.Buffer) -> dict[str, str] | None:
    """The facts that :meth:`Codec.header` wrote; None where the bytes are no schema message."""
    try:
        metadata = pa.ipc.read_schema(header).metadata or {}
    except (pa.ArrowInvalid, OSError):
        return None
    return {
        key.decode(): value.decode()
        for key, value in metadata.items()
        if key.startswith(b"isolog.")
    }


def header_length(file: pa.Buffer) -> int | None:
    """Bytes of the schema message at the start of an ``.arrow`` file; None where there is none."""
    if file.size < 8:
        return None
    mark, metadata = struct.unpack("<Ii", memoryview(file)[:8])
    length = 8 + int(metadata)
    if mark != 0xFFFFFFFF or metadata <= 0 or length > file.size:
        return None
    return length if facts_of(file.slice(0, length)) is not None else None
