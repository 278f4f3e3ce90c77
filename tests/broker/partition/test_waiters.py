"""The lock of a partition, and the work that threads queue for its holder."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from spark_stream.broker.partition.waiters import PartitionLock, wake_all
from spark_stream.storage.logs import FileLogs
from spark_stream.wire.replication_messages import Acked, Frame
from tests.broker.clusters import around, make
from tests.broker.leader_streams import followed
from tests.broker.local_broker import Surroundings
from tests.storage.disks import FaultyDisk
from tests.support import eventually, numbers

__all__ = ["around"]


def test_work_runs_immediately_if_the_lock_is_free():
    lock, done = PartitionLock(), []
    lock.run_soon(lambda: done.append("work") or (lambda: done.append("woken"),))
    assert done == ["work", "woken"]
    assert lock.acquire(0)


def test_holder_runs_queued_work_in_order_and_wakes_without_the_lock():
    lock, done = PartitionLock(), []

    def leave(name: str) -> None:
        def work() -> tuple[Any, ...]:
            done.append((name, threading.get_ident()))
            return (lambda: done.append(("free", lock.acquire(0) and (lock.release() or True))),)

        lock.run_soon(work)

    with lock:
        others = [threading.Thread(target=leave, args=(name,)) for name in ("one", "two")]
        for each in others:
            each.start()
            each.join(10)
        assert not done
    me = threading.get_ident()
    assert done == [("one", me), ("two", me), ("free", True), ("free", True)]


def test_failing_work_does_not_stop_other_work(caplog):
    lock, done = PartitionLock(), []
    with lock:
        lock.run_soon(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
        lock.run_soon(lambda: done.append(1) or ())
    assert done == [1]
    assert "ZeroDivisionError" in caplog.text
    assert lock.acquire(0)


def test_no_queued_work_is_lost_under_contention():
    lock, rounds = PartitionLock(), 3_000
    done: list[int] = []

    def hold() -> None:
        for _ in range(rounds):
            with lock:
                pass

    def leave() -> None:
        for number in range(rounds):
            lock.run_soon(lambda number=number: done.append(number) or ())  # type: ignore[misc]

    threads = [threading.Thread(target=each) for each in (hold, leave, hold)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert done == list(range(rounds))


class HangingDisk(FaultyDisk):
    """A disk whose writes block in the partition folder that ``hangs_in`` names."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs_in: str | None = None
        self.is_hanging = threading.Event()
        self.goes_on = threading.Event()

    def before(self, operation: str, path: Path) -> None:
        if operation == "write" and path.parent.name == self.hangs_in:
            self.is_hanging.set()
            assert self.goes_on.wait(60)


@pytest.mark.rule(
    "the threads that never wait for a partition's lock", "broker/partition/waiters.py"
)
def test_hanging_append_delays_high_watermark_of_no_other_partition(
    around: Surroundings,
):
    disk = HangingDisk()
    a, b = around.start("a", logs=FileLogs(disk)), around.start("b")
    make(a, "t", "ab", "ab")
    one, other = a.partition("t", 0), a.partition("t", 1)
    with followed(a, b, 2) as follower:
        for number, partition in enumerate((one, other)):
            partition.append(numbers(0, 1))
            eventually(lambda number=number: follower.has_heard(Frame, number))
        disk.hangs_in = one.log.directory.name
        hanging = threading.Thread(target=one.append, args=(numbers(1, 1),))
        hanging.start()
        try:
            assert disk.is_hanging.wait(60)
            follower.say(Acked(((0, 1),)))
            follower.say(Acked(((1, 1),)))
            eventually(lambda: other.bounds().high_watermark == 1)
            assert one.bounds().high_watermark == 0
        finally:
            disk.goes_on.set()
            hanging.join()
        eventually(lambda: one.bounds().high_watermark == 1)


def test_callbacks_after_a_failing_one_are_called() -> None:
    def fail() -> None:
        raise RuntimeError("can't start new thread")

    woken: list[str] = []
    wake_all((fail, lambda: woken.append("the other")))
    assert woken == ["the other"]
