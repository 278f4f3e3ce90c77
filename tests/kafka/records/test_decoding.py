"""Record batches to Arrow and back, beside the codec of kafka-python."""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kafka.record.memory_records import MemoryRecords

from spark_stream.kafka import refusals
from spark_stream.kafka.records import decoding, encoding
from spark_stream.kafka.records.batches import Batch, Compression, read_batches
from spark_stream.kafka.records.decoding import decode_records
from spark_stream.kafka.records.encoding import encode_batch
from spark_stream.schema.schemas import DEFAULT_SCHEMA
from tests.kafka.kafka_batches import Row, by_kafka, compressed, random_rows, rebuilt

LIMIT = 1 << 24


def decoded(data: bytes) -> list[Row]:
    found: list[Row] = []
    for batch in read_batches(pa.py_buffer(data), LIMIT):
        records = decode_records(batch)
        assert records.schema == DEFAULT_SCHEMA
        records.validate(full=True)
        found += rows_of(records)
    return found


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    micros = batch.column("timestamp").cast(pa.int64()).to_pylist()
    return [
        (
            row["key"],
            row["value"],
            [(each["key"], each["value"]) for each in row["headers"] or ()],
            micro // 1_000,
        )
        for row, micro in zip(batch.drop_columns("timestamp").to_pylist(), micros, strict=True)
    ]


def as_batch(rows: list[Row]) -> pa.RecordBatch:
    columns = [
        [row[0] for row in rows],
        [row[1] for row in rows],
        [[{"key": key, "value": value} for key, value in row[2]] or None for row in rows],
        pa.array([row[3] * 1_000 for row in rows], pa.int64()).cast(DEFAULT_SCHEMA[3].type),
    ]
    arrays = [
        pa.array(column, field.type) if isinstance(column, list) else column
        for column, field in zip(columns, DEFAULT_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=DEFAULT_SCHEMA)


def read_by_kafka(data: bytes) -> tuple[list[int], list[Row]]:
    offsets: list[int] = []
    rows: list[Row] = []
    records = MemoryRecords(data)
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        for each in batch:
            offsets.append(each.offset)
            rows.append((each.key, each.value, list(each.headers), each.timestamp))
    return offsets, rows


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("count", [1, 2, 7, 300])
def test_batches_of_kafka_python_are_decoded(compression, count):
    rng = random.Random(count)
    rows = random_rows(rng, count)
    assert decoded(compressed(by_kafka(rows), compression)) == rows


@pytest.mark.parametrize("seed", range(200))
def test_random_batches_are_decoded_and_encoded(seed):
    rng = random.Random(seed)
    rows = random_rows(rng, rng.randrange(1, 40), rng.choice([5, 200, 20_000]))
    assert decoded(by_kafka(rows)) == rows
    steps = np.array([rng.choice([1, 1, 1, 50, 70_000]) for _ in rows])
    offsets = rng.randrange(1 << 40) + np.cumsum(steps)
    data = encode_batch(as_batch(rows), offsets)
    assert read_by_kafka(data) == (offsets.tolist(), rows)


def test_equal_records_are_decoded_without_a_look_at_each():
    rows: list[Row] = [(b"key", b"v" * 100, [], 5)] * 50
    assert decoded(by_kafka(rows)) == rows


def test_a_slice_of_a_batch_is_encoded():
    rows = random_rows(random.Random(1), 30)
    part = as_batch(rows).slice(10, 15)
    assert read_by_kafka(encode_batch(part, np.arange(15)))[1] == rows[10:25]


def test_several_batches_follow_each_other():
    first, second = random_rows(random.Random(1), 3), random_rows(random.Random(2), 4)
    assert decoded(by_kafka(first) + by_kafka(second)) == first + second


def test_blocks_of_the_java_client_are_decompressed():
    rows = random_rows(random.Random(3), 50)
    data = by_kafka(rows)
    body = data[61:]
    codec = pa.Codec("snappy")
    blocks = b"".join(
        struct.pack(">i", len(block)) + block
        for block in (
            codec.compress(body[:100], asbytes=True),
            codec.compress(body[100:], asbytes=True),
        )
    )
    framed = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + blocks
    assert decoded(rebuilt(data, framed, attributes=int(Compression.SNAPPY))) == rows


ROWS: list[Row] = [(b"k", b"v", [("h", b"x")], 1_000), (None, b"", [], 2_000)]
DATA = by_kafka(ROWS)
MANY_HEADERS: list[tuple[str, bytes | None]] = [("h", b"")] * 1_001


@pytest.mark.parametrize(
    ("data", "refusal", "text"),
    [
        (DATA[:-1], refusals.CorruptBatch, "are left"),
        (DATA + b"\0" * 60, refusals.CorruptBatch, "header needs 61"),
        (DATA[:-1] + b"!", refusals.CorruptBatch, "checksum"),
        (DATA[:16] + b"\1" + DATA[17:], refusals.UnsupportedBatch, "message format 1"),
        (rebuilt(DATA, DATA[61:], count=0), refusals.CorruptBatch, "0 records"),
        (rebuilt(DATA, DATA[61:], count=3), refusals.CorruptBatch, "after its batch"),
        (rebuilt(DATA, DATA[61:], count=1), refusals.CorruptBatch, "1 records have"),
        (rebuilt(DATA, DATA[61:], count=1 << 30), refusals.CorruptBatch, "records in"),
        (rebuilt(DATA, DATA[61:], attributes=5), refusals.UnsupportedCompression, "compression 5"),
        (rebuilt(DATA, DATA[61:], attributes=1), refusals.CorruptBatch, "GZIP"),
        (rebuilt(DATA, DATA[61:], attributes=2), refusals.CorruptBatch, "SNAPPY"),
        (rebuilt(DATA, DATA[61:], attributes=3), refusals.CorruptBatch, "LZ4"),
        (rebuilt(DATA, DATA[61:], attributes=4), refusals.CorruptBatch, "ZSTD"),
        (rebuilt(DATA, DATA[61:], first=(1 << 62)), refusals.InvalidRecords, "time"),
        (
            by_kafka([(b"k", b"v", [("h", b"")] * 1_001, 0)]),
            refusals.InvalidRecords,
            "1001 headers",
        ),
    ],
)
def test_a_wrong_batch_is_refused(data, refusal, text):
    with pytest.raises(refusal, match=text):
        decoded(data)


@pytest.mark.parametrize("compression", list(Compression))
def test_a_small_batch_does_not_fill_the_memory(compression):
    data = compressed(by_kafka([(None, bytes(LIMIT + 1), [], 0)]), compression)
    with pytest.raises(refusals.BatchTooLarge, match=str(LIMIT)):
        decoded(data)


def refused_or(data: bytes) -> list[Batch]:
    try:
        return list(read_batches(pa.py_buffer(data), LIMIT))
    except refusals.Refusal:
        return []


@pytest.mark.parametrize("seed", range(300))
def test_any_bytes_are_decoded_or_refused(seed):
    rng = random.Random(seed)
    data = by_kafka(random_rows(rng, rng.randrange(1, 6)))
    body = bytearray(data[61:])
    for _ in range(rng.randrange(1, 4)):
        body[rng.randrange(len(body))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
    fields: dict[str, Any] = {}
    if rng.random() < 0.3:
        fields["count"] = rng.choice([-1, 1, 2, 1 << 20])
    for batch in refused_or(rebuilt(data, bytes(body), **fields)):
        with suppress(refusals.Refusal):
            decode_records(batch).validate(full=True)


@pytest.mark.parametrize("seed", range(100))
def test_few_records_are_converted_as_many_are(seed, monkeypatch):
    """A loop is faster for few records. It has the same results and refuses the same bytes."""
    rng = random.Random(seed)
    data = bytearray(by_kafka(random_rows(rng, rng.randint(1, 40))))
    whole = bytes(data)
    body = bytearray(whole[61:])
    for _ in range(rng.choice([0, 1, 3])):
        body[rng.randrange(len(body))] = rng.randrange(256)
    changed = rebuilt(whole, bytes(body))

    def result(few: int) -> Any:
        monkeypatch.setattr(decoding, "FEW", few)
        monkeypatch.setattr(encoding, "FEW", few)
        [batch] = read_batches(pa.py_buffer(changed), LIMIT)
        try:
            found = decode_records(batch)
        except refusals.Refusal as error:
            return type(error)
        found.validate(full=True)
        return found, encode_batch(found, np.arange(len(found), dtype=np.int64))

    one_by_one, together = result(100), result(0)
    if isinstance(together, tuple):
        assert one_by_one[0].equals(together[0])
        assert one_by_one[1] == together[1]
    else:
        assert one_by_one is together
