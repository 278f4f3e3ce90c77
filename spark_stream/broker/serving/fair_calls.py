"""A limit of the calls of one connection that use the threads of a pool.

A pool runs work in the order of its arrival. Thousands of open calls of one connection would
therefore delay the calls of all others. The rest of such a connection's calls waits here.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from spark_stream.broker.serving.pool import Pool, Work

AT_ONCE: Final = 32
"""Calls of one connection that a pool runs or queues."""


class FairCalls:
    """The calls of one connection, in the order of their arrival."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._lock = threading.Lock()  # guards the next fields
        self._open = 0
        self._waiting: deque[tuple[Work, Work]] = deque()

    def submit(self, work: Work, refuse: Work) -> None:
        """Run a call on a thread of the pool, or refuse it if the pool has stopped."""
        with self._lock:
            if self._open >= AT_ONCE:
                self._waiting.append((work, refuse))
                return
            self._open += 1
        if not self._start(work):
            refuse()
            self._end()

    def _start(self, work: Work) -> bool:
        def run() -> None:
            try:
                work()
            finally:
                self._end()

        return self._pool.submit(run)

    def _end(self) -> None:
        """Start the next call in place of one that has ended."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._open -= 1
                    return
                work, refuse = self._waiting.popleft()
            if self._start(work):
                return
            refuse()
