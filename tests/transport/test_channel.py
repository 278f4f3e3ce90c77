"""The channel's turns, with a loop that the test drives: how much one connection may take."""

from __future__ import annotations

import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import msgspec
import pytest
import trustme

from spark_stream.protocol import FRAMES_AT_ONCE, Connection, Event, Lost, Received, StreamOpened
from spark_stream.protocol.connection import Opening
from spark_stream.protocol.frames import PREFIX, FrameKind, frame_bytes
from spark_stream.transport import channel as channels
from spark_stream.transport.channel import SocketChannel
from spark_stream.transport.loop import (
    READ,
    SHARE_S_MAX,
    SHARE_S_MIN,
    TURN_S,
    Loop,
    Ready,
    share_of,
)
from spark_stream.transport.server import RefusedConnections


class ManualLoop:
    """A loop whose turns are calls of the test."""

    def __init__(self, share_s: float) -> None:
        self.share_s = share_s
        self.soon: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self.ready: Ready = lambda _: None

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.soon.append((callback, args))

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> None:
        """Do nothing: no test takes so long."""

    def watch(self, sock: socket.socket, events: int, ready: Ready) -> None:
        self.ready = ready

    def forget(self, sock: socket.socket) -> None:
        """Do nothing."""

    def turn(self) -> None:
        """Run the calls that were requested before."""
        for _ in range(len(self.soon)):
            callback, args = self.soon.popleft()
            callback(*args)


class Side:
    """The broker's side of a connection, and the socket of its client."""

    def __init__(self, mine: socket.socket, client: socket.socket, share_s: float) -> None:
        self.loop, self.client, self.sock = ManualLoop(share_s), client, mine
        self.events: list[Event] = []
        connection = Connection(is_client=False, greeting=b"", now=0)
        SocketChannel(cast(Loop, self.loop), mine, connection, self.events.append)
        hello = Connection(is_client=True, greeting=b"", now=0).output()
        client.sendall(b"".join(map(bytes, hello)))
        self.loop.turn()
        self.loop.ready(READ)
        self.loop.soon.clear()
        self.events.clear()


@contextmanager
def side(share_s: float = 60.0, *, tls: bool = False) -> Iterator[Side]:
    mine, client = socket.socketpair()
    for each in (mine, client):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    if tls:
        mine, client = _shaken(mine, client)
    client.setblocking(True)
    with mine, client:
        yield Side(mine, client, share_s)


def _shaken(mine: socket.socket, client: socket.socket) -> tuple[ssl.SSLSocket, ssl.SSLSocket]:
    authority = trustme.CA()
    here, there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(here)
    authority.configure_trust(there)
    for each in (mine, client):
        each.setblocking(False)
    late: dict[str, bool] = {"do_handshake_on_connect": False}
    pair = (
        here.wrap_socket(mine, server_side=True, **late),
        there.wrap_socket(client, server_hostname="127.0.0.1", **late),
    )
    for _ in range(4):
        for each in pair:
            with suppress(ssl.SSLWantReadError):
                each.do_handshake()
    return pair


def opens(count: int) -> bytes:
    header = msgspec.msgpack.encode(Opening("m", 0, b""))
    return b"".join(
        bytes(frame_bytes(FrameKind.OPEN, 1 + number, header)[0]) for number in range(count)
    )


@pytest.mark.rule("the share of one connection in a turn of the loop", "transport/channel.py")
def test_turn_handles_a_bounded_number_of_frames() -> None:
    with side() as it:
        it.client.sendall(opens(3000))
        it.loop.ready(READ)
        taken = [len(it.events)]
        while it.loop.soon:
            it.loop.turn()
            taken.append(len(it.events))
        most = channels._CALLS_AT_ONCE * FRAMES_AT_ONCE
        assert taken == [most, 2 * most, 3000]
        assert [each.stream for each in it.events if isinstance(each, StreamOpened)] == [
            *range(1, 3001)
        ]


def test_turn_without_time_left_makes_one_call() -> None:
    with side(share_s=0.0) as it:
        it.client.sendall(opens(3 * FRAMES_AT_ONCE))
        it.loop.ready(READ)
        assert len(it.events) == FRAMES_AT_ONCE
        it.loop.ready(READ)  # the socket may be readable too: the connection has one share
        assert len(it.events) == FRAMES_AT_ONCE
        it.loop.turn()
        assert len(it.events) == 2 * FRAMES_AT_ONCE


def test_bytes_buffered_in_openssl_are_read_without_a_readable_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A turn may end in the middle of a TLS record, whose rest makes no socket readable."""
    monkeypatch.setattr(channels, "_READ_AT_ONCE", 25 << 10)
    monkeypatch.setattr(channels, "_TLS_AT_ONCE", 10 << 10)
    with side(tls=True) as it:
        size = (32 << 10) - len(opens(1)) - PREFIX.size  # two records
        it.client.sendall(opens(1) + bytes(frame_bytes(FrameKind.DATA, 1, b"", bytes(size))[0]))
        it.loop.ready(READ)
        assert not select.select([it.sock], [], [], 0)[0]
        assert not any(isinstance(each, Received) for each in it.events)
        while it.loop.soon:
            it.loop.turn()
        assert [len(each.body) for each in it.events if isinstance(each, Received)] == [size]


def test_many_ready_sockets_share_a_turn() -> None:
    assert share_of(0) == share_of(1) == SHARE_S_MAX
    assert share_of(20) == TURN_S / 20
    assert share_of(10_000) == SHARE_S_MIN


def test_closed_connections_are_logged_at_most_once_in_ten_seconds_for_each_code(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = RefusedConnections()
    for second in range(25):
        refused.note(Lost("TOO_MANY_FRAMES", "too many"), "10.0.0.1:5", second)
    refused.note(Lost("NO_HELLO", "none"), "10.0.0.2:6", 25)
    assert caplog.messages == [
        "closed 1 connections with TOO_MANY_FRAMES, the last one from 10.0.0.1:5: too many",
        "closed 10 connections with TOO_MANY_FRAMES, the last one from 10.0.0.1:5: too many",
        "closed 10 connections with TOO_MANY_FRAMES, the last one from 10.0.0.1:5: too many",
        "closed 1 connections with NO_HELLO, the last one from 10.0.0.2:6: none",
    ]
