"""Stored batches: from the bytes of an ``.arrow`` file to Arrow batches. No file is touched here.

A batch is stored as one encapsulated Arrow IPC message. A whole run of neighbouring messages, put
behind the schema message, is again an IPC stream: that is how many small batches become one without
a loop over them. Brokers read their logs with this, and so do readers on a broker's machine, which
map its files. What the files are made of is in ``docs/format.md``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import google_crc32c
import pyarrow as pa

_CHECKSUM: Final = "isolog.crc"


def crc32c(data: pa.Buffer | bytes) -> int:
    """CRC-32C (Castagnoli), unsigned."""
    return int(google_crc32c.value(data))


def decode_one(
    message: memoryview | pa.Buffer, schema: pa.Schema, columns: Sequence[str] | None
) -> pa.RecordBatch:
    """The batch of one uncompressed message, in place: it is a view of the message's bytes."""
    batch = pa.ipc.read_record_batch(pa.py_buffer(message), schema)
    return batch if columns is None else batch.select(list(columns))


def decode_run(
    messages: Sequence[memoryview], schema: pa.Schema, columns: Sequence[str] | None
) -> pa.RecordBatch:
    """One batch from many messages; ``messages`` are their bytes, in any parts."""
    with _opened(messages, schema, columns) as reader:
        return as_one(reader.read_all(), columns)


def decode_each(
    messages: Sequence[memoryview], schema: pa.Schema, columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """The batch of each message, when it is asked for: compressed ones may be large."""
    with _opened(messages, schema, columns) as reader:
        for batch in reader:
            yield batch if columns is None else batch.select(list(columns))


def as_one(table: pa.Table, columns: Sequence[str] | None) -> pa.RecordBatch:
    """The table's rows as one batch with these columns, in this order (None: all)."""
    (batch,) = table.combine_chunks().to_batches()
    return batch if columns is None else batch.select(list(columns))


def _opened(
    messages: Sequence[memoryview], schema: pa.Schema, columns: Sequence[str] | None
) -> pa.RecordBatchReader:
    wanted = None
    if columns is not None:  # where none is wanted, one tells how many rows there are
        wanted = sorted(schema.get_field_index(name) for name in columns or schema.names[:1])
    stream = pa.py_buffer(b"".join((memoryview(schema.serialize()), *messages)))
    return pa.ipc.open_stream(stream, options=pa.ipc.IpcReadOptions(included_fields=wanted))


def with_facts(schema: pa.Schema, facts: Mapping[str, str]) -> bytes:
    """The schema message that a segment starts with; ``facts`` go into the schema's metadata.

    The names of all facts start with ``isolog.``; a checksum over them is put beside them.
    """
    metadata = dict(schema.metadata or {})
    checked = {**facts, _CHECKSUM: _checksum_of(facts)}
    metadata.update({key.encode(): value.encode() for key, value in checked.items()})
    return bytes(schema.with_metadata(metadata).serialize())


def facts_of(header: pa.Buffer) -> dict[str, str] | None:
    """The facts that :func:`with_facts` wrote; None if the bytes are not such a message."""
    try:
        metadata = pa.ipc.read_schema(header).metadata or {}
        facts = {
            key.decode(): value.decode()
            for key, value in metadata.items()
            if key.startswith(b"isolog.")
        }
    except (pa.ArrowException, OSError, ValueError):
        return None
    return facts if facts.pop(_CHECKSUM, None) == _checksum_of(facts) else None


def _checksum_of(facts: Mapping[str, str]) -> str:
    lines = "".join(f"{name}={facts[name]}\n" for name in sorted(facts))
    return f"{crc32c(lines.encode()):08x}"


def header_length(file: pa.Buffer) -> int | None:
    """Bytes of the schema message at the start of an ``.arrow`` file; None where there is none."""
    length = schema_length(file) if file.size >= 8 else 0
    if not 8 < length <= file.size:
        return None
    return length if facts_of(file.slice(0, length)) is not None else None


def schema_length(stream: pa.Buffer) -> int:
    """Bytes of a stream's first message if that has no body, as a schema has none; else 0."""
    mark, metadata = struct.unpack("<Ii", memoryview(stream)[:8])
    return 8 + int(metadata) if mark == 0xFFFFFFFF else 0
