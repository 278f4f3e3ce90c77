"""A filtered read returns the same rows as a read with a filter after it, and reads less."""

from __future__ import annotations

import struct
from contextlib import contextmanager
from unittest import mock

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_stream.consistency.entries import Kind
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.partition.producers import NOBODY, Stamp
from spark_stream.sql.filters import row_filter
from spark_stream.storage.format import log_format
from spark_stream.storage.format.log_format import UNLIMITED, LogFormat
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.segment import min_max_files as extreme_files
from spark_stream.storage.segment.min_max_files import HEADER_BYTES
from spark_stream.storage.segment.segment import Segment
from spark_stream.storage.settings import Compression, LogSettings
from tests.examples import examples
from tests.sql.predicates import VALUES, predicates, rows_of, schema_of
from tests.storage import logs
from tests.storage.disks import SmallDisk
from tests.storage.logs import EPOCH, FACTS, NOW, flip, reopened, segment_path

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("s", pa.string())])
ROWS = 1000


@contextmanager
def every_batch_has_extremes():
    """Batches of any size get a row of statistics."""
    with (
        mock.patch.object(extreme_files, "RECORDS_MIN", 1),
        mock.patch.object(log_format, "RECORDS_MIN", 1),
        mock.patch.object(log_format, "_ROW_PART_MIN", 0),
    ):
        yield


def opened(path, schema=SCHEMA, **given_settings) -> PartitionLog:
    chosen = LogSettings(**given_settings)
    return PartitionLog.open(path / "log", LogFormat(schema, chosen, facts=FACTS))


def numbered(first: int, rows: int = ROWS) -> pa.RecordBatch:
    """Records whose column n is their offset."""
    numbers = np.arange(first, first + rows)
    texts = [f"name {number:09d}" for number in numbers]
    return pa.RecordBatch.from_arrays([pa.array(numbers), pa.array(texts)], schema=SCHEMA)


def append_batches(log: PartitionLog, batches: int) -> None:
    for _ in range(batches):
        logs.append(log, numbered(int(log.end.offset)))


def found(log: PartitionLog, text: str, schema=SCHEMA, columns=None, **limits):
    """All chunks of a filtered read, through consecutive limits."""
    rows = row_filter(text, "t", schema)
    position, chunks = log.start.offset, []
    while position < log.end.offset:
        before = position
        for chunk in log.read(position, log.end.offset, columns, rows=rows, **limits):
            assert chunk.next_offset > position
            assert len(chunk.offsets()) == chunk.batch.num_rows == int(chunk.counts.sum())
            position = chunk.next_offset
            chunks.append(chunk)
        assert position > before, "a read that finds nothing still gets on"
    return chunks


def numbers(chunks) -> list[int]:
    return [number for chunk in chunks for number in chunk.batch.column("n").to_pylist()]


class Reads:
    """Counts the batches that are read."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int]] = []

    @property
    def batches(self) -> int:
        return len(self.places)

    @contextmanager
    def counted(self):
        self.places.clear()
        real = Segment.decode

        def decode(segment, places, *wanted):
            self.places += [(segment.name.base_offset, int(place)) for place in places]
            return real(segment, places, *wanted)

        with mock.patch.object(Segment, "decode", decode):
            yield self


@pytest.mark.rule(
    "the result of a filtered read, and its next position",
    "storage/segment/filtering.py",
    "storage/log/reading.py",
)
@pytest.mark.slow
@given(st.data())
@settings(max_examples=examples(150), deadline=None)
def test_filtered_read_equals_a_read_with_a_filter_after_it(data):
    names = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3, unique=True))
    schema = schema_of(tuple(names))
    batches = data.draw(st.lists(rows_of(names, 5), min_size=1, max_size=6))
    fates = data.draw(
        st.lists(
            st.sampled_from(["plain", "committed", "aborted"]),
            min_size=len(batches),
            max_size=len(batches),
        )
    )
    compression = data.draw(st.sampled_from([Compression.NONE, Compression.LZ4]))
    committed = data.draw(st.booleans())
    with logs.folder() as path, every_batch_has_extremes():
        log = opened(path, schema, compression=compression, segment_entries=4)
        expected, offset = [], 0
        for number, (rows, fate) in enumerate(zip(batches, fates, strict=True)):
            batch = pa.RecordBatch.from_pylist(rows, schema)
            stamp = NOBODY if fate == "plain" else Stamp(100 + number, 1, 0, number)
            log.append(log.format.prepare(batch, NOW), EPOCH, NOW, stamp)
            if fate != "plain":
                kind = Kind.COMMIT if fate == "committed" else Kind.ABORT
                log.mark(kind, 100 + number, 1, number, EPOCH, NOW)
            if fate != "aborted" or not committed:
                expected += list(enumerate(rows, offset))
            offset += len(rows)
        if data.draw(st.booleans()):
            log = reopened(log)
        for _ in range(3):  # a read uses the statistics of the one before it
            said = data.draw(predicates(names))
            limits = {
                "max_records": data.draw(st.sampled_from([1, 3, UNLIMITED])),
                "max_bytes": data.draw(st.sampled_from([1, 700, UNLIMITED])),
            }
            columns = data.draw(st.sampled_from([None, names[:1]]))
            chunks = found(log, said.sql, schema, columns, committed=committed, **limits)
            shown = names if columns is None else columns
            given_rows = [
                (at, row)
                for chunk in chunks
                for at, row in zip(chunk.offsets().tolist(), chunk.batch.to_pylist(), strict=True)
            ]
            wanted = [
                (at, {name: row[name] for name in shown})
                for at, row in expected
                if said.of(row) is True
            ]
            assert repr(given_rows) == repr(_as_stored(wanted, schema))
        log.close()


def _as_stored(wanted, schema):
    """The rows as Arrow returns them: -0.0 stays, decimals get their scale."""
    return [
        (
            at,
            pa.RecordBatch.from_pylist(
                [row], pa.schema([schema.field(n) for n in row])
            ).to_pylist()[0],
        )
        for at, row in wanted
    ]


def test_batches_that_cannot_match_are_not_read(tmp_path):
    log, reads = opened(tmp_path), Reads()
    append_batches(log, 20)
    with reads.counted():
        assert numbers(found(log, "n between 5100 and 5101")) == [5100, 5101]
        assert reads.places == [(0, 5)]
    with reads.counted():
        assert found(log, "n < 0")[-1].next_offset == 20 * ROWS
        assert reads.batches == 0
    with reads.counted():
        assert numbers(found(log, "_offset >= 19999 or n = 3")) == [3, 19_999]
        assert reads.batches == 2
    log.close()


def test_first_filtered_read_computes_statistics_of_texts(tmp_path):
    log, reads = opened(tmp_path), Reads()
    append_batches(log, 10)
    for batches in (10, 1):
        with reads.counted():
            assert numbers(found(log, "s = 'name 000004321'")) == [4321]
            assert reads.batches == batches
    log.close()


def test_follower_computes_statistics_and_keeps_them_over_a_restart(tmp_path):
    """Entries of another replica arrive without statistics."""
    leader = opened(tmp_path)
    append_batches(leader, 10)
    stored = leader.read_entries(leader.start.entry, 1 << 30)
    follower, reads = opened(tmp_path / "follower"), Reads()
    follower.append_entries(stored.rows, stored.data)
    leader.close()
    follower.roll()
    for batches in (10, 1):
        with reads.counted():
            assert numbers(found(follower, "n = 4321")) == [4321]
            assert reads.batches == batches
    follower = reopened(follower)
    with reads.counted():
        assert numbers(found(follower, "n = 4321")) == [4321]
        assert reads.batches == 1
    follower.close()


def test_small_batches_share_a_row_of_statistics(tmp_path):
    log, reads = opened(tmp_path), Reads()
    for number in range(3000):
        logs.append(log, numbered(number, 1))
    assert not log.segments[0].name.extremes.exists()
    for least, most in ((3000, 3000), (100, 1100)):
        with reads.counted():
            assert numbers(found(log, "n = 77")) == [77]
            assert least <= reads.batches <= most
    log.close()


def test_statistics_of_aborted_records_hide_no_record(tmp_path):
    log = opened(tmp_path)
    append_batches(log, 1)
    log.append(log.format.prepare(numbered(ROWS), NOW), EPOCH, NOW, Stamp(7, 1, 0, 1))
    append_batches(log, 1)
    log.mark(Kind.ABORT, 7, 1, 1, EPOCH, NOW)
    for _ in range(2):
        assert numbers(found(log, "s = 'name 000001500'", committed=True)) == []
        assert numbers(found(log, "s = 'name 000001500'")) == [1500]
    log.close()


@pytest.mark.rule("the min/max statistics that a filter trusts", "storage/segment/min_max_files.py")
@pytest.mark.parametrize("damage", ["missing", "shorter", "torn", "flipped", "of another segment"])
def test_invalid_file_of_statistics_is_ignored(tmp_path, damage):
    log, reads = opened(tmp_path), Reads()
    append_batches(log, 10)
    log.roll()
    path = segment_path(log, 0, "extremes")
    row = log.format.codec.layout.row.itemsize
    assert path.stat().st_size == HEADER_BYTES + 10 * row
    log.close()
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "shorter":
        path.write_bytes(whole[: HEADER_BYTES + 4 * row])
    elif damage == "torn":
        path.write_bytes(whole[:-3])
    elif damage == "flipped":
        flip(path, HEADER_BYTES + 4 * row + 40, 3)
    else:
        other = opened(tmp_path / "other")
        for first in range(50_000, 60_000, ROWS):
            logs.append(other, numbered(first))
        other.roll()
        path.write_bytes(segment_path(other, 0, "extremes").read_bytes())
        other.close()
    log = opened(tmp_path)
    expected = {"missing": 10, "shorter": 6, "torn": 2, "flipped": 1, "of another segment": 10}
    with reads.counted():
        assert numbers(found(log, "n in (4321, 54321)")) == [4321]
        assert reads.batches == expected[damage]
    log = reopened(log)
    with reads.counted():
        assert numbers(found(log, "n in (4321, 54321)")) == [4321]
        assert reads.batches == 1, "what was read is known now"
    log.close()


def test_records_that_replaced_others_are_found(tmp_path):
    """After a truncation, the file still has statistics of removed batches."""
    log = opened(tmp_path)
    append_batches(log, 10)
    log.truncate(log.segments[0].boundary_of(4).entry)
    for first in range(90_000, 96_000, ROWS):
        logs.append(log, numbered(first))
    log = reopened(log)
    assert numbers(found(log, "n = 4321")) == []
    assert numbers(found(log, "n >= 90000")) == list(range(90_000, 96_000))
    assert numbers(found(log, "n < 4000")) == list(range(4000))
    log.close()


def test_file_of_statistics_is_removed_with_its_segment(tmp_path):
    log = opened(tmp_path, segment_entries=2, retention_bytes=1)
    append_batches(log, 5)
    log.housekeep(NOW, Offset(log.end.offset))
    kept = {path.name.partition(".")[0] for path in log.directory.glob("*.arrow")}
    assert {path.name.partition(".")[0] for path in log.directory.glob("*.extremes")} == kept
    assert len(kept) == 1
    stray = segment_path(log, 7, "extremes")
    stray.write_bytes(b"left by a crash")
    log = reopened(log)
    assert not stray.exists()
    log.reset(log.boundary_of(log.end.entry))
    assert list(log.directory.glob("*.extremes")) == []
    log.close()


class NoRoomForExtremes(SmallDisk):
    """A disk that is full in the middle of each row of statistics."""

    def before_write(self, path, length):
        return length // 2 if path.suffix == ".extremes" else length


def test_failed_write_of_statistics_does_not_fail_an_append(tmp_path):
    """A failed write of derived data must not fail the append."""
    log = PartitionLog.open(tmp_path / "log", LogFormat(SCHEMA, facts=FACTS), NoRoomForExtremes())
    append_batches(log, 4)
    for _ in range(2):
        assert numbers(found(log, "n = 1234 or s = 'name 000002000'")) == [1234, 2000]
    log = reopened(log)  # on a disk with space, after the torn row
    append_batches(log, 1)
    assert numbers(found(log, "n in (1234, 4321)")) == [1234, 4321]
    log.close()


def test_limit_of_records_counts_matches(tmp_path):
    log = opened(tmp_path)
    append_batches(log, 3)
    rows = row_filter("n >= 990 and n < 2500", "t", SCHEMA)
    first, *_ = chunks = list(log.read(Offset(0), log.end.offset, max_records=15, rows=rows))
    assert numbers(chunks) == list(range(990, 1005))
    assert first.base_offset == 990
    assert chunks[-1].next_offset == 1005
    log.close()


def test_limit_of_bytes_counts_bytes_read(tmp_path):
    log = opened(tmp_path)
    append_batches(log, 40)
    rows = row_filter("s like '%nowhere%'", "t", SCHEMA)
    chunks = list(log.read(Offset(0), log.end.offset, max_bytes=100_000, rows=rows))
    assert not numbers(chunks)
    assert 0 < chunks[-1].next_offset < log.end.offset
    log.close()


def test_file_of_statistics_matches_the_page_about_the_format(tmp_path):
    """By hand, from the page's tables."""
    log = opened(tmp_path)
    logs.append(log, numbered(0))
    assert numbers(found(log, "s = 'name 000000007'")) == [7]
    data = segment_path(log, 0, "extremes").read_bytes()
    names = b"n=int64\ns=string\n"
    header = struct.unpack("<8sqqII", data[:32])
    assert header == (b"isoextr1", 0, 0, google_crc32c.value(names), 32 + 40 * 2)
    data_crc = int(log.segments[0].table[0]["data_crc"])
    rows = [data[at : at + 112] for at in range(32, len(data), 112)]
    facts = [struct.unpack("<qIIII", row[:24]) for row in rows]
    assert facts == [(0, 1, ROWS, data_crc, 0)] * 2  # of the append, and of the read
    columns = [struct.unpack("<" + "QQQQII" * 2, row[24:104]) for row in rows]
    of_n = (1 << 63, 0, 1 << 63, ROWS - 1, 0, 1)
    least, greatest = (
        struct.unpack(">QQ", text.encode()) for text in ("name 000000000\0\0", "name 000000999\0\0")
    )
    of_s = (*least, *greatest, 0, 1)
    nothing = (0,) * 6
    assert columns == [(*of_n, *nothing), (*nothing, *of_s)]
    for row in rows:
        assert struct.unpack("<II", row[104:]) == (0, google_crc32c.value(row[:-4]))
    log.close()
