"""A process that dies between any two operations, or in the middle of a write."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_stream.consistency.entries import ENTRY_SIZE
from spark_stream.consistency.ids import Offset
from spark_stream.storage.log.log import PartitionLog
from tests.storage import logs
from tests.storage.disks import Died, MortalDisk
from tests.storage.logs import append_next, flip, format_of, ids, read, segment_path
from tests.storage.recoveries import (
    BATCHES,
    batches_of,
    holds_exactly,
    kept_aside,
    open_again,
)


def dies_in(work, lives: int, folder: Path) -> tuple[bool, list[int], int]:
    """Run work(log, acknowledged) until the process dies at that operation.

    Return whether it died, the acknowledged offsets, and the highest start of the log.
    """
    acknowledged: list[int] = []
    try:
        log = PartitionLog.open(folder, format_of(retention_bytes=1), MortalDisk(lives))
        work(log, acknowledged)
    except Died:
        return True, acknowledged, 0
    return False, acknowledged, int(log.start.offset)


def appends_and_rolls(log: PartitionLog, acknowledged: list[int]) -> None:
    for number in range(4):
        for rows in (1, 3):
            batch = append_next(log, rows)
            acknowledged += batch.column("id").to_pylist()
        if number != 2:
            log.roll()


def appends_and_retention(log: PartitionLog, acknowledged: list[int]) -> None:
    appends_and_rolls(log, acknowledged)
    log.housekeep(logs.NOW, Offset(12))
    acknowledged += append_next(log, 2).column("id").to_pylist()


@pytest.mark.parametrize("work", [appends_and_rolls, appends_and_retention])
def test_crash_at_any_operation_loses_no_acknowledged_record(work):
    """kill -9 between any two operations, and in the middle of any write."""
    died, lives = True, 0
    while died:
        with logs.folder() as folder:
            died, acknowledged, _ = dies_in(work, lives, folder)
            log = PartitionLog.open(folder, format_of(retention_bytes=1))
            assert not any(cut.grave for cut in log.cuts), lives
            start, end = int(log.start.offset), int(log.end.offset)
            found = ids(read(log, start))
            assert found == list(range(start, end)), lives
            assert start in (0, 4, 8, 12), lives
            assert start == 0 or work is appends_and_retention
            assert set(acknowledged) <= set(range(end)), lives
            assert end <= len(acknowledged) + 3, "at most the batch on its way is there too"
            assert holds_exactly(log, end, start), lives
        lives += 1
    assert lives > 25


def test_next_open_finishes_a_cut_interrupted_at_any_operation():
    died, lives = True, 0
    while died:
        with logs.folder() as folder:
            log = batches_of(folder)
            flip(segment_path(log, 0, "entries"), 2 * ENTRY_SIZE + 5, 1)
            whole = {kind: segment_path(log, 0, kind).read_bytes() for kind in ("arrow", "entries")}
            try:
                PartitionLog.open(folder, log.format, MortalDisk(lives))
                died = False
            except Died:
                log = open_again(log)
                assert holds_exactly(log, 4), lives
            for kind, content in whole.items():
                assert _kept_of(folder, kind, content), lives
        lives += 1
    assert lives > 4


def _kept_of(folder: Path, kind: str, content: bytes) -> bool:
    """Whether a cut kept the bytes that the log no longer has of a file."""
    stays = (folder / f"{0:020d}.{kind}").read_bytes()
    return content == stays or any(
        f".{kind}.from." in path and content.endswith(kept)
        for path, kept in kept_aside(folder).items()
    )


@pytest.mark.parametrize(
    "left",
    ["entries", "both"],
    ids=["only its entries file exists", "both its files exist and are empty"],
)
def test_next_open_finishes_an_interrupted_roll(tmp_path, left):
    log = batches_of(tmp_path)
    segment_path(log, 14, "entries").touch()
    if left == "both":
        segment_path(log, 14, "arrow").touch()
    log = open_again(log)
    assert log.cuts == ()
    assert [segment.first.offset for segment in log.segments] == [0, 14]
    assert log.end.entry == len(BATCHES)
    assert holds_exactly(log, 14)


def test_roll_that_only_wrote_the_end_mark_is_undone(tmp_path):
    log = batches_of(tmp_path)
    with segment_path(log, 0, "arrow").open("ab") as file:
        file.write(b"\xff\xff\xff\xff\x00\x00\x00\x00")
    log = open_again(log)
    assert log.cuts == (), "nothing was lost, so nothing is reported"
    assert holds_exactly(log, 14)


def test_unfinished_replacement_is_removed(tmp_path):
    log = batches_of(tmp_path)
    leftover = tmp_path / f"{0:020d}.arrow.new"
    leftover.write_bytes(b"half of it")
    log = open_again(log)
    assert not leftover.exists()
    assert holds_exactly(log, 14)


def test_other_files_in_the_folder_are_kept(tmp_path):
    log = batches_of(tmp_path)
    names = ["notes.txt", "12.arrow", f"{'x' * 20}.arrow", "draft.new", "notes.entries.gone"]
    for name in names:
        (tmp_path / name).write_text("mine")
    log = open_again(log)
    assert holds_exactly(log, 14)
    assert [(tmp_path / name).read_text() for name in names] == ["mine"] * len(names)
