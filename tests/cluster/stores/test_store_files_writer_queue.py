"""Every writer gets its turn: threads in the order of their requests, processes soon."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from spark_stream.cluster.stores.store_files import (
    _PASSING_S,
    _PATIENCE_S,
    ThreadLine,
    WriterQueue,
)
from spark_stream.environment import Clock, SystemClock
from tests.clocks import FakeClock
from tests.support import eventually


def test_threads_get_the_lock_in_the_order_of_their_requests():
    line, order = ThreadLine(), []
    assert line.acquire(1.0)

    def take(number: int) -> None:
        assert line.acquire(20.0)
        order.append(number)
        line.release()

    threads = []
    for number in range(10):
        threads.append(threading.Thread(target=take, args=(number,)))
        threads[-1].start()
        eventually(lambda number=number: len(line._waiting) == number + 1)
    line.release()
    for thread in threads:
        thread.join()
    assert order == list(range(10))


def test_a_timeout_leaves_the_line():
    line = ThreadLine()
    assert line.acquire(1.0)
    assert not line.acquire(0.01)
    line.release()
    assert line.acquire(0.0), "it was not handed to somebody who had gone"


class Writer:
    """One process's line to a resource that only one can have."""

    def __init__(self, path: Path, resource: threading.Lock, clock: Clock) -> None:
        self.turns = WriterQueue(path, clock)
        self.resource = resource
        self.attempts = 0

    def attempt(self) -> bool:
        self.attempts += 1
        return self.resource.acquire(blocking=False)

    def take(self, timeout_s: float = 20.0) -> bool:
        return self.turns.take(self.attempt, timeout_s)

    def end(self) -> None:
        self.resource.release()
        self.turns.end()


@pytest.fixture
def writers(tmp_path):
    """Two: each has opened the file for itself, so to the kernel they are as two processes.

    Their clock stands still: none of them loses its patience on a slow machine.
    """
    resource = threading.Lock()
    both = [Writer(tmp_path / "turns", resource, FakeClock()) for _ in range(2)]
    yield both
    for each in both:
        each.turns.close()


@pytest.mark.rule("the order of the store's writers", "cluster/stores/store_files.py")
def test_a_writer_that_returns_immediately_waits_for_the_other(writers):
    greedy, patient = writers
    for _ in range(20):
        order = []
        assert greedy.take()
        seen = patient.attempts

        def wait(order=order) -> None:
            assert patient.take()
            order.append("patient")
            patient.end()

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda seen=seen: patient.attempts > seen)
        greedy.end()
        assert greedy.take()
        order.append("greedy")
        greedy.end()
        thread.join()
        assert order == ["patient", "greedy"]


def test_a_timeout_releases_the_place(writers):
    holder, late = writers
    late.turns._clock = SystemClock()
    assert holder.take()
    assert not late.take(0.01)
    holder.end()
    assert holder.take(), "the place in the line is free"
    holder.end()
    assert late.take()
    late.end()


def test_a_failed_attempt_releases_the_place_and_the_turn(writers):
    def fail() -> bool:
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        writers[0].turns.take(fail, 1.0)
    for each in writers:
        assert each.take(1.0)
        each.end()


class LookingClock(FakeClock):
    """A clock that moves by a millisecond at each look."""

    def monotonic(self) -> float:
        self.pass_us(1_000)
        return super().monotonic()


def test_a_place_that_does_not_move_is_passed_after_one_pause(tmp_path):
    """Its owner is paused, and does not have the resource."""
    clock, resource = LookingClock(), threading.Lock()
    stopped, writer = (Writer(tmp_path / "turns", resource, clock) for _ in range(2))
    assert stopped.turns._is_next()

    def seconds_of_a_turn() -> float:
        began = clock.monotonic()
        assert writer.take()
        writer.end()
        return clock.monotonic() - began

    assert _PATIENCE_S <= seconds_of_a_turn() < 2 * _PATIENCE_S
    assert sum(seconds_of_a_turn() for _ in range(20)) < _PATIENCE_S
    clock.pass_us(int(_PASSING_S * 1e6))
    assert _PATIENCE_S <= seconds_of_a_turn() < 2 * _PATIENCE_S
    for each in (stopped, writer):
        each.turns.close()
    assert resource.acquire(blocking=False)
