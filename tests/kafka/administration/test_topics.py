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
    create_topic,
    producer_at,
    read_at,
    sent,
    started,
)
from tests.secure_brokers import PASSWORD, admin, as_, asking
from tests.support import eventually

pytestmark = pytest.mark.slow
__all__ = ["admin", "asking"]


def partitions(admin_client: AdminClient, topic: str) -> int:
    """Return the number of partitions, 0 without the topic."""
    return len(admin_client.list_topics(topic, WAIT_S).topics[topic].partitions)


def test_topics_are_created_with_partitions_and_settings(topic, server, admin_client):
    second = f"{topic}-second"
    given = {"retention.ms": "86400000", "max.message.bytes": "1000", "cleanup.policy": "delete"}
    new = [NewTopic(topic, 3, 1, config=given), NewTopic(second)]
    assert codes(admin_client.create_topics(new)) == [(0, ""), (0, "")]
    eventually(lambda: partitions(admin_client, topic) == 3)
    eventually(lambda: partitions(admin_client, second) == 1)
    found = settings_of(admin_client, ConfigResource(ConfigResource.Type.TOPIC, topic))
    assert {name: found[name].value for name in given} == given
    assert {name for name in given if found[name].is_default} <= {"cleanup.policy"}


def test_settings_of_isolog_are_given_by_kafkas_names(log, topic, client):
    assert codes(client.create_topics([NewTopic(topic, config=SETTINGS)])) == [(0, "")]
    found = log.describe(topic)
    assert is_default(found.schema)
    expected = {
        "retention.ms": "86400000",
        "max.record.bytes": "1000",
        "compression": "none",
        "unclean.leader.election": "true",
        "flush": "batch",
    }
    assert {name: found.config[name] for name in found.overrides} == expected


def test_a_topic_that_is_only_validated_is_not_created(topic, server, admin_client):
    assert refused(admin_client.create_topics([NewTopic(topic, 3)], validate_only=True)) == (0, "")
    assert partitions(admin_client, topic) == 0
    create_topic(server, topic)
    code, _ = refused(admin_client.create_topics([NewTopic(topic, 3)], validate_only=True))
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


def test_topics_are_deleted_by_name(topic, server, admin_client):
    other = f"{topic}-other"
    create_topic(server, topic)
    create_topic(server, other)
    deleted, missing, second = codes(admin_client.delete_topics([topic, "missing", other]))
    assert deleted == second == (0, "")
    assert missing[0] == KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    eventually(lambda: partitions(admin_client, topic) == partitions(admin_client, other) == 0)


def test_partitions_are_added(topic, server, admin_client):
    create_topic(server, topic, 2)
    more = [NewPartitions(topic, 5), NewPartitions("missing", 5)]
    added, missing = codes(admin_client.create_partitions(more, validate_only=True))
    assert (added[0], missing[0]) == (0, KafkaCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert partitions(admin_client, topic) == 2
    assert codes(admin_client.create_partitions(more[:1])) == [(0, "")]
    eventually(lambda: partitions(admin_client, topic) == 5)
    for count in (5, 4):
        code, text = refused(admin_client.create_partitions([NewPartitions(topic, count)]))
        assert (code, str(count) in text) == (KafkaCode.INVALID_PARTITIONS, True)


def test_isolog_limits_partitions_and_assigns_their_replicas(log, topic, client):
    log.create_topic(topic)
    assigned = NewPartitions(topic, 2, replica_assignment=[[0]])
    code, _ = refused(client.create_partitions([assigned]))
    assert code == KafkaCode.INVALID_REPLICA_ASSIGNMENT
    code, text = refused(client.create_partitions([NewPartitions(topic, 10_001)]))
    assert (code, "10001" in text) == (KafkaCode.INVALID_PARTITIONS, True)


def test_items_that_are_given_twice_are_refused(topic, server, admin_client):
    twice = {"name": topic, "num_partitions": 1, "replication_factor": 1}
    once = twice | {"name": f"{topic}-once"}
    found = asked(server, "CreateTopics", 6, {"topics": [twice, once, twice]})["topics"]
    assert {each["name"]: each["error_code"] for each in found} == {
        topic: KafkaCode.INVALID_REQUEST,
        f"{topic}-once": 0,
    }
    assert partitions(admin_client, topic) == 0


@pytest.mark.parametrize("version", range(2, 7))
def test_a_created_topic_is_described_in_the_answer(topic, server, admin_client, version):
    item = {"name": topic, "num_partitions": 2, "replication_factor": -1}
    item["configs"] = [{"name": "max.message.bytes", "value": "1000"}]
    [found] = asked(server, "CreateTopics", version, {"topics": [item]})["topics"]
    assert (found["error_code"], found["error_message"]) == (0, None)
    if version >= 5:
        assert (found["num_partitions"], found["replication_factor"]) == (2, 1)
        shown = {each["name"]: each for each in found["configs"]}
        assert shown["max.message.bytes"]["value"] == "1000"
        sources = [shown[name]["config_source"] for name in ("max.message.bytes", "segment.ms")]
        assert sources == [1, 5]
    eventually(lambda: partitions(admin_client, topic) == 2)


def test_records_are_deleted_below_an_offset(topic, server, admin_client):
    create_topic(server, topic, 3)
    rows = [{"value": b"v", "partition": number % 3} for number in range(30)]
    sent(producer_at(server), topic, rows)
    places = [
        confluent_kafka.TopicPartition(name, number, offset)
        for name, number, offset in (
            (topic, 0, 4),
            (topic, 1, confluent_kafka.OFFSET_END),
            (topic, 2, 11),
        )
    ]
    first, second, third = admin_client.delete_records(places).values()
    assert first.result(WAIT_S).low_watermark == 4
    assert second.result(WAIT_S).low_watermark == 10
    assert third.exception(WAIT_S).args[0].code() == KafkaCode.OFFSET_OUT_OF_RANGE
    read = read_at(server, topic, 3, confluent_kafka.OFFSET_BEGINNING)
    starts = [read[number][0].offset() if read[number] else None for number in range(3)]
    assert starts == [4, None, 0]


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


def test_kafka_python_administers_a_topic(topic, server, admin_client, python_client):
    given = {"retention.ms": "86400000", "max.message.bytes": "1000"}
    made = python_client.create_topics({topic: {"num_partitions": 2, "configs": given}})
    assert made["topics"][0]["num_partitions"] == 2
    eventually(lambda: partitions(admin_client, topic) == 2)
    python_client.create_partitions({topic: 3})
    eventually(lambda: partitions(admin_client, topic) == 3)
    resource = kafka.admin.ConfigResource(
        ConfigResourceType.TOPIC, topic, {"max.message.bytes": "2000"}
    )
    assert python_client.alter_configs([resource]) == {"topic": {topic: "OK"}}
    asked_for = kafka.admin.ConfigResource(ConfigResourceType.TOPIC, topic)
    described = python_client.describe_configs([asked_for])["topic"][topic]
    values = {name: each["value"] for name, each in described.items()}
    assert values == given | {"max.message.bytes": "2000"}
    sent(producer_at(server), topic, [{"value": b"v" * 100, "partition": 2}])
    trimmed = python_client.delete_records({kafka.TopicPartition(topic, 2): -1})
    assert trimmed[kafka.TopicPartition(topic, 2)]["low_watermark"] == 1
    python_client.delete_topics([topic])
    eventually(lambda: partitions(admin_client, topic) == 0)


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
