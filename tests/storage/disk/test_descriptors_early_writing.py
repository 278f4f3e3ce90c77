"""The write of large amounts to the disk starts before their fsync."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from spark_stream import operating_system
from spark_stream.storage.disk.descriptors import (
    EARLY,
    THREAD_NAME,
    WAITING_BYTES_MAX,
    Descriptor,
    EarlyWriting,
)
from spark_stream.storage.disk.disk import OsDisk

MIB = 1 << 20


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The ranges of started writes: start and end."""
    ranges: list[tuple[int, int]] = []

    def record(_: int, start: int, length: int, __: int) -> None:
        ranges.append((start, start + length))

    monkeypatch.setattr(operating_system, "_advise", record)
    return ranges


def test_bytes_since_the_last_fsync_are_written_early_in_large_pieces(
    tmp_path: Path, sent: list[tuple[int, int]]
):
    file = OsDisk().create(tmp_path / "f")
    for number in range(20):
        file.write(number * MIB, bytes(MIB))
    EARLY.settle()
    assert sent == [(0, 8 * MIB), (8 * MIB, 16 * MIB)]
    file.close()


def test_early_write_leaves_out_bytes_of_an_fsync(tmp_path: Path, sent: list[tuple[int, int]]):
    file = OsDisk().create(tmp_path / "f")
    for number in range(20):
        file.write(number * MIB, bytes(MIB))
        file.flush()
    EARLY.settle()
    assert sent == []
    for number in range(20, 30):
        file.write(number * MIB, bytes(MIB))
    EARLY.settle()
    assert sent == [(20 * MIB, 28 * MIB)]
    file.close()


def test_early_write_of_a_reopened_file_starts_at_its_first_write(
    tmp_path: Path, sent: list[tuple[int, int]]
):
    OsDisk().create(tmp_path / "f").close()
    file = OsDisk().open(tmp_path / "f")
    for number in range(100, 110):
        file.write(number * MIB, bytes(MIB))
    EARLY.settle()
    assert sent == [(100 * MIB, 108 * MIB)]
    file.close()


def test_failed_early_write_fails_no_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError("not on this file system")

    monkeypatch.setattr(operating_system, "_advise", refuse)
    file = OsDisk().create(tmp_path / "f")
    for number in range(10):
        file.write(number * MIB, bytes([number]) * MIB)
    found = file.read(9 * MIB, MIB)
    assert found is not None
    assert found.to_pybytes() == bytes([9]) * MIB
    file.close()


@pytest.mark.rule(
    "early writes of large amounts, without a delay of appends",
    "storage/disk/descriptors.py",
)
def test_queue_of_early_writes_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    goes_on, callers = threading.Event(), list[str]()

    def slow(number: int, *_: object) -> None:
        if number != file.number:
            return  # the log of an earlier test in this process
        callers.append(threading.current_thread().name)
        if callers[-1] == THREAD_NAME:
            goes_on.wait(30)

    monkeypatch.setattr(operating_system, "_advise", slow)
    early, file = EarlyWriting(), Descriptor(os.open(tmp_path, os.O_RDONLY))
    for number in range(10):
        early.start(file, number * WAITING_BYTES_MAX // 8, WAITING_BYTES_MAX // 8)
    mine = threading.current_thread().name
    assert callers.count(mine) == 2  # no append waits for the thread
    goes_on.set()
    early.settle()
    assert len(callers) == 10
