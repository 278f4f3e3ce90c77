"""The memory that all connections of a gateway share."""

from __future__ import annotations

import threading


class MemoryBudget:
    """A number of bytes that connections reserve. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0

    def take(self, size: int) -> None:
        """Reserve room, or wait for it. A size above the limit gets it alone."""
        with self._lock:
            self._waiting += 1
            self._changed.wait_for(lambda: not self._used or self._used + size <= self._limit)
            self._waiting -= 1
            self._used += size

    def take_some(self, size: int, least: int) -> int:
        """Reserve up to ``size``, within the limit, and at least ``least``. Return the size."""
        with self._lock:
            granted = min(size, max(self._limit - self._used, least))
            self._used += granted
            return granted

    def give_back(self, size: int) -> None:
        """Free the room."""
        with self._lock:
            self._used -= size
            if self._waiting:
                self._changed.notify_all()
