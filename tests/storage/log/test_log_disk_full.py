"""A full disk: appends fail with a typed error, reads continue, appends recover without help."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolog.errors import DiskFull, StorageFailure
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.settings import Flush
from tests.examples import examples
from tests.simulation.disk import SimulatedDisk
from tests.storage import logs
from tests.storage.disks import FailingDisk, SmallDisk
from tests.storage.logs import append_next, everything, format_of, ids, read

KIB = 1024
HERE = Path("/log")


@settings(max_examples=examples(50))
@given(
    room=st.integers(0, 6 * KIB),
    sizes=st.lists(st.integers(1, 40), min_size=5, max_size=25),
    segment_bytes=st.sampled_from([KIB, 1 << 30]),
)
def test_append_on_a_full_disk_changes_nothing_and_works_again_with_space(
    room, sizes, segment_bytes
):
    """Also across rolls, which need space too."""
    with logs.folder() as folder:
        disk = SmallDisk()
        log = PartitionLog.open(folder, format_of(segment_bytes=segment_bytes), disk)
        disk.room = room
        refused = 0
        for rows in sizes:
            end = log.end
            try:
                append_next(log, rows)
            except DiskFull:
                refused += 1
                assert log.end == end
            assert ids(read(log, 0)) == list(range(log.end.offset)), "reads go on"
        disk.room = 1 << 30
        append_next(log, 3)
        end = log.end
        whole = everything(log)
        assert whole.column("id").to_pylist() == list(range(end.offset))
        log = logs.reopened(log)
        assert log.cuts == ()
        assert log.end == end
        assert everything(log).equals(whole)


def test_crash_on_a_full_disk_loses_no_acknowledged_record(tmp_path):
    """The next open ignores the remains of a refused append or roll."""
    disk = SmallDisk()
    log = PartitionLog.open(tmp_path, format_of(segment_bytes=2 * KIB), disk)
    while len(log.segments) == 1:
        append_next(log, 4)
    for room in range(0, 1200, 40):
        disk.room = room
        try:
            append_next(log, 90)  # rolls
        except DiskFull:
            disk.room = 1 << 30
            append_next(log, 1)  # fits into the segment that could not be closed
        again = PartitionLog.open(tmp_path, log.format)  # without a close of the other: it crashed
        assert again.end == log.end, room
        assert [cut.records_lost for cut in again.cuts if cut.records_lost] == []
        assert ids(read(again, 0)) == list(range(again.end.offset))
        log = PartitionLog.open(tmp_path, log.format, disk)


PROCESS = """
import json, resource, sys
from pathlib import Path
from isolog.errors import DiskFull
from spark_stream.storage.log.log import PartitionLog
from tests.storage import logs

soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
log = PartitionLog.open(Path(sys.argv[1]), logs.format_of())
appended, error = 0, None
while error is None:
    try:
        appended += logs.append_next(log, 10, 100).num_rows
    except DiskFull as full:
        error = str(full)
read_while_full = len(logs.ids(logs.read(log, 0)))
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
appended += logs.append_next(log, 10, 100).num_rows
log.close()
print(json.dumps({"appended": appended, "read": read_while_full, "error": error}))
"""


def test_ulimit_of_the_process_counts_as_a_full_disk(tmp_path):
    """`ulimit -f` in a separate process takes the kernel's error path of a full disk."""
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["error"].startswith("[DISK_FULL] no room to write")
    assert 0 < told["read"] == told["appended"] - 10
    log = PartitionLog.open(tmp_path, format_of())
    assert log.cuts == ()
    assert ids(read(log, 0)) == list(range(told["appended"]))


@pytest.mark.rule("a failed append leaves no entry", "storage/segment/segment.py")
@pytest.mark.parametrize("flush", [Flush.NONE, Flush.BATCH])
def test_append_refused_by_the_disk_changes_nothing(tmp_path, flush):
    disk = FailingDisk()
    log = PartitionLog.open(tmp_path, format_of(flush=flush), disk)
    append_next(log)
    end = log.end
    disk.refused = "write"
    for _ in range(2):
        with pytest.raises(StorageFailure):
            append_next(log)
        assert log.end == end
    disk.refused = None
    append_next(log, rows=3)
    log = logs.reopened(log)
    assert log.cuts == ()
    assert ids(read(log, 0)) == list(range(13))


@pytest.mark.parametrize("rolls", [False, True])
def test_failed_undo_is_repeated_before_the_next_append(tmp_path, rolls):
    disk = SmallDisk()
    log = PartitionLog.open(tmp_path, format_of(flush=Flush.BATCH), disk)
    append_next(log, rows=10, size=500)
    disk.room = 3000
    disk.before = lambda operation, path: _refuse(operation, failing)
    failing = {"cut"}
    with pytest.raises(DiskFull):
        append_next(log, rows=10, size=500)
    disk.room = 1 << 30
    if rolls:
        with pytest.raises(StorageFailure):
            log.roll()  # a segment with torn bytes behind its end is not closed
    failing.clear()
    if rolls:
        log.roll()
    append_next(log, rows=2)  # smaller than the torn bytes
    log = PartitionLog.open(tmp_path, log.format)
    assert log.cuts == ()
    assert ids(read(log, 0)) == list(range(12))


def _refuse(operation: str, failing: set[str]) -> None:
    if operation in failing:
        raise StorageFailure(f"{operation} refused")


class WatchedDisk(SmallDisk):
    """A small disk with a reader at the moment of a failing write."""

    def after_write(self, path: Path, written: int, wanted: int) -> None:
        if written < wanted:
            self.watch()
        super().after_write(path, written, wanted)


def test_reader_that_mapped_undone_bytes_reads_the_later_ones(tmp_path):
    """Batches above a mebibyte are read through a mapping, which then extends beyond the file."""
    disk = WatchedDisk()
    log = PartitionLog.open(tmp_path, format_of(), disk)
    append_next(log, rows=100, size=15_000)
    disk.room = 3 << 20
    disk.watch = lambda: everything(log)
    with pytest.raises(DiskFull):
        append_next(log, rows=100, size=60_000)
    assert everything(log).num_rows == 100
    disk.room = 1 << 30
    append_next(log, rows=100, size=16_000)
    append_next(log, rows=100, size=15_000)
    expected = [logs.records(0, 100, 15_000), logs.records(100, 100, 16_000)]
    expected.append(logs.records(200, 100, 15_000))
    assert everything(log).equals(pa.Table.from_batches(expected))


@pytest.mark.rule("the fsync of appended batches, by the setting flush", "storage/log/log.py")
@settings(max_examples=examples(100))
@given(
    st.lists(st.sampled_from(["append", "append", "roll", "restart", "tear"]), max_size=12),
    st.randoms(use_true_random=False),
)
def test_flush_batch_loses_no_acknowledged_record_in_a_power_cut(steps, chance):
    """Bytes and names: a new segment's name must be on the disk before its records."""
    log_format = format_of(flush=Flush.BATCH)
    disk = SimulatedDisk()
    log = PartitionLog.open(HERE, log_format, disk)
    for step in steps:
        if step == "append":
            append_next(log, 2)
        elif step == "roll":
            log.roll()
        else:
            path = logs.segment_path(log, int(log.segments[-1].first.offset), "arrow")
            if step == "tear" and path in disk.files():
                disk.open(path).write(disk.size(path), b"torn")
            disk.kill()
            log = PartitionLog.open(HERE, log_format, disk)
    disk.crash(chance)
    again = PartitionLog.open(HERE, log_format, disk)
    assert again.end.offset == log.end.offset
    assert ids(read(again, 0)) == list(range(log.end.offset))


@pytest.mark.parametrize("seed", range(20))
def test_next_flush_forces_records_left_by_a_dead_process(seed):
    """With flush=interval a record is on the disk after the interval, even if the process dies."""
    disk = SimulatedDisk()
    log = PartitionLog.open(HERE, format_of(flush=Flush.INTERVAL), disk)
    append_next(log)
    disk.kill()
    log = PartitionLog.open(HERE, log.format, disk)
    log.flush()
    disk.crash(random.Random(seed))
    assert PartitionLog.open(HERE, log.format, disk).end.offset == 10


def test_folders_of_a_new_log_are_fsynced(tmp_path):
    synchronised = []
    disk = FailingDisk()
    disk.before = lambda operation, path: (
        operation == "sync_directory" and synchronised.append(path)
    )
    log = PartitionLog.open(tmp_path / "topic" / "0", format_of(), disk)
    append_next(log)
    assert {tmp_path, tmp_path / "topic", tmp_path / "topic" / "0"} <= set(synchronised)
