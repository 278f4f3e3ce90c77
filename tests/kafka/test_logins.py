"""Kafka clients that log in by SASL/PLAIN, with and without TLS, at brokers with authentication."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from spark_stream.kafka.gateway import tls_context
from spark_stream.kafka.refusals import KafkaCode
from tests.certificates import HERE, Files
from tests.kafka.clients import WAIT_S, asked, producer_at, read_at, sent, started
from tests.secure_brokers import PASSWORD, admin, as_, asking

pytestmark = pytest.mark.slow
__all__ = ["admin", "asking"]

LOGIN = {"sasl.mechanism": "PLAIN", "sasl.username": "ann", "sasl.password": PASSWORD}


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
    ("token", "text"),
    [
        (b"\0ann\0wrong", "refuses this user"),
        (b"\0nobody\0" + PASSWORD.encode(), "refuses this user"),
        (b"bob\0ann\0" + PASSWORD.encode(), "another identity"),
        (b"\0ann\0", "no password"),
        (b"ann", "malformed"),
        (b"\0\xff\0x", "malformed"),
    ],
)
def test_a_failed_login_names_its_reason(allowed, gateway, token, text):
    found = asked(gateway, "SaslAuthenticate", 1, {"auth_bytes": token})
    assert found["error_code"] == KafkaCode.SASL_AUTHENTICATION_FAILED
    assert text in found["error_message"]


def test_a_client_without_a_login_gets_no_answer(allowed, gateway):
    for api, fields in [
        ("InitProducerId", {"transactional_id": None}),
        ("Fetch", {"max_wait_ms": 0, "topics": []}),
    ]:
        found = asked(gateway, api, {"InitProducerId": 1, "Fetch": 7}[api], fields)
        assert found["error_code"] == KafkaCode.ILLEGAL_SASL_STATE
    assert asked(gateway, "Metadata", 5, {"topics": None})["topics"] == []
    other = asked(gateway, "SaslHandshake", 1, {"mechanism": "SCRAM-SHA-256"})
    assert other["error_code"] == KafkaCode.UNSUPPORTED_SASL_MECHANISM
    assert other["mechanisms"] == ["PLAIN"]


def test_a_password_that_was_changed_is_refused_for_new_connections(admin, allowed, gateway):
    token = {"auth_bytes": b"\0ann\0" + PASSWORD.encode()}
    assert asked(gateway, "SaslAuthenticate", 1, token)["error_code"] == 0
    admin.change_password("ann", "another " + PASSWORD)
    found = asked(gateway, "SaslAuthenticate", 1, token)
    assert found["error_code"] == KafkaCode.SASL_AUTHENTICATION_FAILED


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
