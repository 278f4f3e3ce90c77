"""The reader of a connection: the loop, or a thread that waits for an answer. Pure.

A thread that waits takes the turn, reads its answer itself and needs no change of threads. It
handles the events of streams that allow this (:attr:`~.streams.Stream.handles_anywhere`). If one
event does not allow it, all events received with it go to the loop, in their order.

=============  ==========================================  =============
turn           event                                       next turn
=============  ==========================================  =============
the loop's     a thread takes it                           the thread's
the thread's   its wait ends, or the turn is revoked       the loop's
the thread's   it received events for the loop             nobody's
nobody's       the loop has taken these events             the loop's
=============  ==========================================  =============

Invariants:

* While the turn is nobody's, no thread receives, so no event overtakes the passed ones.
* One thread waits at a time. Another one waits until it is woken, as without a turn.
* A turn is a hint about the socket to watch, never a right: the loop and the thread receive under
  the same lock and without a wait. So the loop may revoke a turn at any time, such as that of a
  thread that a signal handler has interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_stream.protocol import Event


class ReadingTurn:
    """The turn of one connection. The caller of a method that changes it holds the lock."""

    def __init__(self) -> None:
        self._thread: int | None = None  # that has the turn
        self.waiting: int | None = None
        """The thread that waits for the connection, with or without the turn."""
        self._passed: list[Event] = []

    @property
    def is_loops(self) -> bool:
        """Whether the loop has to watch the connection."""
        return self._thread is None and not self._passed

    @property
    def may_receive(self) -> bool:
        """Whether no events are waiting for the loop."""
        return not self._passed

    def has(self, thread: int) -> bool:
        """Return whether the thread has the turn."""
        return self._thread == thread

    def take(self, thread: int) -> bool:
        """Give the turn to a thread until :meth:`leave`. Return False if that is impossible.

        A signal handler may interrupt a wait of the same thread, and wait too. Then the loop gets
        the turn, and reads for both.
        """
        if self.waiting is not None:
            if self.waiting == thread:
                self.revoke()
            return False
        if self._passed:
            return False
        self._thread = self.waiting = thread
        return True

    def revoke(self) -> None:
        """Give the turn to the loop."""
        self._thread = None

    def leave(self) -> None:
        """End the wait of a thread that took the turn."""
        self._thread = self.waiting = None

    def pass_on(self, events: Iterable[Event]) -> None:
        """Pass received events to the loop, and end the turn."""
        self._passed += events
        self._thread = None

    def take_passed(self) -> list[Event]:
        """Remove and return the events that were passed to the loop."""
        passed, self._passed = self._passed, []
        return passed
