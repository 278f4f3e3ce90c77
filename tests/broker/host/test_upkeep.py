"""A round of upkeep visits partitions that changed or are due, and no others."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from isolog.errors import DiskFull
from spark_stream.broker.host.upkeep import Agenda
from spark_stream.broker.partition.partition import Partition
from spark_stream.consistency.ids import EntryIndex
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.environment import SystemClock
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.settings import LogSettings
from tests.broker.partition.test_partition import joined
from tests.broker.topic_desk import LocalTopics
from tests.clocks import FakeClock
from tests.simulation.disk import SimulatedDisk
from tests.support import NUMBERS, eventually, numbers

MEMBERS = st.integers(0, 4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("move"), MEMBERS),
        st.tuples(st.just("put down"), MEMBERS, st.integers(0, 20)),
        st.tuples(st.just("take"), st.integers(0, 20)),
    )
)


@given(STEPS)
def test_a_member_is_returned_once_after_a_move_or_when_it_is_due(steps):
    agenda: Agenda[int] = Agenda()
    moved: set[int] = set()
    at: dict[int, int] = {}
    for what, *arguments in steps:
        if what == "move":
            agenda.move(*arguments)
            moved.add(*arguments)
        elif what == "put down":
            agenda.schedule(*arguments)
            at[arguments[0]] = arguments[1]
        else:
            due = moved | {each for each, moment in at.items() if moment <= arguments[0]}
            found = agenda.take_due(arguments[0])
            assert (len(found), set(found)) == (len(due), due)
            moved.clear()
            at = {each: moment for each, moment in at.items() if each not in due}
        earliest = agenda.next_moment()
        assert not at or (earliest is not None and earliest <= min(at.values()))


def test_moved_members_are_due_in_their_order():
    """The order does not depend on addresses in memory, so that a simulated run is repeatable."""
    agenda: Agenda[object] = Agenda()
    members = [object() for _ in range(50)]
    for each in [*members, *reversed(members)]:
        agenda.move(each)
    assert agenda.take_due(0) == members


def test_a_member_that_moves_during_a_take_is_not_lost():
    agenda: Agenda[int] = Agenda()
    last = 20_000

    def move() -> None:
        for number in range(last):
            agenda.move(number)

    mover = threading.Thread(target=move)
    mover.start()
    taken: list[int] = []
    while mover.is_alive():
        taken += agenda.take_due(0)
    taken += agenda.take_due(0)
    assert sorted(taken) == list(range(last))


# -- partitions report when they are due -----------------------------------------------------------


class Told:
    """A partition, and the number of changes that it reported."""

    def __init__(self, folder: Path) -> None:
        self.times = 0
        log = PartitionLog.open(folder / "0", LogFormat(NUMBERS))
        self.partition = Partition("t", "id", 0, log, 10**15, SystemClock(), moved=self._count)

    def _count(self, partition: Partition) -> None:
        assert partition is self.partition
        self.times += 1

    def moves(self) -> bool:
        """Whether it has changed since the last call."""
        moved, self.times = self.times > 0, 0
        return moved


def test_housekeeping_drops_the_rest_of_a_truncation(tmp_path: Path):
    told = Told(tmp_path)
    for number in range(4):
        told.partition.append(numbers(number, 1))
    log = told.partition.log
    log.truncate(EntryIndex(2))
    arrow = tmp_path / "0" / f"{0:020d}.arrow"
    with pa.ipc.open_stream(arrow) as stream:
        assert stream.read_all().num_rows == 4
    assert told.partition.housekeep() is None
    with pa.ipc.open_stream(arrow) as stream:
        assert stream.read_all().num_rows == 2


def test_segments_removed_before_an_error_are_not_shown(tmp_path: Path):
    """The disk is too full for a roll, and segments were removed to make room."""
    disk, clock = SimulatedDisk(), FakeClock()
    log_format = LogFormat(NUMBERS, LogSettings(retention_ms=100))
    log = PartitionLog.open(tmp_path / "0", log_format, disk)
    partition = Partition("t", "id", 0, log, 10**15, clock)
    partition.append(numbers(0, 1))
    log.roll()
    partition.append(numbers(1, 1))
    clock.pass_us(10**6)
    disk.room = 0
    with pytest.raises(DiskFull):
        partition.housekeep()
    assert partition.bounds().log_start_offset == log.start.offset == 1


def test_each_change_that_may_make_work_due_is_reported(tmp_path: Path):
    told = Told(tmp_path)
    partition = told.partition
    assert not told.moves()
    joined(partition, 7, 1)
    partition.append(numbers(0, 1))
    assert told.moves()
    partition.append(numbers(1, 1), Stamp(1, 0, 0, 7))
    assert told.moves()
    partition.transactions.end(7, lambda _: True)
    assert told.moves()
    present = partition.log.format
    partition.configure(present)
    assert not told.moves()
    faster = replace(present.settings, segment_ms=5)
    partition.configure(dataclasses.replace(present, settings=faster))
    assert told.moves()
    partition.housekeep()
    partition.flush_if_due(0.0)
    assert not told.moves()
    partition.close()
    assert told.moves()


@pytest.fixture
def topics(tmp_path: Path):
    made = LocalTopics(tmp_path, clock=SystemClock())
    yield made
    made.close()


@pytest.mark.rule(
    "the times of a partition's housekeeping", "broker/host/upkeep.py", "storage/log/retention.py"
)
def test_an_idle_broker_visits_no_partition(topics, monkeypatch):
    """Not even partitions that changed once: no age makes them due within a day here."""
    topics.create("t", 50, 1, NUMBERS, {})
    topics.topic("t").partition(3).append(numbers(0, 1))
    looked: list[int] = []
    housekeep = Partition.housekeep

    def count(partition: Partition, tiered: int) -> int | None:
        looked.append(partition.number)
        return housekeep(partition, tiered)

    monkeypatch.setattr(Partition, "housekeep", count)
    topics.host.upkeep.housekeep()
    assert sorted(looked) == list(range(50))  # they are new
    looked.clear()
    topics.host.upkeep.housekeep()
    assert looked == []
    topics.topic("t").partition(7).append(numbers(0, 1))
    topics.host.upkeep.housekeep()
    assert looked == [7]


def test_work_that_is_due_by_age_needs_no_change(topics, monkeypatch):
    topics.create("t", 2, 1, NUMBERS, {"segment.ms": "1000"})
    partition = topics.topic("t").partition(1)
    partition.append(numbers(0, 1))
    topics.host.upkeep.housekeep()
    topics.host.upkeep.housekeep()
    assert len(partition.log.segments) == 1
    later = SystemClock().steady_us() + 1_100_000
    monkeypatch.setattr(SystemClock, "steady_us", lambda _: later)
    topics.host.upkeep.housekeep()
    assert len(partition.log.segments) == 2


def test_the_flusher_pauses_for_the_shortest_interval(topics):
    without = topics.host.upkeep.flush_due()
    topics.create("seldom", 1, 1, NUMBERS, {"flush": "interval", "flush.ms": "5000"})
    at_rest = topics.host.upkeep.flush_due()
    topics.create("often", 1, 1, NUMBERS, {"flush": "interval", "flush.ms": "20"})
    assert topics.host.upkeep.flush_due() <= 0.02 < at_rest < without
    topics.delete("often")
    # The entry of the deleted one makes it come once more.
    eventually(lambda: topics.host.upkeep.flush_due() == at_rest)
