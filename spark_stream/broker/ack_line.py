"""The appends of one stream that are in their logs and wait until they are replicated.

Nobody stands still for them: the stream goes on, and so does the partition. A thread of the line's
own acknowledges each as soon as it is settled. It is not the thread that settles it: that one
serves a follower, and must not wait for a client that reads no acknowledgements.

All appends of a stream have the same time to wait, so the one that came first is the first whose
time is over. A thread that has nothing to do sleeps for just that time: so it is up in time for
whoever comes meanwhile, and need not be woken for one that is settled soon.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from spark_stream.environment import Clock


class Waiting(Protocol):
    """An append that is in its log."""

    @property
    def deadline(self) -> float:
        """When it is answered whatever has become of it, on the monotonic clock."""

    def when_settled(self, heard: Callable[[], None]) -> None:
        """Calls ``heard`` once it is settled, under any lock; perhaps twice."""

    def acknowledge(self) -> None:
        """Answers it; never raises. It is settled, or its time is over."""


class AckLine:
    """The waiting appends of one stream; two threads at most put some in."""

    def __init__(self, clock: Clock, patience_s: float) -> None:
        """``patience_s``: how long an append of the stream waits at most."""
        self._clock = clock
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._waiting: dict[Waiting, None] = {}  # in the order in which they came
        self._settled: deque[Waiting] = deque()
        self._looks_at = 0.0  # when the thread looks again if nobody wakes it
        self._thread: threading.Thread | None = None
        self._finishing = False

    def put(self, append: Waiting) -> None:
        """The append is answered when it is settled, or its time is over."""
        with self._changed:
            self._waiting[append] = None
            if append.deadline < self._looks_at:
                self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="isolog-acknowledge", daemon=True
                )
                self._thread.start()
        append.when_settled(lambda: self._hear(append))

    def finish(self) -> None:
        """Waits until every append is answered: nothing touches the stream after that."""
        with self._changed:
            self._finishing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _hear(self, append: Waiting) -> None:
        with self._changed:
            self._settled.append(append)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                append = self._next()
                if append is None:
                    return
                del self._waiting[append]
            append.acknowledge()

    def _next(self) -> Waiting | None:
        """The next to be answered; None: there will be none. The caller holds the lock."""
        while True:
            while self._settled:
                settled = self._settled.popleft()
                if settled in self._waiting:  # else it was answered already
                    return settled
            first = next(iter(self._waiting), None)
            if first is None:
                if self._finishing:
                    return None
                left = self._patience_s
            else:
                left = first.deadline - self._clock.monotonic()
                if left <= 0:
                    return first
            self._looks_at = self._clock.monotonic() + left
            self._changed.wait(left)
