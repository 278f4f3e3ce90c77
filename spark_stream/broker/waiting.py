"""The fetches of a broker that wait for records.

A waiting fetch costs a thread that sleeps. The partition knows what the fetch waits for, and wakes
it when that is there. Nobody else is woken. Nothing is polled, but whether the caller is gone.

Many fetches may be satisfied by one append. They read on in turns, a few at once: a herd of threads
that all want the interpreter would make the next append wait for each of them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from spark_stream.broker.partition import Partition
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.isolation import Isolation, upper_bound
from spark_stream.environment import Clock
from spark_stream.wire.limits import CANCELLED_CHECK_S, WAITING_READS_MAX

_TURNS: Final = 2  # threads beyond the processors only wait for one another


class WaitingReads:
    """All waiting fetches of one broker; for any thread."""

    def __init__(self, clock: Clock, most: int = WAITING_READS_MAX) -> None:
        self.clock = clock
        self._most = most
        self._lock = threading.Lock()
        self._waiting = 0
        self._turns = _TURNS
        self._line: deque[tuple[WaitingRead, int]] = deque()

    @property
    def waiting(self) -> int:
        """How many fetches wait at the moment."""
        return self._waiting

    def enter(self) -> bool:
        """One more waits; False: there are as many as there may be."""
        with self._lock:
            if self._waiting >= self._most:
                return False
            self._waiting += 1
            return True

    def leave(self) -> None:
        """One fewer waits."""
        with self._lock:
            self._waiting -= 1

    def wake(self, read: WaitingRead, wait: int) -> None:
        """The read's wait of this number is satisfied: it goes on when it is its turn."""
        with self._lock:
            if read.wait_number != wait:
                return  # it has given up meanwhile
            if not self._turns:
                self._line.append((read, wait))
                return
            self._turns -= 1
            read.has_turn = True
        read.event.set()

    def withdraw(self, read: WaitingRead) -> bool:
        """The read waits no more; True: its turn had come already."""
        with self._lock:
            read.wait_number += 1
            return read.has_turn

    def end_turn(self, read: WaitingRead) -> None:
        """Lets the next one read on, if the read had a turn."""
        with self._lock:
            if not read.has_turn:
                return
            read.has_turn = False
            while self._line:
                following, wait = self._line.popleft()
                if following.wait_number == wait:
                    following.has_turn = True
                    break
            else:
                self._turns += 1
                return
        following.event.set()


class WaitingRead:
    """One fetch that may wait, again and again; for its own thread."""

    def __init__(self, reads: WaitingReads) -> None:
        self._reads = reads
        self.event = threading.Event()
        self.has_turn = False
        self.wait_number = 0

    def wait(
        self,
        partition: Partition,
        offset: Offset,
        isolation: Isolation,
        deadline: float,
        cancelled: Callable[[], bool],
    ) -> bool:
        """Waits until the isolation's bound is above ``offset``; False: the wait ended before.

        ``deadline`` is on the monotonic clock. The caller that was woken has a turn, which it ends
        with :meth:`end_turn` once it has read.

        Raises:
            BrokerStopping, UnknownTopic: the partition was closed meanwhile.
        """
        if not self._reads.enter():
            return False
        try:
            while True:
                self.event.clear()
                wake = partial(self._reads.wake, self, self.wait_number)
                place = partition.wait_beyond(offset, isolation, wake)
                if place is None:
                    return True
                if not self._rest(deadline, cancelled):
                    partition.stop_waiting(place)
                woken = self._reads.withdraw(self)
                if not woken:
                    return False
                if upper_bound(partition.bounds(isolation), isolation) > offset:
                    return True
                self.end_turn()
        finally:
            self._reads.leave()

    def end_turn(self) -> None:
        """The next read may go on. Does nothing without a turn."""
        if self.has_turn:
            self._reads.end_turn(self)

    def _rest(self, deadline: float, cancelled: Callable[[], bool]) -> bool:
        """Sleeps until it is woken; False: its time is over, or its caller is gone."""
        clock = self._reads.clock
        while True:
            pause = min(CANCELLED_CHECK_S, deadline - clock.monotonic())
            if pause > 0 and self.event.wait(pause):
                return True
            if pause <= 0 or cancelled():
                return False
