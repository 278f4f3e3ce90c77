"""Checks of segments on the disk find all damaged entries, and no others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolog.errors import DamagedSegment, StorageFailure
from spark_stream.consistency.entries import ENTRY_SIZE
from spark_stream.consistency.ids import EntryIndex
from spark_stream.storage.disk import disk as disks
from spark_stream.storage.disk.disk import OsDisk
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.segment import checks as checking
from spark_stream.storage.segment.checks import Suspect
from tests.examples import examples
from tests.storage.logs import append_next, flip, folder, format_of, ids, read, reopened

ENTRIES, PER_SEGMENT = 18, 5


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """Three closed segments of five entries, ten records each, and an active one."""
    return filled(tmp_path / "log")


def filled(path: Path) -> PartitionLog:
    log = PartitionLog.open(path, format_of(segment_entries=PER_SEGMENT))
    for _ in range(ENTRIES):
        append_next(log)
    assert [len(segment.table) for segment in log.segments] == [5, 5, 5, 3]
    return log


def damage(log: PartitionLog, entry: int, byte: int = 7, bit: int = 3) -> None:
    """Change a bit of the entry's batch on the disk."""
    segment = log.segments[entry // PER_SEGMENT]
    row = segment.table[entry % PER_SEGMENT]
    flip(segment.name.arrow, int(row["position"]) + byte % int(row["length"]), bit)


def damage_entry(log: PartitionLog, entry: int, byte: int, bit: int) -> None:
    """Change a bit of the entry itself on the disk."""
    segment, row = log.segments[entry // PER_SEGMENT], entry % PER_SEGMENT
    flip(segment.name.entries, row * ENTRY_SIZE + byte % ENTRY_SIZE, bit)


def suspected(log: PartitionLog) -> list[Suspect]:
    return [suspect for piece in log.check_stored() for suspect in piece.suspects]


def numbers(suspects: list[Suspect]) -> list[int]:
    return [each.entry for each in suspects]


def test_check_of_an_intact_log_reads_all_and_finds_no_damage(log):
    found = list(log.check_stored())
    size = sum(int(segment.table["length"].sum()) for segment in log.segments)
    assert sum(piece.size for piece in found) == size
    assert not any(piece.suspects for piece in found)
    assert log.hole is None


@pytest.mark.rule(
    "the detection of changed bytes without a reader",
    "storage/segment/checks.py",
    "broker/node/scrubbing.py",
)
@settings(max_examples=examples(60), deadline=None)
@given(
    st.dictionaries(
        st.integers(0, ENTRIES - 1),
        st.tuples(st.sampled_from(["batch", "entry"]), st.integers(0, 10_000), st.integers(0, 7)),
    ),
    st.sampled_from([1, 700, 1 << 20]),
)
def test_check_finds_exactly_the_damaged_entries(places, piece_bytes):
    with folder() as path, pytest.MonkeyPatch.context() as patch:
        patch.setattr(checking, "_PIECE_BYTES", piece_bytes)
        log = filled(path / "log")
        for entry, (what, byte, bit) in places.items():
            (damage if what == "batch" else damage_entry)(log, entry, byte, bit)
        suspects = suspected(log)
        assert numbers(suspects) == sorted(places)
        assert all(log.confirm(each) for each in suspects)
        assert log.hole == min(places, default=None)
        log.close()


def test_size_of_a_piece_is_bounded(log, monkeypatch):
    monkeypatch.setattr(checking, "_PIECE_BYTES", 1)
    assert len(list(log.check_stored())) == ENTRIES


def test_confirmed_damage_is_recorded_even_for_entries_of_this_process(log):
    assert ids(read(log, 0)) == list(range(180))
    damage(log, 7)
    (suspect,) = suspected(log)
    assert log.hole is None  # it is only a suspicion
    assert log.confirm(suspect)
    assert log.hole == 7
    with pytest.raises(DamagedSegment) as caught:
        list(log.read(70, 180))
    assert (caught.value.details["first"], caught.value.details["next"]) == (70, 80)
    with pytest.raises(DamagedSegment):
        log.read_entries(EntryIndex(7), 1 << 20)
    assert ids(read(log, 80)) == list(range(80, 180))


def test_damage_met_by_a_reader_or_follower_is_recorded(log):
    damage(log, 3)
    again = reopened(log)
    assert again.hole is None
    with pytest.raises(DamagedSegment):
        list(again.read(30, 31))
    assert again.hole == 3
    damage(again, 2)
    last = reopened(again)
    with pytest.raises(DamagedSegment):
        last.read_entries(EntryIndex(2), 100)
    assert last.hole == 2


def test_truncation_before_damage_drops_it_and_after_it_does_not(log):
    for entry in (4, 11):
        damage(log, entry)
    for suspect in suspected(log):
        log.confirm(suspect)
    log.truncate(EntryIndex(12))
    assert log.hole == 4
    log.truncate(EntryIndex(4))
    assert log.hole is None
    assert not suspected(log)
    assert ids(read(log, 0)) == list(range(40))
    log.reset(log.end)
    assert log.hole is None


def test_replaced_file_is_not_damage(log):
    """A truncation makes another file of the same name, without bytes at the old places."""
    damage(log, 5)
    (suspect,) = suspected(log)
    log.truncate(EntryIndex(5))
    append_next(log)
    assert not log.confirm(suspect)
    assert log.hole is None


def test_segment_removed_by_retention_is_not_damage(log):
    found = log.check_stored()
    next(found)
    for segment in log.segments[:-1]:
        segment.name.arrow.unlink()
    suspects = [suspect for piece in found for suspect in piece.suspects]
    assert numbers(suspects) == list(range(5, 15))
    log._put(log._closed[3:], log._active)
    assert not any(log.confirm(each) for each in suspects)


@pytest.mark.parametrize("shorter", [1, 400, 10_000])
def test_shortened_file_has_damaged_batches(log, shorter):
    segment = log.segments[1]
    size = max(100, segment.data_end - shorter)
    whole = segment.name.arrow.read_bytes()
    segment.name.arrow.write_bytes(whole[:size])
    ends = segment.table["position"] + segment.table["length"]
    assert numbers(suspected(log)) == [5 + row for row, end in enumerate(ends) if end > size]
    log.close()


class BadSector(OsDisk):
    """A disk that cannot read some bytes of a file."""

    def __init__(self, path: Path, at: int) -> None:
        super().__init__()
        self._bad = (path, at)

    def read_stored(self, path: Path, position: int, length: int) -> pa.Buffer:
        bad, at = self._bad
        if path == bad and position <= at < position + length:
            raise StorageFailure(f"{path}: Input/output error")
        return super().read_stored(path, position, length)


def test_unreadable_bytes_damage_only_their_batch(log):
    segment = log.segments[2]
    bad = BadSector(segment.name.arrow, int(segment.table[3]["position"]) + 5)
    found = [s for piece in checking.pieces(bad, log.segments) for s in piece.suspects]
    assert numbers(found) == [13]
    assert not checking.is_sound(bad, segment, found[0].entry)
    assert checking.is_sound(OsDisk(), segment, found[0].entry)


@pytest.mark.parametrize("flag", ["as the system can", "through memory"])
def test_stored_bytes_equal_the_files(tmp_path, monkeypatch, flag):
    if flag == "through memory":
        monkeypatch.setattr(disks, "DIRECT", 0)
    path = tmp_path / "file"
    content = bytes(range(251)) * 100
    path.write_bytes(content)

    @settings(max_examples=examples(200), deadline=None)
    @given(st.integers(0, 26_000), st.integers(0, 26_000))
    def same(position, length):
        found = disks.stored_bytes(path, position, length)
        assert found.to_pybytes() == content[position : position + length]

    same()
