"""Calls that a client begins and gives up at once, by the thousand (HTTP/2 rapid reset)."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

import psutil
import pytest

from spark_stream.wire.addresses import split_address
from tests.support import BrokerProcess

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING = 0, 1, 3, 4, 6
ACK, END_STREAM, END_HEADERS = 1, 1, 4
CANCEL = 8
THREADS_MAX = 300
CONNECTIONS, CALLS = 4, 4_000


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def field(name: str, value: str) -> bytes:
    """A header field as a literal that enters no table (RFC 7541, 6.2.2)."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def abandoned_call(stream: int) -> bytes:
    """A whole call of the action ``status``, and its reset."""
    action = b"\x0a\x06status"  # arrow.flight.protocol.Action, field 1
    path = "/arrow.flight.protocol.FlightService/DoAction"
    headers = b"".join(
        field(*each)
        for each in (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "broker"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        )
    )
    return (
        frame(HEADERS, END_HEADERS, stream, headers)
        + frame(DATA, END_STREAM, stream, b"\0" + struct.pack(">I", len(action)) + action)
        + frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL))
    )


def attack(address: str) -> None:
    """Give up call after call, and wait until the broker has read them all or ends that."""
    last = frame(PING, 0, 0, b"the last")
    with socket.create_connection(split_address(address)) as connection, suppress(OSError):
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
        for first in range(0, CALLS, 100):
            calls = range(first, first + 100)
            connection.sendall(b"".join(abandoned_call(2 * each + 1) for each in calls))
        connection.sendall(last)
        with connection.makefile("rb") as answers:
            while head := answers.read(9):
                payload = answers.read(int.from_bytes(head[:3]))
                if head[3] == PING and not head[4] & ACK:
                    connection.sendall(frame(PING, ACK, 0, payload))
                elif head[3] == PING and payload == b"the last":
                    return


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="the transport stage bounds calls and threads: gRPC's synchronous server, which Flight"
    " uses, makes a thread for each call and takes no bound from Python",
)
def test_calls_that_are_given_up_at_once_take_bounded_threads(broker: BrokerProcess) -> None:
    process = psutil.Process(broker.pid)
    threads = [threading.Thread(target=attack, args=(broker.address,)) for _ in range(CONNECTIONS)]
    for each in threads:
        each.start()
    most = 0
    while any(each.is_alive() for each in threads):
        most = max(most, process.num_threads())
        threads[0].join(0.005)
    most = max(most, process.num_threads())
    assert most <= THREADS_MAX
