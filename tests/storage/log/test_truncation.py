"""Truncation at any entry, repeatedly, during reads, and with appends after it."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolog.errors import DiskFull, EntriesGone, StorageFailure
from spark_stream.consistency.entries import Kind
from spark_stream.consistency.ids import EntryIndex, Offset
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.storage.disk.disk import HOST_DISK
from spark_stream.storage.format.codec import END_OF_STREAM
from spark_stream.storage.format.stored import digest
from spark_stream.storage.log.log import PartitionLog
from tests.examples import examples
from tests.simulation.disk import SimulatedDisk
from tests.storage.disks import FailingDisk, SmallDisk
from tests.storage.logs import EPOCH, NOW, append_next, everything, ids, records
from tests.storage.replicas import HERE, fetch, fill, new_log, seen


def cut(log: PartitionLog, to: int) -> Boundary:
    return log.truncate(EntryIndex(to))


@pytest.mark.quick("1")
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_truncated_log_equals_one_that_ended_there(seed):
    whole = new_log()
    fill(whole, seed, 30)
    for to in range(31):
        disk = SimulatedDisk()
        log, model = new_log(disk, segment_entries=5), new_log()
        fetch(log, whole, 1 << 20)
        fetch(model, whole, 1 << 20, upto=to)
        assert cut(log, to) == model.end == log.end
        for each in (log, PartitionLog.open(HERE, log.format, disk)):
            assert (each.cuts, each.intact) == ((), True)
            assert (each.start, each.end) == (model.start, model.end)
            assert digest(each.tables()) == digest(model.tables())
            assert seen(each) == seen(model)
        again = PartitionLog.open(HERE, log.format, disk)
        fill(again, seed + 100, 9, epoch=1)
        fill(model, seed + 100, 9, epoch=1)
        assert digest(again.tables()) == digest(model.tables())
        assert seen(again) == seen(model)


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.booleans()), max_size=8),
    st.sampled_from([2, 4, 1 << 18]),
    st.integers(0, 1 << 20),
)
def test_repeatedly_truncated_follower_equals_its_leader(rounds, segment_entries, seed):
    disk = SimulatedDisk()
    leader, follower = new_log(), new_log(disk, segment_entries=segment_entries)
    for epoch, (entries, back, reopened) in enumerate(rounds):
        fill(leader, seed + epoch, entries, epoch)
        fetch(follower, leader, 900)
        to = max(0, leader.end.entry - back)
        assert leader.truncate(EntryIndex(to)) == cut(follower, to)
        if reopened:
            follower.close()
            follower = PartitionLog.open(HERE, follower.format, disk)
            assert follower.intact
        else:
            drop_tails(follower)
        assert digest(follower.tables()) == digest(leader.tables())
        assert seen(follower) == seen(leader)


def drop_tails(log: PartitionLog) -> None:
    while (put_shorter := log.drop_tail()) is not None:
        put_shorter()


def test_truncation_at_the_end_does_nothing_and_beyond_it_raises():
    disk = SimulatedDisk()
    log = new_log(disk)
    fill(log, 1, 5)
    files, forces = disk.files(), disk.forces
    assert cut(log, 5) == log.end
    assert (disk.files(), disk.forces) == (files, forces)
    with pytest.raises(EntriesGone):
        cut(log, 6)


def test_truncation_of_a_marker_makes_its_batches_undecided():
    log = new_log()
    for producer in (1, 2):
        batch = log.format.prepare(records(int(log.end.offset), 3), NOW)
        log.append(batch, EPOCH, NOW, Stamp(producer, 1, 0, 7))
    log.roll()
    log.mark(Kind.ABORT, 1, 1, 7, EPOCH, NOW)
    log.mark(Kind.ABORT, 2, 1, 7, EPOCH, NOW)
    cut(log, 3)
    assert seen(log)["aborted"] == [True] * 3 + [False] * 3
    cut(log, 2)
    assert not any(seen(log)["aborted"])
    log.mark(Kind.ABORT, 2, 1, 7, EPOCH, NOW)
    assert seen(log)["aborted"] == [False] * 3 + [True] * 3


def with_pyarrow(path: Path) -> list[int]:
    with pa.ipc.open_stream(path) as stream:
        return stream.read_all().column("id").to_pylist()


def test_other_readers_get_the_log_once_the_tail_is_dropped(tmp_path):
    log = new_log(HOST_DISK, tmp_path)
    for _ in range(6):
        append_next(log, rows=10)
    path = log.segments[0].name.arrow
    cut(log, 3)
    append_next(log, rows=5)
    assert with_pyarrow(path) == list(range(60)), "the tail is still there"
    assert log.housekeeping_due() == 0
    put_shorter = log.drop_tail()
    assert put_shorter is not None
    assert log.drop_tail() is None, "one at a time"
    put_shorter()
    assert with_pyarrow(path) == list(range(30))
    assert path.read_bytes().endswith(END_OF_STREAM)
    assert log.housekeeping_due() != 0
    assert everything(log).column("id").to_pylist() == list(range(35))
    assert sorted(each.name for each in tmp_path.iterdir() if "short" in each.name) == []


def test_file_with_the_tail_is_released_by_its_last_reader(tmp_path):
    """While it is mapped, it takes space on the disk, even without a name."""
    log = new_log(HOST_DISK, tmp_path)
    for _ in range(6):
        append_next(log, rows=10)
    cut(log, 3)
    everything(log)  # maps it
    drop_tails(log)
    assert f"{log.segments[0].name.arrow} (deleted)" not in Path("/proc/self/maps").read_text()
    assert everything(log).column("id").to_pylist() == list(range(30))


def test_tail_survives_the_truncation_of_a_marker_before_it(tmp_path):
    log = new_log(HOST_DISK, tmp_path)
    for _ in range(3):
        append_next(log, rows=10)
    log.mark(Kind.ABORT, 1, 1, 7, EPOCH, NOW)
    append_next(log, rows=10)
    cut(log, 4)
    cut(log, 3)
    assert log.segments[0].has_tail
    drop_tails(log)
    assert with_pyarrow(log.segments[0].name.arrow) == list(range(30))


@pytest.mark.parametrize("made", [False, True], ids=["before", "after the copy was made"])
def test_failed_log_keeps_its_tail(made):
    disk = SimulatedDisk()
    log = new_log(disk)
    for _ in range(6):
        append_next(log, rows=10)
    cut(log, 3)
    append_next(log, rows=10)
    put_shorter = log.drop_tail() if made else None
    disk.fail_next_force()
    with pytest.raises(StorageFailure):
        log.flush()
    arrow = log.segments[0].name.arrow
    before = disk.map(arrow).to_pybytes()
    assert log.drop_tail() is None
    if made:
        assert put_shorter is not None
        put_shorter()
    assert disk.map(arrow).to_pybytes() == before
    assert [path for path in disk.files() if ".short" in str(path)] == []


def test_next_open_detects_a_tail(tmp_path):
    log = new_log(HOST_DISK, tmp_path)
    for _ in range(6):
        append_next(log, rows=10)
    cut(log, 3)
    log.close()
    again = PartitionLog.open(tmp_path, log.format)
    assert [each.has_tail for each in again.segments] == [True, False]
    drop_tails(again)
    assert with_pyarrow(again.segments[0].name.arrow) == list(range(30))
    again.close()
    third = PartitionLog.open(tmp_path, log.format)
    assert [each.has_tail for each in third.segments] == [False, False]
    assert everything(third).column("id").to_pylist() == list(range(30))


@pytest.mark.parametrize("step", ["cut", "reset"])
def test_outdated_copy_replaces_no_file(tmp_path, step):
    log = new_log(HOST_DISK, tmp_path)
    for _ in range(6):
        append_next(log, rows=10)
    cut(log, 3)
    put_shorter = log.drop_tail()
    assert put_shorter is not None
    if step == "cut":
        cut(log, 0)
    else:
        log.reset(Boundary(EntryIndex(0), Offset(0)))
    append_next(log, rows=7)
    put_shorter()
    assert [each.name for each in tmp_path.iterdir() if ".short" in each.name] == []
    log.close()
    again = PartitionLog.open(tmp_path, log.format)
    assert again.cuts == ()
    assert everything(again).column("id").to_pylist() == list(range(7))


def test_copy_left_by_a_crash_is_removed(tmp_path):
    log = new_log(HOST_DISK, tmp_path)
    for _ in range(6):
        append_next(log, rows=10)
    cut(log, 3)
    assert log.drop_tail() is not None
    left = Path(f"{log.segments[0].name.arrow}.short")
    left.with_name(left.name + ".new").write_bytes(b"half")
    assert left.exists()
    again = PartitionLog.open(tmp_path, log.format)
    assert [each.name for each in tmp_path.iterdir() if ".short" in each.name] == []
    drop_tails(again)
    assert with_pyarrow(again.segments[0].name.arrow) == list(range(30))


def test_read_under_way_continues_after_a_truncation(tmp_path):
    log = new_log(HOST_DISK, tmp_path, segment_entries=4)
    for _ in range(30):
        append_next(log, rows=10, size=3000)
    log.close()
    log = PartitionLog.open(tmp_path, log.format)  # no file is mapped yet
    expected = everything(log).column("payload").to_pylist()
    log.close()
    log = PartitionLog.open(tmp_path, log.format)
    reads = [log.read(Offset(at), Offset(300), None, 10) for at in range(0, 300, 10)]
    chunks = [next(each) for each in reads[:15]]
    entries = [log.read_entries(EntryIndex(at), 100) for at in range(30)]
    segments = log.segments
    cut(log, 5)
    for number in range(30):
        batch = records(int(log.end.offset), 10, 2000 + number)
        log.append(log.format.prepare(batch, NOW), EPOCH, NOW)
    drop_tails(log)
    log.reset(Boundary(EntryIndex(0), Offset(0)))
    append_next(log, rows=300)
    got = [value for each in chunks for value in each.batch.column("payload").to_pylist()]
    assert got == expected[:150]
    for segment in segments:
        for row in range(len(segment.table)):
            batch, _ = segment.decode(np.array([row]), None)
            first = int(segment.table[row]["base_offset"])
            assert batch.column("payload").to_pylist() == expected[first : first + 10]
    assert [int(each.rows[0]["entry_index"]) for each in entries if each] == list(range(30))


@pytest.mark.rule(
    "a log is cut back or reset, and no reader notices",
    "storage/log/truncation.py",
    "storage/segment/segment.py",
)
@pytest.mark.slow
def test_concurrent_readers_see_only_written_records_during_truncations(tmp_path):
    """Each record has its offset and its epoch, so a reader can check every record."""
    log = new_log(HOST_DISK, tmp_path, segment_entries=16)
    over, wrong, reads = threading.Event(), [], [0, 0]

    def read() -> None:
        while not over.is_set():
            end = log.end.offset
            for chunk in log.read(Offset(0), end):
                reads[0] += 1
                numbers = chunk.batch.column("id").to_pylist()
                if numbers != list(range(chunk.base_offset, chunk.base_offset + len(numbers))):
                    wrong.append(numbers)

    def fetch_entries() -> None:
        copier = new_log()
        at = 0
        while not over.is_set():
            try:
                found = log.read_entries(EntryIndex(at), 5000)
            except EntriesGone:
                at = 0
                continue
            if found is None:
                at = 0
                continue
            start = found.rows[0]
            copier.reset(Boundary(EntryIndex(at), Offset(int(start["base_offset"]))))
            try:
                copier.append_entries(found.rows, found.data)
            except Exception as error:
                wrong.append(error)
            at += len(found.rows)
            reads[1] += 1

    threads = [threading.Thread(target=each) for each in (read, read, fetch_entries)]
    for each in threads:
        each.start()
    chance = random.Random(1)
    for _ in range(examples(150)):
        for _ in range(chance.randrange(1, 25)):
            append_next(log, rows=chance.randrange(1, 9), size=chance.choice([20, 4000]))
        cut(log, chance.randrange(max(0, log.end.entry - 40), log.end.entry))
        if chance.random() < 0.3:
            drop_tails(log)
    over.set()
    for each in threads:
        each.join()
    assert wrong == []
    assert min(reads) > 0
    everything(log)


READER = """
import sys
import pyarrow as pa
mapped = [pa.memory_map(path).read_buffer() for path in sys.argv[1:]]
before = [each.to_pybytes() for each in mapped]
print("mapped", flush=True)
sys.stdin.readline()
print("same" if [each.to_pybytes() for each in mapped] == before else "changed", flush=True)
"""


def test_mapping_of_another_process_is_unchanged(tmp_path):
    log = new_log(HOST_DISK, tmp_path, segment_entries=4)
    for _ in range(15):
        append_next(log, rows=10)
    paths = [str(each.name.arrow) for each in log.segments[:3]]
    paths += [str(each.name.entries) for each in log.segments[:3]]
    command = [sys.executable, "-c", READER, *paths]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "mapped\n"
        for to in (9, 6, 5, 2, 1, 0):
            cut(log, to)
            for _ in range(2):
                append_next(log, rows=3)
            drop_tails(log)
        assert reader.communicate("go\n")[0] == "same\n"
        assert reader.returncode == 0


def test_full_disk_leaves_the_log_unchanged_or_failed(tmp_path):
    shapes = [1 << 18, 4]
    for number, (room, entries) in enumerate((r, e) for r in range(0, 2500, 100) for e in shapes):
        disk = SmallDisk()
        log = new_log(disk, tmp_path / str(number), segment_entries=entries)
        for _ in range(10):
            append_next(log, rows=4)
        log.flush()
        before = everything(log)
        disk.room = room
        try:
            cut(log, 6)
        except DiskFull:
            assert log.failed is None
            assert everything(log).equals(before)
            disk.room = 1 << 40
            append_next(log, rows=200, size=8000)  # more than a read would copy
            assert ids(list(log.read(Offset(0), log.end.offset))) == list(range(240))
            cut(log, 6)
        except StorageFailure:
            assert log.failed is not None
            assert everything(log).equals(before)
        disk.room = 1 << 40
        again = PartitionLog.open(log.directory, log.format, disk)
        assert again.end.entry in range(6, 11)
        assert everything(again).equals(before.slice(0, again.end.offset))
        assert again.intact


@pytest.mark.parametrize(
    "refused", ["map", "create", "rename", "remove", "write", "flush", "sync_directory"]
)
@pytest.mark.parametrize("to", [0, 3, 5, 12, 13])
@pytest.mark.parametrize("step", ["cut", "reset"])
def test_refused_disk_operation_leaves_the_log_whole_or_failed(tmp_path, refused, to, step):
    disk = FailingDisk()
    log = new_log(disk, tmp_path, segment_entries=4)
    for _ in range(15):
        append_next(log, rows=4)
    log.flush()
    before = everything(log)
    for segment in log.segments:
        segment.hold()
    disk.refused = refused
    start = Boundary(EntryIndex(to), Offset(9 * to))
    done = True
    try:
        log.reset(start) if step == "reset" else cut(log, to)
    except StorageFailure:
        done = False
        assert everything(log).equals(before)
    disk.refused = None
    if not done and log.failed is None:
        append_next(log, rows=4)
        assert everything(log).slice(0, len(before)).equals(before)
        before = everything(log)
    if log.failed is not None:
        for refusing in (append_next, PartitionLog.roll, lambda log: cut(log, 0)):
            with pytest.raises(StorageFailure):
                refusing(log)
    again = PartitionLog.open(tmp_path, log.format)
    if log.failed is None:
        assert (again.start, again.end) == (log.start, log.end)
    if step == "cut":
        assert again.end.entry in ([to] if done else range(to, 17))
        assert everything(again).equals(before.slice(0, again.end.offset))
    elif done:
        assert again.start == again.end == start
    else:
        assert again.end in (start, (0, 0)) or again.start.entry == 0
        if again.start == (0, 0):
            assert everything(again).equals(before.slice(0, again.end.offset))
    append_next(again, rows=3)
    again.close()
    assert PartitionLog.open(tmp_path, log.format).end == again.end


@pytest.mark.parametrize("to", [0, 3], ids=["all of its records", "the rest of a segment"])
def test_slow_reader_continues_after_a_truncation(tmp_path, to):
    """The reader has the old segment, and continues after the file was replaced."""
    log = new_log(HOST_DISK, tmp_path)
    for _ in range(6):
        append_next(log, rows=10)
    log.close()
    log = PartitionLog.open(tmp_path, log.format)
    segment = log.segments[0]
    before = with_pyarrow(segment.name.arrow)
    cut(log, to)
    drop_tails(log)
    for _ in range(6):
        append_next(log, rows=7)
    found = segment.stored(EntryIndex(3), 1 << 20, None)
    assert found is not None
    assert len(found.rows) == 3
    batch, _ = segment.decode(np.array([4]), ["id"])
    assert batch.column("id").to_pylist() == before[40:50]
    log.close()


def test_slow_reader_continues_after_retention(tmp_path):
    log = new_log(HOST_DISK, tmp_path, segment_entries=4, retention_bytes=1)
    for _ in range(12):
        append_next(log, rows=10)
    log.close()
    log = PartitionLog.open(tmp_path, log.format)
    segment = log.segments[0]
    assert log.housekeep(NOW, log.end.offset) == 2
    found = segment.stored(EntryIndex(1), 1 << 20, None)
    assert found is not None
    assert len(found.rows) == 3
    with pytest.raises(EntriesGone):
        log.read_entries(EntryIndex(1), 1 << 20)
