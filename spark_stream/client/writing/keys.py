"""The bytes of keys, which decide a record's partition, for whole columns at once.

One column of text or bytes is hashed as it is, so a typed topic and a topic with Kafka's columns
put equal keys in partitions of the same number. Other values get the form of Kafka's serializers,
which is the same for an integer of any width and for float and double:

=============================  =====================================================
boolean                        one byte, 0 or 1
integers                       8 bytes, big endian, as of a bigint
date, timestamp, time,         the same of its days since 1970, microseconds since
interval                       1970, nanoseconds, microseconds
float, double                  8 bytes, IEEE 754, big endian; -0.0 as 0.0, each NaN alike
decimal                        16 bytes, big endian, of its digits without the point
=============================  =====================================================

The values of several columns follow each other: 0 for a null; else 1, then the length in 4 bytes if
the value is text or bytes, then the value. A record whose key columns are all null has no key. A
field of a struct is null where the struct is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from spark_stream.client.writing.partitioner import partitions_of
from spark_stream.schema.keys import path_of

_BLOCK_ROWS: Final = 1 << 16  # bounds the memory for the bytes of keys
_BINARY: Final = pa.binary()


def partitions_by(
    batch: pa.RecordBatch, columns: Sequence[str], partitions: int, keyless: int
) -> npt.NDArray[np.int32]:
    """Return the partition of each record by its key columns; ``keyless`` for one without a key."""
    found = np.empty(batch.num_rows, np.int32)
    for first in range(0, batch.num_rows, _BLOCK_ROWS):
        keys = key_bytes(batch.slice(first, _BLOCK_ROWS), columns)
        found[first : first + len(keys)] = partitions_of(keys, partitions, keyless)
    return found


def has_keys(batch: pa.RecordBatch, columns: Sequence[str]) -> bool:
    """Return whether any record of the batch has a key; missing columns count as null."""
    found = (path_of(batch.schema, name) for name in columns)
    there = [_values_at(batch, path) for path in found if path is not None]
    return any(column.null_count < len(column) for column in there)


def key_bytes(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.Array:
    """Return the bytes of each record's key, null for one without a key."""
    parts = [_column(batch, name) for name in columns]
    if len(parts) == 1:
        return _bytes_of(parts[0])
    key = pc.binary_join_element_wise(*map(_delimited, parts), b"")
    if not all(each.null_count for each in parts):
        return key
    absent = np.logical_and.reduce(
        [each.is_null().to_numpy(zero_copy_only=False) for each in parts]
    )
    return pc.if_else(pa.array(absent), pa.scalar(None, _BINARY), key)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    path = path_of(batch.schema, name)
    return batch.column(name) if path is None else _values_at(batch, path)


def _values_at(batch: pa.RecordBatch, path: Sequence[str]) -> pa.Array:
    """Return the values of a column, or of a field in it: null where an enclosing struct is."""
    values = batch.column(path[0])
    return pc.struct_field(values, list(path[1:])) if len(path) > 1 else values


def _delimited(column: pa.Array) -> pa.Array:
    """Return the bytes of each value, nulls included, in a form that shows where they end."""
    values = _bytes_of(column)
    prefix = [b"\1"]
    if _is_bytes(column.type):
        lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy().astype(">i4")
        prefix.append(_rows_of(lengths.view(np.uint8).reshape(-1, 4)))
    return pc.coalesce(pc.binary_join_element_wise(*prefix, values, b""), pa.scalar(b"\0", _BINARY))


def _bytes_of(column: pa.Array) -> pa.Array:
    """Return the bytes of each value, null where it is null."""
    kind = column.type
    if _is_bytes(kind):
        return column if pt.is_binary(kind) else column.cast(_BINARY)
    if pt.is_decimal(kind):
        _, data = column.buffers()
        size = kind.byte_width
        rows = np.frombuffer(data, np.uint8, len(column) * size, column.offset * size)
        found = rows.reshape(-1, size)[:, ::-1]
    elif pt.is_boolean(kind):
        found = pc.fill_null(column, False).to_numpy(zero_copy_only=False).view(np.uint8)[:, None]
    elif pt.is_floating(kind):
        numbers = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy() + 0.0  # -0.0 is 0.0
        numbers[np.isnan(numbers)] = np.nan
        found = numbers.astype(">f8").view(np.uint8).reshape(-1, 8)
    else:
        kind = pa.int32() if pt.is_date32(kind) else kind
        numbers = pc.fill_null(column.cast(kind).cast(pa.int64()), 0).to_numpy()
        found = numbers.astype(">i8").view(np.uint8).reshape(-1, 8)
    values = _rows_of(found)
    if not column.null_count:
        return values
    return pc.if_else(column.is_valid(), values, pa.scalar(None, _BINARY))


def _rows_of(matrix: npt.NDArray[np.uint8]) -> pa.Array:
    """Return each row of the matrix as a binary value."""
    rows, width = matrix.shape
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    data = np.ascontiguousarray(matrix)
    return pa.Array.from_buffers(_BINARY, rows, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _is_bytes(kind: pa.DataType) -> bool:
    tests = (pt.is_binary, pt.is_string, pt.is_large_binary, pt.is_large_string)
    return pt.is_fixed_size_binary(kind) or any(holds(kind) for holds in tests)
