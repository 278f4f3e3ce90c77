"""The broker's side: doors that accept connections, and the streams on these connections."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from spark_stream.loggers import logger_of
from spark_stream.operating_system import open_files_limit
from spark_stream.protocol import Connection, ConnectionLimits, Event, Lost, StreamOpened
from spark_stream.transport.channel import BufferPool, SocketChannel
from spark_stream.transport.loop import READ, WRITE, Loop
from spark_stream.transport.streams import Stream, Streams
from spark_stream.transport.tls import certificate_names

logger = logger_of(__name__)

SERVER_LIMITS: Final = ConnectionLimits(credit=8 << 20)
_FREE_FILES: Final = 64
"""Descriptors that connections leave to the rest of the process, or a quarter of a low limit."""
_BACKLOG: Final = 1024
_ACCEPTED_AT_ONCE: Final = 16
_LOGS_EVERY_S: Final = 10.0
_ACCEPTS_AGAIN_S: Final = 0.1  # after accepting failed
_LOOKS_EVERY_S: Final = 0.05
_UNIX: Final = "unix"
_TLS_HANDSHAKE: Final = b"\x16"
_NO_TLS: Final = "TLS_HANDSHAKE_FAILED"
TLS_REQUIRED: Final = "TLS_REQUIRED"
"""The code of the refusal of a client without TLS at a door with TLS."""


class RefusedConnections:
    """The connections that a server closed because of the data on them.

    Each code has one line in the log within ``_LOGS_EVERY_S``, so a flood fills no disk.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()  # since the last line about the code
        self._logged: dict[str, float] = {}

    def note(self, lost: Lost, address: str, now: float) -> None:
        """Count a connection, and log it if the last line is old enough."""
        self._counts[lost.code] += 1
        if now - self._logged.get(lost.code, -_LOGS_EVERY_S) >= _LOGS_EVERY_S:
            self._logged[lost.code] = now
            logger.warning(
                "closed %d connections with %s, the last one from %s: %s",
                self._counts.pop(lost.code),
                lost.code,
                address,
                lost.message,
            )


def _do_nothing() -> None:
    """Ignore the end of a connection."""


Serve = Callable[[StreamOpened, Stream], None]
"""A handler of new streams. It runs on the loop's thread, must not block, and sets ``handle``."""


class IncomingConnection:
    """A connection's peer: its address, and the names in its certificate, if it has shown one.

    ``is_local``: through a Unix socket.
    """

    def __init__(self, address: str, names: tuple[str, ...] = ()) -> None:
        self.address = address
        self.names = names
        self.is_local = address == _UNIX
        self.on_lost: Callable[[], None] = _do_nothing
        """The callback for the end of the connection, on the loop's thread."""
        self._session: _Session | None = None

    def trust(self) -> None:
        """Accept frames up to the server's limits from the other side."""
        if self._session is not None:
            self._session.trust()

    def refuse(self, code: str, message: str) -> None:
        """End the connection, and send the reason to the other side."""
        if self._session is not None:
            self._session.refuse(code, message)

    def belongs_to(self, session: _Session) -> None:
        """Set the session of the connection."""
        self._session = session


class Door(Struct, frozen=True):
    """A listening socket. ``welcome`` returns the handler for the streams of a connection.

    With ``trusts_all`` every peer is trusted immediately, otherwise only after
    :meth:`IncomingConnection.trust`. ``tls`` returns the context for a new connection, or None for
    a door without TLS.
    """

    sock: socket.socket
    welcome: Callable[[IncomingConnection], Serve]
    greeting: Callable[[], bytes] = bytes
    tls: Callable[[], ssl.SSLContext] | None = None
    trusts_all: bool = True
    connections_max: int = 10_000


class Server:
    """The connections of all doors, on one loop."""

    def __init__(
        self,
        loop: Loop,
        limits: ConnectionLimits = SERVER_LIMITS,
        buffers: BufferPool | None = None,
    ) -> None:
        self.loop = loop
        self.limits = limits
        self._buffers = buffers or BufferPool()
        self._listeners: list[_Listener] = []
        self._sessions: set[_Session] = set()
        self.refused = RefusedConnections()
        self._warned: dict[str, float] = {}
        self._changed = threading.Condition()

    def open(self, door: Door) -> None:
        """Accept connections at a door."""
        door.sock.setblocking(False)
        door.sock.listen(_BACKLOG)
        listener = _Listener(self, door)
        with self._changed:
            self._listeners.append(listener)
        self.loop.call_soon(listener.watch)

    @property
    def connections(self) -> int:
        """The number of connections."""
        return len(self._sessions)

    def stop(self, message: str, timeout_s: float) -> None:
        """Stop accepting, wait until streams have ended and answers are sent, and close.

        Streams that are open after ``timeout_s`` are lost.
        """
        with self._changed:
            listeners, self._listeners = self._listeners, []
            sessions = list(self._sessions)
        for listener in listeners:
            self.loop.call_soon(listener.close)
        for session in sessions:
            session.stop(message)
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not all(each.is_idle for each in self._sessions):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, _LOOKS_EVERY_S))
            sessions = list(self._sessions)
        for session in sessions:
            session.close(message)

    # -- on the loop's thread -------------------------------------------------------------------

    def warn(self, text: str, *values: object) -> None:
        """Log a line, unless the last line with this text is recent."""
        now = time.monotonic()
        if now - self._warned.get(text, -_LOGS_EVERY_S) >= _LOGS_EVERY_S:
            self._warned[text] = now
            logger.warning(text, *values)

    def begin(
        self, listener: _Listener, sock: socket.socket, incoming: IncomingConnection
    ) -> _Session:
        """Serve a connection that was accepted, and whose TLS handshake is complete, if any."""
        door = listener.door
        connection = Connection(
            is_client=False,
            greeting=door.greeting(),
            now=time.monotonic(),
            limits=self.limits,
            allocate=self._buffers.allocate,
            trusted=door.trusts_all,
        )
        session = _Session(self, listener, incoming, sock, connection)
        incoming.belongs_to(session)
        session.serve = door.welcome(incoming)
        with self._changed:
            self._sessions.add(session)
        return session

    def forget(self, session: _Session) -> None:
        """Remove a connection that has ended."""
        with self._changed:
            if session in self._sessions:
                self._sessions.remove(session)
                session.listener.connections -= 1
            self._changed.notify_all()


class _Listener:
    """An open door, and the number of its connections. It is used on the loop's thread."""

    def __init__(self, server: Server, door: Door) -> None:
        self.server = server
        self.door = door
        self.connections = 0
        self._is_closed = False

    def watch(self) -> None:
        if not self._is_closed:
            self.server.loop.watch(self.door.sock, READ, self._accept)

    def close(self) -> None:
        self._is_closed = True
        self.server.loop.forget(self.door.sock)
        self.door.sock.close()

    def _accept(self, _: int) -> None:
        door, server = self.door, self.server
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, peer = door.sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:  # such as no descriptors left
                server.warn("accept() failed: %s", error)
                server.loop.forget(door.sock)
                server.loop.call_later(_ACCEPTS_AGAIN_S, self.watch)
                return
            if self.connections >= door.connections_max:
                sock.close()
                server.warn("a connection was closed: the limit is %d", door.connections_max)
                continue
            limit = open_files_limit()
            if sock.fileno() >= limit - min(_FREE_FILES, limit // 4):  # the lowest free number
                sock.close()
                server.warn("a connection was closed: the limit of open files (%d) is near", limit)
                continue
            self.connections += 1
            name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else _UNIX
            if door.tls is None:
                server.begin(self, sock, IncomingConnection(name))
            else:
                _Handshake(self, door.tls(), sock, name)


class _Handshake:
    """A TLS handshake on a socket that was just accepted. It is used on the loop's thread.

    It refuses a client that speaks no TLS, in plain frames.
    """

    def __init__(
        self, listener: _Listener, tls: ssl.SSLContext, sock: socket.socket, name: str
    ) -> None:
        self._listener = listener
        self._loop = listener.server.loop
        self._tls = tls
        self._sock = sock
        self._name = name
        sock.setblocking(False)
        self._timer = self._loop.call_later(listener.server.limits.handshake_s, self._give_up)
        self._loop.watch(sock, READ, self._look)

    def _finish(self) -> None:
        self._timer.cancel()
        self._loop.forget(self._sock)

    def _give_up(self) -> None:
        self._finish()
        self._sock.close()
        self._listener.connections -= 1

    def _look(self, _: int) -> None:
        """Begin the handshake, or refuse a client that speaks no TLS."""
        try:
            begins_tls = self._sock.recv(1, socket.MSG_PEEK) == _TLS_HANDSHAKE
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._give_up()
            return
        if not begins_tls:
            self._finish()
            session = self._begin(IncomingConnection(self._name))
            session.refuse(TLS_REQUIRED, "the broker speaks TLS only")
            return
        self._loop.forget(self._sock)
        try:
            self._sock = self._tls.wrap_socket(
                self._sock, server_side=True, do_handshake_on_connect=False
            )
        except OSError:  # such as a connection that was reset
            self._give_up()
            return
        self._go_on(READ)

    def _go_on(self, _: int) -> None:
        assert isinstance(self._sock, ssl.SSLSocket)
        try:
            self._sock.do_handshake()
        except ssl.SSLWantReadError:
            self._loop.watch(self._sock, READ, self._go_on)
        except ssl.SSLWantWriteError:
            self._loop.watch(self._sock, WRITE, self._go_on)
        except OSError as error:
            refused = self._listener.server.refused
            refused.note(Lost(_NO_TLS, str(error)), self._name, time.monotonic())
            self._give_up()
        else:
            self._finish()
            self._begin(IncomingConnection(self._name, certificate_names(self._sock)))

    def _begin(self, incoming: IncomingConnection) -> _Session:
        return self._listener.server.begin(self._listener, self._sock, incoming)


def _serve_nothing(opened: StreamOpened, stream: Stream) -> None:
    """Ignore a stream of a connection that is refused."""


class _Session:
    """One connection."""

    def __init__(
        self,
        server: Server,
        listener: _Listener,
        incoming: IncomingConnection,
        sock: socket.socket,
        connection: Connection,
    ) -> None:
        self._server = server
        self.listener = listener
        self._incoming = incoming
        self.serve: Serve = _serve_nothing
        self._streams = Streams(incoming.address)
        self._channel = SocketChannel(
            server.loop,
            sock,
            connection,
            self._handle,
            self._streams.on_drained,
            pauses=True,
            handles_anywhere=self._streams.handles_anywhere,
        )

    @property
    def is_idle(self) -> bool:
        """Whether no stream is open, and all output is written."""
        return not self._channel.open_streams and not self._channel.unsent_bytes

    def stop(self, message: str) -> None:
        self._channel.command(Connection.stop, message)

    def close(self, message: str) -> None:
        self._channel.end(message)

    def trust(self) -> None:
        self._channel.command(Connection.trust)

    def refuse(self, code: str, message: str) -> None:
        """Send the peer the reason of a refusal, and end the connection."""
        self._channel.refuse(code, message)

    def _handle(self, event: Event) -> None:
        match event:
            case StreamOpened():
                self.serve(event, self._streams.add(self._channel, event.stream))
            case Lost():
                if self._channel.was_refused:
                    self._server.refused.note(event, self._incoming.address, time.monotonic())
                self._server.forget(self)
                self._streams.dispatch(event)
                self._incoming.on_lost()
            case _:
                self._streams.dispatch(event)
