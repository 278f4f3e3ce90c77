"""Messages by Kafka's schemas, beside the classes of kafka-python."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
from kafka.protocol.api_message import ApiMessage

from spark_stream.kafka.messages.reading import VALUES_MAX, read_message
from spark_stream.kafka.messages.schemas import Field, Schema, load_schema
from spark_stream.kafka.messages.writing import write_message
from spark_stream.kafka.refusals import MalformedRequest

APIS = """
    ApiVersions Metadata ListOffsets Fetch Produce InitProducerId FindCoordinator JoinGroup
    SyncGroup Heartbeat LeaveGroup OffsetCommit OffsetFetch ListGroups DescribeGroups DeleteGroups
    AddPartitionsToTxn AddOffsetsToTxn EndTxn TxnOffsetCommit CreateTopics DeleteTopics
    CreatePartitions DeleteRecords DescribeConfigs IncrementalAlterConfigs DescribeCluster
    DescribeLogDirs SaslHandshake SaslAuthenticate OffsetForLeaderEpoch
"""
NAMES = [f"{api}{kind}" for api in APIS.split() for kind in ("Request", "Response")]
NUMBERS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


def versions_of(schema: Schema) -> range:
    return range(schema.versions.first, schema.versions.last + 1)


def random_fields(
    fields: tuple[Field, ...], version: int, rng: random.Random, *, tags: bool = True
) -> dict[str, Any]:
    """Values of the fields. ``tags``: of tagged ones too, which kafka-python drops."""
    return {
        each.name: random_value(each, version, rng, tags)
        for each in fields
        if version in each.versions and (tags or version not in each.tagged)
    }


def random_value(field: Field, version: int, rng: random.Random, tags: bool) -> Any:
    if version in field.nullable and rng.random() < 0.3:
        return None
    if field.is_array:
        return [random_single(field, version, rng, tags) for _ in range(rng.choice([0, 1, 3]))]
    return random_single(field, version, rng, tags)


def random_single(field: Field, version: int, rng: random.Random, tags: bool) -> Any:
    match field.kind:
        case "struct":
            return random_fields(field.fields, version, rng, tags=tags)
        case "bool":
            return rng.random() < 0.5
        case "uuid":
            return rng.randbytes(16)
        case "string":
            return rng.choice(["", "topic", "тема", "x" * 200])
        case "bytes" | "records":
            return rng.randbytes(rng.choice([0, 3, 300, 20_000]))
        case "uint16":
            return rng.randrange(1 << 16)
        case "float64":
            return rng.random()
        case kind:
            bits = NUMBERS[kind]
            return rng.choice([0, 1, -1, rng.randrange(-(1 << bits), 1 << bits)])


def of_version(found: Any, fields: tuple[Field, ...], version: int) -> Any:
    """The fields of this version, in all structures."""
    if isinstance(found, list):
        return [of_version(each, fields, version) for each in found]
    if not isinstance(found, dict):
        return found
    return {
        each.name: of_version(found[each.name], each.fields, version)
        for each in fields
        if version in each.versions
    }


def classes() -> dict[str, Any]:
    import kafka.protocol.admin
    import kafka.protocol.consumer
    import kafka.protocol.metadata
    import kafka.protocol.producer
    import kafka.protocol.sasl

    assert kafka.protocol.sasl
    return {each.__name__: each for each in ApiMessage.__subclasses__()}


CLASSES = classes()


@pytest.mark.parametrize("name", NAMES)
def test_messages_have_the_bytes_of_kafka_python(name):
    schema = load_schema(name)
    for version in versions_of(schema):
        for seed in range(6):
            values = random_fields(schema.fields, version, random.Random(seed), tags=False)
            if name == "ApiVersionsResponse":
                values["error_code"] = 0  # kafka-python reads an error as version 0
            data = b"".join(write_message(schema, version, values))
            theirs = CLASSES[name].decode(data, version=version)
            theirs._header = None
            assert theirs.encode(version=version) == data
            values = random_fields(schema.fields, version, random.Random(seed))
            data = b"".join(write_message(schema, version, values))
            found = read_message(schema, version, memoryview(data))
            assert of_version(found, schema.fields, version) == values


def test_a_field_that_the_version_lacks_has_its_default():
    schema = load_schema("FetchRequest")
    data = b"".join(write_message(schema, 4, {"max_wait_ms": 5}))
    found = read_message(schema, 4, memoryview(data))
    assert (found["session_epoch"], found["rack_id"]) == (-1, "")
    assert found["forgotten_topics_data"] == []


def test_a_field_of_no_version_is_a_defect():
    with pytest.raises(KeyError, match="other"):
        write_message(load_schema("HeartbeatResponse"), 1, {"other": 1})


def test_large_records_are_not_copied():
    records = bytes(100_000)
    answer = {"topic": "t", "partitions": [{"records": records}]}
    parts = write_message(load_schema("FetchResponse"), 4, {"responses": [answer]})
    assert any(each is records for each in parts)


@pytest.mark.parametrize("name", [each for each in NAMES if each.endswith("Request")])
def test_any_bytes_are_read_or_refused(name):
    schema = load_schema(name)
    rng = random.Random(name)
    for version in versions_of(schema):
        for seed in range(20):
            values = random_fields(schema.fields, version, random.Random(seed))
            data = bytearray(b"".join(write_message(schema, version, values)))
            for _ in range(3 if data else 0):
                data[rng.randrange(len(data))] = rng.choice([0, 1, 127, 128, 255])
            for end in (len(data), rng.randrange(len(data) + 1)):
                with suppress(MalformedRequest):
                    read_message(schema, version, memoryview(bytes(data[:end])))


@pytest.mark.parametrize(
    ("name", "version", "data", "text"),
    [
        ("MetadataRequest", 1, b"\x7f\xff\xff\xff", "array has 2147483647 values"),
        ("MetadataRequest", 1, b"\xff\xff\xff\xfe", "array has -2 values"),
        ("MetadataRequest", 1, b"\0\0\0\1\xff\xfe", "value has -2 bytes"),
        ("MetadataRequest", 1, b"\0\0\0\1\0\2\xff\xff", "not UTF-8"),
        ("MetadataRequest", 9, b"\xff" * 6, "longer than 5 bytes"),
        ("HeartbeatRequest", 0, b"", "0 are left"),
    ],
)
def test_a_malformed_request_is_refused(name, version, data, text):
    with pytest.raises(MalformedRequest, match=text):
        read_message(load_schema(name), version, memoryview(data))


def test_a_request_has_a_limited_number_of_values():
    count = VALUES_MAX + 1
    data = count.to_bytes(4, "big") + b"\0\0" * count
    with pytest.raises(MalformedRequest, match=f"{count} values"):
        read_message(load_schema("MetadataRequest"), 1, memoryview(data))
