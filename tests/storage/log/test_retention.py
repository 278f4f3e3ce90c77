"""Rolling by age and size, and retention: whole closed segments, never past the LSO."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolog.errors import DiskFull, EntriesGone
from spark_stream.consistency.ids import EntryIndex, Offset
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.log.retention import SegmentFacts, removable
from spark_stream.storage.settings import LogSettings
from tests.simulation.disk import SimulatedDisk
from tests.storage import logs
from tests.storage.disks import Died, dying_in
from tests.storage.logs import NOW, append_next, format_of, ids, read

SECOND = 1_000_000  # microseconds
HERE = Path("/topics/t/0")
FORGETTING = format_of(retention_ms=100)


def bases(log: PartitionLog) -> list[int]:
    return [int(segment.first.offset) for segment in log.segments]


# -- the decision ----------------------------------------------------------------------------------


@pytest.mark.rule("the segments that retention removes", "storage/log/retention.py")
@given(
    closed=st.lists(st.tuples(st.integers(0, 100), st.integers(90, 100) | st.none()), max_size=8),
    active_size=st.integers(0, 100),
    retention_s=st.integers(-1, 10),
    retention_bytes=st.integers(-1, 500),
    limit=st.integers(0, 90),
    trimmed=st.integers(0, 90),
    tiered=st.none() | st.integers(0, 90),
)
def test_oldest_segments_are_removed_one_by_one(
    closed, active_size, retention_s, retention_bytes, limit, trimmed, tiered
):
    """``tiered``: None for ``retention.*``, an offset for ``local.retention.*``."""
    now = 100 * SECOND
    retention_ms = retention_s * 1000 if retention_s >= 0 else -1
    settings = (
        LogSettings(retention_ms=retention_ms, retention_bytes=retention_bytes)
        if tiered is None
        else LogSettings(local_retention_ms=retention_ms, local_retention_bytes=retention_bytes)
    )
    facts = [
        SegmentFacts(size, None if at is None else at * SECOND, 10 * (number + 1))
        for number, (size, at) in enumerate(closed)
    ]
    gone = 0
    while gone < len(facts):
        oldest, rest = facts[gone], facts[gone + 1 :]
        left_without_it = sum(each.size for each in rest) + active_size
        aged = retention_s >= 0 and (
            oldest.last_appended is None or oldest.last_appended < now - retention_s * SECOND
        )
        too_much = retention_bytes >= 0 and left_without_it >= retention_bytes
        hidden = oldest.end_offset <= trimmed
        held = tiered is not None and oldest.end_offset > tiered
        if oldest.end_offset > limit or not (((aged or too_much) and not held) or hidden):
            break
        gone += 1
    assert removable(facts, active_size, settings, now, limit, trimmed, tiered or 0) == gone


# -- the log ---------------------------------------------------------------------------------------


def aged_log(path, **settings) -> PartitionLog:
    """Four segments of ten records, appended a minute apart. The last one is active."""
    log = PartitionLog.open(path, format_of(segment_ms=30_000, **settings))
    for minute in range(4):
        append_next(log, now=NOW + minute * 60 * SECOND)
    assert bases(log) == [0, 10, 20, 30]
    return log


def test_next_append_closes_a_segment_older_than_segment_ms(tmp_path):
    log = PartitionLog.open(tmp_path, format_of(segment_ms=1000))
    append_next(log, now=NOW)
    append_next(log, now=NOW + SECOND)
    assert bases(log) == [0]
    append_next(log, now=NOW + SECOND + 1)
    assert bases(log) == [0, 20]


def test_trim_removes_whole_segments_and_the_active_one(tmp_path):
    log = PartitionLog.open(tmp_path, format_of(segment_ms=30_000, retention_ms=-1))
    for minute in range(3):
        append_next(log, now=NOW + minute * 60 * SECOND)
    now = NOW + 2 * 60 * SECOND
    assert log.housekeep(now, Offset(30), Offset(19)) == 1
    assert bases(log) == [10, 20]  # offset 19 is left
    assert log.housekeep(now, Offset(29), Offset(30)) == 1
    assert bases(log) == [20, 30]  # the LSO is 29
    assert log.housekeep(now, Offset(30), Offset(30)) == 1
    assert bases(log) == [30]
    append_next(log, now=now)
    assert ids(read(log, 30)) == list(range(30, 40))


def test_housekeeping_closes_a_segment_older_than_segment_ms(tmp_path):
    log = PartitionLog.open(tmp_path, format_of(segment_ms=1000))
    append_next(log, now=NOW)
    log.housekeep(NOW + SECOND, Offset(10))
    assert bases(log) == [0]
    log.housekeep(NOW + SECOND + 1, Offset(10))
    assert bases(log) == [0, 10]


def test_roll_by_age_is_due_just_after_segment_ms(tmp_path):
    log = PartitionLog.open(tmp_path, format_of(segment_ms=1000))
    assert log.housekeeping_due() is None
    append_next(log, now=NOW)
    append_next(log, now=NOW + SECOND // 2)
    assert log.housekeeping_due() == NOW + SECOND + 1


def test_clock_set_back_closes_no_segment(tmp_path):
    log = PartitionLog.open(tmp_path, format_of(segment_ms=1000))
    append_next(log, now=NOW)
    append_next(log, now=NOW - 3600 * SECOND)
    assert bases(log) == [0]


@pytest.mark.rule("the limits of a segment", "storage/log/log.py")
def test_segment_is_closed_before_it_exceeds_segment_bytes(tmp_path):
    log = PartitionLog.open(tmp_path, format_of(segment_bytes=10_000))
    for _ in range(20):
        append_next(log, rows=10, size=100)
    for segment in log.segments:
        assert logs.segment_path(log, int(segment.first.offset), "arrow").stat().st_size <= 10_008
    assert len(log.segments) > 2


def test_batch_above_segment_bytes_gets_a_separate_segment(tmp_path):
    log = PartitionLog.open(tmp_path, format_of(segment_bytes=1000))
    for _ in range(3):
        append_next(log, rows=10, size=1000)
    assert bases(log) == [0, 10, 20]


def test_retention_by_age_uses_the_last_append(tmp_path):
    log = aged_log(tmp_path, retention_ms=90_000)
    assert log.housekeep(NOW + 180 * SECOND, log.end.offset) == 2
    assert bases(log) == [20, 30]


def test_retention_by_age_removes_the_active_segment_without_appends(tmp_path):
    log = PartitionLog.open(tmp_path, format_of(retention_ms=1000))
    append_next(log, now=NOW)
    assert log.housekeep(NOW + SECOND, log.end.offset) == 0
    assert log.housekeep(NOW + SECOND + 1, log.end.offset) == 1
    assert (log.start, log.end.offset) == (log.end, 10)
    assert logs.append(log, logs.records(10, 5)) == 10


def test_retention_by_size_keeps_at_least_retention_bytes(tmp_path):
    log = aged_log(tmp_path)
    sizes = [segment.size for segment in log.segments]
    log = PartitionLog.open(tmp_path, format_of(retention_bytes=sum(sizes[2:])))
    assert log.housekeep(NOW, log.end.offset) == 2
    assert bases(log) == [20, 30]
    assert log.size == sum(sizes[2:])


def test_no_retention_removes_nothing(tmp_path):
    log = aged_log(tmp_path)
    assert log.housekeep(NOW + 10**15, log.end.offset) == 0


@pytest.mark.parametrize(("stable", "start"), [(0, 0), (9, 0), (10, 10), (25, 20), (40, 40)])
def test_retention_never_passes_the_lso(tmp_path, stable, start):
    log = aged_log(tmp_path, retention_ms=100)
    log.housekeep(NOW + 3600 * SECOND, Offset(stable))
    assert log.start.offset == start
    assert ids(read(log, start)) == list(range(start, 40))


def test_removed_segments_do_not_reappear(tmp_path):
    log = aged_log(tmp_path, retention_ms=90_000)
    log.housekeep(NOW + 180 * SECOND, log.end.offset)
    left = sorted({path.name[:20] for path in tmp_path.glob("*.*")})
    assert left == [f"{base:020d}" for base in (20, 30)]
    start, end = log.start, log.end
    log = logs.reopened(log)
    assert (log.start, log.end, log.cuts) == (start, end, ())


def test_entry_indexes_continue_after_all_segments_were_removed(tmp_path):
    log = aged_log(tmp_path, retention_ms=100)
    log.housekeep(NOW + 3600 * SECOND, log.end.offset)
    log = logs.reopened(log)
    assert (log.start.entry, log.end.entry, log.end.offset) == (4, 4, 40)


@pytest.mark.parametrize("left", ["nothing", "entries", "entries and empty file"])
def test_positions_survive_full_retention_after_an_interrupted_roll(tmp_path, left):
    """A process died while it made the next segment. Retention keeps that segment."""
    log = PartitionLog.open(tmp_path, format_of(retention_ms=1000))
    append_next(log)
    log.roll()
    log.close()
    (tmp_path / "00000000000000000010.arrow").write_bytes(b"")
    for kind in {"nothing": ("arrow", "entries"), "entries": ("arrow",)}.get(left, ()):
        (tmp_path / f"00000000000000000010.{kind}").unlink()
    log = PartitionLog.open(tmp_path, format_of(retention_ms=1000, segment_ms=1000))
    log.housekeep(NOW + 60 * SECOND, Offset(10))
    assert (log.start, log.start) == (log.end, Boundary(EntryIndex(1), Offset(10)))
    log.close()
    log = PartitionLog.open(tmp_path, format_of())
    assert (log.start, log.end, log.intact) == (log.end, Boundary(EntryIndex(1), Offset(10)), True)
    append_next(log)
    assert ids(read(log, 10)) == list(range(10, 20))


def test_reader_keeps_its_mapping_of_a_removed_segment(tmp_path):
    log = PartitionLog.open(tmp_path, format_of(retention_ms=100))
    for _ in range(3):
        append_next(log, rows=30, size=10_000)  # large enough to be read one by one
    log.roll()
    reader = log.read(Offset(0), log.end.offset)
    first = next(reader)
    assert log.housekeep(NOW + 3600 * SECOND, log.end.offset) == 1
    assert first.batch.num_rows + sum(chunk.batch.num_rows for chunk in reader) == 90


@pytest.mark.parametrize("locating", [False, True])
@pytest.mark.parametrize("gone", [1, 3])
def test_read_from_a_removed_offset_raises_entries_gone(tmp_path, locating, gone):
    """The read is requested before the removal of its first record, and begins after it."""
    log = aged_log(tmp_path, retention_ms=100)
    reader = log.read(Offset(3), log.end.offset, locating=locating)
    assert log.housekeep(NOW + 3600 * SECOND, Offset(10 * gone)) == gone
    with pytest.raises(EntriesGone, match=f"its first offset is {10 * gone}"):
        next(reader)


def died_in_a_roll(disk: SimulatedDisk, changes: int) -> bool:
    """A log of two segments whose process dies after this many changes of the second roll."""
    log = PartitionLog.open(HERE, FORGETTING, disk)
    append_next(log)
    log.roll()
    append_next(log)
    disk.before_change = dying_in(changes)
    try:
        log.roll()
    except Died:
        return True
    finally:
        disk.before_change = lambda: None
        disk.kill()
    return False


@pytest.mark.rule("files that are kept as the only record of a log's start", "storage/log/log.py")
@pytest.mark.parametrize("seed", range(20))
def test_start_survives_retention_of_all_segments_before_a_roll(seed):
    """Only its schema message has the index of an empty segment's first entry."""
    for changes in itertools.count():
        disk = SimulatedDisk()
        died = died_in_a_roll(disk, changes)
        chance = random.Random(seed)
        if seed % 2:
            disk.crash(chance)
        log = PartitionLog.open(HERE, FORGETTING, disk)
        log.housekeep(NOW + 3600 * SECOND, log.end.offset)
        assert log.start == log.end
        end = log.end
        disk.crash(chance)
        log = PartitionLog.open(HERE, FORGETTING, disk)
        assert log.end == end
        append_next(log)
        if not died:
            break
    assert changes > 5


def test_full_disk_keeps_the_only_record_of_the_logs_start():
    disk = SimulatedDisk()
    died_in_a_roll(disk, 7)
    log = PartitionLog.open(HERE, FORGETTING, disk)
    assert bases(log) == [0, 10, 20]
    room, disk.room = disk.room, 0
    with pytest.raises(DiskFull):
        log.housekeep(NOW + 3600 * SECOND, log.end.offset)
    assert bases(log) == [10, 20]
    disk.room = room
    assert log.housekeep(NOW + 3600 * SECOND, log.end.offset) == 1
    assert bases(log) == [20]


def test_full_disk_removes_old_segments_before_a_roll():
    """They may be the reason why it is full."""
    disk = SimulatedDisk()
    log = PartitionLog.open(HERE, FORGETTING, disk)
    append_next(log)
    log.roll()
    append_next(log)
    disk.room = 0
    with pytest.raises(DiskFull):
        log.housekeep(NOW + 3600 * SECOND, log.end.offset)
    assert bases(log) == [10]
