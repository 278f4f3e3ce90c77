"""The header of a record batch, its checksum, and the compression of its records.

A batch is a header of 61 bytes and its records, which may be compressed as a whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

import google_crc32c
import pyarrow as pa
from msgspec import Struct

from spark_stream.kafka.refusals import (
    BatchTooLarge,
    CorruptBatch,
    UnsupportedBatch,
    UnsupportedCompression,
)

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_LENGTH_AT: Final = 8
_CHECKED_AT: Final = 21
"""The first byte that the checksum covers. The bytes before it change on the way."""

_MAGIC: Final = 2
_XERIAL: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER: Final = 16
_CODEC_BITS: Final = 7
_TRANSACTIONAL: Final = 1 << 4
_CONTROL: Final = 1 << 5

# A record of 16 bytes: its key has a version and the type 0, its value a version and an epoch.
_MARKER: Final = bytes([32, 0, 0, 0, 8, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0])

NO_PRODUCER: Final = -1


class Compression(IntEnum):
    """The compression of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_COMPRESSIONS: Final = {each.value: each for each in Compression}


class Batch(Struct, frozen=True):
    """A batch of records whose checksum is right. ``records`` are not compressed any more.

    ``last_delta``: the distance from ``base_offset`` to the last offset. ``first_ms``: the time
    that the times of its records count from, in ms since 1970. ``base_sequence``: the producer's
    sequence of the first record, or -1.
    """

    base_offset: int
    count: int
    last_delta: int
    first_ms: int
    records: pa.Buffer
    producer_id: int = NO_PRODUCER
    producer_epoch: int = -1
    base_sequence: int = -1
    attributes: int = 0

    @property
    def is_transactional(self) -> bool:
        """Whether it belongs to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether its records are markers of transactions."""
        return bool(self.attributes & _CONTROL)


def read_batches(data: pa.Buffer, most_bytes: int) -> Iterator[Batch]:
    """Yield all batches of a message. ``most_bytes``: the limit of the records of a batch.

    Raises:
        CorruptBatch: A length, a count or a checksum is wrong.
        UnsupportedBatch: The message format is an old one.
        UnsupportedCompression: The compression is unknown.
        BatchTooLarge: The records are larger than ``most_bytes``.
    """
    at = 0
    while at < data.size:
        if data.size - at < _HEADER.size:
            raise CorruptBatch(f"a batch has {data.size - at} bytes, and its header needs 61")
        yield _read_batch(data, at, most_bytes)
        at += _LENGTH_AT + 4 + struct.unpack_from(">i", data, at + _LENGTH_AT)[0]


def _read_batch(data: pa.Buffer, at: int, most_bytes: int) -> Batch:
    (
        base, length, _, magic, crc, attributes, last_delta, first_ms, _,
        producer_id, producer_epoch, base_sequence, count,
    ) = _HEADER.unpack_from(data, at)  # fmt: skip
    if magic != _MAGIC:
        raise UnsupportedBatch(f"the batch has message format {magic}, and only 2 is supported")
    end = at + _LENGTH_AT + 4 + length
    if length < _HEADER.size - _LENGTH_AT - 4 or end > data.size:
        raise CorruptBatch(
            f"the batch has a length of {length} bytes, and {data.size - at} are left"
        )
    if google_crc32c.value(memoryview(data)[at + _CHECKED_AT : end].tobytes()) != crc:
        raise CorruptBatch("the checksum of the batch is wrong")
    body = data.slice(at + _HEADER.size, end - at - _HEADER.size)
    records = decompressed(body, attributes & _CODEC_BITS, most_bytes)
    if not 0 < count <= records.size:
        raise CorruptBatch(f"the batch has {count} records in {records.size} bytes")
    return Batch(
        base,
        count,
        last_delta,
        first_ms,
        records,
        producer_id,
        producer_epoch,
        base_sequence,
        attributes,
    )


def decompressed(body: pa.Buffer, codec: int, most_bytes: int) -> pa.Buffer:
    """Return the records of a batch.

    Raises: as :func:`read_batches`.
    """
    compression = _COMPRESSIONS.get(codec)
    if compression is None:
        raise UnsupportedCompression(f"there is no compression {codec}")
    try:
        if compression is Compression.SNAPPY:
            return _from_snappy(memoryview(body).cast("B"), most_bytes)
        if compression is Compression.NONE:
            found = body
        else:
            with pa.CompressedInputStream(
                pa.BufferReader(body), compression.name.lower()
            ) as stream:
                found = stream.read_buffer(most_bytes + 1)
    except (OSError, pa.ArrowException) as error:
        raise CorruptBatch(f"the records cannot be decompressed by {compression.name}") from error
    if found.size > most_bytes:
        raise _too_large(most_bytes)
    return found


def _too_large(most_bytes: int) -> BatchTooLarge:
    return BatchTooLarge(f"the records of a batch are larger than {most_bytes} bytes")


def _from_snappy(body: memoryview, most_bytes: int) -> pa.Buffer:
    """Decompress one block, or the blocks that the Java client writes, each after its length."""
    if bytes(body[: len(_XERIAL)]) != _XERIAL:
        return pa.py_buffer(_snappy_block(body, most_bytes))
    found = bytearray()
    at = _XERIAL_HEADER
    while at < len(body):
        if len(body) - at < 4:
            raise CorruptBatch("a block of snappy has no length")
        (size,) = struct.unpack_from(">i", body, at)
        at += 4
        if size < 0 or size > len(body) - at:
            raise CorruptBatch(f"a block of snappy has {size} bytes, and {len(body) - at} are left")
        found += _snappy_block(body[at : at + size], most_bytes, len(found))
        at += size
    return pa.py_buffer(bytes(found))


def _snappy_block(block: memoryview, most_bytes: int, taken: int = 0) -> memoryview:
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    else:
        raise CorruptBatch("a block of snappy has no size")
    if taken + size > most_bytes:
        raise _too_large(most_bytes)
    return memoryview(pa.Codec("snappy").decompress(block, decompressed_size=size))


def pack_batch(
    base_offset: int,
    last_delta: int,
    first_ms: int,
    last_ms: int,
    count: int,
    records: pa.Buffer,
    attributes: int = 0,
) -> bytes:
    """Return a batch for consumers, without compression and producer."""
    size = _HEADER.size - _LENGTH_AT - 4 + records.size
    checked = _HEADER.pack(
        base_offset, size, -1, _MAGIC, 0, attributes, last_delta, first_ms, last_ms,
        NO_PRODUCER, -1, -1, count,
    )  # fmt: skip
    head, checked = checked[: _CHECKED_AT - 4], checked[_CHECKED_AT:]
    crc = google_crc32c.extend(google_crc32c.value(checked), records)
    return b"".join((head, struct.pack(">I", crc), checked, records))


def pack_marker(offset: int) -> bytes:
    """Return a batch without a record for programs. A consumer continues after the offset.

    It is the marker of an aborted transaction, of which consumers read the offset only.
    """
    return pack_batch(offset, 0, 0, 0, 1, pa.py_buffer(_MARKER), _CONTROL | _TRANSACTIONAL)
