"""Reads that return stored messages unchanged, instead of records."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from spark_stream.batches import decode_each
from spark_stream.consistency.entries import Kind
from spark_stream.consistency.ids import Offset
from spark_stream.storage.format.stored import Chunk
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.settings import Compression
from tests.storage.log.test_log_transactions import end, write
from tests.storage.logs import SCHEMA, append_next, flip, format_of, ids, segment_path

BOTH = pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])


def whole(log: PartitionLog, **options: object) -> list[Chunk]:
    return list(log.read(Offset(0), log.end.offset, encoded=True, **options))


def ids_in(chunk: Chunk) -> list[int]:
    if not chunk.messages:
        return ids([chunk])
    batches = list(decode_each(chunk.messages, SCHEMA, None))
    assert [batch.num_rows for batch in batches] == chunk.counts.tolist()
    assert not chunk.batch.num_rows
    return [number for batch in batches for number in batch.column("id").to_pylist()]


@pytest.mark.quick("0-zstd", "1-none", "4-zstd", "7-none", "9-zstd")
@pytest.mark.rule(
    "the stored bytes that a fetch sends unchanged",
    "storage/log/reading.py",
    "broker/serving/fetching.py",
)
@BOTH
@pytest.mark.parametrize("seed", range(10))
def test_reads_of_messages_give_all_records(tmp_path, compression, seed):
    chance = random.Random(seed)
    log = PartitionLog.open(tmp_path, format_of(compression=compression, segment_entries=9))
    for _ in range(30):
        append_next(log, chance.choice([1, 1, 3, 50]), chance.choice([0, 20, 20, 30_000]))
    last = int(log.end.offset)
    for _ in range(30):
        start = chance.randrange(last)
        upto = chance.randrange(start, last) + 1
        limits = chance.choice([{}, {"max_records": 7}, {"max_bytes": 40_000}])
        found: list[int] = []
        while start < upto:
            before = start
            for chunk in log.read(Offset(start), Offset(upto), encoded=True, **limits):
                assert chunk.base_offset == start
                rows = ids_in(chunk)
                assert rows == chunk.offsets().tolist() if chunk.batch.num_rows else rows
                assert chunk.rows == len(rows)
                found += rows
                start = int(chunk.next_offset)
            assert start > before
        assert found == list(range(found[0], upto))
    log.close()


def test_read_of_whole_batches_decodes_nothing(tmp_path, monkeypatch):
    log = PartitionLog.open(tmp_path, format_of())
    for number in range(20):
        append_next(log, 10, 20 if number % 3 else 40_000)
    monkeypatch.setattr("spark_stream.storage.segment.segment.Segment.decode", None)
    chunks = whole(log)
    assert [number for chunk in chunks for number in ids_in(chunk)] == list(range(200))
    assert len(chunks) < 20
    stored = segment_path(log, 0, "arrow").read_bytes()
    assert all(b"".join(chunk.messages) in stored for chunk in chunks)


def test_batch_beyond_the_budget_is_left_to_the_next_read(tmp_path):
    log = PartitionLog.open(tmp_path, format_of())
    for _ in range(4):
        append_next(log, 10, 40_000)
    chunks = whole(log, max_bytes=1_000_000)
    assert [len(chunk.messages) for chunk in chunks] == [1, 1]
    assert chunks[-1].next_offset == 20
    cut = whole(log, max_bytes=100_000)  # at least a part of the first one is returned
    assert [chunk.messages for chunk in cut] == [()] * len(cut)
    assert ids(cut) == [0, 1, 2]


def test_read_of_some_columns_is_decoded(tmp_path):
    log = PartitionLog.open(tmp_path, format_of())
    append_next(log)
    (chunk,) = whole(log, columns=["id"])
    assert chunk.messages == ()
    assert chunk.batch.schema == pa.schema([SCHEMA.field("id")])


def test_aborted_messages_are_left_out(tmp_path):
    log = PartitionLog.open(tmp_path, format_of())
    for number in range(50):
        write(log, number)
        end(log, number, Kind.ABORT if number % 2 else Kind.COMMIT)
    (chunk,) = whole(log, committed=True)
    assert ids_in(chunk) == list(range(0, 50, 2))
    assert chunk.next_offset == 50


def test_damaged_message_is_never_returned(tmp_path):
    log = PartitionLog.open(tmp_path, format_of())
    for _ in range(3):
        append_next(log, 10, 20)
    third = int(log.tables()[-1][2]["position"])
    flip(segment_path(log, 0, "arrow"), third + 300, 3)
    (chunk,) = whole(log)
    assert ids_in(chunk) == list(range(20))
    assert chunk.next_offset == 20
