"""Writers of one file take turns: threads of a process, and processes of a host.

A simple lock is not fair: whoever releases it and wants it again at once gets it before those who
slept. Here everybody stands in line. In a process the line is a queue. Between processes it has one
place: its owner waits for the resource itself, all others wait for that place. So whoever comes
back at once finds somebody ahead. A process that is paused in that place would hold up all others,
though it does not have the resource: after a while they go past it.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from spark_stream.environment import Clock

# A write takes 0.1 to 5 ms: the next in line looks often, the others look less often.
_NEXT_PAUSE_S: Final = 0.0002
_LINE_PAUSE_S: Final = 0.0005
_PATIENCE_S: Final = 0.25  # many times what a write takes
_PASSING_S: Final = 1.0  # how long to pass a place that did not move, without waiting for it


class ThreadLine:
    """A lock that threads get in the order in which they asked."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held = False
        self._waiting: deque[threading.Lock] = deque()

    def acquire(self, timeout_s: float) -> bool:
        """Wait for the lock; return whether the caller has got it."""
        with self._guard:
            if not self._held:
                self._held = True
                return True
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        if mine.acquire(timeout=timeout_s):
            return True
        with self._guard:
            if mine in self._waiting:
                self._waiting.remove(mine)
                return False
        return True  # it was handed over at the last moment

    def release(self) -> None:
        """Hand the lock to whoever has waited longest."""
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._held = False


class WriterQueue:
    """The line of all who write to one file. From any thread; every process has its own object.

    ``path`` is a file that only serves as the place in the line. The kernel frees it when the
    process that holds it dies.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._clock = clock
        self._threads = ThreadLine()
        self._passes_until = 0.0
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self, attempt: Callable[[], bool], timeout_s: float) -> bool:
        """Wait in line, then call ``attempt`` until it is true; False if the time ran out.

        ``attempt`` tries to get the resource and does not wait for it. After True the caller has
        its turn and must call :meth:`end`; after False, or an error of ``attempt``, it has no turn.

        Raises:
            ValueError: the line is closed.
        """
        deadline = self._clock.monotonic() + timeout_s
        if not self._threads.acquire(timeout_s):
            return False
        taken = False
        try:
            if self._descriptor < 0:
                raise ValueError("it is closed")
            taken = self._stand_in_line(attempt, deadline)
        finally:
            if not taken:
                self._threads.release()
        return taken

    def end(self) -> None:
        """Let the next thread in line go on."""
        self._threads.release()

    def close(self) -> None:
        """Leave the queue for good. Call it while holding the turn, or if nobody waits."""
        os.close(self._descriptor)
        self._descriptor = -1

    def _stand_in_line(self, attempt: Callable[[], bool], deadline: float) -> bool:
        now = self._clock.monotonic()
        patience_s = 0.0 if now < self._passes_until else _PATIENCE_S
        if not self._wait_for(self._is_next, _LINE_PAUSE_S, min(deadline, now + patience_s)):
            if patience_s:
                self._passes_until = self._clock.monotonic() + _PASSING_S
            return self._wait_for(attempt, _LINE_PAUSE_S, deadline)
        try:
            return self._wait_for(attempt, _NEXT_PAUSE_S, deadline)
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _is_next(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _wait_for(self, attempt: Callable[[], bool], pause_s: float, deadline: float) -> bool:
        while not attempt():
            if self._clock.monotonic() > deadline:
                return False
            time.sleep(pause_s)
        return True
