"""Calls that wait for a broker, on a few threads that the whole process shares.

Callbacks of the loop must not wait, and callers of a producer should not. So connecting and asking
are done here. Calls with the same key run one after another, on one thread: a broker that does not
answer blocks one thread, however many calls to it are waiting. A thread ends when no call is left.
A forked process starts without threads.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

from spark_stream.transport.lifetime import in_child, new_lock

logger = logging.getLogger(__name__)

THREADS_MAX: Final = 4

Call = Callable[[], None]


class CallPool:
    """The threads of one process."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._waiting: deque[tuple[Hashable, Call]] = deque()
        self._busy: set[Hashable] = set()

    def add(self, key: Hashable, call: Call) -> None:
        """Queue a call, behind the earlier ones of this key."""
        with self._lock:
            if key in self._busy or len(self._busy) >= THREADS_MAX:
                self._waiting.append((key, call))
                return
            self._busy.add(key)
        try:
            threading.Thread(
                target=self._run, args=(key, call), name="isolog-calls", daemon=True
            ).start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            with self._lock:
                self._busy.remove(key)
            raise

    def _run(self, key: Hashable, call: Call) -> None:
        while True:
            try:
                call()
            except Exception:
                logger.exception("a call to a broker failed unexpectedly")
            with self._lock:
                self._busy.remove(key)
                free = (each for each in self._waiting if each[0] not in self._busy)
                following = next(free, None)
                if following is None:
                    return
                self._waiting.remove(following)
                key, call = following
                self._busy.add(key)


_pool = CallPool()


@in_child
def _begin_anew() -> None:
    """Start without the parent's threads and calls, in a child that was just forked."""
    global _pool
    _pool = CallPool()


def call_elsewhere(key: Hashable, call: Call) -> None:
    """Run a call on one of the process's threads for calls; see the module."""
    _pool.add(key, call)


def weakly(method: Callable[..., None], *arguments: object) -> Callable[..., None]:
    """Return a call of a bound method that does nothing after the end of its object."""
    known = weakref.WeakMethod(method)

    def call(*more: object) -> None:
        found = known()
        if found is not None:
            found(*arguments, *more)

    return call
