"""Converts what callers pass to a producer to what can be sent."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_stream.client.moments import timestamp_us
from spark_stream.client.writing.frames import eased, is_arrow, table_of
from spark_stream.errors import (
    BatchTooLarge,
    InvalidOption,
    InvalidRecord,
    InvalidRequest,
    UnknownPartition,
)
from spark_stream.schema.schemas import (
    DEFAULT_SCHEMA,
    TIMESTAMP_COLUMN,
    TIMESTAMP_TYPE,
    empty_batch,
    fitted,
    of_topic,
)
from spark_stream.wire.limits import BATCH_BYTES_MAX
from spark_stream.wire.topic_messages import TopicDescription

AnyHeaders = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]
"""A record's headers as ``send`` takes them; only a list of pairs can repeat a name."""

UNSENDABLE: Final = (
    f"Split the value: no topic takes a record of more than {BATCH_BYTES_MAX} bytes."
)
"""The hint for a record that is too large whatever the settings."""

_JOINING_BYTES_MAX: Final = 1 << 18
ROWS_MAX: Final = (1 << 31) - 1  # the limit of an Arrow IPC message


def as_bytes(name: str, value: bytes | str | None) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRecord(f"{name} is not text that UTF-8 can encode: {error}") from None
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(
        f"{name} is bytes, str or None, not {type(value).__name__}; append() takes batches of rows"
    )


def as_headers(headers: AnyHeaders | None) -> list[tuple[str, bytes | None]] | None:
    """Return a record's headers as a list of their own.

    Raises:
        InvalidRecord: they are neither a mapping nor pairs of a name and bytes.
    """
    if headers is None:
        return None
    given = headers.items() if isinstance(headers, Mapping) else headers
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise _bad_headers(f"headers must be a mapping or a list of pairs, not {headers!r}")
    listed = []
    for each in given:
        if not isinstance(each, tuple | list) or len(each) != 2:
            raise _bad_headers(f"a header is {each!r}")
        name, value = each
        if not isinstance(name, str):
            raise _bad_headers(f"a header's name is {name!r}, which is not a str")
        try:
            listed.append((name, as_bytes("", value)))
        except TypeError:
            raise _bad_headers(
                f"the value of header {name!r} is {value!r}, neither bytes, str nor None"
            ) from None
    return listed


def _bad_headers(problem: str) -> InvalidRecord:
    return InvalidRecord(problem, hint='Give {"name": b"value"}, or [("name", b"value")].')


def as_columns(key: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of key columns; raise TypeError for one that is no text."""
    if key is None or isinstance(key, str):
        return () if key is None else (key,)
    names = tuple(key) if isinstance(key, Iterable) else (key,)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"key is a column's name or several, not {type(name).__name__}")
    return names


def checked_size(batch: pa.RecordBatch) -> int:
    """Return the batch's size in bytes; raise BatchTooLarge if no message can carry it."""
    if batch.num_rows <= ROWS_MAX:
        size = int(pa.ipc.get_record_batch_size(batch))  # faster than nbytes, and never less
        if size <= BATCH_BYTES_MAX:
            return size
    size = int(batch.nbytes)
    if size > BATCH_BYTES_MAX or batch.num_rows > ROWS_MAX:
        raise BatchTooLarge(
            f"a batch has at most {BATCH_BYTES_MAX} bytes and {ROWS_MAX} rows, not {size}"
            f" and {batch.num_rows}",
            hint=UNSENDABLE if batch.num_rows == 1 else None,
        )
    return size


def joining_bytes(batch: pa.RecordBatch, known: TopicDescription) -> int:
    """Return the bytes of a small batch in which the leader will find no bad record, else 0.

    Such a batch may be joined with others: none of them is refused because of another.
    """
    size = int(pa.ipc.get_record_batch_size(batch))
    if size > _JOINING_BYTES_MAX:
        return 0
    # Even if all of it were one record, whose flags count for eight times their size, it must fit.
    if 8 * size > int(known.config["max.record.bytes"]):
        return 0
    for field, column in zip(known.schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            return 0
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        return 0
    return size


def check_partition(known: TopicDescription, partition: int) -> int:
    """Return the partition.

    Raises:
        InvalidOption: it is no whole number.
        UnknownPartition: the topic does not have it.
    """
    if not isinstance(partition, Integral) or isinstance(partition, bool):
        raise InvalidOption(
            f"partition takes a whole number, not {partition!r}",
            hint=f"Topic {known.name!r} has partitions 0 to {len(known.partitions) - 1}.",
            option="partition",
        )
    if not 0 <= partition < len(known.partitions):
        raise UnknownPartition(
            f"topic {known.name!r} has partitions 0 to {len(known.partitions) - 1},"
            f" not {partition}",
            topic=known.name,
            partition=int(partition),
        )
    return int(partition)


def one_batch(data: Any, schema: pa.Schema) -> pa.RecordBatch:
    """Return what the caller appends as one batch; a data frame is cast to the topic's types."""
    if isinstance(data, pa.RecordBatch):
        return data
    table = data if is_arrow(data) else eased(table_of(data), schema)
    batches = table.combine_chunks().to_batches()
    if not batches:
        return empty_batch(table.schema)
    if len(batches) > 1:
        raise InvalidRequest("the table is too large for one batch", hint="Append its batches.")
    return batches[0]


def fitted_to(batch: pa.RecordBatch, known: TopicDescription) -> pa.RecordBatch:
    """Return the batch with the topic's columns, in their order and types, without any loss.

    What was valid before the topic's schema was altered still is: columns, and fields of structs,
    that were added may be left out, and those that were widened may have their old types.

    Raises:
        SchemaMismatch: names the column, the type expected and the type got.
    """
    lacking = [name for name in known.added if name not in batch.schema.names]
    for name in lacking:
        kind = known.schema.field(name).type
        batch = batch.append_column(name, pa.nulls(batch.num_rows, kind))
    with of_topic(known.name):
        return fitted(batch, known.schema, altered=known.schema_version > 0)


def completed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add the columns that a batch for a default-schema topic left out."""
    names = batch.schema.names
    if not set(names) <= set(DEFAULT_SCHEMA.names) or len(set(names)) < len(names):
        return batch  # fitted() names the wrong column
    rows = batch.num_rows
    columns = []
    for field in DEFAULT_SCHEMA:
        if field.name in names:
            column = _as_binary(batch.column(field.name))
            if field.name == TIMESTAMP_COLUMN and column.null_count and column.type == field.type:
                column = pc.coalesce(column, _now(rows))
        elif field.name == TIMESTAMP_COLUMN:
            column = _now(rows)
        elif field.name != "value":
            column = _ONE_NULL[field.name] if rows == 1 else pa.nulls(rows, field.type)
        else:
            continue
        columns.append(column)
    if len(columns) == len(DEFAULT_SCHEMA) and [each.type for each in columns] == _TYPES:
        return pa.RecordBatch.from_arrays(columns, schema=DEFAULT_SCHEMA)
    given = [name for name in DEFAULT_SCHEMA.names if name in names or name != "value"]
    return pa.RecordBatch.from_arrays(columns, names=given)


_TYPES: Final = DEFAULT_SCHEMA.types
_LONG: Final = struct.Struct("<q")
_ONE_NULL: Final = {field.name: pa.nulls(1, field.type) for field in DEFAULT_SCHEMA}


def _as_binary(column: pa.Array) -> pa.Array:
    """Return text as its UTF-8, as ``send`` does, without a loop over rows."""
    if pa.types.is_string(column.type):
        return column.cast(pa.binary())
    return column.cast(pa.large_binary()) if pa.types.is_large_string(column.type) else column


def _now(rows: int) -> pa.Array:
    moment = timestamp_us(None)
    moments = _LONG.pack(moment) if rows == 1 else np.full(rows, moment, np.int64)
    return pa.Array.from_buffers(TIMESTAMP_TYPE, rows, [None, pa.py_buffer(moments)])
