"""Stamps, markers and aborted records in real files: written, read, rolled, retained, recovered."""

from __future__ import annotations

import random
import sys
import threading
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolog.errors import DamagedSegment, DiskFull
from spark_stream.consistency.entries import ENTRY_SIZE, Kind
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.storage.format.log_format import UNLIMITED
from spark_stream.storage.log import reading
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.log.reading import VisibleBatches
from spark_stream.storage.settings import Compression
from tests.examples import examples
from tests.storage import logs
from tests.storage.disks import SmallDisk
from tests.storage.logs import EPOCH, NOW, SCHEMA, flip, format_of, records, reopened, segment_path


def write(log: PartitionLog, transaction: int, rows: int = 1, size: int = 20) -> None:
    batch = log.format.prepare(records(int(log.end.offset), rows, size), NOW)
    log.append(batch, EPOCH, NOW, Stamp(100 + transaction, 1, 0, transaction))


def end(log: PartitionLog, transaction: int, kind: Kind) -> None:
    log.mark(kind, 100 + transaction, 1, transaction, EPOCH, NOW)


def visible(log: PartitionLog, start: int = 0, upto: int | None = None, **limits) -> list[int]:
    """Return the ids of a committed read, after a check of each chunk's facts."""
    stop = log.end.offset if upto is None else Offset(upto)
    found: list[int] = []
    position = start
    for chunk in log.read(Offset(start), stop, committed=True, **limits):
        mine = chunk.batch.column("id").to_pylist()
        assert chunk.offsets().tolist() == mine
        assert chunk.spans.shape[1] == 2
        assert chunk.spans.dtype == np.int64
        assert (chunk.spans[1:, 0] > chunk.spans[:-1].sum(axis=1)).all()
        assert int(chunk.counts.sum()) == len(mine) == int(chunk.spans[:, 1].sum())
        assert len(chunk.timestamps) == len(chunk.counts)
        assert position <= chunk.base_offset <= chunk.next_offset <= stop
        chunk.batch.validate(full=True)
        if mine:
            assert chunk.base_offset == mine[0]
            assert mine[-1] < chunk.next_offset
        position = chunk.next_offset
        found += mine
    if "max_records" not in limits and "max_bytes" not in limits:
        assert position == stop
    return found


def tuple_of(log: PartitionLog) -> tuple[int, int]:
    return int(log.end.entry), int(log.end.offset)


@dataclass
class Model:
    """The expected aborted records, beside the log."""

    log: PartitionLog
    of: list[int] = field(default_factory=list)  # the transaction of each record
    aborted: set[int] = field(default_factory=set)

    def expected(self, start: int, upto: int) -> list[int]:
        return [n for n in range(start, upto) if self.of[n] not in self.aborted]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(-1, 6), st.integers(1, 4)),
        st.tuples(st.just("large"), st.integers(-1, 6), st.integers(1, 2)),
        st.tuples(st.sampled_from(["commit", "abort"]), st.integers(0, 6), st.just(0)),
        st.tuples(st.sampled_from(["roll", "restart"]), st.just(0), st.just(0)),
    ),
    max_size=25,
)


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(
    STEPS,
    st.sampled_from(Compression),
    st.sampled_from([5, 1 << 18]),
    st.sampled_from([1, 3, 1 << 16]),
    st.data(),
)
def test_committed_read_leaves_out_aborted_records(
    steps, compression, segment_entries, window, data
):
    with logs.folder() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(reading, "_WINDOW_ENTRIES", window)
        log_format = format_of(compression=compression, segment_entries=segment_entries)
        model = Model(PartitionLog.open(folder, log_format))
        ended = set()
        for step, transaction, rows in steps:
            log = model.log
            if step in ("write", "large"):
                number = -1 if transaction in ended else transaction
                write(log, number, rows, 150_000 if step == "large" else 20)
                model.of += [number] * rows
            elif step in ("commit", "abort") and transaction not in ended:
                ended.add(transaction)
                end(log, transaction, Kind.COMMIT if step == "commit" else Kind.ABORT)
                if step == "abort":
                    model.aborted.add(transaction)
            elif step == "roll":
                log.roll()
            elif step == "restart":
                model.log = reopened(log)
            assert visible(model.log) == model.expected(0, len(model.of))
        model.log = log = reopened(model.log)
        last = len(model.of)
        assert not log.cuts
        for start in range(last):
            assert visible(log, start) == model.expected(start, last)
        upto = data.draw(st.integers(0, last))
        start = data.draw(st.integers(0, upto))
        expected = model.expected(start, upto)
        assert visible(log, start, upto) == expected
        most = data.draw(st.integers(1, 6))
        assert visible(log, start, upto, max_records=most) == expected[:most]
        few = visible(log, start, upto, max_bytes=data.draw(st.sampled_from([1, 500, 200_000])))
        assert few == expected[: len(few)]
        assert few or not expected
        plain = [n for chunk in log.read(Offset(0), log.end.offset) for n in chunk.offsets()]
        assert plain == list(range(last))
        log.close()


def test_stamps_and_markers_are_in_the_table(tmp_path):
    log = PartitionLog.open(tmp_path, format_of())
    log.append(log.format.prepare(records(0, 3), NOW), EPOCH, NOW, Stamp(7, 2, 4, 9))
    log.mark(Kind.COMMIT, 7, 3, 9, EPOCH, NOW + 1)
    log = reopened(log)
    (table,) = log.tables()
    names = ["producer_id", "producer_epoch", "base_sequence", "transaction", "count", "kind"]
    assert table[names].tolist() == [(7, 2, 4, 9, 3, 0), (7, 3, -1, 9, 0, 1)]
    assert table["base_offset"].tolist() == [0, 3]
    assert table["appended"].tolist() == [NOW, NOW + 1]
    assert table["length"][1] == 0
    assert tuple_of(log) == (2, 3)


def test_markers_do_not_split_a_run_of_small_batches(tmp_path):
    log = PartitionLog.open(tmp_path, format_of())
    for number in range(50):
        write(log, number)
        end(log, number, Kind.COMMIT)
    (chunk,) = log.read(Offset(0), Offset(50))
    assert chunk.offsets().tolist() == list(range(50))
    assert chunk.spans.tolist() == [[0, 50]]


def test_small_aborted_batches_do_not_split_a_run(tmp_path):
    log = PartitionLog.open(tmp_path, format_of())
    for number in range(50):
        write(log, number)
        end(log, number, Kind.ABORT if number % 2 else Kind.COMMIT)
    (chunk,) = log.read(Offset(0), Offset(50), committed=True)
    assert chunk.offsets().tolist() == list(range(0, 50, 2))
    assert chunk.next_offset == 50
    (chunk,) = log.read(Offset(0), Offset(50), [], committed=True)
    assert chunk.batch.num_rows == 25


def test_range_without_visible_records_gives_its_end(tmp_path):
    log = PartitionLog.open(tmp_path, format_of())
    for number in range(4):
        write(log, number)
        log.roll()
    for number in range(4):
        end(log, number, Kind.ABORT)
    chunks = list(log.read(Offset(1), Offset(4), ["id"], committed=True))
    assert [chunk.batch.num_rows for chunk in chunks] == [0, 0, 0]
    assert chunks[-1].next_offset == 4
    assert chunks[0].batch.schema == pa.schema([SCHEMA.field("id")])
    assert chunks[0].offsets().tolist() == []


def test_long_segment_is_examined_in_parts(tmp_path, monkeypatch):
    """So a read that ends early has not examined the entries of its whole range."""
    monkeypatch.setattr(reading, "_WINDOW_ENTRIES", 10)
    log = PartitionLog.open(tmp_path, format_of())
    for number in range(50):
        write(log, number)
        end(log, number, Kind.ABORT if number < 20 else Kind.COMMIT)
    (segment,) = log.segments
    position, looked = Offset(7), []
    while position < 50:
        part = VisibleBatches.of(segment, position, Offset(50), committed=True)
        looked.append((int(position), int(part.until), part.bases.tolist()))
        position = part.until
    assert looked[:3] == [(7, 12, []), (12, 17, []), (17, 22, [20, 21])]
    assert all(until - start <= 5 for start, until, _ in looked)
    assert [base for _, _, bases in looked for base in bases] == list(range(20, 50))


def test_aborted_records_stay_aborted_after_retention_and_restart(tmp_path):
    log = PartitionLog.open(tmp_path, format_of(retention_bytes=1))
    write(log, 1)
    log.roll()
    write(log, 1)
    log.roll()
    write(log, 2)
    end(log, 1, Kind.ABORT)
    assert log.housekeep(NOW, Offset(1)) == 1
    assert visible(log, 1) == [2]
    log = reopened(log)
    assert log.start.offset == 1
    assert visible(log, 1) == [2]


@pytest.mark.parametrize("kept", [0, 1, ENTRY_SIZE - 1])
def test_torn_marker_does_not_count(tmp_path, kept):
    log = PartitionLog.open(tmp_path, format_of())
    write(log, 1)
    end(log, 1, Kind.ABORT)
    log.close()
    path = segment_path(log, 0, "entries")
    path.write_bytes(path.read_bytes()[: ENTRY_SIZE + kept])
    log = PartitionLog.open(tmp_path, log.format)
    assert tuple_of(log) == (1, 1)
    assert visible(log) == [0]
    end(log, 1, Kind.ABORT)
    assert visible(log) == []
    assert visible(reopened(log)) == []


def test_marker_on_a_full_disk_changes_nothing(tmp_path):
    disk = SmallDisk()
    log = PartitionLog.open(tmp_path, format_of(), disk)
    write(log, 1)
    disk.room = 40
    with pytest.raises(DiskFull):
        end(log, 1, Kind.ABORT)
    assert tuple_of(log) == (1, 1)
    assert visible(log) == [0]
    disk.room = 1 << 30
    end(log, 1, Kind.ABORT)
    assert tuple_of(log) == (2, 1)
    assert visible(log) == []


def test_damaged_aborted_batch_is_not_an_error(tmp_path):
    log = PartitionLog.open(tmp_path, format_of())
    for number in range(5):
        write(log, number, rows=3)
    end(log, 2, Kind.ABORT)
    log.roll()
    place = int(log.tables()[0]["position"][2])
    log.close()
    flip(segment_path(log, 0, "arrow"), place + 40, 3)
    log = PartitionLog.open(tmp_path, log.format)
    assert visible(log) == [n for n in range(15) if not 6 <= n < 9]
    with pytest.raises(DamagedSegment):
        list(log.read(Offset(6), Offset(15), max_records=UNLIMITED))


def test_aborted_batches_between_visible_ones_are_not_checked(tmp_path):
    """They are neither decoded nor checked, so damage does not split a run."""
    log = PartitionLog.open(tmp_path, format_of())
    for number in range(6):
        write(log, number, rows=2)
        end(log, number, Kind.ABORT if number % 2 else Kind.COMMIT)
    log.roll()
    table = log.tables()[0]
    log.close()
    for number in (1, 3, 5):
        flip(segment_path(log, 0, "arrow"), int(table["position"][2 * number]) + 40, 3)
    log = PartitionLog.open(tmp_path, log.format)
    (chunk,) = log.read(Offset(0), Offset(12), committed=True)
    assert chunk.batch.column("id").to_pylist() == [0, 1, 4, 5, 8, 9]
    assert chunk.next_offset == 12


def test_damaged_visible_batch_ends_a_committed_read(tmp_path):
    log = PartitionLog.open(tmp_path, format_of())
    for number in range(6):
        write(log, number)
        end(log, number, Kind.ABORT if number % 2 else Kind.COMMIT)
    log.roll()
    place = int(log.tables()[0]["position"][4])
    log.close()
    flip(segment_path(log, 0, "arrow"), place + 40, 3)
    log = PartitionLog.open(tmp_path, log.format)
    (chunk,) = log.read(Offset(0), Offset(6), committed=True)
    assert chunk.offsets().tolist() == [0]
    assert chunk.next_offset == 2
    with pytest.raises(DamagedSegment, match="offsets 2 to 2 "):
        list(log.read(Offset(1), Offset(6), committed=True))
    assert visible(log, 3) == [4]


@dataclass
class Story:
    """Random interleaved transactions, and the facts that readers may use.

    The records below ``stable``, the last stable offset, were recorded before it rose.
    """

    log: PartitionLog
    numbers: random.Random
    of: list[int] = field(default_factory=list)
    open: dict[int, int] = field(default_factory=dict)  # transaction -> its first offset
    aborted: set[int] = field(default_factory=set)
    known: int = 0
    stable: int = 0

    def step(self) -> None:
        while len(self.open) < 3:
            self.known += 1
            self.open[self.known] = len(self.of)
            self.write(self.known)
        self.write(self.numbers.choice(list(self.open)))
        if self.numbers.random() < 0.3:
            self.log.roll()
        ended = self.numbers.choice(list(self.open))
        kind = self.numbers.choice([Kind.ABORT, Kind.COMMIT])
        end(self.log, ended, kind)
        if kind is Kind.ABORT:
            self.aborted.add(ended)
        del self.open[ended]
        self.stable = min(self.open.values(), default=len(self.of))

    def write(self, transaction: int) -> None:
        rows = self.numbers.randint(1, 3)
        self.of += [transaction] * rows
        write(self.log, transaction, rows, self.numbers.choice([5, 20, 100_000]))


@pytest.fixture
def busy_threads():
    """Switch threads so often that each is interrupted nearly anywhere."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.quick("100")
@pytest.mark.usefixtures("busy_threads")
@pytest.mark.parametrize("segment_entries", [6, 100])
def test_committed_readers_never_see_aborted_records(tmp_path, segment_entries):
    """After each step of the writer, each reader reads, at most three steps late."""
    log = PartitionLog.open(tmp_path, format_of(segment_entries=segment_entries))
    story = Story(log, random.Random(7))
    steps, readers = 120, 2
    turns = [threading.Semaphore(0) for _ in range(readers)]
    room = [threading.Semaphore(3) for _ in range(readers)]
    wrong: list[object] = []

    def read(reader: int) -> None:
        numbers = random.Random(reader)
        for _ in range(steps):
            turns[reader].acquire()
            try:
                stop = story.stable
                start = max(0, stop - numbers.randint(0, 40))
                expected = [n for n in range(start, stop) if story.of[n] not in story.aborted]
                found = visible(log, start, stop)
                if found != expected:
                    wrong.append((start, stop, found, expected))
            except Exception as error:
                wrong.append(error)
            finally:
                room[reader].release()

    threads = [threading.Thread(target=read, args=(reader,)) for reader in range(readers)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(steps):
            for each in room:
                each.acquire()
            story.step()
            for each in turns:
                each.release()
    finally:
        for each in turns:  # no reader blocks on a failed writer
            each.release(steps)
        for thread in threads:
            thread.join()
    assert wrong == []
    assert story.stable > 200
    assert len(log.segments) > 20
    assert visible(reopened(log), 0, story.stable) == [
        n for n in range(story.stable) if story.of[n] not in story.aborted
    ]


def test_committed_read_continues_during_changes_of_the_log(tmp_path):
    """Between two chunks there are an abort, rolls and appends. The read's result is unchanged."""
    log = PartitionLog.open(tmp_path, format_of())
    for number in range(6):
        write(log, number, rows=2, size=150_000)
        end(log, number, Kind.ABORT if number % 2 else Kind.COMMIT)
    write(log, 9)
    reading = log.read(Offset(0), Offset(12), committed=True)
    found = next(reading).batch.column("id").to_pylist()
    log.roll()
    end(log, 9, Kind.ABORT)
    write(log, 10)
    log.roll()
    for chunk in reading:
        found += chunk.batch.column("id").to_pylist()
    assert found == [0, 1, 4, 5, 8, 9]
