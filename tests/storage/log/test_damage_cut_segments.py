"""Segments cut at a damaged entry are kept until the log has their entries again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from isolog.errors import DiskFull
from spark_stream.consistency.ids import EntryIndex, LeaderEpoch
from spark_stream.storage.format.stored import digest
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.segment.checks import Suspect
from tests.storage.logs import EPOCH, NOW, append_next, flip, format_of, records

ENTRIES, ROWS = 12, 4
"""Segments of 5, 5 and 2 entries."""

SMALL = format_of(segment_entries=5)


def opened(path: Path) -> PartitionLog:
    return PartitionLog.open(path, SMALL)


def filled(path: Path) -> PartitionLog:
    log = opened(path)
    for _ in range(ENTRIES):
        append_next(log, ROWS)
    return log


def strike(log: PartitionLog, entry: int) -> None:
    """Change a byte of the entry's batch on the disk, and have the log detect it."""
    segment = next(each for each in log.segments if entry < each.end.entry)
    row = segment.table[entry - segment.first.entry]
    flip(segment.name.arrow, int(row["position"] + row["length"]) - 1, 0)
    assert log.confirm(Suspect(EntryIndex(entry), segment.name.arrow))


def copy(source: PartitionLog, log: PartitionLog, upto: int) -> None:
    """The entries that a follower gets from its leader."""
    while log.end.entry < upto:
        found = source.read_entries(log.end.entry, 1 << 20, EntryIndex(upto))
        assert found is not None
        log.append_entries(found.rows, found.data)


def kept_files(log: PartitionLog) -> list[Path]:
    return sorted((log.directory / "cut").rglob("*.*"))


@pytest.fixture
def leader(tmp_path):
    log = filled(tmp_path / "leader")
    yield log
    log.close()


@pytest.fixture
def damaged(tmp_path):
    """A copy that was cut at its damaged entry 2."""
    log = filled(tmp_path / "damaged")
    strike(log, 2)
    assert log.truncate(EntryIndex(2)).entry == 2
    yield log
    log.close()


@pytest.mark.rule(
    "the segments kept from a cut at damage, and their return", "storage/log/damage.py"
)
@pytest.mark.parametrize("reopens", [False, True])
@pytest.mark.parametrize("broken", [3, 5, 7, 10, 11])
def test_entries_damaged_at_the_leader_come_from_cut_segments(tmp_path, leader, broken, reopens):
    """The damaged entry may be the first of a segment, inside one, or the last of the log."""
    log = filled(tmp_path / "damaged")
    strike(log, 2)
    log.truncate(EntryIndex(2))
    copy(leader, log, broken)
    if reopens:
        log.close()
        log = opened(tmp_path / "damaged")
    taken = log.restore_cut_entries()
    assert [each.entry_index for each in taken] == list(range(broken, ENTRIES))
    assert digest(log.tables()) == digest(leader.tables())
    assert not any(piece.suspects for piece in log.check_stored())
    assert kept_files(log) == []
    assert not (log.directory / "cut").exists()
    log.close()


def test_intact_entries_around_a_damaged_one_are_taken_back(tmp_path, leader):
    log = filled(tmp_path / "damaged")
    strike(log, 2)
    strike(log, 8)
    log.truncate(EntryIndex(2))
    assert log.restore_cut_entries() == []
    copy(leader, log, 3)
    assert [each.entry_index for each in log.restore_cut_entries()] == [3, 4, 5, 6, 7]
    assert log.restore_cut_entries() == []
    copy(leader, log, 9)
    assert [each.entry_index for each in log.restore_cut_entries()] == [9, 10, 11]
    assert digest(log.tables()) == digest(leader.tables())
    log.close()


def test_reset_of_a_damaged_log_keeps_its_segments(tmp_path, leader):
    log = filled(tmp_path / "damaged")
    strike(log, 2)
    log.reset(leader.start)
    copy(leader, log, 6)
    assert len(log.restore_cut_entries()) == 6
    assert digest(log.tables()) == digest(leader.tables())
    log.close()


def test_entries_cut_by_an_open_are_taken_back_too(tmp_path, leader):
    """Entry 10 is in the active segment, which an open checks."""
    log = filled(tmp_path / "damaged")
    append_next(log, ROWS)
    append_next(leader, ROWS)
    strike(log, 10)
    log.close()
    log = opened(tmp_path / "damaged")
    assert log.end.entry == 10
    copy(leader, log, 11)
    assert [each.entry_index for each in log.restore_cut_entries()] == [11, 12]
    assert digest(log.tables()) == digest(leader.tables())
    assert kept_files(log) != []  # files cut by an open stay
    log.close()


def test_kept_segment_is_removed_once_the_log_has_its_entries(damaged, leader):
    sizes = []
    for upto in (4, 5, 6, 10, 11, 12):
        copy(leader, damaged, upto)
        sizes.append(len(kept_files(damaged)) // 2)
    assert sizes == [3, 3, 2, 2, 1, 0]


def test_truncation_of_an_intact_log_keeps_no_segments(leader):
    leader.truncate(EntryIndex(3))
    assert kept_files(leader) == []
    assert leader.restore_cut_entries() == []


def test_entries_that_diverge_from_the_log_are_not_taken_back(damaged):
    """After the cut, a leader of a later epoch wrote other entries in their places."""
    for _ in range(3):
        batch = records(int(damaged.end.offset), ROWS)
        damaged.append(SMALL.prepare(batch, NOW), LeaderEpoch(EPOCH + 1), NOW)
    assert damaged.restore_cut_entries() == []
    assert damaged.end.entry == 5
    assert len(kept_files(damaged)) == 6


def test_repeated_failing_truncation_keeps_segments_once(tmp_path, monkeypatch):
    log = filled(tmp_path / "log")
    strike(log, 2)

    def fails(*_: object) -> None:
        raise DiskFull("no room to cut")

    monkeypatch.setattr(type(log._truncation), "cut", fails)
    for _ in range(3):
        with pytest.raises(DiskFull):
            log.truncate(EntryIndex(2))
        kept = kept_files(log)
    assert len(kept) == len({path.name for path in kept}) > 0
    log.close()


def test_failed_keep_leaves_no_files(tmp_path, monkeypatch):
    log = filled(tmp_path / "log")
    strike(log, 2)
    real, links = log._cut_segments._disk.link, []

    def link(path: Path, new: Path) -> None:
        links.append(new)
        if len(links) == 2:
            raise DiskFull("no room for a name")
        real(path, new)

    monkeypatch.setattr(log._cut_segments._disk, "link", link)
    with pytest.raises(DiskFull):
        log.truncate(EntryIndex(2))
    assert kept_files(log) == []
    log.close()


def test_next_open_removes_a_file_without_its_pair(tmp_path, damaged, leader, monkeypatch):
    disk = damaged._cut_segments._disk
    real = disk.remove

    def remove(path: Path) -> None:
        if path.suffix == ".entries":
            raise DiskFull("the process died")
        real(path)

    monkeypatch.setattr(disk, "remove", remove)
    copy(leader, damaged, ENTRIES)
    assert {path.suffix for path in kept_files(damaged)} == {".entries"}
    monkeypatch.undo()
    shutil.copytree(damaged.directory, tmp_path / "again")
    again = opened(tmp_path / "again")
    assert kept_files(again) == []
    again.close()
