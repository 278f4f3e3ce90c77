"""The appends of one stream that are in their logs and wait until they are replicated.

Nobody stands still for them: the stream goes on, and so does the partition. A thread of the line's
own acknowledges each as soon as it is settled. It is not the thread that settles it: that one
serves a follower, and must not wait for a client that reads no acknowledgements.

The next whose time is over is the one with the earliest deadline. That need not be the one that
came first: the partition of another may have been held for long. A thread that has nothing to do
sleeps for as long as an append of the stream may wait: so it is up in time for most that come
meanwhile, and need not be woken for one that is settled soon.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from spark_stream.environment import Clock

_LINGERING_MAX: Final = 64  # how many answered appends are not worth looking for


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
    """The waiting appends of one stream; any thread puts some in."""

    def __init__(self, clock: Clock, patience_s: float) -> None:
        """``patience_s``: how long an append of the stream waits at most."""
        self._clock = clock
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._waiting: set[Waiting] = set()
        self._deadlines: list[tuple[float, int, Waiting]] = []  # a heap; answered ones linger in it
        self._numbers = itertools.count()  # tell those apart whose deadlines are the same
        self._settled: deque[Waiting] = deque()
        self._looks_at = 0.0  # when the thread looks again if nobody wakes it
        self._thread: threading.Thread | None = None
        self._finishing = False

    def put(self, append: Waiting) -> None:
        """The append is answered when it is settled, or its time is over."""
        with self._changed:
            self._waiting.add(append)
            heapq.heappush(self._deadlines, (append.deadline, next(self._numbers), append))
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
                self._waiting.remove(append)
            append.acknowledge()

    def _next(self) -> Waiting | None:
        """The next to be answered; None: there will be none. The caller holds the lock."""
        while True:
            while self._settled:
                settled = self._settled.popleft()
                if settled in self._waiting:  # else it was answered already
                    return settled
            self._forget_answered()
            if self._deadlines:
                deadline, _, first = self._deadlines[0]
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    return first
            else:
                if self._finishing:
                    return None
                left = self._patience_s
            self._looks_at = self._clock.monotonic() + left
            self._changed.wait(left)

    def _forget_answered(self) -> None:
        """Those at the head of the heap at once, the others when they are most of it."""
        while self._deadlines and self._deadlines[0][2] not in self._waiting:
            heapq.heappop(self._deadlines)
        if len(self._deadlines) > 2 * len(self._waiting) + _LINGERING_MAX:
            self._deadlines = [each for each in self._deadlines if each[2] in self._waiting]
            heapq.heapify(self._deadlines)
