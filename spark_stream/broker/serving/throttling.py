"""Delays of clients by their quotas: credit for appends, and connections above their limit.

The frames of a client whose quota does not permit it to start yet are held in memory. Each
principal may hold enough for its streams to wait for a long time. Above that limit its streams, and
no others, are refused.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from spark_stream.access.callers import Caller
from spark_stream.broker.access.authorizer import ConnectionIdentity
from spark_stream.broker.access.quotas import LOOK_S, Quotas, Throttle
from spark_stream.errors import BrokerBusy, IsologError
from spark_stream.protocol import Received
from spark_stream.transport.loop import Loop
from spark_stream.transport.server import IncomingConnection
from spark_stream.transport.streams import Stream, StreamEvent, error_bytes, ignore

_PLACE_RETRY_S: Final = 0.1
_PLACE_TRIES_MAX: Final = 100
"""The checks of a connection above its principal's quota before it is refused."""
_CREDIT_BYTES_MIN: Final = 256 << 10
"""The least part in which delayed credit is granted."""
_STREAM_BYTES: Final = 64 << 10
"""The least bytes for which a waiting stream is counted, because its timer takes memory too."""


Refuse = Callable[[Stream, IsologError], None]
"""Ends a stream with an error."""


def fail(stream: Stream, error: IsologError) -> None:
    """End a stream with an error."""
    stream.fail(error_bytes(error))


class ThrottledAppender:
    """The client of a stream of appends. Its quota delays its credit only."""

    def __init__(
        self, stream: Stream, throttle: Throttle, loop: Loop, refuse: Refuse = fail
    ) -> None:
        self._stream = stream
        self._refuse = refuse
        self._throttle = throttle
        self._loop = loop
        self._lock = threading.Lock()
        self._unpaid: deque[tuple[int, int]] = deque()  # quota marks with credit
        self.send = stream.send

    def grant_credit(self, size: int) -> None:
        mark = self._throttle.charge(size)
        with self._lock:
            is_first = not self._unpaid
            if not is_first and self._unpaid[-1][1] < _CREDIT_BYTES_MIN:
                size += self._unpaid.pop()[1]
            self._unpaid.append((mark, size))
        if is_first:
            self._grant_paid()

    def _grant_paid(self) -> None:
        """Grant the credit that the quota permits. Schedule the next check for the rest."""
        size = 0
        with self._lock:
            if self._stream.over is not None or self._stream.has_ended:
                self._unpaid.clear()
            while self._unpaid:
                left_s = self._throttle.seconds_left(self._unpaid[0][0])
                if left_s > 0:
                    self._loop.call_later(min(left_s, LOOK_S), self._grant_paid)
                    break
                size += self._unpaid.popleft()[1]
        if size:
            self._stream.grant_credit(size)

    def fail(self, error: IsologError) -> None:
        self._refuse(self._stream, error)


class StreamCheck(Protocol):
    """A check of a stream's permission, which raises an IsologError.

    ``is_open``: an earlier check has succeeded.
    """

    def __call__(self, *, is_open: bool) -> None: ...


class DelayedStart:
    """The delayed start of a stream of appends, until its principal's quota permits it.

    It runs on the loop's thread. The permission of a waiting stream is checked repeatedly, so the
    stream ends soon after its user, rule or token was removed. The error's detail ``at_opening``
    reports that none of its records were appended.
    """

    def __init__(
        self,
        quotas: Quotas,
        caller: Caller,
        throttle: Throttle,
        loop: Loop,
        stream: Stream,
        check: StreamCheck,
        start: Callable[[], None],
        end: Callable[[IsologError | None], None],
    ) -> None:
        """Prepare to call ``start`` or ``end``, once. ``end(None)`` reports a disconnect."""
        self._quotas = quotas
        self._caller = caller
        self._throttle = throttle
        self._loop = loop
        self._stream = stream
        self._check = check
        self._start = start
        self._end = end
        self._mark = throttle.charge(0)  # earlier charges
        self._held: int | None = None  # bytes, while it waits

    def begin(self, nbytes: int) -> None:
        """Start the stream, or begin to wait. ``nbytes`` is the size of its opening."""
        if self._seconds_left() <= 0:
            self._start()
            return
        try:
            self._check(is_open=False)
        except IsologError as error:
            self._end(error)
            return
        self._held = 0
        if self.hold(_STREAM_BYTES + nbytes):
            self._retry()

    def hold(self, nbytes: int) -> bool:
        """Count received bytes of a waiting stream. Return False if they have ended it."""
        if self._held is None:
            return True
        if self._quotas.hold(self._caller, nbytes):
            self._held += nbytes
            return True
        text = f"too much data of {self._caller.principal!r} waits for its quota"
        self._stop(BrokerBusy(text, hint="Write with fewer streams in parallel, or retry later."))
        return False

    def _retry(self) -> None:
        """Start the stream if its quota permits it. Otherwise schedule the next check."""
        if self._held is None:
            return
        left_s = self._seconds_left()
        if self._stream.over is not None:
            self._stop()
        elif left_s <= 0:
            self._release()
            self._start()
        else:
            try:
                self._check(is_open=True)
            except IsologError as error:
                self._stop(error)
            else:
                self._loop.call_later(min(left_s, LOOK_S), self._retry)

    def _seconds_left(self) -> float:
        return self._throttle.seconds_left(self._mark)

    def _stop(self, error: IsologError | None = None) -> None:
        self._release()
        if error is not None:
            error.details["at_opening"] = True
        self._end(error)

    def _release(self) -> None:
        held, self._held = self._held, None
        self._quotas.release(self._caller, held or 0)


class ConnectionPlace:
    """The place of a client's connection in its principal's quota, on the loop's thread.

    The streams of a connection above the quota wait for a place, with their events. After a while
    the connection is closed, so that few connections wait.
    """

    def __init__(
        self,
        quotas: Quotas,
        loop: Loop,
        identity: ConnectionIdentity,
        incoming: IncomingConnection,
        refuse: Refuse = fail,
    ) -> None:
        self._quotas = quotas
        self._loop = loop
        self._identity = identity
        self._incoming = incoming
        self._refuse_stream = refuse
        self._caller: Caller | None = None  # the holder of the place
        self._tries_left = _PLACE_TRIES_MAX
        self._has_tried = False
        self._held: list[tuple[Callable[[Stream], None], Stream, list[StreamEvent]]] = []
        self._held_bytes = 0
        self._is_over = False
        incoming.on_lost = self._leave

    @property
    def is_taken(self) -> bool:
        """Whether the connection has its place."""
        return self._caller is not None

    def take(self) -> None:
        """Take a place, or wait for one, after the authentication. Later calls do nothing."""
        is_known = self._identity.caller is not None and not self._is_over
        if is_known and not self._has_tried:
            self._has_tried = True
            self._retry()

    def hold(self, serve: Callable[[Stream], None], stream: Stream, nbytes: int = 0) -> None:
        """Serve a stream once the connection has its place. ``nbytes``: the size of its opening."""
        if self._is_over:
            return  # the stream ends with its connection
        events: list[StreamEvent] = []

        def keep(event: StreamEvent) -> None:
            if not isinstance(event, Received) or self._count(event.size):
                events.append(event)

        stream.handle = keep
        self._held.append((serve, stream, events))
        self._count(nbytes)

    def _count(self, nbytes: int) -> bool:
        """Count held bytes. Return False, and close the connection, if they are too many."""
        caller = self._identity.known()
        if self._quotas.hold(caller, nbytes):
            self._held_bytes += nbytes
            return True
        self._refuse(caller)
        return False

    def _retry(self) -> None:
        if self._is_over:
            return
        caller = self._identity.known()
        if self._quotas.enter(caller):
            self._caller = caller
            for serve, stream, events in self._release(caller):
                if stream.over is None:
                    stream.handle = ignore
                    serve(stream)
                    for event in events:
                        stream.handle(event)
        elif self._tries_left:
            self._tries_left -= 1
            self._loop.call_later(_PLACE_RETRY_S, self._retry)
        else:
            self._refuse(caller)

    def _refuse(self, caller: Caller) -> None:
        """Close the connection. Its streams end with an error before any effect."""
        error = BrokerBusy(
            f"{caller.principal!r} has reached its quota of"
            f" {self._quotas.limit(caller).connections} connections to this broker",
            hint="Close connections, or raise the quota with `isolog quota set`.",
            principal=caller.principal,
        )
        self._is_over = True
        for _, stream, _ in self._release(caller):
            self._refuse_stream(stream, error)
        self._incoming.refuse(error.code, error.message)

    def _release(
        self, caller: Caller
    ) -> list[tuple[Callable[[Stream], None], Stream, list[StreamEvent]]]:
        """Remove and return the held streams with their events."""
        self._quotas.release(caller, self._held_bytes)
        held, self._held, self._held_bytes = self._held, [], 0
        return held

    def _leave(self) -> None:
        self._is_over = True
        if self._identity.caller is not None:
            self._release(self._identity.caller)
        if self._caller is not None:
            self._quotas.leave(self._caller)
