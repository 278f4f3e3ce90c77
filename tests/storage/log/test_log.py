"""A log equals an in-memory table, for any sizes of batches, segments and reads."""

from __future__ import annotations

import random
import threading

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from spark_stream.consistency.ids import Offset
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.settings import Compression
from tests.examples import examples
from tests.storage import logs
from tests.storage.logs import NOW, SCHEMA, append_next, everything, format_of, ids, read

KIB = 1024
COLUMNS = [None, ["id"], ["payload"], ["payload", "id"], []]
LIMITS = st.sampled_from([1, 2, 7, 50, 1000]) | st.just(1 << 40)
BYTE_LIMITS = st.sampled_from([1, 500, 10 * KIB, 300 * KIB]) | st.just(1 << 40)


class LogMachine(RuleBasedStateMachine):
    """Appends, rolls, restarts, reads and retention in any order, against a list of batches."""

    @initialize(
        compression=st.sampled_from(Compression),
        segment_bytes=st.sampled_from([30 * KIB, 1 << 30]),
        segment_entries=st.sampled_from([5, 1 << 18]),
    )
    def open(self, compression, segment_bytes, segment_entries):
        self.folder = logs.folder()
        log_format = format_of(
            compression=compression,
            segment_bytes=segment_bytes,
            segment_entries=segment_entries,
            retention_bytes=20 * KIB,
        )
        self.log = PartitionLog.open(self.folder.__enter__(), log_format)
        self.batches: list[pa.RecordBatch] = []
        self.start = 0

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.__exit__(None, None, None)

    @property
    def end(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def model(self, start: int, end: int, columns: list[str] | None) -> pa.Table:
        whole = pa.Table.from_batches(self.batches, SCHEMA).slice(start, end - start)
        return whole if columns is None else whole.select(columns)

    def append(self, rows: int, size: int) -> None:
        self.batches.append(append_next(self.log, rows, size))

    @rule(times=st.integers(1, 12), rows=st.integers(1, 3), size=st.sampled_from([0, 1, 30]))
    def append_small_batches(self, times, rows, size):
        for _ in range(times):
            self.append(rows, size)

    @rule(rows=st.integers(20, 60))
    def append_a_batch_of_some_kilobytes(self, rows):
        self.append(rows, 300)

    @rule()
    def append_a_batch_that_is_read_alone(self):
        """Above 256 KiB a batch is not joined with its neighbours."""
        self.append(30, 10 * KIB)

    @rule()
    def append_more_than_one_run(self):
        """Batches below 256 KiB that are above 2 MiB together."""
        for _ in range(12):
            self.append(2, 100 * KIB)

    @rule()
    def roll(self):
        self.log.roll()

    @rule()
    def restart(self):
        self.log = logs.reopened(self.log)
        assert self.log.cuts == ()

    @precondition(lambda self: self.end > self.start)
    @rule(data=st.data(), columns=st.sampled_from(COLUMNS), records=LIMITS, size=BYTE_LIMITS)
    def read_a_range_once(self, data, columns, records, size):
        start = data.draw(st.integers(self.start, self.end - 1))
        end = data.draw(st.integers(start + 1, self.end))
        chunks = read(self.log, start, end, columns, records, size)
        rows = sum(chunk.batch.num_rows for chunk in chunks)
        assert 1 <= rows <= min(records, end - start)
        expected = self.model(start, start + rows, columns)
        assert self.same(chunks, expected)

    @precondition(lambda self: self.end > self.start)
    @rule(columns=st.sampled_from(COLUMNS), records=LIMITS, size=BYTE_LIMITS, data=st.data())
    def read_on_from_each_next_offset(self, columns, records, size, data):
        """Consecutive limited reads return the range exactly once."""
        position = data.draw(st.integers(max(self.start, self.end - 60), self.end - 1))
        start, chunks = position, []
        while position < self.end:
            more = read(self.log, position, self.end, columns, records, size)
            assert more, "a read that gives nothing never ends"
            chunks += more
            position = more[-1].next_offset
        assert self.same(chunks, self.model(start, self.end, columns))

    def same(self, chunks, expected: pa.Table) -> bool:
        if expected.num_columns == 0:
            assert all(chunk.batch.num_columns == 0 for chunk in chunks)
            return sum(chunk.batch.num_rows for chunk in chunks) == expected.num_rows
        return logs.table_of(chunks, expected.schema).equals(expected)

    @rule(data=st.data())
    def retain(self, data):
        """Retention removes whole closed segments, never past the LSO, and keeps the limit."""
        stable = data.draw(st.integers(self.start, self.end))
        bases = [segment.first.offset for segment in self.log.segments]
        before = self.log.size
        self.log.housekeep(NOW, Offset(stable))
        self.start = int(self.log.start.offset)
        assert self.start <= stable or self.start == bases[0]
        assert self.start in bases
        assert self.log.size >= min(before, 20 * KIB)

    @invariant()
    def the_log_has_the_models_bounds(self):
        if hasattr(self, "log"):
            assert (self.log.start.offset, self.log.end.offset) == (self.start, self.end)
            assert self.log.end.entry == len(self.batches)


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=examples(25), stateful_step_count=15)


@pytest.mark.quick("None-zstd", "['id']-none", "['payload', 'id']-lz4", "[]-zstd")
@pytest.mark.rule("small adjacent batches are read as one", "storage/log/reading.py")
@pytest.mark.slow
@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("columns", COLUMNS, ids=str)
def test_small_batches_are_read_as_one(tmp_path, compression, columns):
    log = PartitionLog.open(tmp_path, format_of(compression=compression))
    for _ in range(1000):
        append_next(log, rows=1)
    (chunk,) = read(log, 0, columns=columns)
    assert chunk.batch.num_rows == 1000
    assert chunk.batch.schema.names == (SCHEMA.names if columns is None else columns)
    assert chunk.counts.tolist() == [1] * 1000


def test_large_batch_is_a_view_of_the_file(tmp_path):
    log = PartitionLog.open(tmp_path, format_of())
    for _ in range(2):
        append_next(log, rows=1)
        append_next(log, rows=30, size=10 * KIB)
    assert [chunk.batch.num_rows for chunk in read(log, 0)] == [1, 30, 1, 30]


def test_highly_compressed_batches_do_not_fill_the_memory(tmp_path):
    """The size in memory limits a joined batch, not the size on disk."""
    log = PartitionLog.open(tmp_path, format_of(compression=Compression.ZSTD))
    zeros = pa.RecordBatch.from_arrays(
        [pa.array([0] * 4, pa.int64()), pa.array([bytes(1 << 20)] * 4, pa.binary())], schema=SCHEMA
    )
    for _ in range(40):
        logs.append(log, zeros)
    assert log.size < 1 << 20
    largest = 0
    for chunk in log.read(Offset(0), log.end.offset):
        largest = max(largest, chunk.batch.nbytes)
    assert largest <= 24 << 20
    assert sum(chunk.batch.num_rows for chunk in read(log, 0)) == 160


def test_chunk_has_the_entry_of_each_record(tmp_path):
    log = PartitionLog.open(tmp_path, format_of())
    for rows, now in ((3, 100), (1, 200), (4, 300)):
        append_next(log, rows, now=now)
    (chunk,) = read(log, 2, 6)
    assert chunk.timestamps.tolist() == [100, 200, 300]
    assert chunk.counts.tolist() == [1, 1, 2]


def test_at_least_one_record_is_read_beyond_any_limit(tmp_path):
    log = PartitionLog.open(tmp_path, format_of())
    append_next(log, rows=5, size=1000)
    assert ids(read(log, 2, max_records=0, max_bytes=0)) == [2]


def test_read_continues_across_a_roll(tmp_path):
    """A roll closes the active segment's files, but reads that began before it must continue."""
    log = PartitionLog.open(tmp_path, format_of())
    for _ in range(2):
        append_next(log, rows=1)
        append_next(log, rows=30, size=10 * KIB)  # too large to be joined: the read has four parts
    reader = log.read(Offset(0), log.end.offset)
    seen = next(reader).batch.num_rows
    log.roll()
    append_next(log, rows=1)
    assert seen + sum(chunk.batch.num_rows for chunk in reader) == 62


def test_read_continues_after_the_log_was_closed(tmp_path):
    log = PartitionLog.open(tmp_path, format_of())
    for _ in range(2):
        append_next(log, rows=1)
        append_next(log, rows=30, size=10 * KIB)
    reader = log.read(Offset(0), log.end.offset)
    seen = next(reader).batch.num_rows
    log.close()
    assert seen + sum(chunk.batch.num_rows for chunk in reader) == 62


def test_concurrent_readers_survive_rolls(tmp_path):
    """Files close during the reads. No read fails or gets another file's bytes."""
    log = PartitionLog.open(tmp_path, format_of(segment_entries=3))
    append_next(log)
    wrong: list[object] = []
    done = threading.Event()

    def keep_reading(seed: int) -> None:
        numbers = random.Random(seed)
        while not done.is_set():
            end = int(log.end.offset)
            start = max(0, end - numbers.randint(1, 60))
            try:
                found = ids(read(log, start, end))
            except Exception as error:
                wrong.append(error)
                return
            if found != list(range(start, end)):
                wrong.append((start, end, found))

    readers = [threading.Thread(target=keep_reading, args=(seed,)) for seed in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(250):
        append_next(log)
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert len(log.segments) > 80


@pytest.mark.full  # small logs: tests/storage/log/test_recovery_torn_tail.py
def test_log_of_a_hundred_thousand_entries_opens_again(tmp_path):
    log = PartitionLog.open(tmp_path, format_of(segment_entries=40_000))
    one = log.format.prepare(records_of_one(), NOW)
    for _ in range(100_000):
        log.append(one, logs.EPOCH, NOW)
    log = logs.reopened(log)
    assert log.cuts == ()
    assert (log.end.entry, log.end.offset) == (100_000, 100_000)
    assert len(log.segments) == 3
    assert sum(chunk.batch.num_rows for chunk in log.read(Offset(0), log.end.offset)) == 100_000


def records_of_one() -> pa.RecordBatch:
    return logs.records(0, 1, size=8)


def test_empty_log_opens_twice(tmp_path):
    log = logs.reopened(PartitionLog.open(tmp_path / "new", format_of()))
    assert (log.start, log.end) == (log.end, log.start)
    assert everything(log).num_rows == 0
    assert log.cuts == ()


def test_batch_without_records_is_a_programming_error(tmp_path):
    """The next open would cut an entry without a record, and all entries after it."""
    log = PartitionLog.open(tmp_path, format_of())
    with pytest.raises(ValueError, match="at least one record"):
        append_next(log, rows=0)
    append_next(log)
    assert logs.reopened(log).end.offset == 10


def test_roll_of_an_empty_segment_does_nothing(tmp_path):
    log = PartitionLog.open(tmp_path, format_of())
    log.roll()
    append_next(log)
    log.roll()
    log.roll()
    assert [segment.first.offset for segment in log.segments] == [0, 10]
