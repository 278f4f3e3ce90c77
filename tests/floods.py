"""Floods of small frames from unauthenticated clients, in separate processes.

``python -m tests.floods '{"address": …, "kind": …}'`` connects repeatedly, and sends
useless frames until its standard input ends. It prints a line after its first connection has ended,
failed or sent many frames, and at the end a line with its counts.
"""

from __future__ import annotations

import json
import select
import socket
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from spark_stream.protocol.connection import OLDEST, VERSION, Goodbye, Hello, Opening
from spark_stream.protocol.frames import FrameKind, FrameReader, frame_bytes
from spark_stream.testing.local_cluster import HERE, ProcessPlace
from spark_stream.transport.client import connected
from spark_stream.transport.tls import TlsFiles, client_context

ROOT = Path(__file__).parents[1]
_BLOCK = 1000
_BEGUN_BLOCKS = 20
_CONNECT_S = 5.0
_NO_CODE = "closed"


def frame(kind: FrameKind, stream: int = 0, header: bytes = b"", body: bytes = b"") -> bytes:
    return b"".join(bytes(part) for part in frame_bytes(kind, stream, header, body))


HELLO = frame(
    FrameKind.HELLO,
    header=msgspec.msgpack.encode(Hello(OLDEST, VERSION, 1 << 20, 1, 1 << 20, 1 << 20)),
)
_OPENING = msgspec.msgpack.encode(Opening("no-such-method", 0, b""))
_OPENED = frame(FrameKind.OPEN, 1, _OPENING)

KINDS = {
    "ping": (b"", frame(FrameKind.PING)),
    "pong": (b"", frame(FrameKind.PONG)),
    "cancel": (_OPENED, frame(FrameKind.CANCEL, 1)),
    "credit": (_OPENED, frame(FrameKind.CREDIT, 1, msgspec.msgpack.encode(1))),
    "data": (_OPENED, frame(FrameKind.DATA, 1)),
    "hello": (b"", HELLO),
}
"""The bytes after HELLO: bytes that are sent once, and bytes that are repeated."""
OPENS = "open"
"""A flood of valid requests, which ends no connection of a trusted client."""


def opens(count: int) -> Iterator[bytes]:
    """Yield blocks of this many requests for an unknown method."""
    number = 1
    while True:
        numbers = range(number, number + count)
        yield b"".join(frame(FrameKind.OPEN, each, _OPENING) for each in numbers)
        number += count


def _blocks(kind: str) -> Iterator[bytes]:
    if kind == OPENS:
        yield from opens(_BLOCK)
    once, again = KINDS[kind]
    yield once
    block = again * _BLOCK
    while True:
        yield block


class _Received:
    """The frames of the broker, and the code of its GOODBYE."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = FrameReader(1 << 20, 1 << 30)
        self.code: str | None = None

    def take(self) -> None:
        """Receive frames, and set ``code`` if the connection has ended."""
        try:
            data = self._sock.recv(1 << 16)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            self.code = self.code or _NO_CODE
            return
        if not data:
            self.code = self.code or _NO_CODE
        frames = list(self._reader.receive(data))
        while self._reader.has_more:
            frames += self._reader.receive(b"")
        for each in frames:
            if each.kind is FrameKind.GOODBYE:
                self.code = msgspec.msgpack.decode(each.header, type=Goodbye).code


def flood(address: str, kind: str, tls: ssl.SSLContext | None, counts: Counter[str]) -> None:
    """Flood over one connection until the broker ends it, or standard input ends."""
    try:
        sock = connected(address, time.monotonic() + _CONNECT_S, tls)
    except OSError as error:
        counts[f"not connected: {type(error).__name__}"] += 1
        _report_begun()
        time.sleep(0.05)  # the broker may restart
        return
    counts["connections"] += 1
    with sock:
        sock.setblocking(False)
        received, blocks, unsent = _Received(sock), _blocks(kind), memoryview(HELLO)
        sent = 0
        while received.code is None and not _is_over():
            try:
                if not unsent:
                    unsent, sent = memoryview(next(blocks)), sent + 1
                    if sent == _BEGUN_BLOCKS:
                        _report_begun()
                unsent = unsent[sock.send(unsent) :]
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                select.select([sock], [sock], [], 1.0)
            except OSError:
                for _ in range(100):  # the reason arrived before the reset
                    received.take()
            received.take()
        counts[received.code or "open"] += 1
        _report_begun()


@cache
def _report_begun() -> None:
    print("begun", flush=True)


def _is_over() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def main() -> None:
    asked: dict[str, Any] = json.loads(sys.argv[1])
    tls = None if asked["tls"] is None else client_context(TlsFiles(**asked["tls"]))
    counts: Counter[str] = Counter()
    while not _is_over():
        with suppress(ConnectionError):
            flood(asked["address"], asked["kind"], tls, counts)
    print(json.dumps(counts), flush=True)


@dataclass(frozen=True)
class Target:
    """A listener to flood, the frames, and the place of the flooding process."""

    address: str
    kind: str = "ping"
    tls: TlsFiles | None = None
    place: ProcessPlace = HERE


@contextmanager
def flooded(targets: Sequence[Target]) -> Iterator[list[Counter[str]]]:
    """Flood within the ``with`` block, which starts when all floods have started.

    It yields a list that contains the counts of each target after the block.
    """
    processes, counts = [], []
    for each in targets:
        asked = {"address": each.address, "kind": each.kind, "tls": None}
        if each.tls is not None:
            asked["tls"] = {"cert": each.tls.cert, "key": each.tls.key, "ca": each.tls.ca}
        processes.append(
            subprocess.Popen(
                [*each.place.prefix, sys.executable, "-m", "tests.floods", json.dumps(asked)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=ROOT,
                text=True,
            )
        )
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
        yield counts
    finally:
        for process in processes:
            try:
                output, _ = process.communicate(timeout=60)
                counts.append(Counter(json.loads(output)))
            finally:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
