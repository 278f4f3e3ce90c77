"""Appends that wait to be replicated: answered as they are settled, or when their time is over."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable

import pytest

from spark_stream.broker.ack_line import AckLine
from spark_stream.environment import SystemClock
from tests.support import eventually

CLOCK = SystemClock()


class Kept:
    """An append in its log."""

    def __init__(self, answered: list[Kept], patience_s: float = 60.0) -> None:
        self.deadline = CLOCK.monotonic() + patience_s
        self.thread: threading.Thread | None = None
        self._answered = answered
        self._heard: Callable[[], None] = lambda: None
        self.settled = False

    def when_settled(self, heard: Callable[[], None]) -> None:
        self._heard = heard
        if self.settled:
            heard()

    def settle(self) -> None:
        self.settled = True
        self._heard()

    def acknowledge(self) -> None:
        self.thread = threading.current_thread()
        self._answered.append(self)


@pytest.fixture
def answered() -> list[Kept]:
    return []


def test_they_are_answered_in_the_order_in_which_they_are_settled(answered):
    line = AckLine(CLOCK, 60.0)
    appends = [Kept(answered) for _ in range(50)]
    for each in appends:
        line.put(each)
    for each in reversed(appends):
        each.settle()
    line.finish()
    assert answered == appends[::-1]


def test_what_was_settled_before_it_came_is_answered(answered):
    line, append = AckLine(CLOCK, 60.0), Kept(answered)
    append.settle()
    line.put(append)
    line.finish()
    assert answered == [append]


def test_whose_time_is_over_is_answered_and_no_other(answered):
    line = AckLine(CLOCK, 60.0)
    hasty, patient = Kept(answered, 0.01), Kept(answered)
    line.put(hasty)
    line.put(patient)
    threading.Timer(0.2, patient.settle).start()
    line.finish()
    assert answered == [hasty, patient]


def test_one_that_came_late_is_answered_in_its_own_time(answered):
    """Its partition was held for long; one that was read after it went into its log before."""
    line = AckLine(CLOCK, 60.0)
    patient, hasty = Kept(answered), Kept(answered, 0.05)
    line.put(patient)
    line.put(hasty)
    eventually(lambda: answered == [hasty])
    patient.settle()
    line.finish()
    assert answered == [hasty, patient]


def test_those_that_are_answered_are_not_kept_while_an_earlier_one_waits(answered):
    line, first = AckLine(CLOCK, 60.0), Kept(answered)
    line.put(first)
    alive = weakref.WeakSet[Kept]()
    for _ in range(1_000):
        append = Kept([])
        alive.add(append)
        append.settle()
        line.put(append)
    del append

    def most_are_gone() -> bool:
        gc.collect()  # an append and who is called when it is settled know each other
        return len(alive) < 100

    eventually(most_are_gone)
    first.settle()
    line.finish()


def test_a_line_that_had_nothing_to_do_answers_in_time(answered):
    line, first = AckLine(CLOCK, 60.0), Kept(answered)
    line.put(first)
    first.settle()
    eventually(lambda: answered == [first])
    time.sleep(0.05)  # its thread has nothing to wait for
    hasty = Kept(answered, 0.01)
    line.put(hasty)
    eventually(lambda: answered == [first, hasty])
    line.finish()


def test_a_line_at_rest_looks_after_those_who_come_meanwhile(answered):
    line, first = AckLine(CLOCK, 0.2), Kept(answered, 0.2)
    line.put(first)
    first.settle()
    eventually(lambda: answered == [first])
    late = Kept(answered, 0.2)
    line.put(late)
    eventually(lambda: answered == [first, late])
    assert CLOCK.monotonic() >= late.deadline
    line.finish()


def test_nobody_is_answered_twice(answered):
    line, append = AckLine(CLOCK, 60.0), Kept(answered)
    line.put(append)
    for _ in range(3):
        append.settle()
    line.finish()
    append.settle()
    assert answered == [append]


def test_who_settles_does_not_answer(answered):
    """That thread serves a follower: it must not wait for a client that reads nothing."""
    line, append = AckLine(CLOCK, 60.0), Kept(answered)
    line.put(append)
    append.settle()
    line.finish()
    assert append.thread not in (None, threading.current_thread())
