"""The calls of one connection beside many open calls of another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from spark_stream.broker.serving.pool import AT_ONCE, MOST, FairCalls, Pool, Ts
from spark_stream.transport.loop import Loop


class QueueOfWork(Pool):
    """A pool that runs work only by the test's calls of :meth:`run_one`."""

    def __init__(self) -> None:
        self.queue: list[partial[None]] = []
        self.is_stopped = False

    def submit(self, function: Callable[[*Ts], None], *args: *Ts) -> bool:
        if not self.is_stopped:
            self.queue.append(partial(function, *args))
        return not self.is_stopped

    def run_one(self) -> None:
        self.queue.pop(0)()


def refused() -> None:
    pytest.fail("a call was refused")


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop("test-fair-calls")
    yield loop
    loop.close()


def test_calls_of_a_connection_wait_for_few_calls_of_another_one() -> None:
    pool, done = QueueOfWork(), list[str]()
    busy, other = FairCalls(pool), FairCalls(pool)
    for number in range(8_000):
        busy.submit(partial(done.append, str(number)), refused)
    other.submit(partial(done.append, "other"), refused)
    for _ in range(AT_ONCE + 1):
        pool.run_one()
    assert done == [*map(str, range(AT_ONCE)), "other"]
    while pool.queue:
        pool.run_one()
    assert [each for each in done if each != "other"] == [*map(str, range(8_000))]


def test_next_call_starts_after_a_failed_one() -> None:
    pool, done = QueueOfWork(), list[int]()
    calls = FairCalls(pool)

    def fail() -> None:
        raise ValueError("a call failed")

    for _ in range(AT_ONCE):
        calls.submit(fail, refused)
    calls.submit(partial(done.append, 1), refused)
    with pytest.raises(ValueError, match="a call failed"):
        pool.run_one()
    while pool.queue and not done:
        pool.queue.pop()()
    assert done == [1]


def test_hanging_calls_of_one_connection_leave_threads_to_others(loop: Loop) -> None:
    pool, free, done = Pool(loop), threading.Event(), threading.Event()
    hung, other = FairCalls(pool), FairCalls(pool)
    for _ in range(2 * MOST):
        hung.submit(lambda: free.wait(30) and None, lambda: None)
    other.submit(done.set, refused)
    assert done.wait(30)
    assert not free.is_set()
    free.set()
    pool.stop()


def test_calls_that_wait_when_the_pool_stops_are_rejected() -> None:
    pool, rejected = QueueOfWork(), list[int]()
    calls = FairCalls(pool)
    for number in range(AT_ONCE + 3):
        calls.submit(lambda: None, partial(rejected.append, number))
    pool.is_stopped = True
    while pool.queue:
        pool.run_one()
    assert rejected == [AT_ONCE, AT_ONCE + 1, AT_ONCE + 2]


def test_calls_of_a_stopped_pool_are_rejected(loop: Loop) -> None:
    pool = Pool(loop)
    pool.stop()
    calls, rejected = FairCalls(pool), list[int]()
    for number in range(2 * AT_ONCE):
        calls.submit(lambda: None, partial(rejected.append, number))
    assert rejected == [*range(2 * AT_ONCE)]
