"""The times of a log's next flush and next housekeeping."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_stream.consistency.entries import ENTRY, Kind, Table
from spark_stream.consistency.ids import EntryIndex, Offset
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.storage.format.stored import digest
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.settings import Flush
from tests.examples import examples
from tests.simulation.disk import SimulatedDisk
from tests.storage import logs
from tests.storage.logs import EPOCH, NOW, records
from tests.storage.replicas import HERE, new_log

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(st.sampled_from(["commit", "abort"]), st.integers(1, 4)),
        st.tuples(st.sampled_from(["roll", "flush", "retain"]), st.integers(0, 60)),
        st.tuples(st.sampled_from(["follow", "truncate"]), st.integers(0, 20)),
        st.tuples(st.just("reset"), st.integers(0, 4)),
    ),
    max_size=25,
)


def do(log: PartitionLog, step: str, number: int, now: int) -> object:
    """One step on one of the logs, and its result."""
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


def sent(log: PartitionLog, number: int, now: int) -> tuple[Table, pa.Buffer]:
    """Entries of a leader whose log continues this one."""
    leader = new_log()
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


def test_next_flush_is_due_after_the_interval():
    log = new_log(flush=Flush.INTERVAL, flush_ms=20)
    assert log.next_flush_due(100.0) == 100.02
    assert log.next_flush_due(100.01) == 100.02
    log.flush_if_due(100.01)
    assert log.next_flush_due(100.01) == 100.02
    log.flush_if_due(100.03)
    assert log.next_flush_due(100.03) == pytest.approx(100.05)
    assert new_log(flush=Flush.NONE).next_flush_due(100.0) is None
    assert new_log(flush=Flush.BATCH).next_flush_due(100.0) is None


def test_only_due_records_are_forced():
    disk = SimulatedDisk()
    log = new_log(disk, flush=Flush.INTERVAL, flush_ms=20)
    logs.append_next(log)
    log.flush_if_due(5.0)
    forces = disk.forces
    log.flush_if_due(5.01)
    assert disk.forces == forces
    log.flush_if_due(5.02)
    assert disk.forces > forces
    disk.crash(random.Random(0))
    assert PartitionLog.open(HERE, log.format, disk).end.offset == 10


@pytest.mark.rule(
    "the times of a partition's housekeeping", "broker/host/upkeep.py", "storage/log/retention.py"
)
@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(STEPS, st.sampled_from([-1, 3, 8]), st.sampled_from([-1, 0]), st.integers(0, 40))
def test_housekeeping_is_due_exactly_when_it_changes_something(
    steps, retention_ms, retention_bytes, later_ms
):
    """Without appends, and before an age is reached, housekeeping changes nothing."""
    log = new_log(
        segment_entries=4,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        segment_ms=100,
    )
    now = NOW
    for moment, (step, number) in enumerate(steps):
        now = NOW + 1000 * moment
        if step != "flush":
            do(log, step, number, now)
    log.housekeep(now, log.end.offset)
    while (put_shorter := log.drop_tail()) is not None:
        put_shorter()
    before, due = state_of(log), log.housekeeping_due()
    waited = now + 1000 * later_ms if due is None else min(due - 1, now + 1000 * later_ms)
    log.housekeep(waited, log.end.offset)
    assert state_of(log) == before
    if due is not None:
        log.housekeep(due, log.end.offset)
        assert state_of(log) != before


def state_of(log: PartitionLog) -> tuple[object, ...]:
    """The state that housekeeping may change."""
    segments = [len(table) for table in log.tables()]
    return log.start, log.end, segments, digest(log.tables())
