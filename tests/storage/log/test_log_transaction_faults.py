"""Stamped batches and markers on failing disks, and markers that are damaged later."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolog.errors import DiskFull, StorageFailure
from spark_stream.consistency.entries import ENTRY_SIZE, Kind
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.storage.disk.disk import HOST_DISK, Disk
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.settings import Flush
from tests.examples import examples
from tests.simulation.disk import SimulatedDisk
from tests.storage import logs
from tests.storage.disks import Died, FailingDisk, MortalDisk, SmallDisk
from tests.storage.logs import EPOCH, NOW, flip, format_of, ids, records, segment_path

Row = tuple[int, int, int, int, int, int]
"""Of an entry: kind, transaction, producer id, sequence, base offset, count."""

HERE = Path("/log")


@dataclass
class Scribe:
    """Writes stamped batches and markers, and records the acknowledged entries."""

    log: PartitionLog
    rows: list[Row] = field(default_factory=list)
    sequences: dict[int, int] = field(default_factory=dict)

    def write(self, transaction: int, rows: int = 1, size: int = 20) -> None:
        producer, end = 100 + transaction, int(self.log.end.offset)
        sequence = self.sequences.get(transaction, 0)
        stamp = Stamp(producer, 1, sequence, transaction)
        batch = self.log.format.prepare(records(end, rows, size), NOW)
        assert self.log.append(batch, EPOCH, NOW, stamp) == end
        self.sequences[transaction] = sequence + 1
        self.rows.append((Kind.DATA, transaction, producer, sequence, end, rows))

    def end(self, transaction: int, kind: Kind) -> None:
        producer, offset = 100 + transaction, int(self.log.end.offset)
        self.log.mark(kind, producer, 1, transaction, EPOCH, NOW)
        self.rows.append((kind, transaction, producer, -1, offset, 0))


def rows_of(log: PartitionLog) -> list[Row]:
    names = ["kind", "transaction", "producer_id", "base_sequence", "base_offset", "count"]
    return [row for table in log.tables() for row in table[names].tolist()]


def seen(log: PartitionLog, *, committed: bool) -> list[int]:
    return ids(list(log.read(log.start.offset, log.end.offset, committed=committed)))


def expected_ids(rows: list[Row], *, committed: bool) -> list[int]:
    """The result of a read of a log with these entries."""
    aborted = {row[1:3] for row in rows if row[0] == Kind.ABORT and committed}
    batches = [row for row in rows if row[0] == Kind.DATA and row[1:3] not in aborted]
    return [offset for *_, base, count in batches for offset in range(base, base + count)]


def holds_exactly(log: PartitionLog, rows: list[Row], disk: Disk = HOST_DISK) -> bool:
    """Whether the log has these entries and their records, now and after the next open."""
    for each in (log, logs.reopened(log, disk)):
        assert rows_of(each) == rows
        assert int(each.end.entry) == int(each.start.entry) + len(rows)
        for committed in (False, True):
            assert seen(each, committed=committed) == expected_ids(rows, committed=committed)
    assert each.cuts == ()
    each.close()
    return True


def transactions_across_segments(scribe: Scribe) -> None:
    """Markers in the segment of their data and in later ones, before and behind rolls."""
    scribe.write(1)
    scribe.write(2, rows=3)
    scribe.end(1, Kind.ABORT)
    scribe.log.roll()
    scribe.write(2)
    scribe.write(3, rows=2)
    scribe.end(2, Kind.ABORT)
    scribe.end(3, Kind.COMMIT)
    scribe.log.roll()
    scribe.write(4)
    scribe.log.roll()
    scribe.end(4, Kind.ABORT)  # the first entry of its segment
    scribe.write(5)


def transactions_in_tiny_segments(scribe: Scribe) -> None:
    """Every append and marker with something before it in the segment rolls."""
    for number in range(4):
        scribe.write(number)
        scribe.write(number)
        scribe.end(number, Kind.ABORT if number % 2 else Kind.COMMIT)


@pytest.mark.quick("across-batch")
@pytest.mark.slow
@pytest.mark.parametrize("flush", [Flush.NONE, Flush.BATCH])
@pytest.mark.parametrize(
    ("work", "settings"),
    [(transactions_across_segments, {}), (transactions_in_tiny_segments, {"segment_entries": 1})],
    ids=["across", "tiny"],
)
def test_transaction_survives_a_crash_at_any_operation(
    work: Callable[[Scribe], None], settings: dict[str, int], flush: Flush
):
    """Acknowledged entries exist, and an unacknowledged entry exists completely or not at all."""
    died, lives = True, 0
    log_format = format_of(flush=flush, **settings)
    with logs.folder() as folder:
        whole = Scribe(PartitionLog.open(folder, log_format))
        work(whole)
    while died:
        with logs.folder() as folder:
            told: list[Row] = []
            died = False
            try:
                work(Scribe(PartitionLog.open(folder, log_format, MortalDisk(lives)), told))
            except Died:
                died = True
            log = PartitionLog.open(folder, log_format)
            assert not any(cut.grave for cut in log.cuts), lives
            found = rows_of(log)
            assert found in (told, whole.rows[: len(told) + 1]), lives
            assert told == whole.rows[: len(told)]
            if log.cuts:
                log = logs.reopened(log)
            again = Scribe(log, found)
            again.write(50, rows=2)
            again.end(50, Kind.ABORT)
            assert holds_exactly(log, again.rows), lives
        lives += 1
    assert lives > 20


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 3)),
        st.tuples(st.sampled_from([Kind.COMMIT, Kind.ABORT]), st.integers(1, 3)),
        st.tuples(st.sampled_from(["roll", "restart"]), st.just(0)),
    ),
    max_size=16,
)


@settings(max_examples=examples(60), deadline=None)
@given(STEPS, st.sampled_from([2, 1 << 18]), st.randoms(use_true_random=False))
def test_flush_batch_loses_no_acknowledged_marker_in_a_power_cut(steps, segment_entries, chance):
    log_format = format_of(flush=Flush.BATCH, segment_entries=segment_entries)
    disk = SimulatedDisk()
    scribe = Scribe(PartitionLog.open(HERE, log_format, disk))
    carried_out(scribe, steps, disk)
    disk.crash(chance)
    log = PartitionLog.open(HERE, log_format, disk)
    assert all(not cut.entries_lost for cut in log.cuts)
    assert rows_of(log) == scribe.rows
    assert seen(log, committed=True) == expected_ids(scribe.rows, committed=True)


@settings(max_examples=examples(60), deadline=None)
@given(STEPS, st.data())
def test_failed_append_or_marker_changes_nothing(steps, data):
    with logs.folder() as folder:
        disk = SmallDisk()
        log_format = format_of(segment_entries=data.draw(st.sampled_from([2, 1 << 18])))
        scribe = Scribe(PartitionLog.open(folder, log_format, disk))
        for step in steps:
            disk.room = data.draw(st.one_of(st.just(1 << 30), st.integers(0, 1500)))
            before = (scribe.log.end, list(scribe.rows))
            try:
                carried_out(scribe, [step], disk)
            except DiskFull:
                assert (scribe.log.end, scribe.rows) == before
                disk.room = 1 << 30
                carried_out(scribe, [step], disk)
            assert rows_of(scribe.log) == scribe.rows
            assert seen(scribe.log, committed=True) == expected_ids(scribe.rows, committed=True)
        disk.room = 1 << 30
        assert holds_exactly(scribe.log, scribe.rows)


def carried_out(scribe: Scribe, steps: list[tuple], disk: Disk) -> None:
    """A step that would add to an ended transaction adds to one with another number."""
    for step, transaction in steps:
        ended = sum(row[0] != Kind.DATA and row[1] % 10 == transaction for row in scribe.rows)
        number = 10 * ended + transaction
        if step == "write":
            scribe.write(number, rows=2)
        elif step == "roll":
            scribe.log.roll()
        elif step == "restart":  # the process died, but not the machine
            scribe.log = PartitionLog.open(scribe.log.directory, scribe.log.format, disk)
        elif any(row[1] == number for row in scribe.rows):
            scribe.end(number, step)


@pytest.mark.parametrize("kind", [Kind.COMMIT, Kind.ABORT])
def test_marker_refused_by_the_disk_is_written_by_the_next_call(tmp_path, kind):
    disk = FailingDisk()
    scribe = Scribe(PartitionLog.open(tmp_path, format_of(flush=Flush.BATCH), disk))
    scribe.write(1, rows=3)
    disk.refused = "write"
    for _ in range(2):
        with pytest.raises(StorageFailure):
            scribe.end(1, kind)
        assert rows_of(scribe.log) == scribe.rows
        assert seen(scribe.log, committed=True) == [0, 1, 2]
    disk.refused = None
    scribe.write(2)
    scribe.end(1, kind)
    assert holds_exactly(scribe.log, scribe.rows)


def test_log_fails_if_a_marker_cannot_be_forced(tmp_path):
    """With flush=batch the marker includes its fsync: readers see the abort only after it."""
    disk = FailingDisk()
    scribe = Scribe(PartitionLog.open(tmp_path, format_of(flush=Flush.BATCH), disk))
    scribe.write(1, rows=3)
    disk.refused = "flush"
    for _ in range(2):
        with pytest.raises(StorageFailure):
            scribe.end(1, Kind.ABORT)
        disk.refused = None
    assert seen(scribe.log, committed=True) == [0, 1, 2]
    log = PartitionLog.open(tmp_path, scribe.log.format)
    again = Scribe(log, scribe.rows)
    again.end(1, Kind.COMMIT)
    assert holds_exactly(log, again.rows)


def test_failed_undo_of_a_marker_is_repeated_before_the_next_one(tmp_path):
    disk = SmallDisk()
    scribe = Scribe(PartitionLog.open(tmp_path, format_of(flush=Flush.BATCH), disk))
    scribe.write(1)
    failing = {"cut"}

    def before(operation: str, path: Path) -> None:
        if operation in failing:
            raise StorageFailure(f"{operation} refused")

    disk.before = before  # type: ignore[method-assign]
    disk.room = 50
    with pytest.raises(DiskFull):
        scribe.end(1, Kind.ABORT)
    disk.room = 1 << 30
    failing.clear()
    scribe.end(1, Kind.COMMIT)
    assert seen(scribe.log, committed=True) == [0]
    assert holds_exactly(scribe.log, scribe.rows)


def two_segments(folder: Path) -> Scribe:
    """An older segment that ends with two markers, and one with a batch and a marker."""
    scribe = Scribe(PartitionLog.open(folder, format_of()))
    scribe.write(1, rows=3)
    scribe.write(2, rows=2)
    scribe.end(1, Kind.COMMIT)
    scribe.end(2, Kind.ABORT)
    scribe.log.roll()
    scribe.write(3, rows=4)
    scribe.end(3, Kind.COMMIT)
    scribe.log.close()
    return scribe


@pytest.mark.parametrize("damage", ["flip", "shorten", "tear"])
@pytest.mark.parametrize("emptied", [False, True], ids=["", "the last segment is empty"])
def test_marker_missing_at_the_end_of_an_older_segment_ends_the_log(tmp_path, damage, emptied):
    """A marker has no offset, so only the entries' indexes show the gap."""
    scribe = two_segments(tmp_path)
    path = segment_path(scribe.log, 0, "entries")
    if emptied:
        segment_path(scribe.log, 5, "entries").write_bytes(b"")
    if damage == "flip":
        flip(path, 3 * ENTRY_SIZE + 4, 1)
    else:
        os.truncate(path, 3 * ENTRY_SIZE + (40 if damage == "tear" else 0))
    log = PartitionLog.open(tmp_path, scribe.log.format)
    (cut,) = log.cuts
    assert (cut.records_lost, cut.entries_lost, cut.end) == (4, 3, 5)
    assert rows_of(log) == scribe.rows[:3]
    assert (tmp_path / "cut" / "1" / f"{5:020d}.arrow").exists()
    again = Scribe(log, scribe.rows[:3], sequences={2: 1})
    again.end(2, Kind.ABORT)  # of the transaction, which is again without a marker
    again.write(4)
    assert holds_exactly(log, again.rows)


@pytest.mark.parametrize("seed", range(20))
def test_power_cut_removes_no_marker_from_a_closed_segment(seed):
    """A roll forces them, so they cannot be missing if the next segment exists."""
    disk = SimulatedDisk()
    scribe = Scribe(PartitionLog.open(HERE, format_of(flush=Flush.NONE), disk))
    scribe.write(1, rows=3)
    scribe.log.flush()
    scribe.end(1, Kind.ABORT)
    scribe.log.roll()
    scribe.write(2, rows=2)
    scribe.log.flush()
    disk.crash(random.Random(seed))
    log = PartitionLog.open(HERE, scribe.log.format, disk)
    assert holds_exactly(log, scribe.rows, disk)
