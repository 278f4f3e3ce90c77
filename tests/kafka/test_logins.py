"""Kafka clients that log in by SASL/PLAIN, with and without TLS, at brokers with authentication."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import spark_stream.kafka.gateway as gateway_module
from spark_stream.kafka.gateway import LOGIN_BYTES_MAX, tls_context
from spark_stream.kafka.logins import MECHANISMS
from spark_stream.kafka.refusals import KafkaCode
from tests.certificates import HERE, Files
from tests.kafka.clients import (
    WAIT_S,
    asked_at,
    connected,
    producer_at,
    read_at,
    sent,
    started,
)
from tests.kafka.test_connection import framed
from tests.secure_brokers import PASSWORD, admin, as_, asking

pytestmark = pytest.mark.slow
__all__ = ["admin", "asking"]

LOGIN = {"sasl.mechanism": "PLAIN", "sasl.username": "ann", "sasl.password": PASSWORD}
ANN = b"\0ann\0" + PASSWORD.encode()


@pytest.fixture
def gateway(asking) -> Iterator[str]:
    with started(asking.address, needs_login=True) as address:
        yield address


@pytest.fixture
def allowed(asking, admin, topic) -> str:
    """A topic that the user ann may write and read."""
    with as_(asking, "root") as log:
        log.create_topic(topic)
    admin.add_user("ann", PASSWORD)
    for operation in ("read", "write"):
        admin.add_rule("allow", "ann", operation, f"topic:{topic}")
    return topic


def settings(protocol: str = "SASL_PLAINTEXT", **more: str) -> dict[str, Any]:
    return {"security.protocol": protocol, **LOGIN, **more}


def logged_in(sock: socket.socket, message: bytes, mechanism: str = "PLAIN") -> dict[str, Any]:
    """Log in on a connection. Return the answer to the message."""
    found = asked_at(sock, "SaslHandshake", 1, {"mechanism": mechanism})
    assert found["error_code"] == 0
    return asked_at(sock, "SaslAuthenticate", 1, {"auth_bytes": message})


@pytest.mark.skipif(shutil.which("kcat") is None, reason="there is no kcat")
def test_kcat_logs_in(asking, admin, allowed, gateway):
    def kcat(user: str, password: str, *options: str) -> subprocess.CompletedProcess[str]:
        given = settings() | {"sasl.username": user, "sasl.password": password}
        named = [part for name, value in given.items() for part in ("-X", f"{name}={value}")]
        return subprocess.run(
            ["kcat", "-b", gateway, *named, *options],
            input="from kcat",
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_S,
        )

    assert kcat("ann", PASSWORD, "-t", allowed, "-P", "-p", "0").returncode == 0
    found = kcat("ann", PASSWORD, "-t", allowed, "-C", "-e", "-q", "-o", "beginning")
    assert (found.returncode, found.stdout) == (0, "from kcat\n")
    # It tries repeatedly. Another user keeps ann's next login free of the wait for that.
    refused = kcat("eve", "wrong", "-t", allowed, "-L", "-m", "10")
    assert "the user or the password is wrong" in refused.stderr


def test_the_first_version_of_a_handshake_has_a_token_without_a_header(asking, admin, gateway):
    admin.add_user("ann", PASSWORD)
    with connected(gateway) as sock:
        sock.settimeout(WAIT_S)
        assert asked_at(sock, "SaslHandshake", 0, {"mechanism": "PLAIN"})["error_code"] == 0
        sock.sendall(struct.pack(">i", len(ANN)) + ANN)
        assert sock.recv(4) == bytes(4)
        assert asked_at(sock, "Metadata", 5, {"topics": []})["topics"] == []
    with connected(gateway) as sock:
        sock.settimeout(WAIT_S)
        assert asked_at(sock, "SaslHandshake", 0, {"mechanism": "PLAIN"})["error_code"] == 0
        sock.sendall(struct.pack(">i", 8) + b"\0ann\0bad")
        assert sock.recv(4) == b""


def failure_of(address: str, given: dict[str, Any]) -> str:
    """Return the first error that a client of librdkafka reports."""
    errors: list[confluent_kafka.KafkaError] = []
    producer = producer_at(address, error_cb=errors.append, **given)
    ends = time.monotonic() + WAIT_S
    while not errors and time.monotonic() < ends:
        producer.poll(0.1)
    return str(errors[0].str())


def test_a_client_acts_as_its_user(asking, admin, allowed, gateway):
    sent(producer_at(gateway, **settings()), allowed, [{"value": b"v", "partition": 0}])
    [messages] = read_at(gateway, allowed, **settings()).values()
    assert [each.value() for each in messages] == [b"v"]
    secret = f"{allowed}-secret"
    with as_(asking, "root") as log:
        log.create_topic(secret)
    admin.add_rule("allow", "ann", "describe", f"topic:{secret}")
    errors: list[Any] = []
    producer = producer_at(gateway, **settings())
    producer.produce(secret, b"v", partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    assert errors[0].code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
    listed = producer.list_topics(timeout=WAIT_S).topics
    assert {allowed, secret} <= listed.keys()
    admin.remove_rule("allow", "ann", "write", f"topic:{allowed}")
    producer.produce(allowed, b"v", partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    assert errors[1].code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_connections_of_a_user_share_one_to_the_brokers(allowed, gateway):
    producers = [producer_at(gateway, **settings()) for _ in range(3)]
    for each in producers:
        sent(each, allowed, [{"value": b"v", "partition": 0}])
    [messages] = read_at(gateway, allowed, **settings()).values()
    assert len(messages) == 3


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"\0ann\0wrong", "user or the password is wrong"),
        (b"\0nobody\0" + PASSWORD.encode(), "user or the password is wrong"),
        (b"bob\0ann\0" + PASSWORD.encode(), "another identity"),
        (b"\0ann\0", "no password"),
        (b"ann", "malformed"),
        (b"\0\xff\0x", "malformed"),
        (b"\0ann\0" + b"x" * 5_000, "refuses this login"),
        (b"\0" + b"x" * 100_000, "malformed"),
    ],
)
def test_a_failed_login_names_its_reason_and_ends_the_connection(allowed, gateway, message, text):
    with connected(gateway) as sock:
        found = logged_in(sock, message)
        assert found["error_code"] == KafkaCode.SASL_AUTHENTICATION_FAILED
        assert text in found["error_message"]
        assert "x" * 100 not in found["error_message"]
        assert sock.recv(1) == b""


def test_a_client_without_a_login_gets_no_answer(allowed, gateway):
    for api, version, fields in [
        ("InitProducerId", 1, {"transactional_id": None}),
        ("Fetch", 7, {"max_wait_ms": 0, "topics": []}),
        ("Metadata", 5, {"topics": None}),
        ("SaslAuthenticate", 1, {"auth_bytes": ANN}),
    ]:
        with connected(gateway) as sock:
            found = asked_at(sock, api, version, fields)
            code = KafkaCode.ILLEGAL_SASL_STATE
            assert found["topics"] == [] if api == "Metadata" else found["error_code"] == code
            assert sock.recv(1) == b""


def test_another_mechanism_is_refused_with_the_names_of_the_others(allowed, gateway):
    with connected(gateway) as sock:
        for name in ("SCRAM-SHA-256", "", "plain"):
            other = asked_at(sock, "SaslHandshake", 1, {"mechanism": name})
            assert other["error_code"] == KafkaCode.UNSUPPORTED_SASL_MECHANISM
            assert other["mechanisms"] == [*MECHANISMS]
        assert logged_in(sock, ANN)["error_code"] == 0


def test_a_client_reports_a_mechanism_that_is_not_served(allowed, gateway):
    given = settings(**{"sasl.mechanism": "SCRAM-SHA-512"})
    assert "supported mechanisms" in failure_of(gateway, given)


def test_a_client_that_was_configured_without_a_login_reports_it(allowed, gateway):
    assert "brokers are down" in failure_of(gateway, {})


def test_a_second_login_needs_a_second_handshake(allowed, gateway):
    with connected(gateway) as sock:
        assert logged_in(sock, ANN)["error_code"] == 0
        assert logged_in(sock, ANN)["error_code"] == 0
        found = asked_at(sock, "SaslAuthenticate", 1, {"auth_bytes": ANN})
        assert found["error_code"] == KafkaCode.ILLEGAL_SASL_STATE
        assert sock.recv(1) == b""


def test_requests_before_a_login_are_small(allowed, gateway):
    with connected(gateway) as sock:
        sock.sendall(struct.pack(">i", LOGIN_BYTES_MAX + 1))
        assert sock.recv(1) == b""
    with connected(gateway) as sock:
        assert logged_in(sock, ANN)["error_code"] == 0
        fields = {"topic_data": [], "transactional_id": None, "acks": -1, "timeout_ms": 1_000}
        large = [{"index": number, "records": b"x" * LOGIN_BYTES_MAX} for number in range(3)]
        fields["topic_data"] = [{"name": "no-topic", "partition_data": large}]
        [topic] = asked_at(sock, "Produce", 7, fields)["responses"]
        codes = {each["error_code"] for each in topic["partition_responses"]}
        assert codes == {KafkaCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_client_that_does_not_log_in_is_disconnected(allowed, gateway, monkeypatch):
    """Also one that sends other bytes all the time. The limit is short for the test."""
    monkeypatch.setattr(gateway_module, "LOGIN_S", 1.0)
    with connected(gateway) as known, connected(gateway) as silent, connected(gateway) as slow:
        assert logged_in(known, ANN)["error_code"] == 0
        silent.settimeout(WAIT_S)
        assert silent.recv(1) == b""
        with pytest.raises(OSError, match=r"reset|pipe|abort"):
            send_for(slow, WAIT_S)
        assert asked_at(known, "Metadata", 5, {"topics": []})["brokers"]


def send_for(sock: socket.socket, seconds: float) -> None:
    """Send requests that need no login."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        sock.sendall(framed("ApiVersions", 0, {}))


def test_an_idle_client_is_disconnected(asking, monkeypatch):
    monkeypatch.setattr(gateway_module, "IDLE_S", 0.1)
    with started(asking.address) as address, connected(address) as sock:
        sock.settimeout(WAIT_S)
        assert sock.recv(1) == b""


def test_a_password_that_was_changed_is_refused_for_new_connections(admin, allowed, gateway):
    with connected(gateway) as sock, connected(gateway) as later:
        assert logged_in(sock, ANN)["error_code"] == 0
        admin.change_password("ann", "another " + PASSWORD)
        assert logged_in(later, ANN)["error_code"] == KafkaCode.SASL_AUTHENTICATION_FAILED


def test_clients_connect_by_tls(asking, allowed, tmp_path):
    files = Files(tmp_path)
    pair = files.issue("gateway", *HERE)
    assert pair.cert is not None
    context = tls_context(Path(pair.cert), Path(f"{pair.key}"))
    with started(asking.address, needs_login=True, tls=context) as address:
        given = settings("SASL_SSL", **{"ssl.ca.location": files.ca})
        sent(producer_at(address, **given), allowed, [{"value": b"v", "partition": 0}])
        [messages] = read_at(address, allowed, **given).values()
        assert [each.value() for each in messages] == [b"v"]
