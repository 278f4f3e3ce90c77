"""Fetches that wait: woken by what satisfies them, in turns, and bounded in number."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from spark_stream.broker.partition import Partition
from spark_stream.broker.waiting import WaitingRead, WaitingReads
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.producers import Stamp
from spark_stream.environment import SystemClock
from spark_stream.errors import BrokerStopping
from spark_stream.storage.log import LogFormat, PartitionLog
from tests.support import NUMBERS, eventually, numbers

DAY_US = 24 * 3_600 * 1_000_000
UNCOMMITTED, COMMITTED = Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    log = PartitionLog.open(tmp_path, LogFormat(NUMBERS))
    return Partition("t", "id", 0, log, DAY_US, SystemClock())


class Reader(threading.Thread):
    """Waits for one offset and keeps its turn until it is told to go on."""

    def __init__(self, reads: WaitingReads, partition: Partition, timeout_s: float = 60) -> None:
        super().__init__(daemon=True)
        self._reads, self._partition = reads, partition
        self._deadline = SystemClock().monotonic() + timeout_s
        self.read = WaitingRead(reads)
        self.found: object = None
        self.may_go = threading.Event()
        self.checks = 0

    def cancelled(self) -> bool:
        self.checks += 1
        return False

    def run(self) -> None:
        try:
            self.found = self.read.wait(
                self._partition, Offset(0), UNCOMMITTED, self._deadline, self.cancelled
            )
            self.may_go.wait(60)
        except BrokerStopping as error:
            self.found = error
        finally:
            self.read.end_turn()


def waiting_readers(count: int, reads: WaitingReads, partition: Partition) -> list[Reader]:
    readers = [Reader(reads, partition) for _ in range(count)]
    for reader in readers:
        reader.start()
    eventually(lambda: reads.waiting == count)
    eventually(lambda: partition._state.callers.reads == count)
    return readers


def test_an_append_wakes_exactly_the_reads_that_it_satisfies(partition):
    partition.transactions.close_join(partition.transactions.open_join(10, 1), on_record=True)
    woken: list[str] = []
    for name, offset, isolation in (
        ("end", 0, UNCOMMITTED),
        ("further end", 1, UNCOMMITTED),
        ("stable", 0, COMMITTED),
        ("replicated", 0, Isolation.READ_REPLICATED),
        ("cut", 0, Isolation.READ_ATOMIC),
    ):
        assert partition.wait_beyond(offset, isolation, lambda name=name: woken.append(name)) >= 0
    partition.append(numbers(0, 1), Stamp(1, 0, 0, 10))
    assert sorted(woken) == ["end", "replicated"]
    woken.clear()
    partition.transactions.end(10, lambda _: True)
    assert sorted(woken) == ["cut", "stable"]
    woken.clear()
    partition.append(numbers(1, 1))
    assert woken == ["further end"]
    assert partition.wait_beyond(0, COMMITTED, woken.clear) is None


def test_an_append_is_acknowledged_before_the_reads_are_woken(partition):
    """What is to be woken comes back with the append, for after its acknowledgement."""
    woken: list[int] = []
    partition.wait_beyond(0, UNCOMMITTED, lambda: woken.append(1))
    taken = partition.appends.take(
        partition.appends.prepare(numbers(0, 1), None), None, UNCOMMITTED
    )
    assert (taken.appended.offset, taken.pending, woken) == (0, None, [])
    taken.wake()
    assert woken == [1]


def test_reads_that_one_append_satisfies_go_on_in_turns(partition):
    reads = WaitingReads(SystemClock())
    readers = waiting_readers(12, reads, partition)
    partition.append(numbers(0, 1))
    most, through = 0, 0
    while through < len(readers):
        at_it = eventually(lambda: [each for each in readers if each.found and each.is_alive()])
        most = max(most, sum(each.read.has_turn for each in readers))
        at_it[0].may_go.set()
        at_it[0].join(10)
        through += 1
    assert most <= 2
    assert [each.found for each in readers] == [True] * 12
    assert reads.waiting == 0


def test_a_waiting_read_looks_for_nothing_but_a_caller_that_is_gone(partition):
    """Four looks a second of 500 reads were 11 % of a core."""
    reads = WaitingReads(SystemClock())
    reader = Reader(reads, partition, timeout_s=1.2)
    reader.may_go.set()
    started = time.monotonic()
    reader.start()
    reader.join(20)
    assert reader.found is False
    assert time.monotonic() - started >= 1.1
    assert reader.checks <= 1


def test_a_read_whose_time_is_over_as_it_is_woken_takes_nobodys_turn(partition):
    reads = WaitingReads(SystemClock())
    late = WaitingRead(reads)
    assert not late.wait(partition, Offset(0), UNCOMMITTED, 0.0, lambda: False)
    for _ in range(5):  # the append had taken it out, and wakes it only now
        reads.wake(late, 0)
    assert not late.has_turn
    readers = waiting_readers(2, reads, partition)
    partition.append(numbers(0, 1))
    for reader in readers:
        reader.may_go.set()
        reader.join(10)
    assert [each.found for each in readers] == [True, True]


def test_beyond_the_bound_a_read_does_not_wait(partition):
    reads = WaitingReads(SystemClock(), most=3)
    readers = waiting_readers(3, reads, partition)
    deadline = SystemClock().monotonic() + 60
    one_more = WaitingRead(reads)
    assert not one_more.wait(partition, Offset(0), UNCOMMITTED, deadline, lambda: False)
    partition.append(numbers(0, 1))
    for reader in readers:
        reader.may_go.set()
        reader.join(10)
    assert reads.enter()


def test_a_partition_that_closes_ends_every_wait(partition):
    readers = waiting_readers(5, WaitingReads(SystemClock()), partition)
    partition.close()
    for reader in readers:
        reader.join(10)
        assert isinstance(reader.found, BrokerStopping)
