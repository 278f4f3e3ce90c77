"""Reads that return stored messages unchanged, instead of records."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from isolog.errors import DamagedSegment
from spark_stream.batches import decode_each
from spark_stream.consistency.entries import ENTRY_SIZE, Kind
from spark_stream.consistency.ids import Offset
from spark_stream.storage.format.stored import Chunk
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.log.reading import VisibleBatches
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


@pytest.mark.rule(
    "the last message of a segment, which a waiting reader gets by a shortcut",
    "storage/segment/segment.py",
    "storage/log/reading.py",
)
@pytest.mark.parametrize("seed", range(20))
def test_reader_at_the_end_gets_each_message_once(tmp_path, seed):
    chance = random.Random(seed)
    log = PartitionLog.open(tmp_path, format_of(segment_entries=9))
    start, aborted = Offset(0), set()
    for number in range(60):
        rows = chance.choice([1, 1, 1, 3])
        if chance.random() < 0.5:
            append_next(log, rows, 20)
        else:
            write(log, number, rows)
            kind = chance.choice([Kind.ABORT, Kind.COMMIT])
            if kind is Kind.ABORT:
                aborted |= set(range(int(log.end.offset) - rows, int(log.end.offset)))
            end(log, number, kind)
        upto = Offset(int(log.end.offset) - (chance.random() < 0.2))
        limits = chance.choice([{}, {}, {"max_records": 2}, {"max_bytes": 100}])
        for committed in (True, False):
            found, position = [], start
            while position < upto:
                for chunk in log.read(position, upto, encoded=True, committed=committed, **limits):
                    assert chunk.base_offset >= position
                    found += ids_in(chunk)
                    assert chunk.rows == len(chunk.batch) or chunk.messages
                    position = chunk.next_offset
            assert found == [n for n in range(start, upto) if not (committed and n in aborted)]
        start = upto
    log.close()


def test_last_message_needs_no_search(tmp_path, monkeypatch):
    log = PartitionLog.open(tmp_path, format_of())
    for _ in range(3):
        append_next(log, 2, 20)
    monkeypatch.delattr(VisibleBatches, "of")
    (chunk,) = log.read(Offset(4), Offset(6), encoded=True, committed=True)
    assert (ids_in(chunk), chunk.next_offset) == ([4, 5], 6)
    with pytest.raises(AttributeError):
        list(log.read(Offset(5), Offset(6), encoded=True))


@pytest.mark.parametrize("file", ["arrow", "entries"])
def test_damaged_last_message_is_never_returned(tmp_path, file):
    log = PartitionLog.open(tmp_path, format_of(segment_entries=3))
    for _ in range(4):
        append_next(log, 2, 20)
    last = log.tables()[0][2]
    place = int(last["position"]) + 200 if file == "arrow" else -ENTRY_SIZE + 20
    path = segment_path(log, 0, file)
    flip(path, place % path.stat().st_size, 3)
    with pytest.raises(DamagedSegment):
        list(log.read(Offset(4), Offset(6), encoded=True))
