"""The bytes of a connection: splits, unknown requests, and requests that are none."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from spark_stream.kafka.connection import (
    FRAME_MAX,
    SERVED,
    KafkaConnection,
    KafkaRequest,
    answer,
    has_error,
    refuse,
)
from spark_stream.kafka.messages.reading import read_message
from spark_stream.kafka.messages.schemas import load_schema
from spark_stream.kafka.messages.writing import write_message
from spark_stream.kafka.refusals import KafkaCode, MalformedRequest


def framed(api: str, version: int, fields: dict[str, Any], number: int = 1) -> bytes:
    """A request as a client sends it."""
    schema = load_schema(f"{api}Request")
    head = struct.pack(">hhih", schema.api_key, version, number, 2) + b"me"
    if version in schema.flexible:
        head += b"\0"
    known = version if version in schema.versions else schema.versions.last
    body = head + b"".join(write_message(schema, known, fields))
    return struct.pack(">i", len(body)) + body


def answered(api: str, version: int, data: bytes) -> tuple[int, dict[str, Any]]:
    """The number of an answer, and its fields."""
    schema = load_schema(f"{api}Response")
    size, number = struct.unpack_from(">ii", data)
    assert size == len(data) - 4
    start = 9 if version in schema.flexible and api != "ApiVersions" else 8
    return number, read_message(schema, version, memoryview(data)[start:])


def received(data: bytes, rng: random.Random | None = None) -> list[KafkaRequest]:
    connection, found, at = KafkaConnection(), [], 0
    while at < len(data):
        size = len(data) if rng is None else rng.choice([1, 2, 3, 7, 50])
        found += connection.receive(data[at : at + size])
        at += size
    return found


@pytest.mark.parametrize("api", SERVED)
def test_requests_of_all_versions_are_read_in_any_parts(api):
    rng = random.Random(api)
    versions = range(SERVED[api].first, SERVED[api].last + 1)
    data = b"".join(framed(api, version, {}, version) for version in versions)
    for _ in range(5):
        found = received(data, rng)
        assert [(each.api, each.version, each.correlation_id) for each in found] == [
            (api, version, version) for version in versions
        ]
        assert all(each.client_id == "me" and each.unsupported is None for each in found)


@pytest.mark.parametrize("api", SERVED)
def test_answers_of_all_versions_are_read_by_their_schema(api):
    for version in range(SERVED[api].first, SERVED[api].last + 1):
        [request] = received(framed(api, version, {}, 77))
        number, fields = answered(api, version, b"".join(answer(request, {})))
        assert number == 77
        assert fields == read_message(
            load_schema(f"{api}Response"),
            version,
            memoryview(b"".join(write_message(load_schema(f"{api}Response"), version, {}))),
        )


@pytest.mark.parametrize(("api", "version"), [("EndTxn", 5), ("DescribeQuorum", 0)])
def test_a_request_that_is_not_served_has_an_error_code_as_its_answer(api, version):
    [request] = received(framed(api, version, {}, 3))
    assert request.unsupported is KafkaCode.UNSUPPORTED_VERSION
    number, fields = answered(api, version, b"".join(refuse(request, request.unsupported)))
    assert number == 3
    assert fields["error_code"] == 35


@pytest.mark.parametrize(("api", "has_code"), [("CreateAcls", False), ("Heartbeat", True)])
def test_an_answer_without_a_place_for_an_error_code_is_known(api, has_code):
    """It would count as success. So the gateway ends the connection."""
    [request] = received(framed(api, 1, {}))
    assert has_error(request) is has_code


def test_tagged_fields_of_a_header_are_skipped():
    data = bytearray(framed("ApiVersions", 3, {}))
    at = 4 + 8 + 2 + 2  # after the client id
    assert data[at] == 0
    data[at : at + 1] = b"\x02\x00\x03abc\x09\x00"
    struct.pack_into(">i", data, 0, len(data) - 4)
    [request] = received(bytes(data))
    assert (request.api, request.version) == ("ApiVersions", 3)


def test_a_token_without_a_header_follows_the_first_handshake():
    connection = KafkaConnection()
    connection.expects_token = True
    [request] = connection.receive(struct.pack(">i", 3) + b"\0a\0")
    assert (request.api, request.fields) == ("SaslAuthenticate", {"auth_bytes": b"\0a\0"})
    assert answer(request, {}) == [bytes(4)]
    assert answer(request, {"error_code": 58}) == []


def test_a_later_version_of_api_versions_is_answered_in_version_0():
    [request] = received(framed("ApiVersions", 100, {}))
    assert (request.version, request.unsupported) == (0, KafkaCode.UNSUPPORTED_VERSION)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (struct.pack(">i", FRAME_MAX + 1), f"{FRAME_MAX + 1} bytes"),
        (struct.pack(">i", -1), "-1 bytes"),
        (struct.pack(">i", 3), "3 bytes"),
        (struct.pack(">ihhi", 8, 999, 0, 0), "key 999"),
        (struct.pack(">ihhi", 8, 3, 1, 0), "ends in its header"),
        (struct.pack(">ihhih", 10, 3, 1, 0, 5), "client id of a request has 5 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", "bytes"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50), "TLS"),
    ],
)
def test_other_bytes_end_the_connection(data, text):
    with pytest.raises(MalformedRequest, match=text):
        list(received(data))


@pytest.mark.parametrize("seed", range(200))
def test_random_bytes_are_refused_or_wait_for_more(seed):
    rng = random.Random(seed)
    api = rng.choice(list(SERVED))
    data = bytearray(framed(api, SERVED[api].last, {}))
    for _ in range(rng.randrange(4)):
        data[rng.randrange(4, len(data))] = rng.randrange(256)
    try:
        for request in received(bytes(data), rng):
            assert request.api
    except MalformedRequest:
        return
