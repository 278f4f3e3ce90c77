"""The threads that serve calls, and the counts of their use.

A pool has few threads for quick work, and more while some work blocks. Work above the usual number
of threads is queued, because threads that compete for the interpreter delay each other. A disk or a
broker that does not answer would block these few threads for ever. So if work is queued and no
thread has taken any for ``PATIENCE_S``, the pool starts one more thread. (A long queue of quick
work starts none, because it would not finish sooner.) Idle threads end after a while.

A thread without other work may linger: it waits for the next frame of a connection, which then
needs no change of threads. Lingering threads do not count among the usual ones, so no work waits
for them.

A pool may give way to another one: while it has a long queue, each of its threads lets the other
pool's work run first. A single thread that constantly needs the interpreter makes an append four
times slower, because the appending thread yields the interpreter in each system call.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Final, TypeVarTuple

from spark_stream.environment import Clock
from spark_stream.loggers import logger_of
from spark_stream.transport.loop import Loop

logger = logger_of(__name__)

USUAL: Final = 4
MOST: Final = 256
PATIENCE_S: Final = 0.02
_LONG_QUEUE: Final = 4  # queued work above which a pool gives way
_GIVE_WAY_S: Final = 0.001
_GIVE_WAY_CHECK_S: Final = 0.0001
IDLE_S: Final = 5.0
LINGERING_MAX: Final = 2
"""The threads of a pool that linger. With more busy connections, changes of threads are rarer."""
AT_ONCE: Final = 32
"""The calls of one connection that a pool runs or queues."""

_DEFERRED_MAX: Final = 8
"""The most work that a thread defers. More would delay its next append."""

Ts = TypeVarTuple("Ts")
Work = tuple[Callable[..., None], tuple[object, ...]]


class _ThreadWork(threading.local):
    work: list[Work] | None = None  # None outside of a DeferredWork context


_deferred = _ThreadWork()


class DeferredWork:
    """A context that collects work of :meth:`Pool.submit_after` and runs it at its end.

    Within the context, the thread must not wait for that work.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        _deferred.work = []

    def __exit__(self, *_: object) -> None:
        work, _deferred.work = _deferred.work, None
        for each in work or ():
            _do(each)


class Pool:
    """Threads that run work in the order of its submission.

    ``loop`` runs the timers. ``prior`` is the pool to which this one gives way.
    """

    def __init__(
        self, loop: Loop, usual: int = USUAL, most: int = MOST, prior: Pool | None = None
    ) -> None:
        self._loop = loop
        self._usual = usual
        self._most = most
        self._prior = prior
        self._lock = threading.Lock()  # guards the fields below
        self._work: deque[Work] = deque()  # the queue
        self._taken_at = 0.0  # when work was last taken, or arrived at an empty queue
        self._threads = 0
        self._lingering = 0
        self._can_start = True  # whether the last start of a thread succeeded
        self._idle: list[SimpleQueue[Work | None]] = []  # of each idle thread, the latest last
        self._is_checking = False
        self._stopped = False

    @property
    def threads(self) -> int:
        """The number of threads."""
        return self._threads

    @property
    def is_idle(self) -> bool:
        """Whether all threads are idle."""
        return len(self._idle) + self._lingering >= self._threads

    def submit(self, function: Callable[[*Ts], None], *args: *Ts) -> bool:
        """Call ``function(*args)`` on one of the threads. Return False if the pool has stopped."""
        work = function, args
        with self._lock:
            if self._stopped:
                return False
            if self._idle:
                self._idle.pop().put(work)  # the thread that was busy last, whose caches are warm
                return True
            if not self._work:
                self._taken_at = time.monotonic()
            self._work.append(work)
            if self._threads - self._lingering < self._usual:
                self._start()
            if not self._is_checking:
                self._is_checking = True
                self._loop.call_later(PATIENCE_S, self._check)
        return True

    def submit_after(self, function: Callable[[*Ts], None], *args: *Ts) -> bool:
        """Call ``function(*args)`` at the end of the caller's :class:`DeferredWork` context.

        Outside of such a context, or with much deferred work, :meth:`submit` it. A change of
        threads costs more than short work.
        """
        if _deferred.work is None or len(_deferred.work) >= _DEFERRED_MAX:
            return self.submit(function, *args)
        _deferred.work.append((function, args))
        return True

    def linger(self, wait: Callable[[], object]) -> None:
        """Call ``wait`` on the calling thread of the pool, unless other work is queued."""
        with self._lock:
            if self._work or self._stopped or self._lingering >= LINGERING_MAX:
                return
            self._lingering += 1
        try:
            wait()
        finally:
            with self._lock:
                self._lingering -= 1

    def stop(self) -> None:
        """Drop the queue and end the threads. Running work is not interrupted."""
        with self._lock:
            self._stopped = True
            self._work.clear()
            while self._idle:
                self._idle.pop().put(None)

    def _check(self) -> None:
        """Start another thread if work is queued and all threads block, on the loop's thread."""
        with self._lock:
            self._is_checking = bool(self._work) and not self._stopped
            if not self._is_checking:
                return
            is_held_up = time.monotonic() - self._taken_at >= PATIENCE_S
            if is_held_up and not self._idle and self._threads < self._most:
                self._start()
            self._loop.call_later(PATIENCE_S, self._check)

    def _start(self) -> None:
        """Start a thread. If the system allows no more, the work stays queued."""
        try:
            threading.Thread(target=self._run, name="isolog-work", daemon=True).start()
        except RuntimeError as error:
            if self._can_start:
                logger.warning("thread start failed; the broker's work is queued: %s", error)
            self._can_start = False
        else:
            self._threads += 1
            self._can_start = True

    def _run(self) -> None:
        given: SimpleQueue[Work | None] = SimpleQueue()
        while (work := self._next(given)) is not None:
            if self._prior is not None and len(self._work) > _LONG_QUEUE:
                self._give_way(self._prior)
            _do(work)
            del work

    @staticmethod
    def _give_way(prior: Pool) -> None:
        until = time.monotonic() + _GIVE_WAY_S
        while not prior.is_idle and time.monotonic() < until:
            time.sleep(_GIVE_WAY_CHECK_S)

    def _next(self, given: SimpleQueue[Work | None]) -> Work | None:
        """Return the next work of a thread. While the thread is idle, ``given`` delivers it."""
        with self._lock:
            if self._work and not self._stopped:
                self._taken_at = time.monotonic()
                return self._work.popleft()
            if self._stopped:
                self._threads -= 1
                return None
            self._idle.append(given)
        try:
            work = given.get(timeout=IDLE_S)
        except Empty:
            with self._lock:
                if given in self._idle:
                    self._idle.remove(given)
                    self._threads -= 1
                    return None
            work = given.get()  # it arrived at the timeout
        if work is None:
            with self._lock:
                self._threads -= 1
        return work


def _do(work: Work) -> None:
    function, args = work
    try:
        function(*args)
    except Exception:
        logger.exception("work on a pool's thread failed")


class FairCalls:
    """The calls of one connection, in the order of their arrival.

    A pool runs work in the order of its arrival, so thousands of open calls of one connection would
    delay the calls of all others. This queue holds back the excess calls of a connection.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._lock = threading.Lock()  # guards the next fields
        self._open = 0
        self._waiting: deque[tuple[Work, Callable[..., None]]] = deque()

    def submit(self, run: Callable[[*Ts], None], refuse: Callable[[*Ts], None], *args: *Ts) -> None:
        """Call ``run(*args)`` on a thread of the pool, or ``refuse(*args)`` if it has stopped."""
        with self._lock:
            if self._open >= AT_ONCE:
                self._waiting.append(((run, args), refuse))
                return
            self._open += 1
        if not self._pool.submit(self._run, run, args):
            refuse(*args)
            self._end()

    def _run(self, run: Callable[..., None], args: tuple[object, ...]) -> None:
        try:
            run(*args)
        finally:
            self._end()

    def _end(self) -> None:
        """Start the next call in place of an ended one."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._open -= 1
                    return
                (run, args), refuse = self._waiting.popleft()
            if self._pool.submit(self._run, run, args):
                return
            refuse(*args)


class Activity:
    """The number of open calls, and the end of the last one.

    An embedded broker stops after it has been unused for a while.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._calls = 0
        self._last = clock.monotonic()

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count a call, or an open stream, as use until its end."""
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
        """The number of open calls and streams."""
        return self._calls

    def idle_seconds(self) -> float:
        """Return the seconds since the end of the last call, or 0 during a call."""
        with self._lock:
            return 0.0 if self._calls else self._clock.monotonic() - self._last
