"""Connections over real sockets: TCP, Unix, TLS."""

from __future__ import annotations

import logging
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import cast

import pytest
from msgspec.structs import replace

from spark_stream.errors import InternalError, UnsupportedVersion, from_wire
from spark_stream.protocol import Connection, Credited, Event, Lost, StreamOver
from spark_stream.protocol.frames import FrameKind, frame_bytes
from spark_stream.transport.channel import UNSENT_BYTES_MAX, SocketChannel
from spark_stream.transport.client import ClientChannel, client_loop, connected
from spark_stream.transport.loop import Loop
from spark_stream.transport.server import SERVER_LIMITS, Door, Server
from spark_stream.transport.streams import (
    ERROR_BYTES_MAX,
    BlockingStream,
    CallFailed,
    ConnectionLost,
    StreamCancelled,
    StreamEvent,
    Streams,
    error_bytes,
    failure_of,
)
from tests.support import eventually
from tests.transport.conftest import FAST, Place, echo


def test_a_call_is_answered(place: Place) -> None:
    channel = place.connect()
    assert channel.greeting == b"hello"
    answer = channel.call("echo", b"header", b"body", 10)
    assert (answer.header, answer.body) == (b"header", b"body")
    channel.close()


def test_error_of_the_broker_is_raised_by_the_call(place: Place) -> None:
    channel = place.connect()
    with pytest.raises(CallFailed) as caught:
        channel.call("fail", b"why", b"", 10)
    assert caught.value.error == b"no: why"
    assert channel.call("echo", b"on", b"", 10).header == b"on"
    channel.close()


@pytest.mark.parametrize("size", [1, 65_536, 65_537, 1_000_000, 9_000_000])
def test_frames_of_any_size_come_back_unchanged(place: Place, size: int) -> None:
    channel = place.connect()
    stream = channel.open("echo", b"")
    body = os.urandom(size)
    for number in range(3):
        stream.send(b"%d" % number, body, timeout_s=20)
        received = stream.receive(20)
        assert received is not None
        assert received.header == b"%d" % number
        assert bytes(received.body) == body
    stream.send(b"", end=True)
    assert stream.receive(20) is None
    channel.close()


def test_many_threads_share_a_connection(place: Place) -> None:
    channel = place.connect()

    def talk(number: int) -> bool:
        if number % 3 == 0:
            return bytes(channel.call("echo", b"%d" % number, b"", 20).header) == b"%d" % number
        stream = channel.open("echo", b"")
        body = bytes([number % 251]) * (number * 1000)
        for _ in range(5):
            stream.send(b"", body, timeout_s=20)
            received = stream.receive(20)
            assert received is not None
            if bytes(received.body) != body:
                return False
        stream.cancel()
        return True

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(talk, range(100)))
    channel.close()


def test_frames_with_more_or_of_a_held_connection_are_sent_together_or_within_a_second(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = place.connect()
    read = channel.open("hold", b"")
    stream = place.held.get(timeout=20)
    flushes, flush, here = [], SocketChannel._flush, threading.current_thread()

    def counted(self: SocketChannel) -> None:
        if threading.current_thread() is here:
            flushes.append(self)
        flush(self)

    monkeypatch.setattr(SocketChannel, "_flush", counted)
    for header in (b"1", b"2"):
        assert stream.send(header, more=True)
    assert flushes == []
    stream.flush()
    assert len(flushes) == 1
    stream.channel.hold()
    assert stream.send(b"3")
    stream.flush()
    assert len(flushes) == 1
    stream.channel.release()
    assert len(flushes) == 2
    assert stream.send(b"4", more=True)
    received = [read.receive(20) for _ in range(4)]
    assert [each and each.header for each in received] == [b"1", b"2", b"3", b"4"]
    stream.channel.hold()
    assert stream.send(b"5")
    assert (found := read.receive(20)) is not None  # the next tick sends it
    assert found.header == b"5"
    stream.channel.release()
    channel.close()


def test_unread_stream_delays_no_other(place: Place) -> None:
    channel = place.connect(replace(FAST, credit=100_000))
    slow = channel.open("echo", b"")
    sender = threading.Thread(target=_send_until_it_fails, args=(slow,))
    sender.start()
    for number in range(50):
        assert channel.call("echo", b"%d" % number, b"", 10).header == b"%d" % number
    slow.cancel()
    channel.close()
    sender.join(20)
    assert not sender.is_alive()


def _send_until_it_fails(stream: BlockingStream) -> None:
    with suppress(ConnectionLost, StreamCancelled, StreamOver):
        while True:
            stream.send(b"", bytes(50_000), timeout_s=20)


def test_a_lost_connection_ends_all_its_streams(place: Place) -> None:
    channel = place.connect()
    streams = [channel.open("hold", b"") for _ in range(3)]
    channel.close()
    for stream in streams:
        with pytest.raises(ConnectionLost):
            stream.receive(10)
    with pytest.raises(ConnectionLost):
        channel.call("echo", b"", b"", 10)


def test_a_call_without_an_answer_ends_in_time(place: Place) -> None:
    channel = place.connect()
    with pytest.raises(TimeoutError):
        channel.call("hold", b"", b"", 0.1)
    assert channel.call("echo", b"x", b"", 10).header == b"x"
    channel.close()


def test_a_peer_that_does_not_answer_is_lost_in_time() -> None:
    mute = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(ConnectionLost) as caught:
        ClientChannel(f"127.0.0.1:{mute.getsockname()[1]}", timeout_s=0.2)
    assert caught.value.code == "TIMEOUT"
    mute.close()


def test_peer_with_another_protocol_is_detected(loop: Loop) -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    server = Server(loop)
    server.open(Door(sock, lambda _: echo))
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: isolog\r\n\r\n")
        stranger.settimeout(10)
        assert b"NOT_ISOLOG" in stranger.recv(1000)
        assert stranger.recv(1000) == b""
    server.stop("done", 0.1)


def connected_in_time(address: str) -> ClientChannel | None:
    """Return a channel, or None if a busy machine made its HELLO too late for the server."""
    try:
        return ClientChannel(address, timeout_s=20)
    except ConnectionLost:
        return None


def test_silent_connections_are_ended_and_use_no_thread(loop: Loop) -> None:
    sock = socket.create_server(("127.0.0.1", 0), backlog=500)
    address = f"127.0.0.1:{sock.getsockname()[1]}"
    server = Server(loop, replace(SERVER_LIMITS, handshake_s=1.0))
    server.open(Door(sock, lambda _: echo))
    threads = threading.active_count()
    silent = [connected(address, time.monotonic() + 20, None) for _ in range(200)]
    eventually(lambda: server.connections == 200 or server.connections < 200)
    channel = eventually(lambda: connected_in_time(address))
    assert channel.call("echo", b"x", b"", 10).header == b"x"
    assert threading.active_count() <= threads + 1
    eventually(lambda: server.connections == 1)
    for each in silent:
        each.close()
    channel.close()
    server.stop("done", 0.1)


def test_stream_may_be_cancelled_during_a_command(place: Place) -> None:
    """A garbage collection may cancel on a thread that already holds the connection's lock."""
    channel = place.connect()
    stream = channel.open("hold", b"")
    channel._channel.command(lambda _: stream.cancel())
    assert stream.receive(0) is None
    with pytest.raises(StreamCancelled):
        stream.send(b"late")
    assert channel.call("echo", b"x", b"", 10).header == b"x"
    eventually(lambda: channel._channel.open_streams == 0)
    channel.close()


def test_forked_child_makes_new_connections(place: Place) -> None:
    channel = place.connect()
    assert channel.call("echo", b"parent", b"", 10).header == b"parent"
    child = os.fork()
    if child == 0:
        try:
            answer = place.connect().call("echo", b"child", b"", 10)
            os._exit(0 if answer.header == b"child" else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert channel.call("echo", b"parent", b"", 10).header == b"parent"
    channel.close()


def test_stopping_server_waits_for_open_streams(loop: Loop) -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{sock.getsockname()[1]}"
    server = Server(loop)
    server.open(Door(sock, lambda _: echo))
    channel = ClientChannel(address, timeout_s=20)
    stream = channel.open("echo", b"")
    stream.send(b"once")  # so that the server has the stream before it stops
    assert stream.receive(10) is not None
    stopped = threading.Thread(target=server.stop, args=("maintenance", 20))
    stopped.start()
    eventually(lambda: _refuses(channel))
    stream.send(b"still", end=True)
    received = stream.receive(10)
    assert received is not None
    assert received.header == b"still"
    stopped.join(10)
    assert not stopped.is_alive()
    eventually(lambda: channel.is_lost)


def _refuses(channel: ClientChannel) -> bool:
    try:
        channel.call("echo", b"", b"", 10)
    except ConnectionLost:
        return True
    return False


def test_send_after_the_last_frame_is_refused(place: Place) -> None:
    channel = place.connect()
    stream = channel.open("hold", b"", end=False)
    stream.send(b"last", end=True)
    with pytest.raises(StreamOver):
        stream.send(b"more")
    channel.close()


def test_sender_gets_connection_lost_before_its_stream_does(place: Place) -> None:
    channel = place.connect()
    stream = channel.open("hold", b"")
    is_known, gate = threading.Event(), threading.Event()
    handle = channel._channel._handle

    def late(event: Event) -> None:
        if isinstance(event, Lost):
            is_known.set()
            gate.wait(10)
        handle(event)

    channel._channel._handle = late
    channel.close()
    assert is_known.wait(10)
    threading.Timer(0.1, gate.set).start()
    with pytest.raises(ConnectionLost):
        stream.send(b"more")


def test_lost_connection_is_not_reported_as_stopping(loop: Loop) -> None:
    with _served(loop) as address:
        channel = ClientChannel(address, timeout_s=20)
        is_known, gate = threading.Event(), threading.Event()
        handle = channel._channel._handle

        def late(event: Event) -> None:
            if isinstance(event, Lost):
                is_known.set()
                gate.wait(10)
            handle(event)

        channel._channel._handle = late
        channel.close()
        assert is_known.wait(10)
        with pytest.raises(ConnectionLost, match="the connection was closed") as caught:
            channel.open("echo", b"")
        assert caught.value.code == "CLOSED"
        gate.set()


def test_stream_gets_credit_after_backpressure(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    with _served(loop) as address:
        channel = ClientChannel(address, timeout_s=20)
        large, small = channel.open("hold", b""), channel.open("hold", b"")
        other = threading.Thread(target=small.send, args=(b"", b"x"), daemon=True)
        send_some = SocketChannel._send_some

        def after_the_other(of: SocketChannel) -> int:
            if of.is_clogged and other.ident is None:
                other.start()
                other.join(0.3)  # it waits for this thread, or has found the channel clogged
            return send_some(of)

        monkeypatch.setattr(SocketChannel, "_send_some", after_the_other)
        large.send(b"", bytes(UNSENT_BYTES_MAX + 1000))  # a first write makes it less
        other.join(10)
        assert not other.is_alive()
        channel.close()


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "drained"])
def test_event_for_all_streams_reaches_those_after_a_failing_handler(is_lost: bool) -> None:
    streams, reached = Streams("a peer"), []
    channel = cast(SocketChannel, None)

    def fail(_: StreamEvent) -> None:
        raise RuntimeError("can't start new thread")

    for number in (1, 2, 3):
        stream = streams.add(channel, number)
        stream.handle = fail if number == 1 else reached.append
    if is_lost:
        streams.dispatch(Lost("CLOSED", "the peer closed the connection"))
        assert [type(event) for event in reached] == [Lost, Lost]
    else:
        streams.on_drained()
        assert reached == [Credited(2), Credited(3)]


@contextmanager
def _served(loop: Loop) -> Iterator[str]:
    sock = socket.create_server(("127.0.0.1", 0))
    server = Server(loop)
    server.open(Door(sock, lambda _: echo))
    yield f"127.0.0.1:{sock.getsockname()[1]}"
    server.stop("done", 0.1)


def test_exception_in_one_stream_ends_no_other(place: Place) -> None:
    channel = place.connect()
    other = channel.open("echo", b"")
    channel.open("break", b"", b"", end=True)
    other.send(b"still", end=True)
    received = other.receive(10)
    assert received is not None
    assert received.header == b"still"
    channel.close()


def test_stopping_server_sends_its_last_answers(loop: Loop) -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    server = Server(loop)
    server.open(Door(sock, lambda _: echo))
    channel = ClientChannel(f"127.0.0.1:{sock.getsockname()[1]}", timeout_s=20)
    body = os.urandom(32 << 20)
    stream = channel.open("echo", b"", body, end=True)
    (session,) = server._sessions
    eventually(lambda: channel._channel.unsent_bytes == 0)
    gate = threading.Event()
    client_loop().call_soon(lambda: gate.wait(10) and None)
    eventually(lambda: session._channel.unsent_bytes > 0)
    stopped = threading.Thread(target=server.stop, args=("maintenance", 20))
    stopped.start()
    gate.set()
    received = stream.receive(20)
    assert received is not None
    assert bytes(received.body) == body
    stopped.join(20)
    assert not stopped.is_alive()


@pytest.mark.parametrize("place", ["tls"], indirect=True)
def test_failed_handshakes_are_logged_at_most_once_per_interval(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = place.address.split(":")
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            with socket.create_connection((host, int(port)), timeout=10) as client:
                client.sendall(b"\x16" + bytes(100))
                with suppress(ConnectionError):
                    while client.recv(1000):
                        pass
    assert len(caplog.messages) == 1
    assert "closed 1 connections with TLS_HANDSHAKE_FAILED" in caplog.text


def test_a_server_without_descriptors_waits_for_some(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    server = Server(loop)
    server.open(Door(sock, lambda _: echo))
    client = socket.socket()
    client.settimeout(10)
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    with caplog.at_level(logging.WARNING):
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, usual[1]))
        try:
            client.connect(sock.getsockname())
            time.sleep(0.5)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)
    assert len([each for each in caplog.messages if "accept()" in each]) == 1
    client.sendall(b"GET / HTTP/1.1\r\nHost: isolog\r\n\r\n")
    assert b"NOT_ISOLOG" in client.recv(1000)
    client.close()
    server.stop("done", 0.1)


def test_connections_leave_descriptors_to_the_rest_of_the_process(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    server = Server(loop)
    server.open(Door(sock, lambda _: echo))
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    clients = [socket.socket() for _ in range(3)]
    free = os.dup(0)  # the lowest free number
    os.close(free)
    with caplog.at_level(logging.WARNING):
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 3, usual[1]))
        try:
            for client in clients:
                client.settimeout(10)
                client.connect(sock.getsockname())
                assert client.recv(1) == b""
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)
    assert [each for each in caplog.messages if f"limit of open files ({free + 3})" in each]
    assert len(caplog.messages) == 1
    with socket.create_connection(sock.getsockname(), timeout=10) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: isolog\r\n\r\n")
        assert b"NOT_ISOLOG" in client.recv(1000)
    for client in clients:
        client.close()
    server.stop("done", 0.1)


def test_an_error_that_is_too_large_keeps_its_code() -> None:
    error = InternalError("x" * 10_000_000, things=["y" * 1_000_000])
    data = error_bytes(error)
    assert len(data) < ERROR_BYTES_MAX
    told = failure_of(CallFailed(data), "there")
    assert isinstance(told, InternalError)
    assert told.message.startswith("xxx")
    assert from_wire(error.to_wire()).code == told.code


def test_peer_with_other_versions_is_refused_and_the_error_names_both() -> None:
    """A retry would not help, so the error is not retriable."""
    newer = Connection(is_client=True, greeting=b"", now=0, versions=(3, 4))
    broker = Connection(is_client=False, greeting=b"", now=0, versions=(1, 2))
    broker.receive(b"".join(bytes(part) for part in newer.output()), 0)
    assert broker.lost is not None
    told = failure_of(ConnectionLost(broker.lost.code, broker.lost.message), "there")
    assert isinstance(told, UnsupportedVersion)
    assert not told.retriable
    assert "the client speaks 3 to 4, the broker 1 to 2" in str(told)
    assert "Upgrade the older side" in str(told)


SILENT_S = 3.5


@pytest.mark.quick("tcp")
@pytest.mark.slow
def test_large_frame_may_take_longer_than_the_silence_limit(place: Place) -> None:
    """While much is unsent the server reads nothing, and the progress of its writes is enough.

    Takes 4 s: longer than the server's 3 s of silence. Until then the client sends nothing, and at
    least 16 MiB are unsent. After that it sends PONGs: the speed of the machine does not matter.
    """
    sock = connected(place.address, time.monotonic() + 20, place.tls)
    core = Connection(is_client=True, greeting=b"", now=time.monotonic())

    def send() -> None:
        sock.sendall(b"".join(bytes(part) for part in core.output()))

    with sock:
        send()
        while not core.is_ready:
            core.receive(sock.recv(1 << 16), time.monotonic())
        core.open("hold", b"")
        send()
        stream = place.held.get(timeout=20)
        pong = frame_bytes(FrameKind.PONG, 0)[0]
        left, read, began = 40 << 20, 0, time.monotonic()
        stream.send(b"", bytes(left))
        while left > 0:
            received = len(sock.recv(1 << 18))
            assert received, f"the connection was lost after {time.monotonic() - began:.1f} s"
            left, read = left - received, read + received
            if time.monotonic() - began < SILENT_S:
                time.sleep(max(0.0, began + read / (4 << 20) - time.monotonic()))
            elif read // (1 << 20) > (read - received) // (1 << 20):
                sock.sendall(pong)
