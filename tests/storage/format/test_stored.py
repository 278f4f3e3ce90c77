"""A follower's log gets the same entries as its leader's, in other files."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolog.errors import DamagedEntries, DamagedSegment, DiskFull, EntriesGone
from spark_stream.consistency.entries import ENTRY, ENTRY_SIZE
from spark_stream.consistency.ids import EntryIndex, Offset
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.storage.disk.disk import HOST_DISK
from spark_stream.storage.format.codec import intact_entries, moved, sealed
from spark_stream.storage.format.stored import StoredEntries, digest
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.settings import Compression, Flush
from tests.examples import examples
from tests.simulation.disk import SimulatedDisk
from tests.storage.disks import SmallDisk
from tests.storage.logs import append_next, everything, flip, ids, segment_path
from tests.storage.replicas import HERE, fetch, fill, new_log, seen


@pytest.mark.rule(
    "equal replicas, and the entries that a follower appends", "storage/format/stored.py"
)
@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(0, 1 << 20),
    st.integers(1, 60),
    st.sampled_from([3, 7, 1 << 18]),
    st.sampled_from([2, 5, 1 << 18]),
    st.sampled_from([0, 500, 4000, 1 << 20]),
    st.sampled_from(Compression),
)
def test_follower_has_its_leaders_entries_in_other_segments(
    seed, entries, leader_entries, follower_entries, max_bytes, compression
):
    leader = new_log(segment_entries=leader_entries, compression=compression)
    follower = new_log(segment_entries=follower_entries)
    fill(leader, seed, entries // 2)
    fetch(follower, leader, max_bytes)
    fill(leader, seed, entries, epoch=3)
    fetch(follower, leader, max_bytes)
    assert follower.end == leader.end
    assert digest(follower.tables()) == digest(leader.tables())
    assert seen(follower) == seen(leader)
    follower.close()
    again = PartitionLog.open(HERE, follower.format, follower._disk)
    assert (again.cuts, again.intact) == ((), True)
    assert digest(again.tables()) == digest(leader.tables())
    assert seen(again) == seen(leader)


def test_digest_depends_on_entries_and_not_on_their_places():
    leader = new_log(segment_entries=3)
    fill(leader, 1, 12)
    tables = leader.tables()
    assert digest(tables) == digest([np.concatenate(tables)])
    assert digest(tables) != digest(tables[:-1])
    names = [name for name in ENTRY.names if name not in ("position", "entry_crc")]
    for name in names:
        other = np.concatenate(tables)
        other[name][5] += 1
        assert digest([other]) != digest(tables), name
    elsewhere = np.concatenate(tables)
    elsewhere["position"] += 8
    elsewhere["entry_crc"] += 1
    assert digest([elsewhere]) == digest(tables)


def test_frame_has_exactly_the_requested_entries():
    leader = new_log()
    for _ in range(10):
        append_next(leader, rows=10)
    (table,) = leader.tables()
    one = int(table[0]["length"]) + ENTRY_SIZE
    for wanted, rows in ((0, 1), (1, 1), (one, 1), (2 * one - 1, 1), (2 * one, 2), (9 * one, 9)):
        found = leader.read_entries(EntryIndex(0), wanted)
        assert found is not None
        assert len(found.rows) == rows
        assert found.data.size == int(table["length"][:rows].sum())
    for upto, rows in ((1, 1), (4, 4), (10, 10), (99, 10)):
        found = leader.read_entries(EntryIndex(0), 1 << 20, EntryIndex(upto))
        assert found is not None
        assert len(found.rows) == rows
    assert leader.read_entries(EntryIndex(4), 1 << 20, EntryIndex(4)) is None
    assert leader.read_entries(EntryIndex(4), 1 << 20, EntryIndex(2)) is None
    assert leader.read_entries(EntryIndex(10), 1 << 20) is None


def test_entries_outside_the_log_are_gone():
    leader: PartitionLog = new_log()
    leader.reset(Boundary(EntryIndex(5), Offset(50)))
    assert leader.read_entries(EntryIndex(5), 100) is None
    assert leader.boundary_of(EntryIndex(5)) == (5, 50)
    for entry in (0, 4, 6, 100):
        with pytest.raises(EntriesGone):
            leader.read_entries(EntryIndex(entry), 100)
        with pytest.raises(EntriesGone):
            leader.boundary_of(EntryIndex(entry))
        with pytest.raises(EntriesGone):
            leader.truncate(EntryIndex(entry))


def test_every_entry_has_its_boundary():
    leader = new_log(segment_entries=5)
    fill(leader, 3, 40)
    rows = np.concatenate(leader.tables())
    assert (rows["count"] == 0).any()
    for row in rows:
        assert leader.boundary_of(row["entry_index"]) == (row["entry_index"], row["base_offset"])
    assert leader.boundary_of(leader.end.entry) == leader.end


def test_read_entries_do_not_change_with_the_log(tmp_path):
    leader = new_log(HOST_DISK, tmp_path, segment_entries=4)
    fill(leader, 3, 30)
    held = [leader.read_entries(EntryIndex(at), 400) for at in range(30)]
    expected = [(each.rows.tobytes(), each.data.to_pybytes()) for each in held if each]
    leader.truncate(EntryIndex(9))
    fill(leader, 4, 30, epoch=1)
    leader.reset(Boundary(EntryIndex(3), Offset(3)))
    assert [(each.rows.tobytes(), each.data.to_pybytes()) for each in held if each] == expected


def frame(entries: int = 6) -> StoredEntries:
    leader = new_log()
    fill(leader, 1, entries)
    found = leader.read_entries(EntryIndex(0), 1 << 20)
    assert found is not None
    return found


@pytest.mark.rule(
    "equal replicas, and the entries that a follower appends", "storage/format/stored.py"
)
@pytest.mark.parametrize("entries", [6, 1])
def test_flipped_bit_is_detected_before_any_write(entries):
    found = frame(entries)
    rows, data = found.rows.tobytes(), found.data.to_pybytes()
    disk = SimulatedDisk()
    log: PartitionLog = new_log(disk)
    for place in [*range(0, len(rows), 3), *range(len(rows), len(rows) + len(data), 7)]:
        both = bytearray(rows + data)
        both[place] ^= 1 << place % 8
        damaged = np.frombuffer(bytes(both[: len(rows)]), ENTRY)
        with pytest.raises(DamagedEntries, match=r"entry [0-5] arrived damaged") as caught:
            log.append_entries(damaged, pa.py_buffer(bytes(both[len(rows) :])))
        if place < len(rows):
            assert caught.value.details["entry"] == place // ENTRY_SIZE
        assert caught.value.retriable
    assert disk.files() == {}
    assert log.end.entry == 0
    assert len(log.append_entries(found.rows, found.data)) == entries


@pytest.mark.parametrize("entries", [6, 1])
def test_too_few_or_too_many_bytes_are_refused(entries):
    found, log = frame(entries), new_log()
    for data in (
        found.data.slice(0, found.data.size - 8),
        b"",
        found.data.to_pybytes() + b"12345678",
    ):
        with pytest.raises(DamagedEntries):
            log.append_entries(found.rows, pa.py_buffer(data))
    assert log.end.entry == 0


def test_invalid_rows_with_right_checksums_are_refused():
    found, log = frame(), new_log()
    for name, value in (("entry_index", 7), ("base_offset", 1), ("kind", 9), ("leader_epoch", -1)):
        rows = found.rows.copy()
        rows[name][3] = value
        for row in range(len(rows)):
            rows[row] = np.frombuffer(sealed(rows[row].tobytes()[:-4]), ENTRY)[0]
        assert intact_entries(rows) == len(rows)
        with pytest.raises(DamagedEntries, match=r"entry [34] arrived damaged"):
            log.append_entries(rows, found.data)
    assert log.end.entry == 0


def test_entries_that_do_not_follow_the_end_raise_value_error():
    found = frame()
    log: PartitionLog = new_log()
    log.append_entries(found.rows[:2], found.data.slice(0, int(found.rows["length"][:2].sum())))
    end = log.end
    with pytest.raises(ValueError, match="start at entry 0"):
        log.append_entries(found.rows, found.data)
    older = new_log()
    older.reset(end)
    fill(older, 2, 1, epoch=1)
    newer = older.read_entries(end.entry, 1 << 20)
    assert newer is not None
    log.append_entries(newer.rows, newer.data)
    older.reset(log.end)
    fill(older, 2, 1, epoch=0)
    stale = older.read_entries(log.end.entry, 1 << 20)
    assert stale is not None
    with pytest.raises(ValueError, match="in epoch 0"):
        log.append_entries(stale.rows, stale.data)
    assert log.append_entries(found.rows[:0], pa.py_buffer(b"")) == []


def test_batch_damaged_at_the_leader_is_not_sent(tmp_path):
    leader = new_log(HOST_DISK, tmp_path)
    for _ in range(4):
        append_next(leader, rows=10)
    leader.roll()
    append_next(leader, rows=10)
    leader.close()
    position = int(leader.segments[0].table[2]["position"])
    flip(segment_path(leader, 0, "arrow"), position + 200, 3)
    again = PartitionLog.open(tmp_path, leader.format)
    found = again.read_entries(EntryIndex(0), 1 << 20)
    assert found is not None
    assert len(found.rows) == 2
    with pytest.raises(DamagedSegment, match="offsets 20 to 29"):
        again.read_entries(EntryIndex(2), 1 << 20)
    after = again.read_entries(EntryIndex(3), 1 << 20)
    assert after is not None
    assert len(after.rows) == 1


def test_full_disk_appends_a_part_and_raises_at_the_next_call(tmp_path):
    leader = new_log()
    for _ in range(12):
        append_next(leader, rows=10)
    found = leader.read_entries(EntryIndex(0), 1 << 20)
    assert found is not None
    disk = SmallDisk()
    follower = new_log(disk, tmp_path, segment_entries=5)
    disk.room = int(found.rows["length"][:8].sum()) + 5 * ENTRY_SIZE + 3000
    while follower.end.entry < 12:
        at = int(follower.end.entry)
        skipped = int(found.rows["length"][:at].sum())
        try:
            taken = follower.append_entries(found.rows[at:], found.data.slice(skipped))
            assert len(taken) == follower.end.entry - at
        except DiskFull:
            assert follower.end.entry == at
            disk.room = 1 << 40
    assert len(follower.segments) == 3
    assert digest(follower.tables()) == digest(leader.tables())
    assert ids(list(follower.read(Offset(0), Offset(120)))) == list(range(120))


@pytest.mark.parametrize("flush", Flush)
def test_flush_batch_forces_entries_before_they_are_acknowledged(flush):
    disk = SimulatedDisk()
    follower, found = new_log(disk, flush=flush), frame()
    follower.append_entries(found.rows, found.data)
    disk.crash(random.Random(2))
    again = PartitionLog.open(HERE, follower.format, disk)
    if flush is Flush.BATCH:
        assert again.end == follower.end
        assert everything(again).num_rows == follower.end.offset


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(0, (1 << 62) - 1), min_size=1, max_size=20))
def test_moved_entry_has_the_right_checksum(positions):
    leader = new_log()
    fill(leader, 5, len(positions))
    rows = moved(leader.tables()[0], np.array(positions, np.int64))
    assert rows["position"].tolist() == positions
    assert intact_entries(rows) == len(rows)
    assert digest([rows]) == digest(leader.tables())
