"""The partition of each record by its key, for whole columns, and the split of a batch.

The partition is that of Kafka's default partitioner, so that migrated jobs keep their partitions:
``partition = (murmur2(key) & 0x7fffffff) % partitions``, with murmur2 (32 bit, seed 0x9747b28c) as
Austin Appleby published it and Kafka's ``Utils.murmur2`` uses it. The loops are over blocks of
rows, and four-byte steps of the longest key.

Keys of one length form a matrix, whose words are read in place. Keys of several lengths are copied
into a padded buffer, so that reading past the end of the last one is safe.

One key column of text or bytes is hashed as it is, so a typed topic and a topic with Kafka's
columns put equal keys in partitions of the same number. Other values get the form of Kafka's
serializers, which is the same for an integer of any width and for float and double:

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

import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from spark_stream.schema.arrays import integers
from spark_stream.schema.keys import path_of

_SEED: Final = np.uint32(0x9747B28C)
_M: Final = np.uint32(0x5BD1E995)
_R: Final = np.uint32(24)
_WORD: Final = np.dtype("<u4")
_SCALAR_BYTES: Final = 128
_ONE_WORD: Final = struct.Struct("<I")
_BLOCK_ROWS: Final = 8192  # intermediate results stay in the processor's cache
_CHUNK_WORDS: Final = 16  # words of a key that are gathered together
_KEY_ROWS: Final = 1 << 16  # bounds the memory for the bytes of keys
_BINARY: Final = pa.binary()

Hashes = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.signedinteger]
Part = tuple[int, pa.RecordBatch, npt.NDArray[np.int64]]
"""A partition, its rows, and their indexes in the whole batch."""


def routed(
    batch: pa.RecordBatch, columns: Sequence[str], partitions: int, keyless: int
) -> list[tuple[int, pa.RecordBatch, int]]:
    """Split a batch by its key columns. The rows of each part keep their order.

    Return each partition, its rows, and the index of the first of them. Records without a key go to
    ``keyless``.
    """
    if partitions == 1:
        return [(0, batch, 0)]
    if batch.num_rows == 1:  # the fixed costs of NumPy are above those of one hash
        key = key_bytes(batch, columns)[0].as_py()
        if key is None or len(key) <= _SCALAR_BYTES:
            place = keyless if key is None else (murmur2_of(key) & 0x7FFFFFFF) % partitions
            return [(place, batch, 0)]
    places = partitions_by(batch, columns, partitions, keyless)
    return [(place, part, int(at[0])) for place, part, at in split(batch, places)]


def partitions_by(
    batch: pa.RecordBatch, columns: Sequence[str], partitions: int, keyless: int
) -> npt.NDArray[np.int32]:
    """Return each record's partition by its key columns, ``keyless`` without a key."""
    found = np.empty(batch.num_rows, np.int32)
    for first in range(0, batch.num_rows, _KEY_ROWS):
        keys = key_bytes(batch.slice(first, _KEY_ROWS), columns)
        found[first : first + len(keys)] = partitions_of(keys, partitions, keyless)
    return found


def has_keys(batch: pa.RecordBatch, columns: Sequence[str]) -> bool:
    """Return whether any record of the batch has a key. Missing columns count as null."""
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
    """Return the values of a column or of a field in it, null where an enclosing struct is null."""
    values = batch.column(path[0])
    return pc.struct_field(values, list(path[1:])) if len(path) > 1 else values


def _delimited(column: pa.Array) -> pa.Array:
    """Return the bytes of each value, nulls included, in a self-delimiting form."""
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


def partitions_of(keys: pa.Array, partitions: int, keyless: int) -> npt.NDArray[np.int32]:
    """Return the partition of each record. Those with a null key go to ``keyless``."""
    if keys.null_count == len(keys):
        return np.full(len(keys), keyless, np.int32)
    hashes = murmur2(keys)
    found = ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int32)
    if keys.null_count:
        found[pc.is_null(keys).to_numpy(zero_copy_only=False)] = keyless
    return found


def split(batch: pa.RecordBatch, places: npt.NDArray[np.int32]) -> Iterator[Part]:
    """Split the batch by partition. The rows of each part keep their order.

    The rows are sorted once. Each part is a slice, which keeps the memory of all rows.
    """
    first, last = int(places.min()), int(places.max())
    if first == last:
        yield first, batch, np.arange(len(places))
        return
    order = np.argsort(_narrowed(places, first, last), kind="stable")
    ordered = places[order]
    sorted_batch = _taken(batch, order)
    edges = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(order)]
    for start, end in itertools.pairwise(edges):
        yield int(ordered[start]), sorted_batch.slice(start, end - start), order[start:end]


def _narrowed(places: npt.NDArray[np.int32], first: int, last: int) -> npt.NDArray[np.integer]:
    """Return the places as 8 or 16 bits if they fit, which NumPy sorts faster."""
    if last - first >= 1 << 16:
        return places
    return (places - first).astype(np.min_scalar_type(last - first))


def _taken(batch: pa.RecordBatch, order: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Return the batch's rows in this order. Columns with only nulls are not reordered."""
    rows = integers(order, pa.int64())
    columns = [
        column if column.null_count == len(column) else column.take(rows)
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def murmur2_of(key: bytes) -> int:
    """Return murmur2 of one key."""
    multiplier, mask = int(_M), 0xFFFFFFFF
    hashed, whole = int(_SEED) ^ len(key), len(key) & ~3
    for (word,) in _ONE_WORD.iter_unpack(key[:whole]):
        word = word * multiplier & mask
        hashed = hashed * multiplier & mask ^ (word ^ word >> 24) * multiplier & mask
    if whole < len(key):
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * multiplier & mask
    hashed = (hashed ^ hashed >> 13) * multiplier & mask
    return hashed ^ hashed >> 15


def murmur2(keys: pa.Array) -> Hashes:
    """Return murmur2 of each key, shape (rows,). ``keys`` is a binary or string array.

    The hash of a null is meaningless.
    """
    large = pa.types.is_large_binary(keys.type) or pa.types.is_large_string(keys.type)
    hashes: Hashes = np.zeros(len(keys), np.uint32)
    _, offsets_buffer, data = keys.buffers()
    if offsets_buffer is None:
        return hashes
    kind: type[np.signedinteger] = np.int64 if large else np.int32
    offsets = np.frombuffer(offsets_buffer, kind)
    offsets = offsets[keys.offset : keys.offset + len(keys) + 1]
    for row in range(0, len(keys), _BLOCK_ROWS):
        _hash_block(hashes[row : row + _BLOCK_ROWS], data, offsets[row : row + _BLOCK_ROWS + 1])
    return hashes


def _hash_block(hashes: Hashes, data: pa.Buffer | None, offsets: Offsets) -> None:
    lengths = np.diff(offsets)
    np.bitwise_xor(lengths.astype(np.uint32), _SEED, out=hashes)
    if data is not None and offsets[0] < offsets[-1]:
        if (lengths == lengths[0]).all():
            _mix_matrix(hashes, data, int(offsets[0]), int(lengths[0]))
        else:
            _mix_any(hashes, data, offsets, lengths)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)


def _mix_matrix(hashes: Hashes, data: pa.Buffer, start: int, length: int) -> None:
    """Mix in the bytes of keys of one length, which are contiguous from ``start`` on."""
    rows, words = len(hashes), length // 4
    matrix = np.ndarray((rows, words), _WORD, data, start, (length, 4))
    for step in range(words):
        hashes *= _M
        hashes ^= _scrambled(matrix[:, step])
    if length > 4 * words:
        rest = np.ndarray(
            (rows, length - 4 * words), np.uint8, data, start + 4 * words, (length, 1)
        )
        for byte in range(rest.shape[1]):
            hashes ^= rest[:, byte].astype(np.uint32) << np.uint32(8 * byte)
        hashes *= _M


def _mix_any(hashes: Hashes, data: pa.Buffer, offsets: Offsets, lengths: Offsets) -> None:
    """Mix in the bytes of keys of any lengths. Rows drop out when their keys end."""
    first, end = int(offsets[0]), int(offsets[-1])
    copied = np.zeros(end - first + 4 * _CHUNK_WORDS, np.uint8)  # each key is read to a chunk's end
    copied[: end - first] = np.frombuffer(data, np.uint8, end - first, first)
    starts = offsets[:-1].astype(np.int64) - first
    words = lengths >> 2
    most = int(words.max())
    rest: slice | npt.NDArray[np.int64] = slice(None)
    for done in range(0, most, _CHUNK_WORDS):
        if done:
            rest = np.flatnonzero(words > done)
        chunk = _gathered(copied, starts[rest] + 4 * done, min(_CHUNK_WORDS, most - done))
        hashes[rest] = _mix_chunk(hashes[rest], chunk, words[rest] - done)
    tails = lengths & 3
    last = _gathered(copied, starts + 4 * words, 1)[:, 0]
    hashes ^= last & _KEPT.take(tails)
    hashes *= _FACTOR.take(tails)


# By the number of bytes in a key's last, incomplete word: the mask of these bytes, and the factor
# of the hash after them. Without such bytes nothing is mixed in.
_KEPT: Final = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)
_FACTOR: Final = np.array([1, _M, _M, _M], np.uint32)


def _gathered(data: npt.NDArray[np.uint8], places: npt.NDArray[np.int64], words: int) -> Hashes:
    """Gather ``words`` words from each of these places on, shape (places, words).

    The words of a place are taken as one item, which is as fast as taking a byte.
    """
    size = 4 * words
    items = np.ndarray((len(data) - size + 1,), f"V{size}", data, strides=(1,))
    return items[places].view(_WORD).reshape(-1, words)


def _mix_chunk(hashes: Hashes, chunk: Hashes, words: npt.NDArray[np.integer]) -> Hashes:
    """Mix in as many of the chunk's words as each row still has."""
    for step in range(chunk.shape[1]):
        mixed = hashes * _M
        mixed ^= _scrambled(chunk[:, step])
        hashes = np.where(words > step, mixed, hashes)
    return hashes


def _scrambled(words: Hashes) -> Hashes:
    """Scramble the words of keys as MurmurHash2 does before it mixes them into the hash."""
    found = words * _M
    found ^= found >> _R
    found *= _M
    return found
