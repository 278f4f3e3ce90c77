"""How much a producer has taken and not settled, and the callers that wait for room.

One lock guards all of it; the sender uses it for its other state, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from msgspec import Struct

from spark_stream.errors import BufferFull, IsologError
from spark_stream.transport.lifetime import check_may_wait, new_lock, present_lifetime


class Share(Struct):
    """Room for data that is sent in ``parts``, which share their memory.

    ``flushes``: how many flushes had begun before, as :meth:`Buffer.take` returns.
    """

    size: int
    records: int
    parts: int
    flushes: int


class Buffer:
    """Room for ``limit`` bytes; a caller that finds none waits for up to ``timeout_s``.

    ``hurry`` is called, without the lock, before a caller waits: it sends what is still gathered.
    """

    def __init__(
        self, limit: int, timeout_s: float, hurry: Callable[[], None] = lambda: None
    ) -> None:
        self._limit = limit
        self._timeout_s = timeout_s
        self._hurry = hurry
        self.lock = new_lock()
        self._changed = threading.Condition(self.lock)
        self._bytes = 0
        self._flushing = 0
        self._flushes = 0  # how many have begun
        self._unsettled: dict[int, int] = {}  # the number of shares, by the flushes before them
        self._crowded = 0
        self.outstanding = 0
        """How many records were taken and are not settled."""
        self.interrupted: BaseException | None = None
        """The last exception that ended a wait for room."""
        self.closed: IsologError | None = None
        """The error for records that come now; None while it takes records."""

    @property
    def urgent(self) -> bool:
        """Whether a caller waits, so that records must not linger."""
        return bool(self._flushing or self._crowded or self.closed)

    def has_room(self, size: int) -> bool:
        """Return whether :meth:`reserve` would not wait; the caller holds the lock, or guesses."""
        return not self._bytes or self._bytes + size <= self._limit

    def reserve(self, size: int, records: int = 1) -> None:
        """Reserve room, or wait for it; the caller holds the lock, which a wait releases.

        Raises:
            BufferFull: there was no room in time.
            InvalidRequest, ForkedClient: the producer is closed, or belongs to the parent.
        """
        if not self.has_room(size):
            self._crowded += 1
            try:
                self._wait_for_room(size)
            except BaseException as error:
                self.interrupted = error
                raise
            finally:
                self._crowded -= 1
        if self.closed:
            raise self.closed.again()
        self._bytes += size
        self.outstanding += records

    def take(self) -> int:
        """Count a share that is released later; the caller holds the lock.

        Return how many flushes had begun before: those do not wait for this share.
        """
        self._unsettled[self._flushes] = self._unsettled.get(self._flushes, 0) + 1
        return self._flushes

    def _wait_for_room(self, size: int) -> None:
        self.lock.release()
        try:
            self._hurry()
        finally:
            self.lock.acquire()
        timeout_s = present_lifetime().seconds_left(self._timeout_s)
        if not self._changed.wait_for(lambda: self.closed or self.has_room(size), timeout_s):
            raise BufferFull(
                f"{self._bytes} bytes wait to be acknowledged; buffer_bytes is {self._limit}"
            )

    def spare(self, size: int) -> int:
        """Reserve up to this many bytes, if no caller waits for room; the caller holds the lock."""
        taken = 0 if self._crowded else max(0, min(size, self._limit - self._bytes))
        self._bytes += taken
        return taken

    def settle_up(self, unused: int, records: int) -> None:
        """Give back unused room, and count records; the caller holds the lock."""
        self._give_back(unused, -records)

    def release(self, share: Share) -> None:
        """Settle a part of a share; after its last part, free the share's room."""
        with self.lock:
            share.parts -= 1
            if share.parts <= 0:
                if share.flushes not in self._unsettled:
                    return  # all was abandoned
                self._unsettled[share.flushes] -= 1
                if not self._unsettled[share.flushes]:
                    del self._unsettled[share.flushes]
                self._give_back(share.size, share.records)

    def _give_back(self, size: int, records: int) -> None:
        self._bytes -= size
        self.outstanding -= records
        if self._flushing or self._crowded:
            self._changed.notify_all()

    def await_settled(self, timeout: float | None) -> None:
        """Wait until everything that was taken before is settled.

        Raises:
            TimeoutError: not all was settled within ``timeout`` seconds.
            ReentrantCall: the caller has interrupted a call that others wait for.
        """
        check_may_wait()
        with self.lock:
            self._flushing += 1
            self._flushes += 1
            flush = self._flushes
        try:
            self._hurry()
            with self.lock:
                if not self._changed.wait_for(
                    lambda: min(self._unsettled, default=flush) >= flush, timeout
                ):
                    raise TimeoutError(
                        f"not everything is acknowledged yet: {self.outstanding} records wait,"
                        " including those that were sent since"
                    )
        finally:
            with self.lock:
                self._flushing -= 1

    def abandon(self) -> None:
        """Count all as settled, and wake the callers that wait for it."""
        with self.lock:
            self._bytes = self.outstanding = 0
            self._unsettled.clear()
            self._changed.notify_all()

    def close(self, reason: IsologError) -> None:
        """Take nothing more, and wake the callers that wait for room."""
        with self.lock:
            self.closed = self.closed or reason
            self._changed.notify_all()
