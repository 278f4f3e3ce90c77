"""Open files are bounded, whatever the number of logs; a log without an entry has none at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from spark_stream.errors import DiskFull, StorageFailure
from spark_stream.storage.disk.descriptors import OPEN_FILES_MAX, DescriptorPool
from spark_stream.storage.disk.disk import OsDisk
from spark_stream.storage.log.log import PartitionLog
from tests.storage import logs
from tests.storage.disks import SmallDisk
from tests.storage.logs import append_next, format_of, ids, read


def open_below(folder: Path) -> int:
    """How many files below the folder this process has open."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{number}").startswith(str(folder))
        except FileNotFoundError:
            continue
    return found


def test_a_log_that_was_never_written_to_has_neither_folder_nor_file(tmp_path):
    log = PartitionLog.open(tmp_path / "t" / "0", format_of())
    assert ids(read(log, 0)) == []
    assert (log.start, log.size, log.failed) == (log.end, 0, None)
    log.flush()
    log.roll()
    assert log.housekeep(logs.NOW, log.end.offset) == 0
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_a_first_append_without_room_leaves_nothing_and_the_next_one_works(tmp_path):
    disk = SmallDisk(room=100)
    log = PartitionLog.open(tmp_path / "0", format_of(), disk)
    with pytest.raises(DiskFull):
        append_next(log)
    assert list(tmp_path.rglob("*.*")) == [tmp_path / "0.begun"]
    disk.room = 1 << 30
    append_next(log)
    assert logs.reopened(log).end.offset == 10


def test_files_of_which_the_disk_does_not_tell_at_present_are_not_lost(tmp_path):
    class Silent(OsDisk):
        failing = True

        def identity(self, path: Path) -> tuple[int, int]:
            if self.failing:
                raise StorageFailure(f"{path}: Input/output error")
            return super().identity(path)

    disk = Silent()
    log = PartitionLog.open(tmp_path / "0", format_of(), disk)
    append_next(log)
    log.check_files()
    disk.failing = False
    log.check_files()
    append_next(log)
    log.close()


@pytest.mark.slow
def test_many_logs_hold_few_files_open_and_lose_nothing_by_it(tmp_path):
    """Several hundred that are written to in turn, again and again, then opened anew."""
    many = 2 * OPEN_FILES_MAX
    opened = [PartitionLog.open(tmp_path / str(n), format_of()) for n in range(many)]
    for _ in range(3):
        for log in opened:
            append_next(log, rows=1)
    assert open_below(tmp_path) <= OPEN_FILES_MAX
    for log in opened:
        assert ids(read(log, 0)) == [0, 1, 2]
        log.close()
    assert open_below(tmp_path) == 0
    opened = [PartitionLog.open(tmp_path / str(n), format_of()) for n in range(many)]
    assert all(log.end.offset == 3 and log.cuts == () for log in opened)
    assert open_below(tmp_path) == 0


def test_files_that_close_under_the_readers_hands_open_again(tmp_path):
    """A pool of two files for three logs: every append and every read closes another's file."""
    disk = OsDisk(DescriptorPool(2))
    opened = [
        PartitionLog.open(tmp_path / str(n), format_of(segment_entries=40), disk) for n in range(3)
    ]
    wrong: list[object] = []
    done = threading.Event()

    def keep_reading(log: PartitionLog) -> None:
        while not done.is_set():
            end = int(log.end.offset)
            start = max(0, end - 20)
            try:
                found = ids(read(log, start, end))
            except Exception as error:
                wrong.append(error)
                return
            if found != list(range(start, end)):
                wrong.append((start, end, found))

    readers = [threading.Thread(target=keep_reading, args=(log,)) for log in opened]
    for reader in readers:
        reader.start()
    for _ in range(150):
        for log in opened:
            append_next(log, rows=3)
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert open_below(tmp_path) <= 2
    assert all(ids(read(log, 0)) == list(range(450)) for log in opened)
