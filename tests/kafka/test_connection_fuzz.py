"""A gateway under random requests: each one gets an answer, or ends its connection."""

from __future__ import annotations

import logging
import random
import socket
import struct
from contextlib import closing
from typing import Any

import pytest

from spark_stream.kafka.connection import SERVED
from spark_stream.kafka.messages.schemas import load_schema
from tests.kafka.clients import connected, producer_at, sent
from tests.kafka.kafka_batches import by_kafka
from tests.kafka.messages.test_reading import random_fields
from tests.kafka.test_connection import framed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

UNSERVED = ("SaslAuthenticate", "SaslHandshake")  # the pause after a failed login


def random_request(api: str, version: int, rng: random.Random) -> dict[str, Any]:
    """Random fields, which name a topic that exists, and damaged records."""
    fields = random_fields(load_schema(f"{api}Request").fields, version, rng)
    if api == "Fetch":
        fields["max_wait_ms"] = rng.choice([0, -1, 50])
    if api == "Produce":
        fields["timeout_ms"] = 2_000
        for topic in fields["topic_data"]:
            for each in topic["partition_data"]:
                data = bytearray(by_kafka([(b"k", b"v", [("h", b"1")], 5)] * rng.randint(1, 5)))
                for _ in range(rng.choice([0, 0, 1, 3])):
                    data[rng.randrange(len(data))] = rng.randrange(256)
                each["records"] = rng.choice([bytes(data), bytes(data), bytes(data), None])
                each["index"] = rng.choice([0, 1, each["index"]])
    return fields


def answer_to(address: str, data: bytes, rng: random.Random) -> bytes | None:
    """Send a request in parts. Return its answer, or None if the connection ends."""
    with closing(connected(address)) as sock:
        sock.settimeout(30)
        try:
            at = 0
            while at < len(data):
                size = rng.choice([1, 5, 40, 1_000, len(data)])
                sock.sendall(data[at : at + size])
                at += size
            sock.shutdown(socket.SHUT_WR)
            found = b""
            while part := sock.recv(1 << 16):
                found += part
        except ConnectionError:
            return None
    return found or None


def check_log(caplog: pytest.LogCaptureFixture) -> None:
    failures = [each for each in caplog.records if each.exc_info is not None]
    assert not failures, failures[0].exc_text or failures[0].getMessage()


@pytest.mark.parametrize("api", [each for each in SERVED if each not in UNSERVED])
def test_requests_with_random_fields_are_answered(log, gateway, api, caplog):
    caplog.set_level(logging.WARNING, "spark_stream.kafka")
    log.create_topic("topic", partitions=2, if_not_exists=True)
    rng = random.Random(api)
    for number in range(40):
        version = rng.randint(SERVED[api].first, SERVED[api].last)
        fields = random_request(api, version, rng)
        data = framed(api, version, fields, number)
        found = answer_to(gateway, data, rng)
        check_log(caplog)
        if found is not None:
            assert struct.unpack_from(">ii", found) == (len(found) - 4, number)
        elif not (api == "Produce" and fields["acks"] == 0):
            pytest.fail(f"{api} {version} has no answer: {fields}")


def test_changed_bytes_of_requests_end_a_connection_or_are_answered(log, topic, gateway, caplog):
    caplog.set_level(logging.WARNING, "spark_stream.kafka")
    rng = random.Random(7)
    apis = [each for each in SERVED if each not in UNSERVED]
    for number in range(400):
        api = rng.choice(apis)
        version = rng.randint(SERVED[api].first, SERVED[api].last)
        fields = {"max_wait_ms": 10} if api == "Fetch" else {}
        data = bytearray(framed(api, version, fields, number))
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(4, len(data))] = rng.randrange(256)
        answer_to(gateway, bytes(data), rng)
        check_log(caplog)
    log.create_topic(topic)
    sent(producer_at(gateway), topic, [{"value": b"the gateway still serves"}])
    assert len(log.read(topic)) == 1
