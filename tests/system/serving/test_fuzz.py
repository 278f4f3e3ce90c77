"""Fuzzers for each listener of a broker: any input gets a typed error, and logs no traceback.

The inputs are valid messages with odd values, with changed bytes, or with deep nesting. The seed of
a failure is in the test's name, so the inputs are reproducible.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl
import pytest

import isolog
from isolog.errors import IsologError
from spark_stream.protocol.connection import OLDEST, VERSION, Goodbye, Hello, Opening
from spark_stream.protocol.frames import MARK, PREFIX, FrameKind, FrameReader, frame_bytes
from spark_stream.transport.client import ClientChannel
from spark_stream.transport.streams import CallFailed, ConnectionLost, failure_of
from spark_stream.wire.access_messages import Authenticate
from spark_stream.wire.addresses import split_address
from spark_stream.wire.calls import CALLS
from spark_stream.wire.messages import (
    ACT,
    APPEND,
    AUTHENTICATE,
    CLIENT_METHODS,
    FETCH,
    PEER_METHODS,
    REPLICATE,
    RUN_STEPS,
)
from spark_stream.wire.replication_messages import OpenReplication
from spark_stream.wire.stream_messages import AppendTo, Envelope, Fetch, FetchRange
from tests.examples import examples
from tests.flight_calls import CALL, SERVED, flight_client, typed
from tests.support import NUMBERS, BrokerProcess, numbers

SEEDS = examples(40)
INPUTS = 25
"""The number for each test. A small number makes failures easier to find."""
DEEP = 5_000
SKIPPED = {"move-replicas", "delete-topic"}
"""Actions that would take the topic away from the other tests."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with two topics. At the end the records are those of the start."""
    path: Path = tmp_path_factory.mktemp("fuzz") / "log"
    conf = SERVED + 'peer_listen = "127.0.0.1:0"\nmetrics_listen = "127.0.0.1:0"\n'
    with BrokerProcess(path, conf=conf).start() as broker:
        with isolog.connect(broker.address) as log:
            log.create_topic("kept", schema=NUMBERS)
            log.create_topic("fuzzed", schema=MANY)
            with log.producer() as producer:
                producer.append("kept", numbers(0, 100), partition=0).result(30)
        yield broker
        with isolog.connect(broker.address) as log:
            assert log.read("kept")["n"].to_pylist() == list(range(100))


@pytest.fixture
def fuzzed(prepared: BrokerProcess) -> Iterator[BrokerProcess]:
    """The broker. It must log no traceback during the test."""
    before = len(prepared.log_text())
    yield prepared
    assert prepared.alive
    said = prepared.log_text()[before:]
    assert "Traceback" not in said, said[-5000:]


MANY = pa.schema(
    [
        ("void", pa.null()),
        ("text", pa.string()),
        ("lists", pa.list_(pa.int32())),
        ("inner", pa.struct([("a", pa.int8()), ("b", pa.binary())])),
    ]
)


def odd_value(chance: random.Random, depth: int = 0) -> Any:
    """Return a JSON value that fits no field or only some fields."""
    if depth < 3 and chance.random() < 0.2:
        return [odd_value(chance, depth + 1) for _ in range(chance.randrange(3))]
    if depth < 3 and chance.random() < 0.1:
        return {chance.choice("ab"): odd_value(chance, depth + 1) for _ in range(2)}
    return chance.choice(
        [
            *(None, True, -1, 0, 1, 2**31, 2**63 - 1, 2**64, -(2**63), 10**30, 1.5, -0.0, 1e308),
            *("", "kept", "fuzzed", "../x", "\0", "\ud800", "ü" * 300, "9" * 5000, "0", "earliest"),
            *("read_committed", "read_atomic", "n > 0", "((((", "1970-01-01T00:00:00Z", "AAAA"),
        ]
    )


def odd_message(chance: random.Random, kind: type[msgspec.Struct]) -> bytes:
    """Return a message of this kind with some odd fields."""
    names = [each.encode_name for each in msgspec.structs.fields(kind)]
    usual = {"topic": "kept", "partition": 0, "timeout_ms": 1000}
    value = {name: usual.get(name, odd_value(chance)) for name in names if chance.random() < 0.8}
    if names and chance.random() < 0.5:
        value[chance.choice(names)] = odd_value(chance)
    return json.dumps(value).encode("utf-8", "surrogatepass")


def mutate(chance: random.Random, data: bytes) -> bytes:
    """Return the bytes unchanged, changed, truncated or extended, or deeply nested ones."""
    way = chance.randrange(8)
    if way == 0:
        return chance.choice([b"[", b'{"a":', b"\x91", b"\x81\xa1a"]) * DEEP
    if way == 1:
        return data[: chance.randrange(len(data) + 1)]
    if way == 2:
        return data
    found = bytearray(data or b"\0")
    for _ in range(chance.choice([1, 1, 2, 5])):
        at = chance.randrange(len(found))
        if chance.random() < 0.8:
            found[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        else:
            found[at:at] = chance.randbytes(chance.randrange(1, 9))
    return bytes(found)


def check_typed(error: IsologError, *inputs: object) -> None:
    assert error.code != "INTERNAL", (error, inputs)


def check_call(channel: ClientChannel, method: str, header: bytes, body: bytes) -> None:
    """Make a call. Check that it is answered or fails with a typed error."""
    try:
        stream = channel.open(method, header, body, end=True, timeout_s=20)
        for _ in range(3):
            if stream.receive(20) is None:
                return
        stream.cancel()
    except CallFailed as error:
        check_typed(failure_of(error, ""), method, header, body)


CALLED = [each for each in CALLS if each not in SKIPPED]


def bodies(chance: random.Random) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield methods with their headers and bodies."""
    nothing = Fetch(ranges=[FetchRange(topic="kept", partition=0, start=0, end=10)])
    for _ in range(INPUTS):
        name = chance.choice(CALLED)
        kinds: list[tuple[str, bytes, bytes]] = [
            (ACT, name.encode(), odd_message(chance, CALLS[name])),
            (ACT, mutate(chance, name.encode()), b"{}"),
            (FETCH, b"", nothing.to_bytes()),
            (
                FETCH,
                b"",
                json.dumps({"ranges": [json.loads(odd_message(chance, FetchRange))]}).encode(),
            ),
            (AUTHENTICATE, b"", odd_message(chance, Authenticate)),
            (AUTHENTICATE, b"", Authenticate(token="ey.ey.ey").to_bytes()),
            (chance.choice(sorted(PEER_METHODS)), b"", b"{}"),
        ]
        method, header, body = chance.choice(kinds)
        if b"wait_ms" in body or b'"follow"' in body:
            continue
        yield (method, header, body if chance.random() < 0.5 else mutate(chance, body))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_call_of_a_client_gets_a_typed_error(fuzzed: BrokerProcess, seed: int) -> None:
    chance = random.Random(f"calls {seed}")
    channel = ClientChannel(fuzzed.address, timeout_s=20)
    for method, header, body in bodies(chance):
        check_call(channel, method, header, body)
    channel.close()


def batch_of(chance: random.Random) -> pa.RecordBatch:
    rows = chance.randrange(4)
    values = [
        pa.nulls(rows),
        pa.array(["ü"] * rows, pa.string()),
        pa.array([[1, None]] * rows, pa.list_(pa.int32())),
        pa.array([{"a": 1, "b": b"x"}] * rows, MANY.field("inner").type),
    ]
    return pa.RecordBatch.from_arrays(values, schema=MANY)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_append_gets_a_typed_error(fuzzed: BrokerProcess, seed: int) -> None:
    chance = random.Random(f"appends {seed}")
    channel = ClientChannel(fuzzed.address, timeout_s=20)
    for number in range(INPUTS):
        asked, schema = AppendTo(topic="fuzzed").to_bytes(), MANY.serialize().to_pybytes()
        envelope = Envelope(number=0, partition=0).to_bytes()
        batch = batch_of(chance).serialize().to_pybytes()
        parts = [asked, schema, envelope, batch]
        at = chance.randrange(4)
        parts[at] = mutate(chance, parts[at])
        if number % 5 == 0:
            parts[0] = odd_message(chance, AppendTo)
        elif number % 5 == 1:
            parts[2] = odd_message(chance, Envelope)
        try:
            stream = channel.open(APPEND, parts[0], parts[1], timeout_s=20)
            stream.send(parts[2], parts[3], timeout_s=20)
            stream.send(b"", end=True)
            while (answer := stream.receive(20)) is not None:
                error = json.loads(bytes(answer.header)).get("error")
                assert error is None or error["code"] != "INTERNAL", (error, parts)
        except CallFailed as failed:
            check_typed(failure_of(failed, ""), *parts)
    channel.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_frame_ends_its_connection_with_a_reason(fuzzed: BrokerProcess, seed: int) -> None:
    """Both listeners get HELLO, OPEN and other frames with changed headers and bodies."""
    chance = random.Random(f"frames {seed}")
    hello = msgspec.msgpack.encode(Hello(OLDEST, VERSION, 1 << 20, 10, 1 << 20, 1 << 20, b"g"))
    for _ in range(INPUTS):
        method = chance.choice(sorted(CLIENT_METHODS | PEER_METHODS))
        opening = msgspec.msgpack.encode(Opening(method, chance.choice([0, -1, 2**40]), b"{}"))
        frames = [
            (FrameKind.HELLO, 0, hello, b""),
            (FrameKind.OPEN, 1, opening, b"{}"),
            (chance.choice(list(FrameKind)), 1, b"\x01", b"{}"),
        ]
        at = chance.randrange(len(frames))
        kind, stream, header, body = frames[at]
        frames[at] = (kind, stream, mutate(chance, header), mutate(chance, body))
        sent = b"".join(
            bytes(part)
            for kind, stream, header, body in frames
            for part in frame_bytes(kind, stream, header, body)
        )
        if chance.random() < 0.3:
            sent = mutate(chance, sent)
        # A frame of unknown kind at the end closes each connection.
        sent += PREFIX.pack(MARK, 99, 0, 0, 0, 0)
        address = chance.choice([fuzzed.address, fuzzed.peer_address])
        with socket.create_connection(split_address(address), timeout=20) as sock:
            with suppress(ConnectionError):
                sock.sendall(sent)
                sock.shutdown(socket.SHUT_WR)
            received = b""
            with suppress(ConnectionError):
                while part := sock.recv(1 << 16):
                    received += part
        for frame in frames_of(received):
            if frame.kind is FrameKind.ERROR:
                assert msgspec.msgpack.decode(frame.header)["code"] != "INTERNAL", (frame, sent)
            if frame.kind is FrameKind.GOODBYE:
                assert msgspec.msgpack.decode(frame.header, type=Goodbye).code


def frames_of(data: bytes) -> list[Any]:
    reader = FrameReader(1 << 20, 1 << 20)
    found = list(reader.receive(data))
    while reader.has_more:
        found += reader.receive(b"")
    return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_call_of_a_peer_gets_a_typed_error(fuzzed: BrokerProcess, seed: int) -> None:
    chance = random.Random(f"peers {seed}")
    opened = OpenReplication(stream="s", follower="2", proof="0" * 64, window_bytes=1 << 20)
    steps = msgspec.msgpack.encode({"caller": "2", "proof": "", "nonce": "n", "steps": []})
    channel = ClientChannel(fuzzed.peer_address, timeout_s=20)
    for _ in range(INPUTS):
        method = chance.choice([RUN_STEPS, REPLICATE, RUN_STEPS, FETCH])
        body = opened.to_bytes() if method == REPLICATE else steps
        with suppress(ConnectionLost):
            check_call(channel, method, mutate(chance, b""), mutate(chance, body))
        if not channel.is_usable:
            channel = ClientChannel(fuzzed.peer_address, timeout_s=20)
    channel.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_call_by_flight_gets_a_typed_error(fuzzed: BrokerProcess, seed: int) -> None:
    chance = random.Random(f"flight {seed}")
    token = [(b"authorization", chance.choice([b"Bearer ey.ey.ey", b"Basic ====", b"x"]))]
    with flight_client(fuzzed.address) as client:
        for number in range(INPUTS):
            name = chance.choice(CALLED)
            body = odd_message(chance, CALLS[name])
            if chance.random() < 0.5:
                body = mutate(chance, body)
            if b"wait_ms" in body or b"follow" in body:
                continue
            descriptor = fl.FlightDescriptor.for_command(body)
            options = fl.FlightCallOptions(timeout=20, headers=token) if number % 5 == 0 else CALL
            calls = [
                lambda name=name, body=body: list(client.do_action(fl.Action(name, body), CALL)),
                lambda body=body: client.do_get(fl.Ticket(body), CALL).read_all(),
                lambda descriptor=descriptor: client.get_flight_info(descriptor, CALL),
                lambda options=options, body=body: list(client.list_flights(body, options)),
                lambda body=body: put(client, chance, body),
            ]
            failed = None
            try:
                chance.choice(calls)()
            except fl.FlightError as error:
                failed = typed(error)
            assert failed is None or failed.code != "INTERNAL", (failed, name, body)


def put(client: fl.FlightClient, chance: random.Random, asked: bytes) -> None:
    command = asked if chance.random() < 0.5 else b'{"topic": "fuzzed"}'
    descriptor = fl.FlightDescriptor.for_command(command)
    writer, answers = client.do_put(descriptor, MANY, CALL)
    with writer:
        writer.write_with_metadata(batch_of(chance), odd_message(chance, Envelope))
        writer.done_writing()
        while (answer := answers.read()) is not None:
            error = json.loads(answer.to_pybytes()).get("error")
            assert error is None or error["code"] != "INTERNAL", (error, asked)


REQUEST = (
    b"GET /metrics?name[]=isolog_broker HTTP/1.1\r\nHost: x\r\n"
    b"Accept: application/openmetrics-text; version=1.0.0\r\nContent-Length: 3\r\n\r\nabc"
)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_request_to_the_metrics_listener_logs_no_traceback(
    fuzzed: BrokerProcess, seed: int
) -> None:
    chance = random.Random(f"metrics {seed}")
    address = split_address(
        json.loads((fuzzed.directory / "broker.json").read_text())["metrics_address"]
    )
    for _ in range(INPUTS):
        request = mutate(
            chance, REQUEST.replace(b"metrics", chance.choice([b"metrics", b"health/live"]))
        )
        with socket.create_connection(address, timeout=20) as sock, suppress(ConnectionError):
            sock.sendall(request)
            if chance.random() < 0.5:
                sock.shutdown(socket.SHUT_WR)
                sock.recv(1 << 16)
    asking = http.client.HTTPConnection(*address, timeout=20)
    asking.request("GET", "/health/live")
    assert asking.getresponse().status == 200
    asking.close()
