"""The first offset at or after a moment, by the records' own timestamps or by their append."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolog.errors import DamagedSegment
from spark_stream.consistency.entries import ENTRY, Kind
from spark_stream.consistency.ids import Offset
from spark_stream.schema.schemas import DEFAULT_SCHEMA
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.settings import Compression, LogSettings
from tests.examples import examples
from tests.storage import logs
from tests.storage.logs import append, append_next, format_of

BEFORE_1970 = -86_400_000_000
MOMENTS = st.integers(-5, 5).map(lambda days: days * 86_400_000_000) | st.integers(-3, 3)


def default_log(path, compression: Compression = Compression.NONE) -> PartitionLog:
    log_format = LogFormat(DEFAULT_SCHEMA, LogSettings(compression=compression), "timestamp")
    return PartitionLog.open(path, log_format)


def stamped(moments: list[int]) -> pa.RecordBatch:
    columns = [
        pa.nulls(len(moments), field.type) if field.nullable else pa.array(moments, field.type)
        for field in DEFAULT_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=DEFAULT_SCHEMA)


def first_at(moments: list[int], wanted: int) -> int | None:
    return next((offset for offset, at in enumerate(moments) if at >= wanted), None)


@settings(max_examples=examples(60))
@given(
    batches=st.lists(st.lists(MOMENTS, min_size=1, max_size=4), max_size=8),
    rolls=st.sets(st.integers(0, 7)),
    wanted=MOMENTS,
    start=st.integers(0, 20),
    compression=st.sampled_from(Compression),
    restart=st.booleans(),
)
def test_offset_at_a_time_is_the_first_offset_that_reaches_it(
    batches, rolls, wanted, start, compression, restart
):
    """Timestamps come from producers: they are unordered, and may lie before 1970."""
    with logs.folder() as folder:
        log = default_log(folder, compression)
        for number, moments in enumerate(batches):
            append(log, stamped(moments))
            if number in rolls:
                log.roll()
        if restart:
            log = logs.reopened(log)
        moments = [each for batch in batches for each in batch]
        assert log.offset_at(wanted) == first_at(moments, wanted)
        later = first_at(moments[start:], wanted)
        found = log.offset_at(wanted, Offset(start))
        assert found == (None if later is None else start + later)


def test_record_before_1970_is_found_by_its_time(tmp_path):
    log = default_log(tmp_path)
    append(log, stamped([2 * BEFORE_1970, BEFORE_1970, BEFORE_1970 + 1, 0]))
    assert log.offset_at(BEFORE_1970) == 1
    assert log.offset_at(BEFORE_1970 + 1) == 2
    assert log.offset_at(-1) == 3
    assert log.offset_at(1) is None


def test_time_of_a_typed_record_is_that_of_its_append(tmp_path):
    log = PartitionLog.open(tmp_path, format_of())
    for now in (1000, 3000, 2000):  # the clock was set back
        append_next(log, rows=10, now=now)
    assert [log.offset_at(moment) for moment in (0, 1000, 1001, 2000, 3000, 3001)] == [
        0,
        0,
        10,
        10,
        10,
        None,
    ]


@pytest.mark.parametrize("rows", [10, 100])
def test_entry_has_the_greatest_timestamp_of_its_records(tmp_path, rows):
    log = default_log(tmp_path)
    moments = [1] * rows
    moments[rows // 2] = 9
    append(log, stamped([20, *moments, 30]).slice(1, rows))  # of a slice, only its rows count
    append(log, stamped([15]))
    found = [log.offset_at(moment) for moment in (1, 2, 9, 10, 15, 16)]
    assert found == [0, rows // 2, rows // 2, rows, rows, None]


def test_lookup_by_time_ignores_markers(tmp_path):
    log = PartitionLog.open(tmp_path, format_of())
    append_next(log, rows=10, now=1000)
    log.mark(Kind.COMMIT, 1, 1, 1, logs.EPOCH, 3000)
    assert log.offset_at(2000) is None
    append_next(log, rows=10, now=2000)
    assert log.offset_at(1500) == 10


def test_empty_log_has_no_offset_at_any_time(tmp_path):
    assert PartitionLog.open(tmp_path, format_of()).offset_at(-(2**63)) is None


def test_time_within_a_damaged_batch_is_an_error(tmp_path):
    log = default_log(tmp_path)
    for day in range(3):
        append(log, stamped([day, day]))
        log.roll()
    position = int(log.segments[1].table[0]["position"])
    log.close()
    logs.flip(logs.segment_path(log, 2, "arrow"), position + 300, 0)
    log = PartitionLog.open(tmp_path, log.format)
    assert (log.offset_at(0), log.offset_at(2)) == (0, 4)
    with pytest.raises(DamagedSegment):
        log.offset_at(1)


@pytest.mark.parametrize("moment", [0, 1, 2])
def test_lookup_by_time_fails_at_a_damaged_entry(tmp_path, moment):
    """The damaged entry may have the first matching record, in this segment or a later one."""
    log = default_log(tmp_path)
    for day in range(2):
        append(log, stamped([day, day]))
        log.roll()
    assert [log.offset_at(each) for each in (0, 1, 2)] == [0, 2, None]
    logs.flip(logs.segment_path(log, 0, "entries"), int(ENTRY.fields["timestamp"][1]), 6)
    with pytest.raises(DamagedSegment):
        log.offset_at(moment)
