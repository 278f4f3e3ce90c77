"""Whether anybody uses the broker: an embedded one ends when nobody has for a while."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from spark_stream.environment import Clock


class Activity:
    """Counts calls under way and remembers when the last one ended."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._calls = 0
        self._last = clock.monotonic()

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count a call as use for as long as it runs, an open stream included."""
        with self._lock:
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                self._last = self._clock.monotonic()

    @property
    def calls(self) -> int:
        """How many calls are under way, open streams included."""
        return self._calls

    def idle_seconds(self) -> float:
        """Return for how long nobody has called; 0 while a call is under way."""
        with self._lock:
            return 0.0 if self._calls else self._clock.monotonic() - self._last
