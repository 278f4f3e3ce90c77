"""Topics, by Kafka's administration clients: confluent-kafka and kafka-python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import confluent_kafka
import kafka
import kafka.admin
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from kafka.admin import ConfigResourceType

from spark_stream.kafka.refusals import KafkaCode
from spark_stream.schema.schemas import is_default
from tests.kafka.administration.answers import (
    SET,
    SETTINGS,
    codes,
    of_topic,
    refused,
    settings_of,
)
from tests.kafka.clients import (
    WAIT_S,
    asked,
    producer_at,
    sent,
    started,
)
from tests.secure_brokers import PASSWORD, admin, as_, asking
from tests.support import NUMBERS

pytestmark = pytest.mark.slow
__all__ = ["admin", "asking"]


def test_topics_are_created_with_partitions_and_settings(log, topic, client):
    second = f"{topic}-second"
    new = [NewTopic(topic, 3, 1, config=SETTINGS), NewTopic(second)]
    assert codes(client.create_topics(new)) == [(0, ""), (0, "")]
    found = log.describe(topic)
    assert (len(found.partitions), found.replication_factor) == (3, 1)
    assert is_default(found.schema)
    expected = {
        "retention.ms": "86400000",
        "max.record.bytes": "1000",
        "compression": "none",
        "unclean.leader.election": "true",
        "flush": "batch",
    }
    assert {name: found.config[name] for name in found.overrides} == expected
    assert len(log.describe(second).partitions) == 1
    assert {topic, second} <= client.list_topics(timeout=WAIT_S).topics.keys()


def test_a_topic_that_is_only_validated_is_not_created(log, topic, client):
    assert refused(client.create_topics([NewTopic(topic, 3)], validate_only=True)) == (0, "")
    assert topic not in log.topics()
    log.create_topic(topic)
    code, _ = refused(client.create_topics([NewTopic(topic, 3)], validate_only=True))
    assert code == KafkaCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("validate_only", [True, False])
@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"num_partitions": 0}, KafkaCode.INVALID_PARTITIONS, "at least 1"),
        ({"num_partitions": 10_001}, KafkaCode.INVALID_PARTITIONS, "1 to 10000"),
        ({"replication_factor": 2}, KafkaCode.INVALID_REPLICATION_FACTOR, "factor of 2"),
        ({"replication_factor": 0}, KafkaCode.INVALID_REPLICATION_FACTOR, "at least 1"),
        ({"topic": "a/b"}, KafkaCode.INVALID_TOPIC_EXCEPTION, "a/b"),
        ({"replica_assignment": [[0]]}, KafkaCode.INVALID_REPLICA_ASSIGNMENT, "chooses"),
        ({"config": {"zzz": "1"}}, KafkaCode.INVALID_CONFIG, "known are max.record.bytes"),
        ({"config": {"retention.ms": "soon"}}, KafkaCode.INVALID_CONFIG, "whole number"),
        ({"config": {"cleanup.policy": "compact"}}, KafkaCode.INVALID_CONFIG, "is delete for"),
        (
            {"config": {"max.message.bytes": "10", "max.record.bytes": "10"}},
            KafkaCode.INVALID_CONFIG,
            "two values",
        ),
    ],
)
def test_a_topic_that_is_refused_has_kafkas_error_code(
    log, topic, client, fields, code, text, validate_only
):
    given = {"topic": topic} | fields
    if "replica_assignment" in given:
        given["num_partitions"] = 1
    new = [NewTopic(**given), NewTopic(f"{topic}-other")]
    wrong, other = codes(client.create_topics(new, validate_only=validate_only))
    assert wrong[0] == code
    assert text in wrong[1]
    assert other == (0, "")
    assert (f"{topic}-other" in log.topics()) is not validate_only
    assert topic not in log.topics()


def test_topics_are_deleted_by_name(log, topic, client):
    typed = f"{topic}-typed"
    log.create_topic(topic)
    log.create_topic(typed, schema=NUMBERS)
    deleted, missing, other = codes(client.delete_topics([topic, "missing", typed]))
    assert deleted == other == (0, "")
    assert missing[0] == KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not {topic, typed} & set(log.topics())


def test_partitions_are_added(log, topic, client):
    log.create_topic(topic, partitions=2)
    more = [NewPartitions(topic, 5), NewPartitions("missing", 5)]
    added, missing = codes(client.create_partitions(more, validate_only=True))
    assert (added[0], missing[0]) == (0, KafkaCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert len(log.describe(topic).partitions) == 2
    assert codes(client.create_partitions(more[:1])) == [(0, "")]
    assert len(log.describe(topic).partitions) == 5
    for count in (5, 4, 10_001):
        code, text = refused(client.create_partitions([NewPartitions(topic, count)]))
        assert (code, str(count) in text) == (KafkaCode.INVALID_PARTITIONS, True)
    assigned = NewPartitions(topic, 6, replica_assignment=[[0]])
    code, _ = refused(client.create_partitions([assigned]))
    assert code == KafkaCode.INVALID_REPLICA_ASSIGNMENT


def test_items_that_are_given_twice_are_refused(log, topic, gateway):
    twice = {"name": topic, "num_partitions": 1, "replication_factor": 1}
    once = twice | {"name": f"{topic}-once"}
    found = asked(gateway, "CreateTopics", 6, {"topics": [twice, once, twice]})["topics"]
    assert [(each["name"], each["error_code"]) for each in found] == [
        (topic, KafkaCode.INVALID_REQUEST),
        (f"{topic}-once", 0),
    ]
    assert topic not in log.topics()


@pytest.mark.parametrize("version", range(2, 7))
def test_a_created_topic_is_described_in_the_answer(log, topic, gateway, version):
    item = {"name": topic, "num_partitions": 2, "replication_factor": -1}
    item["configs"] = [{"name": "max.message.bytes", "value": "1000"}]
    [found] = asked(gateway, "CreateTopics", version, {"topics": [item]})["topics"]
    assert (found["error_code"], found["error_message"]) == (0, None)
    if version >= 5:
        assert (found["num_partitions"], found["replication_factor"]) == (2, 1)
        shown = {each["name"]: each for each in found["configs"]}
        assert shown["max.message.bytes"]["value"] == "1000"
        assert [shown[name]["config_source"] for name in ("max.message.bytes", "flush")] == [1, 5]
    assert len(log.describe(topic).partitions) == 2


def test_records_are_deleted_below_an_offset(log, topic, gateway, client):
    log.create_topic(topic, partitions=3)
    rows = [{"value": b"v", "partition": number % 3} for number in range(30)]
    sent(producer_at(gateway), topic, rows)
    places = [
        confluent_kafka.TopicPartition(name, number, offset)
        for name, number, offset in (
            (topic, 0, 4),
            (topic, 1, confluent_kafka.OFFSET_END),
            (topic, 2, 11),
        )
    ]
    first, second, third = client.delete_records(places).values()
    assert first.result(WAIT_S).low_watermark == 4
    assert second.result(WAIT_S).low_watermark == 10
    assert third.exception(WAIT_S).args[0].code() == KafkaCode.OFFSET_OUT_OF_RANGE
    starts = [each.log_start_offset for each in log.describe(topic).partitions]
    assert starts == [4, 10, 0]


def test_records_of_open_transactions_are_not_deleted(log, topic, gateway):
    log.create_topic(topic)
    with log.producer() as producer:
        producer.send(topic, b"done", partition=0).result()
    with log.producer(transactional_id=topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0).result()
        numbers = [(0, -1), (0, 2), (7, -1), (0, -2)]
        items = [{"partition_index": number, "offset": offset} for number, offset in numbers]
        topics = [{"name": topic, "partitions": items}]
        topics += [{"name": "missing", "partitions": items[:1]}]
        found = asked(gateway, "DeleteRecords", 2, {"topics": topics})["topics"]
        producer.abort_transaction()
    answers = [(each["error_code"], each["low_watermark"]) for each in found[0]["partitions"]]
    out, unknown = KafkaCode.OFFSET_OUT_OF_RANGE, KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answers == [(0, 1), (out, -1), (unknown, -1), (out, -1)]
    assert found[1]["partitions"][0]["error_code"] == unknown


def test_kafka_python_administers_a_topic(log, topic, gateway, python_client):
    made = python_client.create_topics({topic: {"num_partitions": 2, "configs": SETTINGS}})
    assert made["topics"][0]["num_partitions"] == 2
    python_client.create_partitions({topic: 3})
    resource = kafka.admin.ConfigResource(
        ConfigResourceType.TOPIC, topic, {"max.message.bytes": "2000"}
    )
    assert python_client.alter_configs([resource]) == {"topic": {topic: "OK"}}
    asked_for = kafka.admin.ConfigResource(ConfigResourceType.TOPIC, topic)
    described = python_client.describe_configs([asked_for])["topic"][topic]
    values = {name: each["value"] for name, each in described.items()}
    changed = SETTINGS | {"max.message.bytes": "2000"}
    assert values == {name: each for name, each in changed.items() if name != "cleanup.policy"}
    sent(producer_at(gateway), topic, [{"value": b"v" * 100, "partition": 2}])
    trimmed = python_client.delete_records({kafka.TopicPartition(topic, 2): -1})
    assert trimmed[kafka.TopicPartition(topic, 2)]["low_watermark"] == 1
    python_client.delete_topics([topic])
    assert topic not in log.topics()


def test_clients_administer_with_the_permissions_of_their_user(asking, admin, topic):
    with as_(asking, "root") as log:
        log.create_topic(topic)
        log.create_topic(f"{topic}-hidden")
    admin.add_user("ann", PASSWORD)
    admin.add_rule("allow", "ann", "describe", f"topic:{topic}")
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "ann", "sasl.password": PASSWORD}
    with started(asking.address, needs_login=True) as address:
        settings = {"bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT", **login}
        client = AdminClient(settings)
        calls: list[Callable[[], Any]] = [
            lambda: client.create_topics([NewTopic(f"{topic}-new")]),
            lambda: client.create_topics([NewTopic(f"{topic}-new")], validate_only=True),
            lambda: client.create_partitions([NewPartitions(topic, 2)]),
            lambda: client.incremental_alter_configs([of_topic(topic, segment_ms=(SET, "900"))]),
            lambda: client.delete_topics([topic]),
            lambda: client.delete_records([confluent_kafka.TopicPartition(topic, 0, 0)]),
        ]
        for each in calls:
            assert refused(each())[0] == KafkaCode.TOPIC_AUTHORIZATION_FAILED
        assert settings_of(client, ConfigResource(ConfigResource.Type.TOPIC, topic))
        hidden = ConfigResource(ConfigResource.Type.TOPIC, f"{topic}-hidden")
        code, _ = refused(client.describe_configs([hidden]))
        assert code in (
            KafkaCode.TOPIC_AUTHORIZATION_FAILED,
            KafkaCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
        for operation in ("create", "alter", "delete"):
            admin.add_rule("allow", "ann", operation, f"topic:{topic}*")
        for each in calls[1:4]:
            assert refused(each()) == (0, "")
    with as_(asking, "root") as log:
        found = log.describe(topic)
        assert (len(found.partitions), found.overrides) == (2, ("segment.ms",))
