"""Threads that serve calls, and who uses them.

Threads for short work are few while it is quick, more while some of it is held up.

Work beyond the usual number of threads waits its turn, since threads that all want the interpreter
delay each other. A disk or a broker that does not answer would hold those few for ever. So while
work waits and none was taken for ``PATIENCE_S``, one more thread is started. (A long queue of quick
work gets none: it would not be done sooner.) Threads without work end after a while.

A pool may give way to another one: while much work waits here, each of its threads lets the other
pool go first. A single thread that always wants the interpreter makes an append take four times as
long, since each system call gives the interpreter away.
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
_MUCH: Final = 4  # waiting work, above which a pool gives way
_GIVES_WAY_S: Final = 0.001
_LOOKS_EVERY_S: Final = 0.0001
IDLE_S: Final = 5.0
AT_ONCE: Final = 32
"""Calls of one connection that a pool runs or queues."""

Ts = TypeVarTuple("Ts")
Work = tuple[Callable[..., None], tuple[object, ...]]


class _LeftWork(threading.local):
    work: list[Work] | None = None  # what is left to this thread; None if it takes nothing


_left = _LeftWork()


class TakesWork:
    """A context in which the thread takes work by :meth:`Pool.submit_after`, to do it at the end.

    Within it, the thread must not wait for that work.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        _left.work = []

    def __exit__(self, *_: object) -> None:
        work, _left.work = _left.work, None
        for each in work or ():
            _do(each)


class Pool:
    """Run work in the order in which it was submitted.

    ``loop``: for timers. ``prior``: the pool to give way to.
    """

    def __init__(
        self, loop: Loop, usual: int = USUAL, most: int = MOST, prior: Pool | None = None
    ) -> None:
        self._loop = loop
        self._usual = usual
        self._most = most
        self._prior = prior
        self._lock = threading.Lock()  # guards what follows
        self._work: deque[Work] = deque()  # what no thread was free for
        self._taken = 0.0  # when work was taken last, or came while none waited
        self._threads = 0
        self._can_start = True  # whether a thread could start, the last time
        self._idle: list[SimpleQueue[Work | None]] = []  # of each idle thread, the last one last
        self._looks = False
        self._stopped = False

    @property
    def threads(self) -> int:
        """How many threads there are."""
        return self._threads

    @property
    def is_idle(self) -> bool:
        """Whether no thread has work."""
        return len(self._idle) >= self._threads

    def submit(self, function: Callable[[*Ts], None], *args: *Ts) -> bool:
        """Call ``function(*args)`` on one of the threads. Return False if the pool has stopped."""
        work = function, args
        with self._lock:
            if self._stopped:
                return False
            if self._idle:
                self._idle.pop().put(work)  # the thread that was busy last: it is still warm
                return True
            if not self._work:
                self._taken = time.monotonic()
            self._work.append(work)
            if self._threads < self._usual:
                self._start()
            if not self._looks:
                self._looks = True
                self._loop.call_later(PATIENCE_S, self._look)
        return True

    def submit_after(self, function: Callable[[*Ts], None], *args: *Ts) -> bool:
        """Call this on the caller's thread soon, if that :class:`TakesWork`; else :meth:`submit`.

        A change of threads costs more than short work.
        """
        if _left.work is None:
            return self.submit(function, *args)
        _left.work.append((function, args))
        return True

    def stop(self) -> None:
        """Run nothing more; what runs ends by itself."""
        with self._lock:
            self._stopped = True
            self._work.clear()
            while self._idle:
                self._idle.pop().put(None)

    def _look(self) -> None:
        """Start another thread if work waits and all threads are held up; on the loop's thread."""
        with self._lock:
            self._looks = bool(self._work) and not self._stopped
            if not self._looks:
                return
            is_held_up = time.monotonic() - self._taken >= PATIENCE_S
            if is_held_up and not self._idle and self._threads < self._most:
                self._start()
            self._loop.call_later(PATIENCE_S, self._look)

    def _start(self) -> None:
        """Start a thread; if the system allows no more, the work waits for the next look."""
        try:
            threading.Thread(target=self._run, name="isolog-work", daemon=True).start()
        except RuntimeError as error:
            if self._can_start:
                logger.warning("the broker's work waits: %s", error)
            self._can_start = False
        else:
            self._threads += 1
            self._can_start = True

    def _run(self) -> None:
        given: SimpleQueue[Work | None] = SimpleQueue()
        while (work := self._next(given)) is not None:
            if self._prior is not None and len(self._work) > _MUCH:
                self._give_way(self._prior)
            _do(work)
            del work

    @staticmethod
    def _give_way(prior: Pool) -> None:
        until = time.monotonic() + _GIVES_WAY_S
        while not prior.is_idle and time.monotonic() < until:
            time.sleep(_LOOKS_EVERY_S)

    def _next(self, given: SimpleQueue[Work | None]) -> Work | None:
        """Return the next work of a thread, which gets it by ``given`` while it is idle."""
        with self._lock:
            if self._work and not self._stopped:
                self._taken = time.monotonic()
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
            work = given.get()  # it came in the last moment
        if work is None:
            with self._lock:
                self._threads -= 1
        return work


def _do(work: Work) -> None:
    function, args = work
    try:
        function(*args)
    except Exception:
        logger.exception("work of the broker failed")


class FairCalls:
    """The calls of one connection, in the order of their arrival.

    A pool runs work in the order of its arrival. Thousands of open calls of one connection would
    therefore delay the calls of all others. The rest of such a connection's calls waits here.
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
        """Start the next call in place of one that has ended."""
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
    """Counts calls under way and remembers when the last one ended.

    An embedded broker ends when nobody has used it for a while.
    """

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
