"""Calls that wait for brokers, in parallel, on the calling thread and a few more.

A signal handler can interrupt the calling thread anywhere, also while it holds a lock of Python's
own thread pools or of a thread's start. So no call depends on the start of another thread: the
calling thread makes all calls that no other thread has taken.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

from spark_stream.transport.lifetime import (
    Lifetime,
    check_may_wait,
    holds_lock,
    present_lifetime,
)

T = TypeVar("T")
R = TypeVar("R")

_CHECK_S: Final = 0.5


def in_parallel(call: Callable[[T], R], items: Iterable[T], threads_max: int) -> list[R]:
    """Call a function with each item, and return the results in the order of the items.

    After an error no further call begins. The others return first, then the error is raised: that
    of the earliest item, if there are several.

    Raises:
        ReentrantCall: a signal handler has interrupted a call that has to return first.
    """
    check_may_wait()
    lifetime = present_lifetime()
    waiting = deque(enumerate(items))
    count, is_stopped = len(waiting), False
    results: dict[int, R] = {}
    failures: dict[int, BaseException] = {}
    taken: SimpleQueue[int] = SimpleQueue()  # unlike locks, it allows a signal handler inside

    def take_calls() -> None:
        nonlocal is_stopped
        while True:
            try:
                number, item = waiting.popleft()
            except IndexError:
                return
            if not is_stopped:
                try:
                    results[number] = call(item)
                except BaseException as error:
                    failures[number] = error
                    is_stopped = True
            taken.put(number)

    # A thread could wait for a lock that the calling thread holds.
    for _ in range(0 if holds_lock() else min(threads_max, count) - 1):
        try:
            threading.Thread(target=take_calls, name="isolog-parallel", daemon=True).start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            break
    try:
        take_calls()
        for _ in range(count):
            number = _next(taken, lifetime)
            if not isinstance(failures.get(number), Exception | None):
                break  # KeyboardInterrupt and the like do not wait for other calls
    finally:
        is_stopped = True  # an exception of a signal handler stops the calls, too
    if failures:
        raise failures.pop(min(failures))
    return [results[number] for number in range(count)]


def _next(taken: SimpleQueue[int], lifetime: Lifetime) -> int:
    """Return the next number, or raise ForkedClient: a forked child has no other thread."""
    while True:
        lifetime.check()
        try:
            return taken.get(timeout=_CHECK_S)
        except Empty:
            pass
