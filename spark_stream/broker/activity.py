"""Whether anybody uses the broker: what an embedded one ends by."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Activity:
    """Counts calls under way and remembers when the last one ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._last = time.monotonic()

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around every call, streams included: an open stream is use."""
        with self._lock:
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                self._last = time.monotonic()

    def idle_seconds(self) -> float:
        """For how long nobody has called; 0 while a call is under way."""
        with self._lock:
            return 0.0 if self._calls else time.monotonic() - self._last
