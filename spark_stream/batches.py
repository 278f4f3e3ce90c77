"""Stored batches: from the bytes of an ``.arrow`` file to Arrow batches. No file is touched here.

A batch is stored as one encapsulated Arrow IPC message. A whole run of neighbouring messages, put
behind the schema message, is again an IPC stream: so many small batches become one without a loop
over them. Brokers read their logs with this module, and so do readers on a broker's machine, which
map its files. The layout of the files is in ``docs/format.md``.

A batch keeps the schema that its topic had when it was appended. :func:`conformed` makes it one of
another schema that the topic had before or has had since.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from spark_stream.errors import SchemaMismatch
from spark_stream.schema.types import type_name
from spark_stream.schema.values import cast

_CHECKSUM: Final = "isolog.crc"
_NO_CHECKSUM: Final = "00000000"


def crc32c(data: pa.Buffer | bytes) -> int:
    """Return the CRC-32C (Castagnoli), unsigned."""
    return int(google_crc32c.value(data))


def crc_of_parts(data: pa.Buffer, parts: Iterable[Sequence[int]]) -> int:
    """Return the CRC-32C of these parts of ``data``, (start, length), as if concatenated."""
    found = 0
    for start, length in parts:
        start, end = max(0, int(start)), min(data.size, int(start) + int(length))
        found = int(google_crc32c.extend(found, data.slice(start, max(0, end - start))))
    return found


def decode_one(
    message: memoryview | pa.Buffer, schema: pa.Schema, columns: Sequence[str] | None
) -> pa.RecordBatch:
    """Decode one uncompressed message in place: the batch is a view of the message's bytes."""
    batch = pa.ipc.read_record_batch(pa.py_buffer(message), schema)
    return batch if columns is None else batch.select(list(columns))


def decode_run(
    messages: Sequence[memoryview], schema: pa.Schema, columns: Sequence[str] | None
) -> pa.RecordBatch:
    """Decode many messages into one batch. ``messages`` are their bytes, split anywhere."""
    with _opened(messages, schema, columns) as reader:
        return as_one(reader.read_all(), columns)


def decode_each(
    messages: Sequence[memoryview], schema: pa.Schema, columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """Decode the messages one by one, on demand: compressed ones may be large."""
    with _opened(messages, schema, columns) as reader:
        for batch in reader:
            yield batch if columns is None else batch.select(list(columns))


def as_one(table: pa.Table, columns: Sequence[str] | None) -> pa.RecordBatch:
    """Return the table's rows as one batch with these columns, in this order (None for all)."""
    (batch,) = table.combine_chunks().to_batches()
    return batch if columns is None else batch.select(list(columns))


def _opened(
    messages: Sequence[memoryview], schema: pa.Schema, columns: Sequence[str] | None
) -> pa.RecordBatchReader:
    wanted = None
    if columns is not None:  # without any column the number of rows would be lost: keep one
        wanted = sorted(schema.get_field_index(name) for name in columns or schema.names[:1])
    stream = pa.py_buffer(b"".join((memoryview(schema.serialize()), *messages)))
    return pa.ipc.open_stream(stream, options=pa.ipc.IpcReadOptions(included_fields=wanted))


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert the batch to another schema of its topic: exactly its columns, in its order.

    A column that the batch lacks is filled with nulls. A number is cast to the schema's type. To a
    wider type that always works, to a narrower one only if it keeps every value.

    Raises:
        SchemaMismatch: a value, or a null, does not fit its column. The error names the column.
    """
    there = set(batch.schema.names)
    arrays = [
        _conformed(batch.column(field.name), field)
        if field.name in there
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    if not arrays:
        return batch.select([])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def conforms(have: pa.Field, want: pa.Field) -> bool:
    """Return whether column ``have`` can be used as ``want`` without a change."""
    return bool(have.type.equals(want.type)) and (want.nullable or not have.nullable)


def _conformed(array: pa.Array, field: pa.Field) -> pa.Array:
    if not field.nullable and array.null_count:
        raise _does_not_fit(field, "it has nulls, and is NOT NULL in the reader's schema")
    if array.type.equals(field.type):
        return array
    try:
        found = cast(array, field.type, cut=True)
        if _is_same(found, array):
            return found
    except pa.ArrowException:
        pass
    fit = f"{_values(array)} not fit {type_name(field.type)}"
    raise _does_not_fit(field, f"{fit}, as the reader has it")


def _does_not_fit(field: pa.Field, problem: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"column {field.name!r}: {problem}",
        hint="Restart the query or the reader if the topic was altered since; give it no schema,"
        " or one with a type that takes the topic's values.",
        column=field.name,
    )


def _values(array: pa.Array) -> str:
    if pt.is_nested(array.type):
        return f"values of {type_name(array.type)} do"
    found = pc.min_max(array)
    least, greatest = found["min"].as_py(), found["max"].as_py()
    if least == greatest:
        return f"the value {least} ({type_name(array.type)}) does"
    return f"values from {least} to {greatest} ({type_name(array.type)}) do"


def _is_same(found: pa.Array, array: pa.Array) -> bool:
    """Return whether a cast kept all values. Arrow checks this itself, except for floats."""
    kind = found.type
    if pt.is_nested(kind):
        if array.null_count:
            found, array = found.drop_null(), array.drop_null()
        if pt.is_struct(kind):
            # A field that the topic got later is only in one of them.
            fields = [each for each in kind if array.type.get_field_index(each.name) >= 0]
            parts = tuple([whole.field(each.name) for each in fields] for whole in (found, array))
        elif pt.is_map(kind):
            fields = [kind.key_field, kind.item_field]
            parts = (_entries(found), _entries(array))
        else:
            fields, parts = [kind.value_field], ([found.flatten()], [array.flatten()])
        return all(
            (field.nullable or not each.null_count) and _is_same(each, other)
            for field, each, other in zip(fields, *parts, strict=True)
        )
    if not pt.is_floating(kind) or found.type.equals(array.type):
        return True
    back = found.cast(array.type)
    same = pc.equal(back, array)
    if pt.is_floating(array.type):
        same = pc.or_(same, pc.and_(pc.is_nan(back), pc.is_nan(array)))
    return pc.all(same).as_py() is not False


def _entries(array: pa.MapArray) -> list[pa.Array]:
    """Return the keys and the values within the maps' offsets, without unused ones around them."""
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return [each.slice(first, last - first) for each in (array.keys, array.items)]


def with_facts(schema: pa.Schema, facts: Mapping[str, str]) -> bytes:
    """Return the schema message of a segment's start, with ``facts`` in the schema's metadata.

    The names of all facts start with ``isolog.``. A checksum of the whole message is added. It is
    computed with zeros in place of the checksum itself.
    """
    blank = _message(schema, {**facts, _CHECKSUM: _NO_CHECKSUM})
    return _message(schema, {**facts, _CHECKSUM: f"{crc32c(blank):08x}"})


def _message(schema: pa.Schema, facts: Mapping[str, str]) -> bytes:
    metadata = dict(schema.metadata or {})
    metadata.update({key.encode(): value.encode() for key, value in facts.items()})
    return bytes(schema.with_metadata(metadata).serialize())


def facts_of(header: pa.Buffer) -> dict[str, str] | None:
    """Return the facts that :func:`with_facts` wrote, or None for other bytes."""
    try:
        metadata = pa.ipc.read_schema(header).metadata or {}
        facts = {
            key.decode(): value.decode()
            for key, value in metadata.items()
            if key.startswith(b"isolog.")
        }
    except (pa.ArrowException, OSError, ValueError):
        return None
    found = facts.pop(_CHECKSUM, "")
    if len(found) != len(_NO_CHECKSUM):
        return None
    blank = bytearray(header)
    at = _value_place(blank, _CHECKSUM.encode())
    blank[at : at + len(_NO_CHECKSUM)] = _NO_CHECKSUM.encode()
    return facts if found == f"{crc32c(bytes(blank)):08x}" else None


# The index of a field in its FlatBuffers table, from 0, in Arrow's format.
_MESSAGE_HEADER: Final = 2
_SCHEMA_METADATA: Final = 2
_ENTRY_KEY: Final = 0
_ENTRY_VALUE: Final = 1


def _value_place(message: bytearray, key: bytes) -> int:
    """Return the place of this key's value in a schema message that Arrow has read.

    Arrow's builder chooses the order of the texts, so the place is found by following its offsets.
    """

    def target(place: int) -> int:
        return int(place + struct.unpack_from("<I", message, place)[0])

    def field(table: int, number: int) -> int:
        offsets = table - struct.unpack_from("<i", message, table)[0]
        return target(table + struct.unpack_from("<H", message, offsets + 4 + 2 * number)[0])

    def text(place: int) -> bytes:
        return bytes(message[place + 4 : target(place) + 4])

    entries = field(field(target(8), _MESSAGE_HEADER), _SCHEMA_METADATA)
    (count,) = struct.unpack_from("<I", message, entries)
    tables = (target(entries + 4 + 4 * number) for number in range(count))
    return next(
        field(each, _ENTRY_VALUE) + 4 for each in tables if text(field(each, _ENTRY_KEY)) == key
    )


def header_length(file: pa.Buffer) -> int | None:
    """Return the length of an ``.arrow`` file's schema message, or None if it has none."""
    length = schema_length(file) if file.size >= 8 else 0
    if not 8 < length <= file.size:
        return None
    return length if facts_of(file.slice(0, length)) is not None else None


def schema_length(stream: pa.Buffer) -> int:
    """Return the length of a stream's first message without its body, or 0 without a message.

    A schema has no body, so this is the length of its whole message, with its prefix of 8 bytes.
    """
    mark, metadata = struct.unpack("<Ii", memoryview(stream)[:8])
    return 8 + int(metadata) if mark == 0xFFFFFFFF else 0
