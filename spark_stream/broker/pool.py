"""Threads for short work: few while it is quick, more while some of it is held up.

Work beyond the usual number of threads waits its turn, since threads that all want the interpreter
delay each other. A disk or a broker that does not answer would hold those few for ever. So while
work waits and none was taken for ``PATIENCE_S``, one more thread is started. (A long queue of quick
work gets none: it would be no sooner through.) Threads without work end after a while.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from spark_stream.transport.loop import Loop

logger = logging.getLogger(__name__)

USUAL: Final = 4
MOST: Final = 256
PATIENCE_S: Final = 0.02
IDLE_S: Final = 5.0

Work = Callable[[], None]


class Pool:
    """Runs work in the order in which it was submitted. ``loop``: for the time."""

    def __init__(self, loop: Loop, usual: int = USUAL, most: int = MOST) -> None:
        self._loop = loop
        self._usual = usual
        self._most = most
        self._changed = threading.Condition()
        self._work: deque[Work] = deque()
        self._taken = 0.0  # when work was taken last, or came into the empty queue
        self._threads = 0
        self._idle = 0
        self._looks = False
        self._stopped = False

    @property
    def threads(self) -> int:
        """How many threads there are."""
        return self._threads

    def submit(self, work: Work) -> bool:
        """Run this on one of the threads; return False if the pool has stopped."""
        with self._changed:
            if self._stopped:
                return False
            if not self._work:
                self._taken = time.monotonic()
            self._work.append(work)
            if len(self._work) <= self._idle:  # those that are about to take work count as idle
                self._changed.notify()
            elif self._threads < self._usual:
                self._start()
            if not self._looks and len(self._work) > self._idle:
                self._looks = True
                self._loop.call_later(PATIENCE_S, self._look)
        return True

    def stop(self) -> None:
        """Run nothing more; what runs ends by itself."""
        with self._changed:
            self._stopped = True
            self._work.clear()
            self._changed.notify_all()

    def _look(self) -> None:
        """Start another thread if work waits and all threads are held up; on the loop's thread."""
        with self._changed:
            self._looks = bool(self._work) and not self._stopped
            if not self._looks:
                return
            is_held_up = time.monotonic() - self._taken >= PATIENCE_S
            if is_held_up and not self._idle and self._threads < self._most:
                self._start()
            self._loop.call_later(PATIENCE_S, self._look)

    def _start(self) -> None:
        self._threads += 1
        threading.Thread(target=self._run, name="isolog-work", daemon=True).start()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except Exception:
                logger.exception("work of the broker failed")
            del work

    def _next(self) -> Work | None:
        with self._changed:
            self._idle += 1
            found = self._changed.wait_for(lambda: self._work or self._stopped, IDLE_S)
            self._idle -= 1
            if not found or not self._work:
                self._threads -= 1
                return None
            self._taken = time.monotonic()
            return self._work.popleft()
