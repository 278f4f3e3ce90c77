"""A server in this process whose streams echo, and clients of it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

import pytest
import trustme
from msgspec.structs import replace

from spark_stream.protocol import ConnectionLimits, Received, StreamOpened
from spark_stream.transport.client import CLIENT_LIMITS, ClientChannel
from spark_stream.transport.loop import Loop
from spark_stream.transport.server import SERVER_LIMITS, Door, Server
from spark_stream.transport.streams import Stream, StreamEvent

FAST = replace(CLIENT_LIMITS, heartbeat_s=0.5, silence_s=3.0)


@dataclass(frozen=True)
class Place:
    """The address of a server, and its streams without an answer."""

    address: str
    tls: ssl.SSLContext | None = None
    held: SimpleQueue[Stream] = field(default_factory=SimpleQueue)

    def connect(self, limits: ConnectionLimits = FAST, timeout_s: float = 20.0) -> ClientChannel:
        return ClientChannel(self.address, timeout_s=timeout_s, tls=self.tls, limits=limits)


def echo(opened: StreamOpened, stream: Stream) -> None:
    """Serve: ``echo`` sends everything back, ``fail`` fails, ``hold`` sends no answer.

    ``break`` raises.
    """
    if opened.method == "break":
        raise ValueError("a bug")
    if opened.method == "fail":
        stream.fail(b"no: " + bytes(opened.header))
        return
    if opened.method == "hold":
        return
    if opened.end:
        stream.send(opened.header, opened.body, end=True)
        return

    def handle(event: StreamEvent) -> None:
        if isinstance(event, Received):
            sent = stream.send(event.header, event.body, end=event.end)
            if sent and not event.end:  # what cannot be sent back is not consumed
                stream.grant_credit(event.size)

    stream.handle = handle


Begin = Callable[..., Place]


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop("test-server")
    yield loop
    loop.close()


@pytest.fixture(params=["tcp", "unix", "tls"])
def place(request: pytest.FixtureRequest, loop: Loop, tmp_path: Path) -> Iterator[Place]:
    server = Server(loop, replace(SERVER_LIMITS, heartbeat_s=0.5, silence_s=3.0))
    tls: ssl.SSLContext | None = None
    trusted: ssl.SSLContext | None = None
    if request.param == "unix":
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(str(tmp_path / "s"))
        address = f"unix:{tmp_path / 's'}"
    else:
        sock = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{sock.getsockname()[1]}"
    if request.param == "tls":
        authority = trustme.CA()
        tls, trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
        authority.issue_cert("127.0.0.1").configure_cert(tls)
        authority.configure_trust(trusted)
    place = Place(address, trusted)

    def serve(opened: StreamOpened, stream: Stream) -> None:
        if opened.method == "hold":
            place.held.put(stream)
        echo(opened, stream)

    server.open(Door(sock, lambda _: serve, lambda: b"hello", None if tls is None else lambda: tls))
    yield place
    server.stop("the test is over", 0.1)
