"""Few records one by one: for them a loop is several times faster than numpy and Arrow's kernels.

The results, and the refused bytes, are those of ``decoding`` and ``encoding``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from spark_stream.kafka.records.batches import Batch
from spark_stream.kafka.records.varints import VARLONG_BYTES, put_varint, read_varint
from spark_stream.kafka.refusals import CorruptBatch, InvalidRecords
from spark_stream.schema.arrays import bitmap, bytes_array
from spark_stream.schema.schemas import DEFAULT_SCHEMA, HEADERS_TYPE, TIMESTAMP_TYPE

FEW: Final = 16
"""The most records that are read and written one by one."""

HEADERS_MAX: Final = 1_000
"""The most headers of a record."""

_MS_MAX: Final = (1 << 63) // 1_000 - 1

Header = tuple[bytes, bytes | None]


class _Record(NamedTuple):
    """``headers``: their number. ``at``: the place of the first one. ``end``: of the record."""

    distance_ms: int
    key: bytes | None
    value: bytes | None
    headers: int
    at: int
    end: int


def decode_few(batch: Batch) -> pa.RecordBatch:
    """Return the records of a batch. Raise the errors of ``decode_records``."""
    data = memoryview(batch.records).cast("B")
    records = _records(data, batch.count)
    lists, is_exact = _headers(data, records)
    columns = [
        _keys(records),
        bytes_array([each.value for each in records]),
        lists,
        _times(batch.first_ms, [each.distance_ms for each in records]),
    ]
    if not is_exact:
        raise CorruptBatch("the length of a record is not that of its parts")
    return pa.RecordBatch.from_arrays(columns, schema=DEFAULT_SCHEMA)


def _records(data: memoryview, count: int) -> list[_Record]:
    found = []
    at = 0
    for _ in range(count):
        size, at = read_varint(data, at)
        end = at + size
        if size < 0 or end > len(data):
            raise CorruptBatch(f"a record has a length of {size} bytes")
        distance_ms, at = read_varint(data, at + 1, VARLONG_BYTES)  # after the attributes
        _, at = read_varint(data, at)
        key, at = _bytes_at(data, at, end)
        value, at = _bytes_at(data, at, end)
        headers, at = read_varint(data, at)
        found.append(_Record(distance_ms, key, value, headers, at, end))
        at = end
    if at != len(data):
        raise CorruptBatch(f"{count} records have {at} bytes, and their batch {len(data)}")
    return found


def _bytes_at(data: memoryview, at: int, end: int) -> tuple[bytes | None, int]:
    """Return the bytes after their size, and the place after them. A size of -1 is null."""
    size, at = read_varint(data, at)
    if size < -1:
        raise CorruptBatch("a key or a value has a negative size")
    following = at + max(size, 0)
    if following > end:
        raise CorruptBatch("a key or a value ends after its record")
    return None if size < 0 else bytes(data[at:following]), following


def _headers(data: memoryview, records: Sequence[_Record]) -> tuple[pa.Array, bool]:
    """Return the headers of all records, and whether each record ends after its headers."""
    if not any(each.headers for each in records):
        is_exact = all(each.at == each.end for each in records)
        return _no_headers(len(records)), is_exact
    counts = [each.headers for each in records]
    check_header_counts(min(counts), max(counts))
    found: list[Header] = []
    is_exact = True
    for each in records:
        at = each.at
        for _ in range(each.headers):
            key, at = _bytes_at(data, at, each.end)
            if key is None:
                raise CorruptBatch("the key of a header has a negative size")
            value, at = _bytes_at(data, at, each.end)
            found.append((key, value))
        is_exact = is_exact and at == each.end
    return _lists(counts, found), is_exact


def _keys(records: Sequence[_Record]) -> pa.Array:
    if all(each.key is None for each in records):
        return _no_keys(len(records))
    return bytes_array([each.key for each in records])


@cache
def _no_keys(records: int) -> pa.Array:
    return pa.nulls(records, pa.binary())


@cache
def _no_headers(records: int) -> pa.Array:
    return pa.nulls(records, HEADERS_TYPE)


def check_furthest(ms: int) -> None:
    """Check the greatest distance of a time from the epoch. Raise InvalidRecords."""
    if ms > _MS_MAX:
        raise InvalidRecords("isolog cannot store the time of a record")


def check_header_counts(least: int, most: int) -> None:
    """Check the numbers of headers of records.

    Raises:
        CorruptBatch: A record has less than none.
        InvalidRecords: A record has too many.
    """
    if least < 0:
        raise CorruptBatch("a record has a negative number of headers")
    if most > HEADERS_MAX:
        raise InvalidRecords(f"a record has {most} headers, and at most {HEADERS_MAX} are stored")


def _lists(counts: Sequence[int], headers: Sequence[Header]) -> pa.Array:
    try:
        for key, _ in headers:
            key.decode()
    except UnicodeDecodeError:
        raise InvalidRecords("the key of a header is not UTF-8") from None
    keys = bytes_array([key for key, _ in headers], pa.string())
    values = bytes_array([value for _, value in headers])
    fields = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS_TYPE.value_type))
    ends = struct.pack(f"={len(counts) + 1}i", *accumulate(counts, initial=0))
    # As in isolog's own clients, a record without headers has null.
    present = bitmap(np.array(counts) > 0)
    buffers = [present, pa.py_buffer(ends)]
    return pa.Array.from_buffers(HEADERS_TYPE, len(counts), buffers, children=[fields])


def _times(first_ms: int, distances_ms: Sequence[int]) -> pa.Array:
    check_furthest(max(map(abs, distances_ms)) + abs(first_ms))
    micros = [(first_ms + each) * 1_000 for each in distances_ms]
    data = pa.py_buffer(struct.pack(f"={len(micros)}q", *micros))
    return pa.Array.from_buffers(TIMESTAMP_TYPE, len(micros), [None, data])


def encode_few(
    rows: pa.RecordBatch, distances_ms: Sequence[int], deltas: Sequence[int]
) -> pa.Buffer:
    """Return rows as records. ``distances_ms``, ``deltas``: from the batch's time and offset."""
    found = bytearray()
    columns = [rows.column(name) for name in ("key", "value", "headers")]
    nothing = [None] * len(rows)
    values = (each.to_pylist() if each.null_count < len(rows) else nothing for each in columns)
    for distance_ms, delta, key, value, headers in zip(distances_ms, deltas, *values, strict=True):
        record = bytearray(1)  # the attributes
        put_varint(record, distance_ms)
        put_varint(record, delta)
        _put_bytes(record, key)
        _put_bytes(record, value)
        put_varint(record, len(headers or ()))
        for each in headers or ():
            _put_bytes(record, each["key"].encode())
            _put_bytes(record, each["value"])
        put_varint(found, len(record))
        found += record
    return pa.py_buffer(bytes(found))


def _put_bytes(record: bytearray, value: bytes | None) -> None:
    put_varint(record, -1 if value is None else len(value))
    record += value or b""
