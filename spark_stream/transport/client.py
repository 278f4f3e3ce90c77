"""The client's side: connections to brokers, and the streams and calls on them.

A process has one loop for all of its connections (:func:`client_loop`). A forked process makes a
new loop, and does not use its parent's connections.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final

from spark_stream.errors import InterpreterEnding, TlsFailed
from spark_stream.operating_system import UNIX_SOCKETS
from spark_stream.protocol import (
    Bytes,
    Connection,
    ConnectionLimits,
    Ending,
    Event,
    Lost,
    Ready,
    Received,
    StreamOver,
)
from spark_stream.transport.channel import BufferPool, SocketChannel
from spark_stream.transport.lifetime import check_may_wait, in_child, new_lock, present_lifetime
from spark_stream.transport.loop import Loop
from spark_stream.transport.streams import BlockingStream, ConnectionLost, Handle, Stream, Streams
from spark_stream.transport.tls import reason_of
from spark_stream.wire.addresses import UNIX, split_address

CLIENT_LIMITS: Final = ConnectionLimits()
BUFFERS: Final = BufferPool()
_LOOKS_EVERY_S: Final = 0.02

_loops: dict[int, Loop] = {}
_loops_lock = new_lock()


def client_loop() -> Loop:
    """Return the loop of this process, which all its connections share."""
    with _loops_lock:
        found = _loops.get(os.getpid())
        if found is None:
            try:
                found = _loops[os.getpid()] = Loop("isolog-io")
            except RuntimeError:  # no thread starts
                if threading.main_thread().is_alive():
                    raise
                raise InterpreterEnding(
                    "the program is ending, so no connection can be opened"
                ) from None
        return found


@in_child
def _leave_parent() -> None:
    """Drop the parent's loop and connections, in a child that was just forked."""
    for each in _loops.values():
        each.abandon()
    _loops.clear()


class ClientChannel:
    """A connection to one broker.

    ``ended`` is called on the loop's thread when the broker takes no new streams: it stops, or the
    connection is lost.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float,
        greeting: bytes = b"",
        limits: ConnectionLimits = CLIENT_LIMITS,
        tls: ssl.SSLContext | None = None,
        ended: Callable[[], None] | None = None,
    ) -> None:
        """Connect, and wait for the HELLO of the broker.

        Raises:
            ConnectionLost: no connection within ``timeout_s``, or the peer is no such broker.
            TlsFailed: The two sides do not agree on TLS, or one refuses the other's certificate.
        """
        deadline = time.monotonic() + timeout_s
        self.address = address
        self.greeting = b""
        """The greeting that the broker sent."""
        self._ended = ended
        self._lifetime = present_lifetime()
        self._streams = Streams(address)
        self._lost: Lost | None = None
        self._is_ending = False
        self._ready = threading.Event()
        try:
            sock = connected(address, deadline, tls)
        except TimeoutError:
            raise ConnectionLost("UNREACHABLE", f"{address}: no connection in time") from None
        except ssl.SSLError as error:
            raise _tls_failed(address, error) from None
        except OSError as error:
            raise ConnectionLost("UNREACHABLE", f"{address}: {error}") from None
        connection = Connection(
            is_client=True,
            greeting=greeting,
            now=time.monotonic(),
            limits=limits,
            allocate=BUFFERS.allocate,
        )
        self._channel = SocketChannel(
            client_loop(),
            sock,
            connection,
            self._handle,
            self._streams.on_drained,
            handles_anywhere=self._streams.handles_anywhere,
        )
        if not self._ready.wait(max(0.0, deadline - time.monotonic())):
            self.close()
            raise ConnectionLost("TIMEOUT", f"{address} does not answer")
        if self._lost is not None:
            lost, refusal = self._lost, self._channel.failure
            if isinstance(refusal, ssl.SSLError):
                raise _tls_failed(address, refusal)
            if lost.code == "TLS_REQUIRED":
                raise TlsFailed(
                    f"{address} speaks TLS, and the client does not",
                    hint="Give tls.ca: the file of the authority that issued its certificate.",
                    address=address,
                )
            raise self._over()

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended."""
        return self._lost is not None

    @property
    def is_usable(self) -> bool:
        """Whether it takes new streams, as far as this side has received.

        False after a fork: the connection belongs to the parent process.
        """
        return self._lost is None and not self._is_ending and not self._lifetime.is_parents

    def call(self, method: str, header: bytes, body: Bytes, timeout_s: float) -> Received:
        """Send a request and return its answer, a single frame.

        Raises:
            CallFailed: The broker answered with an error.
            ConnectionLost: The connection has ended. The request may have been carried out.
            TimeoutError: There was no answer in time. The request may have been carried out.
        """
        check_may_wait()
        deadline = time.monotonic() + timeout_s
        stream = self.open(method, header, body, end=True, timeout_s=timeout_s)
        try:
            received = stream.receive(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            stream.cancel()
            raise
        if received is None:
            raise ConnectionLost("PROTOCOL", f"{self.address} sent an empty answer to {method}")
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
    ) -> BlockingStream:
        """Open a stream for threads that wait. ``credit``: extra bytes that may come back.

        Raises:
            ConnectionLost: The connection has ended, or takes no new streams.
            TimeoutError: The broker allowed no more streams within ``timeout_s``.
        """
        made: list[BlockingStream] = []

        def begin(stream: Stream) -> Handle:
            made.append(BlockingStream(stream))
            return stream.handle

        self.open_with(begin, method, header, body, end=end, credit=credit, timeout_s=timeout_s)
        return made[0]

    def open_with(
        self,
        begin: Callable[[Stream], Handle],
        method: str,
        header: bytes,
        body: Bytes = b"",
        *,
        end: bool = False,
        credit: int = 0,
        timeout_s: float = 0.0,
    ) -> Stream:
        """Open a stream whose events go to the result of ``begin``, on the loop's thread.

        Raises: as :meth:`open`.
        """

        def act(core: Connection) -> Stream | None:
            number = core.open(method, header, body, end=end, credit=credit)
            if number is None:
                return None
            stream = self._streams.add(self._channel, number)
            stream.handle = begin(stream)
            return stream

        deadline: float | None = None
        while True:
            try:
                stream = self._channel.command(act)
            except StreamOver:
                raise self._over() from None
            if stream is not None:
                return stream
            now = time.monotonic()
            deadline = now + timeout_s if deadline is None else deadline
            if now >= deadline:
                raise TimeoutError(f"{self.address} takes no more streams at the moment")
            time.sleep(min(_LOOKS_EVERY_S, deadline - now))  # rare: thousands of streams are open

    def close(self) -> None:
        """Close the connection and its streams."""
        self._channel.end("the connection was closed")

    def _over(self) -> ConnectionLost:
        lost = self._channel.lost  # set before the event is handled
        if lost is not None:
            return ConnectionLost(lost.code, f"{self.address}: {lost.message}")
        return ConnectionLost("STOPPING", f"{self.address} is stopping")

    # -- on the loop's thread -------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        match event:
            case Ready():
                self.greeting = event.greeting
                self._ready.set()
            case Ending():
                self._is_ending = True
                self._report_end()
            case Lost():
                self._lost = event
                self._ready.set()
                self._streams.dispatch(event)
                self._report_end()
            case _:
                self._streams.dispatch(event)

    def _report_end(self) -> None:
        if self._ended is not None:
            self._ended()


def _tls_failed(address: str, error: ssl.SSLError) -> TlsFailed:
    problem, hint = reason_of(error)
    return TlsFailed(f"{address}: {problem}", hint=hint, address=address)


def connected(address: str, deadline: float, tls: ssl.SSLContext | None) -> socket.socket:
    """Return a socket that is connected to ``host:port`` or ``unix:PATH``.

    Raises:
        TimeoutError, OSError: as Python's sockets.
    """
    left_s = max(0.001, deadline - time.monotonic())
    host: str | None = None
    if address.startswith(UNIX):
        sock = socket.socket(UNIX_SOCKETS, socket.SOCK_STREAM)
        try:
            sock.settimeout(left_s)
            sock.connect(address.removeprefix(UNIX))
        except BaseException:
            sock.close()
            raise
    else:
        host, port = split_address(address)
        sock = socket.create_connection((host, port), timeout=left_s)
    if tls is None or host is None:  # a Unix socket is protected by the file's permissions
        return sock
    try:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        return tls.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise
