"""Threads for calls that wait for brokers.

:func:`call_elsewhere` runs a call on a few threads that the whole process shares. Callbacks of the
loop must not block, and callers of a producer should not. So connecting and looking up leaders are
done on these threads. Calls with the same key run one after another. So a broker that does not
answer blocks one thread, however many calls to it are waiting. Idle threads end, except one,
because no thread can be started while the interpreter shuts down. A forked process starts without
threads.

:func:`in_parallel` runs calls on the calling thread and a few more. A signal handler can interrupt
the calling thread anywhere, also while it holds a lock of Python's own thread pools or of a
thread's start. So no call depends on the start of another thread: the calling thread makes all
calls that no other thread has taken.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar, TypeVarTuple

from spark_stream.loggers import logger_of
from spark_stream.transport.lifetime import (
    Lifetime,
    check_may_wait,
    holds_lock,
    in_child_while_used,
    new_lock,
    present_lifetime,
)

logger = logger_of(__name__)

THREADS_MAX: Final = 4
_CHECK_S: Final = 0.5

T = TypeVar("T")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class CallPool:
    """A pool of up to ``threads_max`` threads. The last one stays and waits for more calls."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._begin()
        in_child_while_used(self._begin)  # a forked child has no threads and no calls

    def _begin(self) -> None:
        self._changed = threading.Condition(new_lock())
        self._waiting: deque[tuple[Hashable, Callable[..., None], tuple[Any, ...]]] = deque()
        self._busy: set[Hashable] = set()
        self._threads = 0
        self._idle = 0  # 1 if a thread waits for a call

    def add(self, key: Hashable, call: Callable[[*Ts], None], *arguments: *Ts) -> None:
        """Queue a call after the earlier ones with this key.

        Raises:
            RuntimeError: No thread is running or can be started.
        """
        with self._changed:
            self._waiting.append((key, call, arguments))
            if key in self._busy:
                return
            if self._idle:
                self._idle = 0
                self._changed.notify_all()
                return
            if self._threads >= self._threads_max:
                return
            self._threads += 1
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            with self._changed:
                self._threads -= 1
                if not self._threads:
                    self._waiting.remove((key, call, arguments))
                    raise

    def keep_thread(self) -> None:
        """Start a thread now, because this is impossible while the interpreter shuts down."""
        if not self._threads:
            self.add(self, _do_nothing)

    def await_idle(self, timeout_s: float | None) -> None:
        """Wait until all calls have returned, or for ``timeout_s`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._waiting or self._busy), timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                while (found := self._take()) is None:
                    self._changed.notify_all()
                    if self._idle:
                        self._threads -= 1
                        return
                    self._idle = 1
                    self._changed.wait_for(lambda: not self._idle)
                key, call, arguments = found
            try:
                call(*arguments)
            except Exception:
                logger.exception("a call to a broker failed unexpectedly")
            del found, call, arguments  # and the objects that they refer to
            with self._changed:
                self._busy.discard(key)  # a child that the call forked does not have it

    def _take(self) -> tuple[Hashable, Callable[..., None], tuple[Any, ...]] | None:
        """Return a waiting call whose key has no running call. The caller holds the lock."""
        waiting = list(self._waiting)  # a garbage collection on this thread may add a call
        found = next((each for each in waiting if each[0] not in self._busy), None)
        if found is not None:
            self._waiting.remove(found)
            self._busy.add(found[0])
        return found


def _do_nothing() -> None:
    pass


_pool = CallPool(THREADS_MAX, "isolog-calls")


def call_elsewhere(key: Hashable, call: Callable[[*Ts], None], *arguments: *Ts) -> None:
    """Run a call on one of the process's threads for calls, after earlier calls with its key."""
    _pool.add(key, call, *arguments)


def keep_calling() -> None:
    """Start a thread for calls that are made while the interpreter shuts down."""
    _pool.keep_thread()


def weakly(method: Callable[..., None], *arguments: object) -> Callable[..., None]:
    """Return a function that calls the bound method, unless its object was collected."""
    known = weakref.WeakMethod(method)

    def call(*more: object) -> None:
        found = known()
        if found is not None:
            found(*arguments, *more)

    return call


def in_parallel(call: Callable[[T], R], items: Iterable[T], threads_max: int) -> list[R]:
    """Call a function with each item, and return the results in the order of the items.

    After an error no further call begins. When all running calls have returned, the error is
    raised. If there are several, the error of the earliest item is raised.

    Raises:
        ReentrantCall: A signal handler has interrupted a call that has to return first.
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
                break  # KeyboardInterrupt does not wait for the other calls
    finally:
        is_stopped = True  # an exception of a signal handler stops the calls, too
    if failures:
        raise failures.pop(min(failures))
    return [results[number] for number in range(count)]


def _next(taken: SimpleQueue[int], lifetime: Lifetime) -> int:
    """Return the next number. Raise ForkedClient in a forked child, which has no other thread."""
    while True:
        lifetime.check()
        try:
            return taken.get(timeout=_CHECK_S)
        except Empty:
            pass
