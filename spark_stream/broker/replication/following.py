"""One partition at its follower: its session, its pauses, and work that takes long.

What the leader says of a partition is *work*, done in the order in which it came, one piece at a
time. The thread that reads the stream does it itself, since that is the quickest, unless the
partition is known to be slow or has work waiting: then the work goes to the partition's lane,
which a thread of a pool works off. Where the reading thread is stuck in its work, another one reads
on, and the first becomes the worker of the lane. So a partition that hangs holds the others up
once, and not for long.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from spark_stream.broker.replication.partitions import FollowedPartition
from spark_stream.environment import Clock

SLOW_S: Final = 0.005  # work that takes longer is given to another thread the next time
SLOW_DISK: Final = 64 << 20  # bytes a second: an append may take the time of such a disk as well
STUCK_S: Final = 0.3  # work that takes longer loses the thread that reads
WORKERS_MAX: Final = 16
_PAUSE_FIRST_S: Final = 0.05
_PAUSE_MAX_S: Final = 2.0

logger = logging.getLogger(__name__)

Work = Callable[[], None]


@dataclass(eq=False, slots=True)
class Following:
    """A partition that is to be followed, over all streams and sessions."""

    partition: FollowedPartition
    earlier: Following | None = None  # of the same partition: it comes to its end first
    slot: int | None = None  # of its present session
    retry_at: float = 0.0
    lane: deque[tuple[Work, int]] | None = None  # None: no work is waiting, and no worker is at it
    is_at_work: bool = False  # by the thread that reads
    is_slow: bool = False
    failure: str = ""  # the last one
    _pause_s: float = field(default=_PAUSE_FIRST_S)

    @property
    def is_busy(self) -> bool:
        """Whether a thread is at it, or at the one before it."""
        if self.earlier is not None and not self.earlier.is_busy:
            self.earlier = None
        return self.is_at_work or self.lane is not None or self.earlier is not None

    def fail(self, now: float) -> None:
        """Its session has failed; the next begins after a pause, longer each time."""
        self.slot = None
        self.retry_at = now + self._pause_s
        self._pause_s = min(_PAUSE_MAX_S, 2 * self._pause_s)

    def succeed(self) -> None:
        """It has appended something."""
        self._pause_s = _PAUSE_FIRST_S


@dataclass(slots=True, eq=False)
class _AtWork:
    """What the reading thread is at."""

    following: Following
    stream: object
    since: float
    is_replaced: bool = False


class Workers:
    """Does the work of the followed partitions of one leader.

    ``changed`` guards what followings hold, and is notified when one of them is busy no more.
    """

    def __init__(self, changed: threading.Condition, clock: Clock) -> None:
        self._changed = changed
        self._clock = clock
        self._at_work: _AtWork | None = None
        self._pool: ThreadPoolExecutor | None = None

    def do(self, stream: object, following: Following, work: Work, size: int = 0) -> bool:
        """Does the work, or lets it be done. Only the thread that reads the stream calls this.

        ``size``: how many bytes it writes.
        False: that took so long that another thread reads now, and this one is to go.
        """
        with self._changed:
            if following.lane is not None:
                following.lane.append((work, size))
                return True
            if following.is_slow:
                following.lane = deque(((work, size),))
                self._submit(following)
                return True
            mine = self._at_work = _AtWork(following, stream, self._clock.monotonic())
            following.is_at_work = True
        _done(work)
        with self._changed:
            following.is_at_work = False
            following.is_slow = _is_slow(self._clock.monotonic() - mine.since, size)
            if self._at_work is mine:
                self._at_work = None
            if not mine.is_replaced:
                if following.slot is None:  # somebody may wait for the end of this
                    self._changed.notify_all()
                return True
        self._work_off(following)
        return False

    def replaces_reader(self, stream: object, now: float) -> bool:
        """Whether the thread that reads is stuck; then it reads no more, and another one is to.

        One that is still stuck in the work of an earlier stream does not count.
        """
        with self._changed:
            stuck = self._at_work
            if stuck is None or stuck.stream is not stream or now - stuck.since < STUCK_S:
                return False
            self._at_work = None
            stuck.is_replaced = True
            stuck.following.lane = deque()
            return True

    def stop(self) -> None:
        """Ends the threads once they have nothing to do; waits for none."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def _submit(self, following: Following) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(WORKERS_MAX, "isolog-replicated-append")
        self._pool.submit(self._work_off, following)

    def _work_off(self, following: Following) -> None:
        while True:
            with self._changed:
                lane = following.lane
                assert lane is not None
                if not lane:
                    following.lane = None
                    self._changed.notify_all()
                    return
                work, size = lane.popleft()
            started = self._clock.monotonic()
            _done(work)
            following.is_slow = _is_slow(self._clock.monotonic() - started, size)


def _is_slow(took_s: float, size: int) -> bool:
    return took_s > SLOW_S + size / SLOW_DISK


def _done(work: Work) -> None:
    try:
        work()
    except Exception:
        logger.exception("the work of a followed partition")
