"""One thread that waits for many sockets and timers, and calls their callbacks.

Callbacks run on the loop's thread and must not block: slow work belongs to another thread. An
exception in a callback is logged, and ends only that callback.
"""

from __future__ import annotations

import heapq
import itertools
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVarTuple

from spark_stream.loggers import logger_of
from spark_stream.operating_system import follows_changes, new_selector

logger = logger_of(__name__)

TURN_S: Final = 0.01
"""The time that all ready sockets together may use before timers are due."""
SHARE_S_MAX: Final = 0.002
SHARE_S_MIN: Final = 0.0002
READ: Final = selectors.EVENT_READ
WRITE: Final = selectors.EVENT_WRITE

Ts = TypeVarTuple("Ts")
Callback = Callable[..., object]
Ready = Callable[[int], None]
"""Called with READ, WRITE or both."""


_SLEEP_MAX_S: Final = 3600.0
"""The maximum wait. The system allows no wait of more than 24 days."""


def share_of(ready: int) -> float:
    """Return the seconds that each of so many sockets may use in a turn."""
    return max(SHARE_S_MIN, min(SHARE_S_MAX, TURN_S / max(1, ready)))


class Timer:
    """A call that is due at some time."""

    __slots__ = ("args", "callback")

    def __init__(self, callback: Callback, args: tuple[Any, ...]) -> None:
        self.callback: Callback | None = callback
        self.args = args

    def cancel(self) -> None:
        """Cancel the call."""
        self.callback, self.args = None, ()


class WakeUp:
    """A socket that becomes readable when another thread calls :meth:`wake`."""

    def __init__(self) -> None:
        self.reading, self._waking = socket.socketpair()
        self.reading.setblocking(False)
        self._waking.setblocking(False)

    def wake(self) -> None:
        """Make the socket readable. Any thread may call this."""
        with suppress(OSError):  # it is readable already, or closed
            self._waking.send(b"\0")

    def drain(self) -> None:
        """Make the socket unreadable until the next call of :meth:`wake`."""
        with suppress(BlockingIOError):
            self.reading.recv(4096)

    def close(self) -> None:
        """Close both ends."""
        self.reading.close()
        self._waking.close()


class Loop:
    """A thread that serves sockets and timers, from the construction to :meth:`close`."""

    def __init__(self, name: str) -> None:
        self._selector = new_selector()
        self.can_lend = follows_changes(self._selector)
        """Whether :meth:`lend` works."""
        self._soon: deque[tuple[Callback, tuple[Any, ...]]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._wake_up = WakeUp()
        self._selector.register(self._wake_up.reading, READ, self._drain)
        self._sleeping = False
        self.share_s = SHARE_S_MAX
        """The time that each ready socket may use in this turn."""
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # -- from any thread ------------------------------------------------------------------------

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Call this on the loop's thread, after all earlier requests."""
        self._soon.append((callback, args))
        if self._sleeping:
            self._wake_up.wake()

    def call_later(self, delay_s: float, callback: Callable[[*Ts], object], *args: *Ts) -> Timer:
        """Call this on the loop's thread after ``delay_s`` seconds, unless it is cancelled."""
        timer = Timer(callback, args)
        self.call_soon(self._add_timer, time.monotonic() + delay_s, timer)
        return timer

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is a callback of this loop."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """End the loop after the callbacks already requested, and close the sockets it watches.

        Waits for its thread, unless this is a callback of it.
        """
        self.call_soon(self._close)
        if not self.is_own_thread:
            self._thread.join()

    def abandon(self) -> None:
        """Close this process's copies of all descriptors. For a child that was forked.

        It neither unregisters sockets nor shuts them down: both would reach the parent's loop and
        connections.
        """
        sockets = [key.fileobj for key in self._selector.get_map().values()]
        with suppress(OSError):  # a child does not inherit a kqueue
            self._selector.close()
        for each in sockets:
            assert isinstance(each, socket.socket)
            each.close()
        self._wake_up.close()

    # -- from callbacks -------------------------------------------------------------------------

    def watch(self, sock: socket.socket, events: int, ready: Ready) -> None:
        """Call ``ready`` whenever one of the events holds. Call this on the loop's thread."""
        if not events:  # only epoll and poll accept it
            self.forget(sock)
            return
        try:
            self._selector.modify(sock, events, ready)
        except KeyError:
            self._selector.register(sock, events, ready)

    def lend(self, sock: socket.socket, events: int, ready: Ready) -> None:
        """Watch a watched socket for other events, or for none but its end. For any thread.

        ``ready`` is called with 0 when the connection ends. Callers change a socket one at a time.
        """
        with suppress(KeyError, ValueError):  # it is not watched
            self._selector.modify(sock, events, ready)

    def forget(self, sock: socket.socket) -> None:
        """Stop watching a socket, if it is watched. Call this on the loop's thread."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(sock)

    # -- the thread -----------------------------------------------------------------------------

    def _add_timer(self, due: float, timer: Timer) -> None:
        heapq.heappush(self._timers, (due, next(self._numbers), timer))

    def _close(self) -> None:
        self._closed = True

    def _drain(self, _: int) -> None:
        self._wake_up.drain()

    def _run(self) -> None:
        while not self._closed:
            self._sleeping = True
            timeout = 0.0 if self._soon else self._next_due()
            ready = self._selector.select(timeout)
            self._sleeping = False
            self.share_s = share_of(len(ready) + len(self._soon))
            for key, events in ready:
                self._call(key.data, events)
            for _ in range(len(self._soon)):
                callback, args = self._soon.popleft()
                self._call(callback, *args)
            self._call_due()
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()
        self._wake_up.close()

    def _next_due(self) -> float | None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return min(_SLEEP_MAX_S, max(0.0, self._timers[0][0] - time.monotonic()))

    def _call_due(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.callback is not None:
                self._call(timer.callback, *timer.args)

    def _call(self, callback: Callback, *args: Any) -> None:
        try:
            callback(*args)
        except Exception:
            logger.exception("a callback of %s failed", self._thread.name)
