"""The broker's side: doors that accept connections, and the streams that come through them."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from spark_stream.protocol import (
    Bytes,
    Cancelled,
    Connection,
    Credited,
    Event,
    Limits,
    Lost,
    Opened,
    Received,
    StreamOver,
)
from spark_stream.transport.buffers import BufferPool
from spark_stream.transport.channel import Channel
from spark_stream.transport.loop import READ, WRITE, Loop

T = TypeVar("T")
logger = logging.getLogger(__name__)

SERVER_LIMITS: Final = Limits(credit=8 << 20)
_BACKLOG: Final = 1024
_ACCEPTED_AT_ONCE: Final = 64
_LOOKS_EVERY_S: Final = 0.05

StreamEvent = Received | Credited | Cancelled | Lost


class ServerStream:
    """A stream that a client opened. ``handle`` gets its events, on the loop's thread.

    Set ``handle`` before the serving callback returns. Any thread may send.
    """

    __slots__ = ("_channel", "_forget", "_number", "handle", "is_over", "peer")

    def __init__(
        self, channel: Channel, number: int, peer: str, forget: Callable[[int], object]
    ) -> None:
        self._channel = channel
        self._number = number
        self._forget = forget
        self.peer = peer
        """The client's address."""
        self.handle: Callable[[StreamEvent], None] = _ignore
        self.is_over = False
        """Whether the client gave the stream up, or is gone."""

    @property
    def may_send(self) -> bool:
        """Whether there is credit. While there is not, wait for ``Credited``."""
        return not self._channel.is_clogged and self._command(
            lambda core: core.may_send(self._number)
        )

    def send(self, header: Bytes, body: Bytes = b"", *, end: bool = False) -> bool:
        """Send a frame if there is credit for it; return whether it was, or the stream is over."""

        def act(core: Connection) -> bool:
            is_last = end and not header and not body
            if not is_last and not core.may_send(self._number):
                return self.is_over
            core.send(self._number, header, body, end=end)
            return True

        try:
            sent = self._command(act)
        except StreamOver:
            return True
        if end and sent:
            self._forget(self._number)
        return sent

    def fail(self, error: bytes) -> None:
        """End the stream with an error, in the application's encoding."""
        self._command(lambda core: core.fail(self._number, error))
        self._forget(self._number)

    def consumed(self, size: int) -> None:
        """Let the client send ``size`` bytes more."""
        self._command(lambda core: core.consumed(self._number, size))

    def _command(self, act: Callable[[Connection], T]) -> T:
        return self._channel.command(act)


def _ignore(_: StreamEvent) -> None:
    """Take an event of a stream that has no use for it."""


Serve = Callable[[Opened, ServerStream], None]
"""Takes a new stream, on the loop's thread; must not block."""


@dataclass(frozen=True)
class Door:
    """A listening socket, whom it serves, and with which certificate."""

    sock: socket.socket
    serve: Serve
    greeting: Callable[[], bytes] = bytes
    tls: ssl.SSLContext | None = None


class Server:
    """Serve the connections of all doors, on one loop."""

    def __init__(
        self,
        loop: Loop,
        limits: Limits = SERVER_LIMITS,
        buffers: BufferPool | None = None,
        connections_max: int = 10_000,
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._buffers = buffers or BufferPool()
        self._connections_max = connections_max
        self._doors: list[Door] = []
        self._sessions: set[_Session] = set()
        self._changed = threading.Condition()

    def open(self, door: Door) -> None:
        """Accept connections at a door."""
        door.sock.setblocking(False)
        door.sock.listen(_BACKLOG)
        with self._changed:
            self._doors.append(door)
        self._loop.call_soon(
            lambda: self._loop.watch(door.sock, READ, lambda _: self._accept(door))
        )

    @property
    def connections(self) -> int:
        """How many connections there are."""
        return len(self._sessions)

    def stop(self, message: str, timeout_s: float) -> None:
        """Accept nothing more and let open streams end; close what is left after ``timeout_s``."""
        with self._changed:
            doors, self._doors = self._doors, []
            sessions = list(self._sessions)
        self._loop.call_soon(partial(self._shut, doors))
        for session in sessions:
            session.stop(message)
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while any(each.open_streams for each in self._sessions):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, _LOOKS_EVERY_S))
            sessions = list(self._sessions)
        for session in sessions:
            session.close(message)

    # -- on the loop's thread -------------------------------------------------------------------

    def _shut(self, doors: list[Door]) -> None:
        for door in doors:
            self._loop.forget(door.sock)
            door.sock.close()

    def _accept(self, door: Door) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, peer = door.sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:  # such as no descriptors: the next try is in time
                logger.warning("no connection was accepted: %s", error)
                return
            if len(self._sessions) >= self._connections_max:
                sock.close()
                continue
            name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unix"
            if door.tls is None:
                self._begin(door, sock, name)
            else:
                self._shake_hands(door, sock, name)

    def _shake_hands(self, door: Door, sock: socket.socket, name: str) -> None:
        assert door.tls is not None
        sock.setblocking(False)
        secured = door.tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        timer = self._loop.call_later(self._limits.handshake_s, lambda: give_up())

        def give_up() -> None:
            timer.cancel()
            self._loop.forget(secured)
            secured.close()

        def go_on(_: int) -> None:
            try:
                secured.do_handshake()
            except ssl.SSLWantReadError:
                self._loop.watch(secured, READ, go_on)
            except ssl.SSLWantWriteError:
                self._loop.watch(secured, WRITE, go_on)
            except OSError as error:
                logger.info("%s: no TLS connection: %s", name, error)
                give_up()
            else:
                timer.cancel()
                self._loop.forget(secured)
                self._begin(door, secured, name)

        go_on(READ)

    def _begin(self, door: Door, sock: socket.socket, name: str) -> None:
        connection = Connection(
            is_client=False,
            greeting=door.greeting(),
            now=time.monotonic(),
            limits=self._limits,
            allocate=self._buffers.allocate,
        )
        session = _Session(self, door.serve, name)
        with self._changed:
            self._sessions.add(session)
        session.begin(Channel(self._loop, sock, connection, session.handle, session.drained))

    def forget(self, session: _Session) -> None:
        """Note that a connection is over."""
        with self._changed:
            self._sessions.discard(session)
            self._changed.notify_all()


class _Session:
    """One connection's streams."""

    def __init__(self, server: Server, serve: Serve, peer: str) -> None:
        self._server = server
        self._serve = serve
        self._peer = peer
        self._streams: dict[int, ServerStream] = {}
        self._channel: Channel | None = None

    def begin(self, channel: Channel) -> None:
        self._channel = channel

    @property
    def open_streams(self) -> int:
        assert self._channel is not None
        return self._channel.command(lambda core: core.open_streams)

    def stop(self, message: str) -> None:
        assert self._channel is not None
        self._channel.command(lambda core: core.stop(message))

    def close(self, message: str) -> None:
        assert self._channel is not None
        self._channel.end(message)

    def _forget(self, number: int) -> None:
        self._streams.pop(number, None)

    def drained(self) -> None:
        for number, stream in list(self._streams.items()):
            stream.handle(Credited(number))

    def handle(self, event: Event) -> None:
        match event:
            case Opened():
                assert self._channel is not None
                stream = ServerStream(self._channel, event.stream, self._peer, self._forget)
                self._streams[event.stream] = stream
                self._serve(event, stream)
            case Received() | Credited():
                found = self._streams.get(event.stream)
                if found is not None:
                    found.handle(event)
            case Cancelled():
                found = self._streams.pop(event.stream, None)
                if found is not None:
                    found.is_over = True
                    found.handle(event)
            case Lost():
                self._server.forget(self)
                streams, self._streams = self._streams, {}
                for each in streams.values():
                    each.is_over = True
                    each.handle(event)
            case _:
                pass
