"""Peers with an invalid or an endless stream of frames, against a broker process."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import psutil
import pyarrow as pa
import pytest

import isolog
from spark_stream.protocol.connection import Hello, Opening
from spark_stream.protocol.frames import MARK, PREFIX, FrameKind, frame_bytes
from spark_stream.wire.addresses import split_address
from tests.support import BrokerProcess, eventually

MORE_BYTES_MAX = 150 << 20
"""The maximum memory of a broker for a hostile peer."""

HELLO = frame_bytes(
    FrameKind.HELLO, 0, msgspec.msgpack.encode(Hello(1, 1, 1 << 20, 1, 1 << 20, 1 << 30))
)[0]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    path: Path = tmp_path_factory.mktemp("hostile") / "log"
    with BrokerProcess(path).start() as broker:
        with isolog.connect(broker.address) as log:
            log.create_topic("t", schema="n BIGINT")
            _append_one(log)
        yield broker


def _append_one(log: isolog.Log) -> None:
    with log.producer() as producer:
        producer.append("t", pa.record_batch({"n": [1]}), partition=0).result(30)


def _connect(broker: BrokerProcess) -> socket.socket:
    return socket.create_connection(split_address(broker.address), timeout=20)


def _memory(broker: BrokerProcess) -> int:
    return int(psutil.Process(broker.pid).memory_info().rss)


def _opens(first: int, count: int, method: str) -> bytes:
    opening = msgspec.msgpack.encode(Opening(method, 0, b""))
    return b"".join(
        frame_bytes(FrameKind.OPEN, number, opening, end=True)[0]
        for number in range(first, first + count)
    )


def _send_until_blocked(sock: socket.socket, data: Iterator[bytes]) -> int:
    """Send without reading, until the socket blocks for a second or the broker closes it."""
    sock.settimeout(1.0)
    sent = 0
    with suppress(OSError):
        for part in data:
            sock.sendall(part)
            sent += len(part)
    return sent


@pytest.mark.quick("act")
@pytest.mark.parametrize("method", ["no-such-method", "act"])
def test_memory_is_bounded_for_a_peer_that_only_opens_streams(served, method):
    before = _memory(served)
    with _connect(served) as sock, isolog.connect(served.address) as log:
        sock.sendall(HELLO)
        _send_until_blocked(sock, (_opens(1 + 1000 * n, 1000, method) for n in range(1000)))
        _append_one(log)
        assert _memory(served) - before < MORE_BYTES_MAX


def test_cancelled_calls_use_few_threads(served):
    process = psutil.Process(served.pid)
    threads = most = process.num_threads()
    opening = msgspec.msgpack.encode(Opening("act", 0, b"status"))
    with _connect(served) as sock, isolog.connect(served.address) as log:
        sock.sendall(HELLO)
        for first in range(1, 8001, 100):
            sock.sendall(
                b"".join(
                    frame_bytes(FrameKind.OPEN, number, opening, b"{}", end=True)[0]
                    + frame_bytes(FrameKind.CANCEL, number)[0]
                    for number in range(first, first + 100)
                )
            )
            most = max(most, process.num_threads())
        _append_one(log)
    assert most <= threads + 16


def test_memory_is_bounded_for_a_peer_that_only_sends_pings(served):
    before = _memory(served)
    ping = b"".join(frame_bytes(FrameKind.PING, 0)) * 1000
    with _connect(served) as sock, isolog.connect(served.address) as log:
        sock.sendall(HELLO)
        _send_until_blocked(sock, (ping for _ in range(3000)))
        _append_one(log)
        assert _memory(served) - before < MORE_BYTES_MAX


def test_memory_of_a_frame_is_bounded_by_its_received_bytes(served):
    before = _memory(served)
    claim = PREFIX.pack(MARK, FrameKind.OPEN, 0, 1, 20, 1 << 30)
    huge = PREFIX.pack(MARK, FrameKind.OPEN, 0, 1, 20, 2**32 - 1)
    with ExitStack() as stack:
        for _ in range(50):
            sock = stack.enter_context(_connect(served))
            sock.sendall(HELLO + claim + bytes(100))
        refused = stack.enter_context(_connect(served))
        refused.sendall(HELLO + huge)
        assert b"FRAME_TOO_LARGE" in _receive_all(refused)
        _append_one(stack.enter_context(isolog.connect(served.address)))
        assert _memory(served) - before < MORE_BYTES_MAX


def _receive_all(sock: socket.socket) -> bytes:
    parts = []
    while part := sock.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("seed", range(20))
def test_garbage_closes_only_its_connection(served, seed):
    garbage = os.urandom(100_000) if seed % 2 else HELLO + _random_frame(seed)
    with _connect(served) as sock, isolog.connect(served.address) as log:
        with suppress(ConnectionError):
            sock.sendall(garbage)
        if seed % 2:
            assert b"NOT_ISOLOG" in _receive_all(sock)
        _append_one(log)


def _random_frame(seed: int) -> bytes:
    """Return a valid frame prefix with a random header and body."""
    kind = list(FrameKind)[seed // 2 % len(FrameKind)]
    return struct.pack("<HBBIII", MARK, kind, seed & 1, 1, 30, 5) + os.urandom(35)


def test_silent_connections_use_no_thread_and_little_memory(served):
    process = psutil.Process(served.pid)
    before, threads = _memory(served), process.num_threads()
    with ExitStack() as stack:
        for number in range(1000):
            sock = stack.enter_context(_connect(served))
            if number % 2:
                sock.sendall(HELLO + PREFIX.pack(MARK, FrameKind.OPEN, 0, 1, 20, 5)[: number % 16])
        _append_one(stack.enter_context(isolog.connect(served.address)))
        assert process.num_threads() <= threads + 4
        assert _memory(served) - before < MORE_BYTES_MAX


def test_descriptors_are_released(served):
    process = psutil.Process(served.pid)
    eventually(lambda: process.num_fds() < 200)
    started = time.monotonic()
    with isolog.connect(served.address) as log:
        _append_one(log)
    assert time.monotonic() - started < 20
