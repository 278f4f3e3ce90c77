"""Large amounts are on their way to the disk before a force asks for them."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from spark_stream.storage.disk.descriptors import (
    EARLY,
    THREAD_NAME,
    WAITING_BYTES_MAX,
    Descriptor,
    EarlyWriting,
)
from spark_stream.storage.disk.disk import OsDisk

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="the call is missing there")

MIB = 1 << 20


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The ranges that the system was told to begin to write: from, and up to."""
    ranges: list[tuple[int, int]] = []
    monkeypatch.setattr(
        os, "posix_fadvise", lambda _, start, length, __: ranges.append((start, start + length))
    )
    return ranges


def test_what_was_written_since_the_last_force_goes_early_in_large_pieces(
    tmp_path: Path, sent: list[tuple[int, int]]
):
    file = OsDisk().create(tmp_path / "f")
    for number in range(20):
        file.write(number * MIB, bytes(MIB))
    EARLY.settle()
    assert sent == [(0, 8 * MIB), (8 * MIB, 16 * MIB)]
    file.close()


def test_what_a_force_has_written_stays_in_memory(tmp_path: Path, sent: list[tuple[int, int]]):
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


def test_a_file_that_is_opened_again_starts_where_it_is_written(
    tmp_path: Path, sent: list[tuple[int, int]]
):
    OsDisk().create(tmp_path / "f").close()
    file = OsDisk().open(tmp_path / "f")
    for number in range(100, 110):
        file.write(number * MIB, bytes(MIB))
    EARLY.settle()
    assert sent == [(100 * MIB, 108 * MIB)]
    file.close()


def test_a_call_that_fails_fails_no_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError("not on this file system")

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    file = OsDisk().create(tmp_path / "f")
    for number in range(10):
        file.write(number * MIB, bytes([number]) * MIB)
    found = file.read(9 * MIB, MIB)
    assert found is not None
    assert found.to_pybytes() == bytes([9]) * MIB
    file.close()


@pytest.mark.rule(
    "that large amounts are on their way to the disk before a force, and hold up no append",
    "storage/disk/descriptors.py",
)
def test_what_waits_is_bounded_and_then_the_writer_itself_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    goes_on, callers = threading.Event(), list[str]()

    def slow(number: int, *_: object) -> None:
        if number != file.number:
            return  # the log of an earlier test in this process
        callers.append(threading.current_thread().name)
        if callers[-1] == THREAD_NAME:
            goes_on.wait(30)

    monkeypatch.setattr(os, "posix_fadvise", slow)
    early, file = EarlyWriting(), Descriptor(os.open(tmp_path, os.O_RDONLY))
    for number in range(10):
        early.start(file, number * WAITING_BYTES_MAX // 8, WAITING_BYTES_MAX // 8)
    mine = threading.current_thread().name
    assert callers.count(mine) == 2  # nobody waits for the thread, which is at the first of them
    goes_on.set()
    early.settle()
    assert len(callers) == 10
