"""Quotas at a broker: they delay only the traffic of their principal, and lose no record.

A test of a delay checks only the minimum, because the machine may be slow.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

import isolog
from isolog.errors import (
    BrokerBusy,
    InvalidRequest,
    IsologError,
    PermissionDenied,
    Unauthenticated,
    UnknownTopic,
)
from spark_stream.client.administration import AccessClient
from spark_stream.transport.client import ClientChannel
from spark_stream.transport.streams import BlockingStream, CallFailed, failure_of
from spark_stream.wire.access_messages import Authenticate
from spark_stream.wire.messages import ACT, APPEND, AUTHENTICATE
from tests.flight_calls import SERVED
from tests.secure_brokers import PASSWORD, admin, as_, asking_broker, client_of
from tests.support import NUMBERS, BrokerProcess, eventually, numbers

__all__ = ["admin"]

MIB = 1 << 20
TINY = 1024
"""A rate so low that no further batch passes during a test."""


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A new broker, where no principal has used its quota.

    Its files are not mapped, so that all reads pass the broker.
    """
    with asking_broker(tmp_path, SERVED + "mapped_reads = false\n") as broker:
        yield broker


@pytest.fixture
def topic(asking: BrokerProcess, admin: AccessClient) -> str:
    """A topic on which alice and bob may perform all operations."""
    name = "large"
    for user in ("alice", "bob"):
        admin.add_user(user, PASSWORD)
        admin.add_rule("allow", user, "all", f"topic:{name}")
    with as_(asking, "root") as log:
        log.create_topic(name, schema=pa.schema([("n", pa.int64()), ("filler", pa.binary())]))
    return name


def large(number: int, nbytes: int = MIB) -> pa.RecordBatch:
    return pa.record_batch({"n": [number], "filler": pa.array([bytes(nbytes)], pa.binary())})


def write(log: isolog.Log, topic: str, count: int, nbytes: int = MIB) -> None:
    with log.producer() as producer:
        for number in range(count):
            producer.append(topic, large(number, nbytes))
        producer.flush()


def delays_of(admin_log: isolog.Log, principal: str) -> tuple[bool, bool]:
    """Return whether the principal's writes and its reads have been delayed."""
    use = admin_log.status().principals.get(principal)
    return (False, False) if use is None else (use.write_delayed_s > 0, use.read_delayed_s > 0)


def test_write_quota_delays_writes_without_loss(asking, admin, topic):
    """The first 8 MiB of a stream, its credit, are not delayed, but count for later writes."""
    rate, count = 8 * MIB, 40
    admin.set_quota("alice", write_bytes_per_s=rate)
    with as_(asking, "alice") as alice, as_(asking, "bob") as bob, as_(asking, "root") as root:
        begun = time.monotonic()
        write(alice, topic, count)
        assert time.monotonic() - begun >= (count - 8 - 1) * MIB / rate - 1
        write(bob, topic, 1)
        found = root.read(topic)["n"].to_pylist()
        assert found == [*range(count), 0]
        assert delays_of(root, "alice") == (True, False)
        assert delays_of(root, "bob") == (False, False)


@pytest.mark.full  # without a broker: tests/broker/access/test_quotas.py
def test_read_quota_delays_reads_without_loss(asking, admin, topic):
    rate, count = 8 * MIB, 24
    with as_(asking, "alice") as alice, as_(asking, "bob") as bob, as_(asking, "root") as root:
        write(bob, topic, count)
        admin.set_quota("alice", read_bytes_per_s=rate)
        begun = time.monotonic()
        found = alice.read(topic)["n"].to_pylist()
        assert time.monotonic() - begun >= (count - 9) * MIB / rate - 1
        assert found == [*range(count)]
        assert bob.read(topic)["n"].to_pylist() == found
        assert delays_of(root, "alice") == (False, True)
        assert delays_of(root, "bob")[1] is False


@pytest.mark.quick("a higher quota")
@pytest.mark.parametrize("ends_by", ["a higher quota", "its removal", "a quota of its own"])
def test_changed_quota_applies_to_waiting_streams(asking, admin, topic, ends_by):
    """The streams are two writers and two readers. One of each has not begun."""
    principal = "*" if ends_by == "a quota of its own" else "alice"
    with as_(asking, "alice") as alice, as_(asking, "bob") as bob, as_(asking, "root") as root:
        write(bob, topic, 4)
        write(alice, topic, 1)
        admin.set_quota("root")
        admin.set_quota(principal, write_bytes_per_s=TINY, read_bytes_per_s=TINY)
        found: list[Any] = []

        def do(act: Any) -> threading.Thread:
            thread = threading.Thread(target=lambda: found.append(act()), daemon=True)
            thread.start()
            return thread

        threads = [
            do(lambda: write(alice, topic, 20)),
            do(lambda: alice.read(topic, end="latest")["n"].to_pylist()[:5]),
        ]
        eventually(lambda: delays_of(root, "alice") == (True, True), 20)
        threads += [
            do(lambda: write(alice, topic, 1)),
            do(lambda: alice.read(topic, end="latest")["n"].to_pylist()[:5]),
        ]
        threads[3].join(0.5)
        assert found == [], "all of them wait"
        if ends_by == "its removal":
            admin.remove_quota("alice")
        elif ends_by == "a higher quota":
            admin.set_quota("alice", write_bytes_per_s=1 << 40, read_bytes_per_s=1 << 40)
        else:
            admin.set_quota("alice")
        for thread in threads:
            thread.join(30)
        assert sorted(map(str, found)) == ["None", "None", *["[0, 1, 2, 3, 0]"] * 2]
        written = root.read(topic)["n"].to_pylist()[5:]
        assert sorted(written) == [0, *range(20)]
        assert [each for each in written if each] == [*range(1, 20)]


def open_channel(broker: BrokerProcess, user: str = "", **credential: str) -> ClientChannel:
    channel = ClientChannel(broker.address, timeout_s=20)
    asked = Authenticate(**credential or {"user": user, "password": PASSWORD}).to_bytes()
    channel.call(AUTHENTICATE, b"", asked, 20)
    return channel


def append_to(topic: str) -> tuple[bytes, memoryview]:
    return json.dumps({"topic": topic}).encode(), memoryview(NUMBERS.serialize())


def frame(number: int) -> tuple[bytes, memoryview]:
    envelope = json.dumps({"partition": 0, "number": number}).encode()
    return envelope, memoryview(numbers(number, 1).serialize())


@pytest.fixture
def numbered(asking: BrokerProcess, admin: AccessClient, topic: str) -> str:
    """A topic of numbers."""
    with as_(asking, "root") as log:
        log.create_topic("numbered", schema=NUMBERS)
    admin.add_rule("allow", "alice", "all", "topic:numbered")
    return "numbered"


@pytest.mark.full  # without a broker: tests/broker/access/test_quotas.py
def test_stream_cancelled_before_its_quota_admits_it_stores_no_record(
    asking, admin, numbered, topic
):
    """Otherwise a client could bypass its quota by cancelling streams."""
    admin.set_quota("alice", write_bytes_per_s=TINY)
    with as_(asking, "alice") as alice, as_(asking, "root") as root:
        with alice.producer() as producer:
            producer.append(topic, large(0, 64 * TINY)).result(20)
        channel = open_channel(asking, "alice")
        given_up, kept = (channel.open(APPEND, *append_to(numbered)) for _ in range(2))
        given_up.send(*frame(1), timeout_s=20)
        kept.send(*frame(2), timeout_s=20)
        kept.send(b"", end=True, timeout_s=20)
        given_up.cancel()
        channel.call(ACT, b"list-topics", b"{}", 20)  # the broker has processed the cancel
        admin.remove_quota("alice")
        assert kept.receive(20) is not None
        time.sleep(1)  # the maximum delay before the cancelled stream would begin
        assert root.read(numbered)["n"].to_pylist() == [2]
        channel.close()


def exceed_quota(admin: AccessClient, asking: BrokerProcess, topic: str, *users: str) -> None:
    """Exceed the write quota of the users, so that their next writes wait until the test ends."""
    for user in users:
        with as_(asking, user) as log, log.producer() as producer:
            admin.set_quota(user, write_bytes_per_s=TINY)
            producer.append(topic, large(0, 256 * TINY)).result(20)


def await_failure(stream: BlockingStream, timeout_s: float = 20) -> IsologError:
    """Wait until a stream ends with an error."""
    with pytest.raises(CallFailed) as caught:
        stream.receive(timeout_s)
    return failure_of(caught.value, "")


@pytest.mark.quick("rule")
@pytest.mark.rule(
    "the end of a throttled write that lost its permission", "broker/serving/throttling.py"
)
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda admin, token: admin.remove_user("alice"), Unauthenticated),
        (lambda admin, token: admin.revoke_token(token.id), Unauthenticated),
        (
            lambda admin, token: admin.remove_rule("allow", "alice", "all", "topic:numbered"),
            PermissionDenied,
        ),
    ],
    ids=["user", "token", "rule"],
)
def test_throttled_stream_ends_when_its_permission_is_removed(
    asking, admin, numbered, topic, change, expected
):
    """The quota would delay it for minutes. The error states that no batch was stored."""
    exceed_quota(admin, asking, topic, "alice")
    token = admin.create_token("alice")
    channel = open_channel(asking, token=token.token)
    waiting = channel.open(APPEND, *append_to(numbered))
    waiting.send(*frame(1), timeout_s=20)
    with pytest.raises(TimeoutError):
        waiting.receive(0.7)
    change(admin, token)
    error = await_failure(waiting)
    assert isinstance(error, expected)
    assert error.details["at_opening"]
    channel.close()
    with as_(asking, "root") as root:
        assert root.read(numbered)["n"].to_pylist() == []


@pytest.mark.full  # without quotas: tests/system/access/test_access.py
def test_forbidden_append_fails_without_throttling(asking, admin, topic):
    exceed_quota(admin, asking, topic, "alice")
    channel = open_channel(asking, "alice")
    refused = channel.open(APPEND, *append_to("not-hers"))
    assert isinstance(await_failure(refused), UnknownTopic)
    channel.close()


@pytest.mark.full  # without a broker: tests/broker/access/test_quotas.py
def test_throttled_writers_do_not_block_other_principals(asking, admin, numbered, topic):
    """Two hundred streams of alice wait. The stream of bob also waits, and is not refused."""
    exceed_quota(admin, asking, topic, "alice", "bob")
    admin.add_rule("allow", "bob", "all", "topic:numbered")
    channel, other = open_channel(asking, "alice"), open_channel(asking, "bob")
    waiting = [channel.open(APPEND, *append_to(numbered)) for _ in range(200)]
    waits_too = other.open(APPEND, *append_to(numbered))
    waits_too.send(*frame(1), timeout_s=20)
    waits_too.send(b"", end=True, timeout_s=20)
    for stream in (waits_too, waiting[0], waiting[-1]):
        with pytest.raises(TimeoutError):
            stream.receive(0.3)
    admin.remove_quota("bob")
    assert waits_too.receive(20) is not None
    channel.close()
    other.close()


@pytest.mark.full  # without a broker: tests/broker/access/test_quotas.py
def test_memory_of_throttled_batches_is_bounded_per_principal(tmp_path: Path):
    """Of 128 MiB for batches, one principal may hold 32 MiB. Further batches are refused."""
    conf = f"memory_bytes = {128 * MIB}\n"
    with asking_broker(tmp_path, conf) as broker, client_of(broker) as admin:
        with as_(broker, "root") as root:
            root.create_topic("large", schema=large(0).schema)
        for user in ("alice", "bob"):
            admin.add_user(user, PASSWORD)
            admin.add_rule("allow", user, "all", "topic:large")
        exceed_quota(admin, broker, "large", "alice", "bob")
        asked = json.dumps({"topic": "large"}).encode(), memoryview(large(0).schema.serialize())
        batch = b'{"partition": 0}', memoryview(large(1, 7 * MIB).serialize())
        channel, other = open_channel(broker, "alice"), open_channel(broker, "bob")
        streams = [channel.open(APPEND, *asked) for _ in range(6)]
        for stream in streams:
            with contextlib.suppress(CallFailed):
                stream.send(*batch, end=True, timeout_s=20)
        for stream in streams[4:]:
            error = await_failure(stream)
            assert isinstance(error, BrokerBusy)
            assert error.details["at_opening"]
        waits_too = other.open(APPEND, *asked)
        waits_too.send(*batch, end=True, timeout_s=20)
        with pytest.raises(TimeoutError):
            waits_too.receive(0.7)
        for user in ("alice", "bob"):
            admin.remove_quota(user)
        for stream in (*streams[:4], waits_too):
            assert stream.receive(20) is not None
        channel.close()
        other.close()


@pytest.mark.full  # without a broker: tests/broker/access/test_quotas.py
def test_connection_above_the_quota_waits_until_another_closes(asking, admin, numbered):
    admin.set_quota("alice", connections=1)
    with as_(asking, "root") as root:
        first = open_channel(asking, "alice")
        first.call(ACT, b"list-topics", b"{}", 20)
        second = open_channel(asking, "alice")
        asked = second.open(ACT, b"list-topics", b"{}")
        appends = second.open(APPEND, *append_to(numbered))
        for number in range(10):
            appends.send(*frame(number), timeout_s=20)
        appends.send(b"", end=True, timeout_s=20)
        given_up = second.open(APPEND, *append_to(numbered))
        given_up.send(*frame(99), timeout_s=20)
        given_up.cancel()
        with pytest.raises(TimeoutError):
            asked.receive(0.5)
        assert root.status().principals["alice"].connections == 1
        first.close()
        assert asked.receive(20) is not None
        for _ in range(10):
            assert appends.receive(20) is not None
        assert appends.receive(20) is None
        assert root.read(numbered)["n"].to_pylist() == [*range(10)]
        assert root.status().principals["alice"].connections == 1
        second.close()
        eventually(lambda: "alice" not in root.status().principals, 20)


@pytest.mark.full  # test_a_connection_beyond_its_quota_is_refused_in_time has no brokers
def test_connection_above_the_quota_times_out_with_the_quota_in_its_error(asking, admin, topic):
    """The timeout is 10 s. A client of the library retries until a connection is free."""
    admin.set_quota("alice", connections=1)
    first = open_channel(asking, "alice")
    second = open_channel(asking, "alice")
    with pytest.raises(CallFailed) as caught:
        second.call(ACT, b"list-topics", b"{}", 30)
    error = failure_of(caught.value, "")
    assert isinstance(error, BrokerBusy)
    assert "has reached its quota of 1 connections" in error.message
    eventually(lambda: second.is_lost, 20)
    closing = threading.Timer(0.5, first.close)
    closing.start()
    with as_(asking, "alice") as alice:
        assert alice.topics() == [topic]
    closing.join()


@pytest.mark.full  # frames: the tests above
def test_flight_is_throttled_by_quotas(asking, admin, topic):
    rate, count = 8 * MIB, 16
    basic = base64.b64encode(f"alice:{PASSWORD}".encode())
    options = fl.FlightCallOptions(headers=[(b"authorization", b"Basic " + basic)], timeout=60)
    with as_(asking, "root") as root, contextlib.ExitStack() as stack:
        client = stack.enter_context(fl.connect(f"grpc://{root.status().flight}"))
        admin.set_quota("alice", write_bytes_per_s=rate, read_bytes_per_s=rate)
        begun = time.monotonic()
        place = fl.FlightDescriptor.for_path(topic, "0")
        writer, _ = client.do_put(place, large(0).schema, options)
        for number in range(count):
            writer.write_batch(large(number))
        writer.close()
        assert time.monotonic() - begun >= (count - 1) * MIB / rate - 1
        ranges = [{"topic": topic, "partition": 0, "start": 0}]
        ticket = fl.Ticket(json.dumps({"ranges": ranges}).encode())
        begun = time.monotonic()
        found = client.do_get(ticket, options).read_all()
        assert found["n"].to_pylist() == [*range(count)]
        assert time.monotonic() - begun >= (count - 9) * MIB / rate - 1
        assert delays_of(root, "alice") == (True, True)


@pytest.mark.full  # test_throttled_stream_ends_when_its_permission_is_removed has others
def test_throttled_flight_put_ends_when_its_user_is_removed(asking, admin, topic):
    exceed_quota(admin, asking, topic, "alice")
    basic = base64.b64encode(f"alice:{PASSWORD}".encode())
    options = fl.FlightCallOptions(headers=[(b"authorization", b"Basic " + basic)], timeout=60)
    with as_(asking, "root") as root, fl.connect(f"grpc://{root.status().flight}") as client:
        place = fl.FlightDescriptor.for_path(topic, "0")
        writer, _ = client.do_put(place, large(0).schema, options)
        writer.write_batch(large(1, 100))
        removing = threading.Timer(0.5, admin.remove_user, ("alice",))
        removing.start()
        begun = time.monotonic()
        with pytest.raises(fl.FlightUnauthenticatedError):
            writer.close()
        removing.join()
        assert time.monotonic() - begun < 30


def test_status_hides_other_principals_without_describe_permission(asking, admin, topic):
    with as_(asking, "alice") as alice, as_(asking, "root") as root:
        assert alice.status().principals == {}
        assert set(root.status().principals) == {"alice", "root"}


def test_quotas_are_set_listed_removed_and_validated(admin, topic):
    admin.set_quota("alice", 10 * MIB, None, 5)
    admin.set_quota("*", read_bytes_per_s=MIB)
    admin.set_quota("alice", 20 * MIB)
    assert {name: quota.write_bytes_per_s for name, quota in admin.quotas().items()} == {
        "*": None,
        "alice": 20 * MIB,
    }
    assert admin.quotas()["alice"].connections is None, "a new quota replaces the former"
    for bad in ({"write_bytes_per_s": 10}, {"connections": 0}, {"read_bytes_per_s": -1}):
        with pytest.raises(InvalidRequest, match=next(iter(bad))):
            admin.set_quota("alice", **bad)
    admin.remove_quota("alice")
    with pytest.raises(InvalidRequest, match="has no quota"):
        admin.remove_quota("alice")


def test_owner_of_an_embedded_broker_has_no_quota(tmp_path: Path):
    with isolog.connect(path=tmp_path / "log") as log:
        client = AccessClient(log._connection)
        client.set_quota("*", TINY, TINY, 1)
        log.create_topic("t", schema=large(0).schema)
        write(log, "t", 20)
        assert len(log.read("t")) == 20
        assert log.status().principals["owner"].write_delayed_s == 0
