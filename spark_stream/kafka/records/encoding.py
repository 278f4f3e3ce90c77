"""Arrow rows as the records of a batch: the reverse of ``decoding``.

The parts of all records between two texts are built as one array. Arrow then joins the parts of
each record.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_stream.kafka.records.batches import pack_batch
from spark_stream.kafka.records.few import FEW, encode_few
from spark_stream.kafka.records.varints import (
    Ints,
    pack_varints,
    varint_columns,
    varint_sizes,
    zigzag,
)
from spark_stream.schema.arrays import bytes_array, integers

_NOTHING, _NO_HEADERS = bytes_array([b"", b"\0"])
_NEGATIVE, _ZERO = integers(np.array([-1, 0], np.int32), pa.int32())


def encode_batch(rows: pa.RecordBatch, offsets: Ints, following: int | None = None) -> bytes:
    """Return a batch with these rows.

    Args:
        rows: Columns ``key`` and ``value`` (binary), ``headers``, and ``timestamp`` (µs). At least
            one row.
        offsets: The offset of each row, rising.
        following: The offset at which a reader continues, by default after the last row.
    """
    column = rows.column("timestamp")
    micros = memoryview(column.buffers()[1])[8 * column.offset :][: 8 * len(column)]
    base = int(offsets[0])
    if len(column) <= FEW:  # without the arithmetic of numpy
        times = [each // 1_000 for each in micros.cast("q")]
        first_ms, last_ms = times[0], max(times)
        deltas = [each - base for each in offsets.tolist()]
        records = encode_few(rows, [each - first_ms for each in times], deltas)
    else:
        times_ms = np.frombuffer(micros, np.int64) // 1_000
        first_ms, last_ms = int(times_ms[0]), int(times_ms.max())
        records = _records(rows, times_ms - first_ms, offsets - base)
    last = int(offsets[-1]) if following is None else following - 1
    return pack_batch(base, last - base, first_ms, last_ms, rows.num_rows, records)


def _records(rows: pa.RecordBatch, distances_ms: Ints, deltas: Ints) -> pa.Buffer:
    key, value = rows.column("key"), rows.column("value")
    key_size, value_size = zigzag(_sizes(key)), zigzag(_sizes(value))
    headers, headers_size = _headers(rows.column("headers"))
    distance, delta = zigzag(distances_ms), zigzag(deltas)
    lengths = (
        1
        + varint_sizes(distance)
        + varint_sizes(delta)
        + varint_sizes(key_size)
        + np.maximum(_sizes(key), 0)
        + varint_sizes(value_size)
        + np.maximum(_sizes(value), 0)
        + headers_size
    )
    joined = pc.binary_join_element_wise(
        _joined(zigzag(lengths), None, distance),
        _joined(delta, key_size),
        key,
        _joined(value_size),
        value,
        headers,
        _NOTHING,
        null_handling="replace",
        null_replacement=b"",
    )
    offsets = np.frombuffer(joined.buffers()[1], np.int32, len(joined) + 1, 4 * joined.offset)
    return joined.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def _sizes(array: pa.Array) -> Ints:
    """Return the size of each value in bytes. Null has -1."""
    sizes = pc.fill_null(pc.binary_length(array), _NEGATIVE)
    found: Ints = np.frombuffer(sizes.buffers()[1], np.int32, len(sizes), 4 * sizes.offset).astype(
        np.int64
    )
    return found


def _joined(*parts: Ints | None) -> pa.Array:
    """Return an array whose values are the varints of a row. None: a byte of zero."""
    count = next(len(each) for each in parts if each is not None)
    bounds = np.zeros(count + 1, np.int32)
    if (packed := pack_varints(count, parts)) is not None:
        bounds[1:], data = packed
        return pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
        )
    zeros = np.zeros((count, 1), np.uint8), np.ones((count, 1), np.bool_)
    columns = [zeros if each is None else varint_columns(each) for each in parts]
    data = np.concatenate([each for each, _ in columns], axis=1)
    used = np.concatenate([each for _, each in columns], axis=1)
    np.cumsum(used.sum(axis=1), out=bounds[1:])
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(data[used])]
    )


def _headers(lists: pa.Array) -> tuple[pa.Array | pa.Scalar, Ints | int]:
    """Return the count and the headers of each row as bytes, and their sizes."""
    if lists.null_count == len(lists):
        return _NO_HEADERS, 1
    counts = pc.fill_null(pc.list_value_length(lists), _ZERO)
    counts = np.frombuffer(counts.buffers()[1], np.int32, len(counts), 4 * counts.offset).astype(
        np.int64
    )
    fields = lists.flatten()
    key, value = (each.cast(pa.binary()) for each in fields.flatten())
    parts = (
        pc.binary_join_element_wise(
            _joined(zigzag(_sizes(key))),
            key,
            _joined(zigzag(_sizes(value))),
            value,
            _NOTHING,
            null_handling="replace",
            null_replacement=b"",
        )
        if len(key)
        else pa.nulls(0, pa.binary())
    )
    firsts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=firsts[1:])
    bounds = np.frombuffer(parts.buffers()[1] or bytes(4), np.int32, len(parts) + 1)
    # The headers of a row follow each other.
    texts = pa.Array.from_buffers(
        pa.binary(),
        len(counts),
        [None, pa.py_buffer(bounds[firsts].copy()), parts.buffers()[2]],
    )
    found = pc.binary_join_element_wise(_joined(zigzag(counts)), texts, _NOTHING)
    return found, _sizes(found)
