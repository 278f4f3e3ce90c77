"""How quotas delay clients: the credit of their appends, and connections beyond their number."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from spark_stream.access.callers import Caller
from spark_stream.broker.access.authorizer import ConnectionIdentity
from spark_stream.broker.access.quotas import LOOK_S, Quotas, Throttle
from spark_stream.errors import BrokerBusy, IsologError
from spark_stream.transport.failures import error_bytes
from spark_stream.transport.loop import Loop
from spark_stream.transport.server import IncomingConnection
from spark_stream.transport.streams import Stream, StreamEvent, ignore

_PLACE_LOOK_S: Final = 0.1
_PLACE_LOOKS: Final = 100
"""How often a connection beyond its principal's quota looks whether another one has ended."""
_CREDIT_BYTES_MIN: Final = 256 << 10
"""Credit that waits for its quota is granted in parts that are no smaller."""


class ThrottledAppender:
    """The client of a stream of appends. Its quota delays its credit, and nothing else."""

    def __init__(self, stream: Stream, throttle: Throttle, loop: Loop) -> None:
        self._stream = stream
        self._throttle = throttle
        self._loop = loop
        self._lock = threading.Lock()
        self._unpaid: deque[tuple[int, int]] = deque()  # marks, and credit to grant then
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
        """Grant the credit that is paid for; look again while there is some that is not."""
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
        self._stream.fail(error_bytes(error))


class ConnectionPlace:
    """The place of a client's connection among those of its principal; on the loop's thread.

    A connection beyond its quota waits for a place: its streams do, with their events. After a
    while it is ended, so that those that wait are few.
    """

    def __init__(
        self, quotas: Quotas, loop: Loop, identity: ConnectionIdentity, incoming: IncomingConnection
    ) -> None:
        self._quotas = quotas
        self._loop = loop
        self._identity = identity
        self._incoming = incoming
        self._caller: Caller | None = None  # who has the place
        self._looks_left = _PLACE_LOOKS
        self._has_looked = False
        self._held: list[tuple[Callable[[Stream], None], Stream, list[StreamEvent]]] = []
        self._is_over = False
        incoming.on_lost = self._leave

    @property
    def is_taken(self) -> bool:
        """Whether the connection has its place."""
        return self._caller is not None

    def take(self) -> None:
        """Take a place once it is known who calls, or wait for one; later calls do nothing."""
        is_known = self._identity.caller is not None and not self._is_over
        if is_known and not self._has_looked:
            self._has_looked = True
            self._look()

    def hold(self, serve: Callable[[Stream], None], stream: Stream) -> None:
        """Serve a stream once there is a place."""
        events: list[StreamEvent] = []
        stream.handle = events.append
        self._held.append((serve, stream, events))

    def _look(self) -> None:
        if self._is_over:
            return
        caller = self._identity.known()
        if self._quotas.enter(caller):
            self._caller = caller
            held, self._held = self._held, []
            for serve, stream, events in held:
                if stream.over is None:
                    stream.handle = ignore
                    serve(stream)
                    for event in events:
                        stream.handle(event)
        elif self._looks_left:
            self._looks_left -= 1
            self._loop.call_later(_PLACE_LOOK_S, self._look)
        else:
            self._refuse(caller)

    def _refuse(self, caller: Caller) -> None:
        """End the connection. Its streams get an error that says that nothing was done."""
        error = BrokerBusy(
            f"{caller.principal!r} has as many connections to this broker as its quota allows:"
            f" {self._quotas.limit(caller).connections}",
            hint="Close some, or `isolog quota set` allows more.",
            principal=caller.principal,
        )
        for _, stream, _ in self._held:
            stream.fail(error_bytes(error))
        self._incoming.refuse(error.code, error.message)

    def _leave(self) -> None:
        self._is_over = True
        self._held.clear()
        if self._caller is not None:
            self._quotas.leave(self._caller)
