"""Open files are bounded for any number of logs. A log without an entry has no file."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from isolog.errors import DiskFull, StorageFailure, TooManyOpenFiles
from spark_stream.storage.disk.descriptors import (
    OPEN_FILES_MAX,
    DescriptorPool,
    SpareFiles,
    files_needed,
)
from spark_stream.storage.disk.disk import OsDisk
from spark_stream.storage.log.log import PartitionLog
from tests.storage import logs
from tests.storage.disks import SmallDisk
from tests.storage.logs import append_next, format_of, ids, read
from tests.support import open_files


def open_below(folder: Path) -> int:
    """The number of open files of this process below the folder."""
    return sum(target.startswith(str(folder)) for target in open_files().values())


def test_empty_log_has_no_folder_and_no_file(tmp_path):
    log = PartitionLog.open(tmp_path / "t" / "0", format_of())
    assert ids(read(log, 0)) == []
    assert (log.start, log.size, log.failed) == (log.end, 0, None)
    log.flush()
    log.roll()
    assert log.housekeep(logs.NOW, log.end.offset) == 0
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_first_append_on_a_full_disk_leaves_no_file(tmp_path):
    disk = SmallDisk(room=100)
    log = PartitionLog.open(tmp_path / "0", format_of(), disk)
    with pytest.raises(DiskFull):
        append_next(log)
    assert list(tmp_path.rglob("*.*")) == [tmp_path / "0.begun"]
    disk.room = 1 << 30
    append_next(log)
    assert logs.reopened(log).end.offset == 10


def test_failing_check_of_identity_does_not_fail_the_log(tmp_path):
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
def test_many_logs_have_few_open_files_and_lose_no_record(tmp_path):
    """Several hundred logs, written in turn repeatedly, then opened again."""
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


def test_file_closed_during_a_read_opens_again(tmp_path):
    """A pool of two files for three logs: each append and each read closes another log's file."""
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


@pytest.mark.parametrize(
    ("number", "said", "hint"),
    [
        (errno.EMFILE, "this broker has as many open files as its limit allows", "ulimit -n"),
        (errno.ENFILE, "this machine has as many open files as it allows", "fs.file-max"),
    ],
)
def test_lack_of_descriptors_raises_too_many_open_files(tmp_path, monkeypatch, number, said, hint):
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    log = PartitionLog.open(tmp_path / "0", format_of())
    append_next(log)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(TooManyOpenFiles, match=said) as caught:
        log.roll()
    monkeypatch.undo()
    assert hint in caught.value.hint
    assert caught.value.retriable
    append_next(log)  # the log lost no record
    assert ids(read(log, 0)) == list(range(20))
    log.close()


def test_spare_files_are_released_for_a_block(tmp_path):
    spare = SpareFiles(3)
    before = list(open_files().values()).count(os.devnull)
    with spare.released():
        assert list(open_files().values()).count(os.devnull) == before - 3
    assert list(open_files().values()).count(os.devnull) == before


def test_broker_needs_two_files_for_each_partition_up_to_the_bound():
    assert files_needed(10) - files_needed(0) == 20
    assert files_needed(100_000) - files_needed(0) == OPEN_FILES_MAX
