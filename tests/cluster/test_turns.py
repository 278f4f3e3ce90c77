"""Whoever writes comes to its turn: among threads in the order of asking, among processes soon."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from spark_stream.cluster.stores.writer_queue import ThreadLine, WriterQueue
from spark_stream.environment import SystemClock
from tests.support import eventually


def test_threads_get_the_lock_in_the_order_in_which_they_asked():
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


def test_who_waits_too_long_leaves_the_line():
    line = ThreadLine()
    assert line.acquire(1.0)
    assert not line.acquire(0.01)
    line.release()
    assert line.acquire(0.0), "it was not handed to somebody who had gone"


class Writer:
    """One process's line to a resource that only one can have."""

    def __init__(self, path: Path, resource: threading.Lock) -> None:
        self.turns = WriterQueue(path, SystemClock())
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
    """Two: each has opened the file for itself, so to the kernel they are as two processes."""
    resource = threading.Lock()
    both = [Writer(tmp_path / "turns", resource) for _ in range(2)]
    yield both
    for each in both:
        each.turns.close()


@pytest.mark.rule("who may write to the store next", "cluster/stores/writer_queue.py")
def test_who_ends_its_turn_and_comes_back_at_once_finds_the_other_before_it(writers):
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


def test_who_waits_too_long_gives_its_place_back(writers):
    holder, late = writers
    assert holder.take()
    assert not late.take(0.01)
    holder.end()
    assert holder.take(), "the place in the line is free"
    holder.end()
    assert late.take()
    late.end()


def test_an_attempt_that_fails_gives_the_place_and_the_turn_back(writers):
    def fail() -> bool:
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        writers[0].turns.take(fail, 1.0)
    for each in writers:
        assert each.take(1.0)
        each.end()
