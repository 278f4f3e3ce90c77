"""Kafka clients that log in by SASL/OAUTHBEARER, and the end of their tokens.

The brokers accept a JWT for 30 s after its expiry, because clocks differ. So a short-lived token of
these tests has expired already.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest
from kafka.net.sasl.oauth import AbstractTokenProvider

from spark_stream.kafka.refusals import KafkaCode
from tests.broker.access.test_jwts import AUDIENCE, ISSUER, jwks, token
from tests.kafka.clients import WAIT_S, asked_at, connected, producer_at, read_at, sent, started
from tests.kafka.test_logins import logged_in
from tests.secure_brokers import PASSWORD, admin, as_, asking_broker
from tests.support import BrokerProcess

pytestmark = pytest.mark.slow
__all__ = ["admin"]

LEEWAY_S = 30


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that accepts the tokens of an issuer."""
    folder: Path = tmp_path_factory.mktemp("issuing")
    keys = jwks(folder)
    conf = f'jwt = {{ issuer = "{ISSUER}", audience = "{AUDIENCE}", keys = "{keys}" }}\n'
    with asking_broker(folder, conf) as broker:
        yield broker


@pytest.fixture
def gateway(asking) -> Iterator[str]:
    with started(asking.address, needs_login=True) as address:
        yield address


@pytest.fixture
def allowed(asking, admin, topic) -> str:
    """A topic that alice may write and read. She has no password."""
    with as_(asking, "root") as log:
        log.create_topic(topic)
    for operation in ("read", "write"):
        admin.add_rule("allow", "alice", operation, f"topic:{topic}")
    return topic


def message(given: str, *more: str) -> bytes:
    """Return the message of a client with a token, and extensions."""
    return "\1".join(["n,,", f"auth=Bearer {given}", *more, "", ""]).encode()


def lasting(seconds: float) -> str:
    """Return a token that the brokers accept for these seconds."""
    return token(exp=time.time() + seconds - LEEWAY_S)


def settings(made: Callable[[], str], lifetime_s: float = 600, **more: Any) -> dict[str, Any]:
    """Return the settings of a client of librdkafka that gets its tokens from a function."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (made(), time.time() + lifetime_s),
        **more,
    }


class Provider(AbstractTokenProvider):
    """The tokens of a client of kafka-python."""

    def __init__(self, made: Callable[[], str]) -> None:
        super().__init__()
        self._made = made

    def token(self) -> str:
        return self._made()


def python_settings(gateway: str, made: Callable[[], str]) -> dict[str, Any]:
    return {
        "bootstrap_servers": gateway,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": Provider(made),
    }


def test_a_client_acts_as_the_user_of_its_token(allowed, gateway):
    sent(producer_at(gateway, **settings(token)), allowed, [{"value": b"v", "partition": 0}])
    [messages] = read_at(gateway, allowed, **settings(token)).values()
    assert [each.value() for each in messages] == [b"v"]
    other = producer_at(gateway, **settings(lambda: token(sub="bob")))
    errors: list[Any] = []
    other.produce(allowed, b"v", partition=0, on_delivery=lambda error, _: errors.append(error))
    topics = other.list_topics(timeout=WAIT_S).topics
    assert allowed not in topics
    other.purge()
    other.flush(WAIT_S)
    assert errors[0] is not None


def test_a_client_of_kafka_python_acts_as_the_user_of_its_token(allowed, gateway):
    with closing(kafka.KafkaProducer(**python_settings(gateway, token))) as producer:
        found = producer.send(allowed, b"v", partition=0).get(WAIT_S)
    assert found.offset == 0
    with closing(kafka.KafkaConsumer(**python_settings(gateway, token))) as consumer:
        place = kafka.TopicPartition(allowed, 0)
        consumer.assign([place])
        consumer.seek_to_beginning()
        assert next(consumer).value == b"v"


def test_a_token_of_the_cluster_keeps_its_limits(admin, allowed, gateway):
    made = admin.create_token("alice", 600, [("read", f"topic:{allowed}")])
    given = settings(lambda: made.token)
    assert read_at(gateway, allowed, **given) == {0: []}
    errors: list[Any] = []
    producer = producer_at(gateway, **given)
    producer.produce(allowed, b"v", partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    assert errors[0].code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED


def ask_for(sock: socket.socket, topic: str, seconds: float) -> None:
    """Send requests about a topic."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        asked_at(sock, "Metadata", 5, {"topics": [{"name": topic}]})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (lambda: message(token(exp=int(time.time()) - 600)), "expired"),
        (lambda: message(token(aud="another")), "udience"),
        (lambda: message(token(sub=None)), "no text in the claim"),
        (lambda: message("isolog_0011223344556677_x"), "not known"),
        (lambda: message("x" * 5_000), "refuses this login"),
        (lambda: message("x" * 100_000), "refuses this login"),
        (lambda: message("x y"), "malformed"),
        (lambda: message("ö"), "no token"),
        (lambda: message(""), "malformed"),
        (lambda: b"n,,\1auth=Basic eA==\1\1", "no token"),
        (lambda: b"n,,\1auth\1\1", "malformed"),
        (lambda: b"n,,\1\1", "malformed"),
        (lambda: b"n,,", "malformed"),
        (lambda: b"n,,\1auth=Bearer \xff\1\1", "malformed"),
        (lambda: b"n,a=bob,\1auth=Bearer " + token().encode() + b"\1\1", "another identity"),
        (lambda: b"\1", "another identity"),
        (lambda: b"", "another identity"),
        (lambda: b"n,,\1" + b"auth=Bearer x\1" * 30_000, "refuses this login"),
    ],
)
def test_a_failed_login_names_its_reason(allowed, gateway, given, text):
    with connected(gateway) as sock:
        found = logged_in(sock, given(), "OAUTHBEARER")
        assert found["error_code"] == KafkaCode.SASL_AUTHENTICATION_FAILED
        assert text in found["error_message"]
        assert sock.recv(1) == b""


def test_a_login_has_the_lifetime_of_its_token(admin, allowed, gateway):
    lasts = admin.create_token("alice").token
    with connected(gateway) as sock:
        found = logged_in(sock, message(lasting(100), "extension=value"), "OAUTHBEARER")
        assert 0 < found["session_lifetime_ms"] <= 100_000
        found = logged_in(sock, message(lasts), "OAUTHBEARER")
        assert (found["error_code"], found["session_lifetime_ms"]) == (0, 0)


def test_a_login_may_be_renewed_but_not_change_its_user(admin, allowed, gateway):
    admin.add_user("ann", PASSWORD)
    with connected(gateway) as sock:
        for _ in range(3):
            assert logged_in(sock, message(token()), "OAUTHBEARER")["error_code"] == 0
            [found] = asked_at(sock, "Metadata", 5, {"topics": [{"name": allowed}]})["topics"]
            assert found["error_code"] == 0
        found = logged_in(sock, b"\0ann\0" + PASSWORD.encode())
        assert found["error_code"] == KafkaCode.SASL_AUTHENTICATION_FAILED
        assert "cannot change to another user" in found["error_message"]
        assert sock.recv(1) == b""


def test_a_connection_ends_after_its_token(allowed, gateway):
    with connected(gateway) as sock:
        found = logged_in(sock, message(lasting(2)), "OAUTHBEARER")
        ends = time.monotonic() + found["session_lifetime_ms"] / 1_000
        with pytest.raises((AssertionError, ConnectionError), match=r"closed|reset"):
            ask_for(sock, allowed, WAIT_S)
        assert time.monotonic() >= ends - 0.1
    with connected(gateway) as sock:
        assert logged_in(sock, message(token()), "OAUTHBEARER")["error_code"] == 0


def test_clients_write_on_with_new_tokens(allowed, gateway):
    """A client renews its login before the end that the gateway has sent."""
    made: list[str] = []

    def next_token() -> str:
        made.append(lasting(4))
        return made[-1]

    producer = producer_at(gateway, **settings(next_token, 4))
    count = 0
    ends = time.monotonic() + 10
    while time.monotonic() < ends:
        sent(producer, allowed, [{"value": b"%d" % count, "partition": 0}])
        count += 1
    [messages] = read_at(gateway, allowed, **settings(token)).values()
    assert [each.value() for each in messages] == [b"%d" % each for each in range(count)]
    assert len(made) > 1


def test_a_client_of_kafka_python_writes_and_reads_on_with_new_tokens(allowed, gateway):
    made: list[str] = []

    def next_token() -> str:
        made.append(lasting(4))
        return made[-1]

    with (
        closing(kafka.KafkaProducer(**python_settings(gateway, next_token))) as producer,
        closing(kafka.KafkaConsumer(**python_settings(gateway, next_token))) as consumer,
    ):
        consumer.assign([kafka.TopicPartition(allowed, 0)])
        consumer.seek_to_beginning()
        ends = time.monotonic() + 10
        while time.monotonic() < ends:
            value = b"%d" % time.monotonic_ns()
            producer.send(allowed, value, partition=0).get(WAIT_S)
            assert next(consumer).value == value
    assert len(made) > 4


def test_a_client_reports_that_its_token_has_ended(allowed, gateway):
    old = lasting(3)
    errors: list[confluent_kafka.KafkaError] = []
    producer = producer_at(gateway, **settings(lambda: old, error_cb=errors.append))
    sent(producer, allowed, [{"value": b"v", "partition": 0}])
    wait_for(lambda: producer.poll(0.1), errors)


def test_a_producer_reports_that_its_token_was_revoked(admin, allowed, gateway):
    """The brokers refuse the connection of the gateway, which ends that of the client."""
    made = admin.create_token("alice")
    errors: list[confluent_kafka.KafkaError] = []
    producer = producer_at(gateway, **settings(lambda: made.token, error_cb=errors.append))
    sent(producer, allowed, [{"value": b"v", "partition": 0}])
    admin.revoke_token(made.id)
    producer.produce(allowed, b"w", partition=0)
    wait_for(lambda: producer.poll(0.1), errors)
    producer.purge()
    producer.flush(WAIT_S)


def test_a_consumer_reports_that_its_token_was_revoked(admin, allowed, gateway):
    made = admin.create_token("alice")
    errors: list[confluent_kafka.KafkaError] = []
    given = settings(lambda: made.token, error_cb=errors.append)
    address = {"bootstrap.servers": gateway, "group.id": "none", "enable.auto.commit": False}
    with closing(confluent_kafka.Consumer({**address, **given})) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(allowed, 0, 0)])
        sent(producer_at(gateway, **settings(token)), allowed, [{"value": b"v", "partition": 0}])
        found = consumer.poll(WAIT_S)
        assert found is not None
        assert found.error() is None
        admin.revoke_token(made.id)
        wait_for(lambda: consumer.poll(0.1), errors)


def wait_for(poll: Callable[[], Any], errors: list[confluent_kafka.KafkaError]) -> None:
    """Poll a client until it reports a failed login."""
    code = confluent_kafka.KafkaError._AUTHENTICATION
    ends = time.monotonic() + WAIT_S
    while code not in [each.code() for each in errors]:
        poll()
        assert time.monotonic() < ends, errors
