"""The client's side: connections, calls and streams for threads that wait.

A process has one loop for all of its connections (:func:`client_loop`); a process that was forked
makes its own, and leaves its parent's connections alone.
"""

from __future__ import annotations

import os
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final

from spark_stream.protocol import (
    Bytes,
    Connection,
    Credited,
    Ending,
    Event,
    Failed,
    Limits,
    Lost,
    Ready,
    Received,
    StreamOver,
)
from spark_stream.transport.buffers import BufferPool
from spark_stream.transport.channel import Channel
from spark_stream.transport.loop import Loop
from spark_stream.wire.addresses import UNIX, split_address

CLIENT_LIMITS: Final = Limits()
BUFFERS: Final = BufferPool()

StreamEvent = Received | Credited | Failed | Lost

_loops: dict[int, Loop] = {}
_loops_lock = threading.Lock()


def client_loop() -> Loop:
    """Return the loop of this process, which all its connections share."""
    with _loops_lock:
        found = _loops.get(os.getpid())
        if found is None:
            _loops.clear()
            found = _loops[os.getpid()] = Loop("isolog-io")
        return found


def _forget_loops() -> None:
    """Replace the lock, which another thread of the parent may have held."""
    global _loops_lock
    _loops_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_loops)


class ConnectionLost(Exception):
    """The connection is over: ``code`` and the message say why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class CallFailed(Exception):
    """The broker ended the stream with an error, in the application's encoding."""

    def __init__(self, error: bytes) -> None:
        super().__init__(error)
        self.error = error


class ClientChannel:
    """A connection to one broker.

    ``ended`` is called once, on the loop's thread, when the broker takes no new streams: it stops,
    or the connection is lost.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float,
        greeting: bytes = b"",
        limits: Limits = CLIENT_LIMITS,
        tls: ssl.SSLContext | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """Connect, and wait until both sides have said HELLO.

        Raises:
            ConnectionLost: no connection within ``timeout_s``, or the peer is no such broker.
        """
        deadline = time.monotonic() + timeout_s
        self.address = address
        self.greeting = b""
        """What the broker said of itself."""
        self._ended = ended
        self._streams: dict[int, Callable[[StreamEvent], None]] = {}
        self._opening = threading.Condition()  # guards the opening of streams, and `_lost`
        self._lost: Lost | None = None
        self._ready = threading.Event()
        try:
            sock = connected(address, deadline, tls)
        except TimeoutError:
            raise ConnectionLost("TIMEOUT", f"no connection to {address} in time") from None
        except OSError as error:
            raise ConnectionLost("UNREACHABLE", f"{address}: {error}") from None
        connection = Connection(
            is_client=True,
            greeting=greeting,
            now=time.monotonic(),
            limits=limits,
            allocate=BUFFERS.allocate,
        )
        self._channel = Channel(client_loop(), sock, connection, self._handle, self._drained)
        if not self._ready.wait(max(0.0, deadline - time.monotonic())):
            self.close()
            raise ConnectionLost("TIMEOUT", f"{address} does not answer")
        if self._lost is not None:
            raise ConnectionLost(self._lost.code, f"{address}: {self._lost.message}")

    @property
    def is_lost(self) -> bool:
        """Whether the connection is over."""
        return self._lost is not None

    def call(self, method: str, header: bytes, body: Bytes, timeout_s: float) -> Received:
        """Send a request and return its answer, a single frame.

        Raises:
            CallFailed: the broker answered with an error.
            ConnectionLost: the connection is over; the request may have been carried out.
            TimeoutError: no answer in time; likewise.
        """
        deadline = time.monotonic() + timeout_s
        stream = self.open(method, header, body, end=True, timeout_s=timeout_s)
        try:
            received = stream.receive(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            stream.cancel()
            raise
        if received is None:
            raise ConnectionLost("PROTOCOL", f"{self.address} answered {method} with nothing")
        return received

    def open(
        self,
        method: str,
        header: bytes,
        body: Bytes = b"",
        *,
        end: bool = False,
        credit: int = 0,
        timeout_s: float = 0.0,
    ) -> ClientStream:
        """Open a stream that threads receive from and send on.

        Raises:
            ConnectionLost: the connection is over, or takes no new streams.
            TimeoutError: the broker allows no more streams, for all of ``timeout_s``.
        """
        stream = ClientStream(self)
        stream.number = self.open_with(
            stream.handle, method, header, body, end=end, credit=credit, timeout_s=timeout_s
        )
        return stream

    def open_with(
        self,
        handle: Callable[[StreamEvent], None],
        method: str,
        header: bytes,
        body: Bytes = b"",
        *,
        end: bool = False,
        credit: int = 0,
        timeout_s: float = 0.0,
    ) -> int:
        """Open a stream whose events go to ``handle`` on the loop's thread; return its number.

        Raises: as :meth:`open`.
        """

        def begin(connection: Connection) -> int | None:
            number = connection.open(method, header, body, end=end, credit=credit)
            if number is not None:
                self._streams[number] = handle
            return number

        deadline: float | None = None
        with self._opening:
            while True:
                try:
                    number = self._channel.command(begin)
                except StreamOver:
                    raise self._over() from None
                if number is not None:
                    return number
                now = time.monotonic()
                deadline = now + timeout_s if deadline is None else deadline
                if not self._opening.wait(max(0.0, deadline - now)) and now >= deadline:
                    raise TimeoutError(f"{self.address} takes no more streams at the moment")

    def command(self, act: Callable[[Connection], None]) -> None:
        """Let ``act`` use the protocol's core, and send what comes of it."""
        self._channel.command(act)

    @property
    def is_clogged(self) -> bool:
        """Whether the broker takes what is sent so slowly that streams should wait."""
        return self._channel.is_clogged

    def forget(self, number: int) -> None:
        """Hand on no more events of a stream."""
        if self._streams.pop(number, None) is not None:
            with self._opening:
                self._opening.notify_all()

    def close(self) -> None:
        """Close the connection; its streams are lost."""
        self._channel.end("the connection was closed")

    def _over(self) -> ConnectionLost:
        if self._lost is not None:
            return ConnectionLost(self._lost.code, f"{self.address}: {self._lost.message}")
        return ConnectionLost("STOPPING", f"{self.address} is stopping")

    # -- on the loop's thread -------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        match event:
            case Received():
                handle = self._streams.get(event.stream)
                if event.end:
                    self.forget(event.stream)
                if handle is not None:
                    handle(event)
            case Failed():
                handle = self._streams.get(event.stream)
                self.forget(event.stream)
                if handle is not None:
                    handle(event)
            case Credited():
                handle = self._streams.get(event.stream)
                if handle is not None:
                    handle(event)
            case Ready():
                self.greeting = event.greeting
                self._ready.set()
            case Ending():
                self._ended()
            case Lost():
                self._lose(event)

    def _lose(self, lost: Lost) -> None:
        with self._opening:
            self._lost = lost
            streams, self._streams = self._streams, {}
            self._opening.notify_all()
        self._ready.set()
        for handle in streams.values():
            handle(lost)
        self._ended()

    def _drained(self) -> None:
        for number, handle in list(self._streams.items()):
            handle(Credited(number))


class ClientStream:
    """A stream for threads that wait. One thread receives; any thread sends."""

    def __init__(self, channel: ClientChannel) -> None:
        self.number = 0
        self._channel = channel
        self._received: queue.SimpleQueue[Received | Failed | Lost | None] = queue.SimpleQueue()
        self._credit = threading.Condition()
        self._over: Failed | Lost | None = None
        self._ended = False

    def handle(self, event: StreamEvent) -> None:
        """Take an event; on the loop's thread."""
        if isinstance(event, Received):
            self._received.put(event)
            return
        with self._credit:
            if isinstance(event, Failed | Lost):
                self._over = event
                self._received.put(event)
            self._credit.notify_all()

    def receive(self, timeout_s: float | None = None) -> Received | None:
        """Return the next frame; None after the last one, or after :meth:`cancel`.

        Raises:
            CallFailed, ConnectionLost: the stream ended so.
            TimeoutError: nothing came in time; the stream goes on.
        """
        if self._ended:
            return None
        try:
            event = self._received.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"{self._channel.address} sends nothing") from None
        if event is None:
            self._ended = True
            return None
        if isinstance(event, Received):
            self._ended = event.end
            size = event.size
            if not event.end:
                self._channel.command(lambda core: core.consumed(self.number, size))
            elif size == _EMPTY_BYTES:
                return None
            return event
        self._ended = True
        raise self._error(event)

    def send(
        self, header: Bytes, body: Bytes = b"", *, end: bool = False, timeout_s: float | None = None
    ) -> None:
        """Send a frame; wait while there is no credit.

        Raises:
            CallFailed, ConnectionLost: the stream ended so.
            TimeoutError: there was no credit in time; nothing was sent.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._credit:
            while not self._try_to_send(header, body, end=end):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"{self._channel.address} takes nothing")
                self._credit.wait(left)

    def _try_to_send(self, header: Bytes, body: Bytes, *, end: bool) -> bool:
        if self._over is not None:
            raise self._error(self._over)

        def act(core: Connection) -> bool:
            is_last = end and not header and not body
            if not is_last and (self._channel.is_clogged or not core.may_send(self.number)):
                return False
            core.send(self.number, header, body, end=end)
            return True

        sent = False

        def command(core: Connection) -> None:
            nonlocal sent
            sent = act(core)

        try:
            self._channel.command(command)
        except StreamOver:
            if self._over is not None:
                raise self._error(self._over) from None
            raise ConnectionLost("CLOSED", "the stream is over") from None
        return sent

    def cancel(self) -> None:
        """Give the stream up; a thread that receives gets None."""
        self._channel.forget(self.number)
        self._channel.command(lambda core: core.cancel(self.number))
        self._received.put(None)

    def _error(self, event: Failed | Lost) -> Exception:
        if isinstance(event, Failed):
            return CallFailed(bytes(event.error))
        return ConnectionLost(event.code, f"{self._channel.address}: {event.message}")


_EMPTY_BYTES: Final = Received(0, b"", b"", end=True).size


def connected(address: str, deadline: float, tls: ssl.SSLContext | None) -> socket.socket:
    """Return a socket that is connected to ``host:port`` or ``unix:PATH``.

    Raises:
        TimeoutError, OSError: as Python's sockets.
    """
    left_s = max(0.001, deadline - time.monotonic())
    if address.startswith(UNIX):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(left_s)
        host = None
        try:
            sock.connect(address.removeprefix(UNIX))
        except BaseException:
            sock.close()
            raise
    else:
        host, port = split_address(address)
        sock = socket.create_connection((host, port), timeout=left_s)
    if tls is None:
        return sock
    try:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        return tls.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise
