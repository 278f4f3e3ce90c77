"""Records of a batch as Arrow, in the columns of topics with Kafka's schema.

A record is: its length, attributes (one byte), the distances of its time and of its offset from the
batch's, the key, the value, and the headers. All lengths and distances are varints.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from spark_stream.kafka.records.batches import Batch
from spark_stream.kafka.records.few import (
    FEW,
    check_furthest,
    check_header_counts,
    decode_few,
)
from spark_stream.kafka.records.varints import (
    VARLONG_BYTES,
    Bytes,
    Ints,
    read_varint,
    read_varints,
)
from spark_stream.kafka.refusals import CorruptBatch, InvalidRecords
from spark_stream.schema.arrays import bitmap, integers
from spark_stream.schema.schemas import DEFAULT_SCHEMA, HEADERS_TYPE, TIMESTAMP_TYPE

_INT32_MAX: Final = (1 << 31) - 1


def decode_records(batch: Batch) -> pa.RecordBatch:
    """Return the records of a batch, with the columns of ``DEFAULT_SCHEMA``.

    Raises:
        CorruptBatch: A length, a size or a count is wrong.
        InvalidRecords: A record has too many headers, a key of a header that is not UTF-8, or a
            time that isolog cannot store.
    """
    if batch.records.size > _INT32_MAX:
        raise CorruptBatch("the records of a batch are larger than 2 GiB")
    if batch.count <= FEW:
        return decode_few(batch)
    data = np.frombuffer(batch.records, np.uint8)
    found = _parts(data, batch)
    if found.headers.any():
        header_lists, at = _headers(batch.records, data, found.headers, found.at, found.ends)
    else:
        header_lists, at = pa.nulls(batch.count, HEADERS_TYPE), found.at
    if (at != found.ends).any():
        raise CorruptBatch("the length of a record is not that of its parts")
    rows = [
        _slices(batch.records, found.key_at, found.key_size),
        _slices(batch.records, found.value_at, found.value_size),
        header_lists,
        _times(batch.first_ms, found.distance_ms),
    ]
    return pa.RecordBatch.from_arrays(rows, schema=DEFAULT_SCHEMA)


class _Parts(NamedTuple):
    """The parts of all records. ``headers``: their number, ``at``: the place of the first one."""

    distance_ms: Ints
    key_size: Ints
    key_at: Ints
    value_size: Ints
    value_at: Ints
    headers: Ints
    at: Ints
    ends: Ints


def _parts(data: Bytes, batch: Batch) -> _Parts:
    starts = _equal_starts(data, batch.count)
    if starts is None:
        starts = _starts(data.data, batch.count)
    ends = starts[1:]
    _, at = read_varints(data, starts[:-1])
    distance_ms, at = read_varints(data, at + 1, VARLONG_BYTES)  # after the attributes
    _, at = read_varints(data, at)
    key_size, key_at = read_varints(data, at)
    value_size, value_at = read_varints(data, _after(key_at, key_size, ends))
    headers, at = read_varints(data, _after(value_at, value_size, ends))
    return _Parts(distance_ms, key_size, key_at, value_size, value_at, headers, at, ends)


def _starts(data: memoryview, count: int) -> Ints:
    """Return the start of each record, and the end of the last one."""
    starts = np.empty(count + 1, np.int64)
    at = 0
    for number in range(count):
        starts[number] = at
        size, following = read_varint(data, at)
        if size < 0:
            raise CorruptBatch(f"a record has a length of {size} bytes")
        at = following + size
    starts[count] = at
    if at != len(data):
        raise CorruptBatch(f"{count} records have {at} bytes, and their batch {len(data)}")
    return starts


def _equal_starts(data: Bytes, count: int) -> Ints | None:
    """Return the result of :func:`_starts` if all records have equal lengths, else None."""
    size, rest = divmod(len(data), count)
    if rest or count == 1 or size == 0:
        return None
    try:
        length, following = read_varint(data[:size].data, 0)
    except CorruptBatch:
        return None
    if length + following != size:
        return None
    heads = data.reshape(count, size)[:, :following]
    if (heads != heads[0]).any():
        return None
    return np.arange(count + 1, dtype=np.int64) * size


def _after(at: Ints, size: Ints, ends: Ints) -> Ints:
    """Return the places after bytes of these sizes. A size of -1 is null, without bytes."""
    if (size < -1).any():
        raise CorruptBatch("a key or a value has a negative size")
    following = at + np.maximum(size, 0)
    if (following > ends).any():
        raise CorruptBatch("a key or a value ends after its record")
    return following


def _slices(data: pa.Buffer, at: Ints, size: Ints, kind: pa.DataType | None = None) -> pa.Array:
    """Return these parts of a buffer as an array. A size of -1 is null."""
    count = len(at)
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[0] = 0
    bounds[1::2] = at
    bounds[2::2] = at + np.maximum(size, 0)
    # Each second value is a part. The others lie between the parts, and may overlap.
    parts = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), data])
    chosen = np.arange(1, 2 * count, 2, dtype=np.int32)
    mask = size < 0
    found = parts.take(integers(chosen, pa.int32(), mask if mask.any() else None))
    return found if kind is None else found.cast(kind)


def _times(first_ms: int, distance_ms: Ints) -> pa.Array:
    """Return the times in microseconds."""
    furthest = max(abs(int(distance_ms.min())), abs(int(distance_ms.max())))
    check_furthest(furthest + abs(first_ms))
    micros = (first_ms + distance_ms) * 1_000
    return pa.Array.from_buffers(TIMESTAMP_TYPE, len(micros), [None, pa.py_buffer(micros)])


def _headers(
    buffer: pa.Buffer, data: Bytes, counts: Ints, at: Ints, ends: Ints
) -> tuple[pa.Array, Ints]:
    """Return the headers of all records, and the places after them.

    The first headers of all records are read together, then the second ones, and so on.
    """
    most = int(counts.max())
    check_header_counts(int(counts.min()), most)
    firsts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=firsts[1:])
    places = np.zeros((4, int(firsts[-1])), np.int64)  # key and size, value and size
    at = at.copy()
    for number in range(most):
        rows = np.flatnonzero(counts > number)
        key_size, key_at = read_varints(data, at[rows])
        if (key_size < 0).any():
            raise CorruptBatch("the key of a header has a negative size")
        value_size, value_at = read_varints(data, _after(key_at, key_size, ends[rows]))
        at[rows] = _after(value_at, value_size, ends[rows])
        places[:, firsts[rows] + number] = key_at, key_size, value_at, value_size
    key_at, key_size, value_at, value_size = places
    try:
        keys = _slices(buffer, key_at, key_size, pa.string())
    except pa.ArrowInvalid:
        raise InvalidRecords("the key of a header is not UTF-8") from None
    values = _slices(buffer, value_at, value_size)
    fields = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS_TYPE.value_type))
    offsets = pa.py_buffer(firsts.astype(np.int32))
    # As in isolog's own clients, a record without headers has null.
    present = bitmap(counts > 0)
    lists = pa.Array.from_buffers(HEADERS_TYPE, len(counts), [present, offsets], children=[fields])
    return lists, at
