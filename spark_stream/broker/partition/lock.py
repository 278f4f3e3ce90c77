"""A partition's lock, and work that threads leave to its holder because they must not wait.

Whoever appends holds the lock while the disk takes the bytes. A thread that serves a follower, for
all partitions of its stream, must not wait for that. So it queues its work here: the thread does it
itself if the lock is free; otherwise the holder does it right after releasing the lock.

Why no work is forgotten: work is queued before its owner tries the lock, and a holder looks for
work after it has released the lock. So if a release and a new piece of work cross, one of the two
threads sees the work.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVarTuple

from spark_stream.broker.partition.outcomes import WakeUp, wake_all
from spark_stream.loggers import logger_of

logger = logger_of(__name__)

Ts = TypeVarTuple("Ts")
Work = Callable[[], tuple[WakeUp, ...]]
"""Runs under the lock; returns what to call after its release."""


class PartitionLock:
    """A lock that one thread must not take twice."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: deque[Work] = deque()

    def acquire(self, timeout: float = -1) -> bool:
        """Wait ``timeout`` seconds at most, without limit if negative.

        Return whether the lock was taken.
        """
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        """Release it, then do the work that was left meanwhile."""
        self._lock.release()
        if self._left:
            self._work_off()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def do_soon(self, work: Callable[[*Ts], tuple[WakeUp, ...]], *args: *Ts) -> None:
        """Call ``work(*args)`` under the lock, now or when its holder releases it. Never wait.

        The calls are made in their order. Their errors are logged: their owner may be gone.
        """
        self._left.append(partial(work, *args))
        self._work_off()

    def _work_off(self) -> None:
        while self._left and self._lock.acquire(blocking=False):
            woken: tuple[WakeUp, ...] = ()
            try:
                while self._left:
                    woken += _do(self._left.popleft())
            finally:
                self._lock.release()
            wake_all(woken)


def _do(work: Work) -> tuple[WakeUp, ...]:
    try:
        return work()
    except Exception:
        logger.exception("work left to the holder of a partition's lock failed")
        return ()
