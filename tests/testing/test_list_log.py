"""The log in a list next to the log in files: nobody who uses one could tell which it is."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_stream.consistency.entries import ENTRY, Kind, Table
from spark_stream.consistency.ids import EntryIndex, Offset
from spark_stream.consistency.leader import Boundary
from spark_stream.consistency.producers import Stamp
from spark_stream.errors import StorageFailure
from spark_stream.storage.log import PartitionLog
from spark_stream.storage.replica_log import ReplicaLog
from spark_stream.storage.settings import Compression, Flush
from spark_stream.storage.stored import digest
from spark_stream.testing.simulation.disk import SimulatedDisk
from spark_stream.testing.simulation.list_log import ListLog
from tests.storage import logs
from tests.storage.logs import EPOCH, NOW, format_of, ids, records

FOREIGN = {"position", "entry_crc"}
"""What of an entry is each replica's own affair."""

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(st.sampled_from(["commit", "abort"]), st.integers(1, 4)),
        st.tuples(st.sampled_from(["roll", "flush", "retain"]), st.integers(0, 60)),
        st.tuples(st.sampled_from(["follow", "truncate"]), st.integers(0, 20)),
        st.tuples(st.sampled_from(["reset", "reopen"]), st.integers(0, 4)),
    ),
    max_size=25,
)


def both(**settings: Any) -> tuple[PartitionLog, ListLog]:
    log_format = format_of(**settings)
    return PartitionLog.open(Path("/t/0"), log_format, SimulatedDisk()), ListLog(log_format)


def do(log: ReplicaLog, step: str, number: int, now: int) -> object:
    """One step on one of them, and what it answers."""
    if step == "append":
        end = int(log.end.offset)
        batch = log.format.prepare(records(end, number), now)
        return log.append(batch, EPOCH, now, Stamp(number, 1, 0, number))
    if step in ("commit", "abort"):
        kind = Kind.COMMIT if step == "commit" else Kind.ABORT
        return log.mark(kind, number, 1, number, EPOCH, now)
    if step == "retain":
        return log.housekeep(now, Offset(min(number, int(log.end.offset))))
    if step == "follow":
        return log.append_entries(*sent(log, number, now))
    if step == "truncate":
        return log.truncate(EntryIndex(max(int(log.start.entry), int(log.end.entry) - number)))
    if step == "reset":
        return log.reset(Boundary(EntryIndex(2 * number), Offset(5 * number)))
    return log.roll() if step == "roll" else log.flush()


def sent(log: ReplicaLog, number: int, now: int) -> tuple[Table, pa.Buffer]:
    """Entries of a leader whose log is this one's and goes on."""
    leader = ListLog(format_of())
    leader.reset(log.end)
    for place in range(number):
        stamp = Stamp(50, 1, place, 1000 + int(log.end.entry))
        moment = now + 700 * place
        batch = log.format.prepare(records(int(leader.end.offset), 1 + place % 3), moment)
        leader.append(batch, EPOCH, moment, stamp)
    if number % 3:
        kind = Kind(number % 3)
        leader.mark(kind, 50, 1, 1000 + int(log.end.entry), EPOCH, now + 700 * number)
    found = leader.read_entries(log.end.entry, 1 << 20)
    return (np.zeros(0, ENTRY), pa.py_buffer(b"")) if found is None else (found.rows, found.data)


def seen(log: ReplicaLog) -> dict[str, object]:
    """All that anybody can ask a log, as plain values."""
    start, end = log.start.offset, log.end.offset
    rows = [row for table in log.tables() for row in table]
    return {
        "bounds": (log.start, log.end, log.failed, log.cuts),
        "segments": [len(table) for table in log.tables()],
        "entries": [[row[name] for name in ENTRY.names if name not in FOREIGN] for row in rows],
        "records": logs.table_of(list(log.read(start, end))).to_pydict(),
        "committed": ids(list(log.read(start, end, committed=True))),
        "ends": [[*log.read(at, end, committed=True)][-1].next_offset for at in range(start, end)],
        "first": [next(log.read(at, end)).base_offset for at in range(start, end)],
        "limited": [ids(list(log.read(at, end, ["id"], 3))) for at in range(start, end)],
        "aborted": [log.has_aborted(at, end) for at in range(start, end)],
        "boundaries": [log.boundary_of(at) for at in range(log.start.entry, log.end.entry + 1)],
        "stored": [stored_from(log, at) for at in range(log.start.entry, log.end.entry)],
        "digest": digest(log.tables()),
        "intact": log.intact,
        "times": [log.offset_at(NOW + second) for second in range(30)],
    }


def stored_from(log: ReplicaLog, first: int) -> list[tuple[object, bytes]]:
    """What another replica gets from here on: all, little, and up to an index."""
    found = [
        log.read_entries(EntryIndex(first), 1 << 20),
        log.read_entries(EntryIndex(first), 1000),
        log.read_entries(EntryIndex(first), 0),
        log.read_entries(EntryIndex(first), 1 << 20, EntryIndex(first + 2)),
    ]
    assert log.read_entries(EntryIndex(first), 1 << 20, EntryIndex(first)) is None
    return [(digest([each.rows]), each.data.to_pybytes()) for each in found if each is not None]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from([3, 1 << 18]), st.sampled_from(Compression))
def test_both_logs_answer_alike_whatever_is_done_to_them(steps, segment_entries, compression):
    real, listed = both(
        segment_entries=segment_entries, compression=compression, retention_ms=8, segment_ms=5
    )
    over: list[int] = []
    for moment, (step, number) in enumerate(steps):
        now = NOW + 1000 * moment
        if step in ("append", "commit", "abort"):  # nothing is appended behind a marker of its pair
            number += 10 * sum(ended % 10 == number for ended in over)
        if step in ("commit", "abort"):
            over.append(number)
        if step == "reopen":
            real = logs.reopened(real, real._disk)
            listed.reopen()
            continue
        assert do(real, step, number, now) == do(listed, step, number, now)
    assert seen(real) == seen(listed)


KINDS: dict[str, Callable[..., ReplicaLog]] = {
    "files": lambda **settings: both(**settings)[0],
    "list": lambda **settings: both(**settings)[1],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_says_when_its_next_flush_is_due(kind):
    log = KINDS[kind](flush=Flush.INTERVAL, flush_ms=20)
    assert log.next_flush_due(100.0) == 100.02
    assert log.next_flush_due(100.01) == 100.02
    log.flush_if_due(100.01)
    assert log.next_flush_due(100.01) == 100.02
    log.flush_if_due(100.03)
    assert log.next_flush_due(100.03) == pytest.approx(100.05)
    assert KINDS[kind](flush=Flush.NONE).next_flush_due(100.0) is None
    assert KINDS[kind](flush=Flush.BATCH).next_flush_due(100.0) is None


def test_what_was_due_is_forced_and_what_was_not_is_not_yet():
    disk = SimulatedDisk()
    log = PartitionLog.open(Path("/t/0"), format_of(flush=Flush.INTERVAL, flush_ms=20), disk)
    logs.append_next(log)
    log.flush_if_due(5.0)
    forces = disk.forces
    log.flush_if_due(5.01)
    assert disk.forces == forces
    log.flush_if_due(5.02)
    assert disk.forces > forces
    disk.crash(random.Random(0))
    assert PartitionLog.open(Path("/t/0"), log.format, disk).end.offset == 10


@pytest.mark.parametrize("flush", Flush)
def test_a_crash_of_the_list_takes_entries_that_were_not_forced_and_no_other(flush):
    log = ListLog(format_of(flush=flush))
    for _ in range(3):
        logs.append_next(log)
    log.mark(Kind.ABORT, 1, 1, 1, EPOCH, NOW)
    if flush is Flush.INTERVAL:
        log.flush()
    log.crash(0)
    assert log.end.entry == (0 if flush is Flush.NONE else 4)
    assert log.forced == log.end.entry
    logs.append_next(log)
    assert ids(list(log.read(log.start.offset, log.end.offset))) == list(range(log.end.offset))


def test_a_list_that_failed_takes_no_more_and_is_read():
    log = ListLog(format_of())
    logs.append_next(log)
    log.fail(StorageFailure("the disk is gone"))
    for refused in (logs.append_next, ListLog.flush, ListLog.roll, ListLog.close):
        with pytest.raises(StorageFailure, match="the disk is gone"):
            refused(log)
    assert (log.end.offset, log.housekeep(NOW + 10**15, Offset(10))) == (10, 0)
    assert len(ids(list(log.read(Offset(0), Offset(10))))) == 10


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from([-1, 3, 8]), st.sampled_from([-1, 0]), st.integers(0, 40))
def test_nothing_is_due_before_its_moment_and_a_moment_later_something_is(
    steps, retention_ms, retention_bytes, later_ms
):
    """What neither moved nor came of age needs no look: of it, housekeeping leaves all.

    By size all goes or nothing: a list has no headers, so their sizes differ.
    """
    real, listed = both(
        segment_entries=4,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        segment_ms=100,
    )
    now = NOW
    for moment, (step, number) in enumerate(steps):
        now = NOW + 1000 * moment
        if step not in ("flush", "reopen"):
            do(real, step, number, now)
            do(listed, step, number, now)
    for log in (real, listed):
        log.housekeep(now, log.end.offset)
    while (put_shorter := real.drop_tail()) is not None:  # a list has none, and nothing due for it
        put_shorter()
    assert real.housekeeping_due() == listed.housekeeping_due()
    before = [seen(log) for log in (real, listed)]
    due = real.housekeeping_due()
    waited = now + 1000 * later_ms if due is None else min(due - 1, now + 1000 * later_ms)
    for log in (real, listed):
        log.housekeep(waited, log.end.offset)
    assert [seen(log) for log in (real, listed)] == before
    if due is not None:
        for log, was in zip((real, listed), before, strict=True):
            log.housekeep(due, log.end.offset)
            assert seen(log) != was
