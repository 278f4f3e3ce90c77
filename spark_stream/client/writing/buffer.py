"""What a producer has taken and not settled: how much, and who waits for it.

One lock guards all of it; the sender uses the same lock for what waits to be sent. There are two
conditions, so that the sender is not woken by what concerns only waiting callers.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

from spark_stream.errors import BufferFull, InvalidRequest

_TICK_S: Final = 0.25


@dataclass(slots=True)
class Share:
    """Room for what is sent in ``parts``, which keep each other's memory."""

    size: int
    records: int
    parts: int


class Buffer:
    """Room for ``limit`` bytes; a caller that finds none waits for ``timeout_s``."""

    def __init__(self, limit: int, timeout_s: float) -> None:
        self._limit = limit
        self._timeout_s = timeout_s
        self.lock = threading.Lock()
        self.work = threading.Condition(self.lock)
        self._room = threading.Condition(self.lock)
        self._bytes = 0
        self._flushing = 0
        self._crowded = 0
        self.outstanding = 0
        self.closed = False

    @property
    def urgent(self) -> bool:
        """Whether somebody waits, so that nothing may linger."""
        return bool(self._flushing or self._crowded or self.closed)

    def reserve(self, size: int, futures: int = 1) -> None:
        """Takes room, waiting for it; the caller holds the lock.

        Raises:
            BufferFull, InvalidRequest: there was no room in time; the producer is closed.
        """
        if self._bytes and self._bytes + size > self._limit:
            self._crowded += 1
            self.work.notify()
            try:
                self._wait_for_room(size)
            finally:
                self._crowded -= 1
        if self.closed:
            raise InvalidRequest("the producer is closed", hint="Make a new one.")
        self._bytes += size
        self.outstanding += futures

    def _wait_for_room(self, size: int) -> None:
        deadline = time.monotonic() + self._timeout_s
        while self._bytes and self._bytes + size > self._limit and not self.closed:
            left = deadline - time.monotonic()
            if left <= 0:
                raise BufferFull(
                    f"{self._bytes} bytes wait to be acknowledged; buffer_bytes is {self._limit}"
                )
            self._room.wait(min(left, _TICK_S))

    def spare(self, size: int) -> int:
        """Takes up to so much room, if nobody waits for any; the caller holds the lock."""
        taken = 0 if self._crowded else max(0, min(size, self._limit - self._bytes))
        self._bytes += taken
        return taken

    def settle_up(self, unused: int, records: int) -> None:
        """Gives room back that was not needed, and counts records; the caller holds the lock."""
        self._give_back(unused, -records)

    def release(self, size: int, records: int) -> None:
        """That much is settled."""
        with self.lock:
            self._give_back(size, records)

    def release_part(self, share: Share) -> None:
        """A part is settled; the room that the parts share is free after the last of them."""
        with self.lock:
            share.parts -= 1
            if not share.parts:
                self._give_back(share.size, share.records)

    def _give_back(self, size: int, records: int) -> None:
        self._bytes -= size
        self.outstanding -= records
        self._room.notify_all()

    def await_settled(self, timeout: float | None) -> None:
        """Waits until everything taken before is settled.

        Raises:
            TimeoutError: not all was settled within ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.lock:
            self._flushing += 1
            self.work.notify()
            try:
                while self.outstanding:
                    left = _TICK_S if deadline is None else deadline - time.monotonic()
                    if left <= 0:
                        raise TimeoutError(f"{self.outstanding} records are not acknowledged yet")
                    self._room.wait(min(left, _TICK_S))
            finally:
                self._flushing -= 1

    def close(self) -> None:
        """Takes nothing more; whoever waits is told."""
        with self.lock:
            self.closed = True
            self.work.notify()
            self._room.notify_all()
