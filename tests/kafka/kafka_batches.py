"""Batches as kafka-python makes them, and batches with wrong fields."""

from __future__ import annotations

import random
import struct

import google_crc32c
import pyarrow as pa
from kafka.record.memory_records import MemoryRecordsBuilder

from spark_stream.kafka.records.batches import Compression

Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]
"""Key, value, headers, and the time in ms."""


def random_rows(rng: random.Random, count: int, sizes: int = 60) -> list[Row]:
    def text() -> bytes | None:
        return (
            None if rng.random() < 0.2 else rng.randbytes(rng.choice([0, 3, rng.randrange(sizes)]))
        )

    start = rng.choice([0, 1_700_000_000_000])
    return [
        (
            text(),
            text(),
            [(rng.choice(["", "a", "ключ"]), text()) for _ in range(rng.choice([0, 0, 1, 3]))],
            start + rng.randrange(-1_000 if start else 0, 100_000),
        )
        for _ in range(count)
    ]


def by_kafka(rows: list[Row]) -> bytes:
    """The batch that kafka-python makes."""
    builder = MemoryRecordsBuilder(2, 0, 1 << 26)
    for key, value, headers, time_ms in rows:
        builder.append(timestamp=time_ms, key=key, value=value, headers=headers)
    builder.close()
    return bytes(builder.buffer())


def rebuilt(data: bytes, body: bytes, **fields: int) -> bytes:
    """The batch with another body, other fields, and the right checksum."""
    names = ["base", "length", "epoch", "magic", "crc", "attributes", "last", "first", "greatest",
             "producer", "producer_epoch", "sequence", "count"]  # fmt: skip
    header = dict(zip(names, struct.unpack_from(">qiibIhiqqqhii", data), strict=True))
    header |= {"length": 49 + len(body)} | fields
    packed = struct.pack(">qiibIhiqqqhii", *header.values()) + body
    crc = google_crc32c.value(packed[21:])
    return packed[:17] + struct.pack(">I", crc) + packed[21:]


def compressed(data: bytes, compression: Compression) -> bytes:
    """The batch with compressed records."""
    if compression is Compression.NONE:
        return data
    body = pa.compress(data[61:], compression.name.lower(), asbytes=True)
    return rebuilt(data, body, attributes=int(compression))
