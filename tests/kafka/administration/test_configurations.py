"""Settings of topics and gateways, by Kafka's administration clients."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)

from spark_stream.kafka.connection import SERVED
from spark_stream.kafka.refusals import KafkaCode
from tests.kafka.administration.answers import (
    DELETE,
    SET,
    of_topic,
    refused,
    settings_of,
)
from tests.kafka.clients import (
    WAIT_S,
    asked,
)

pytestmark = pytest.mark.slow


def test_settings_of_a_topic_have_kafkas_names_and_sources(log, topic, client):
    log.create_topic(topic, config={"max.record.bytes": 5000, "compression": "none"})
    found = settings_of(client, ConfigResource(ConfigResource.Type.TOPIC, topic))
    assert found["max.message.bytes"].value == "5000"
    assert found["compression.type"].value == "uncompressed"
    assert found["cleanup.policy"].is_read_only
    assert "partition.by" not in found
    own = {name for name, each in found.items() if not each.is_default}
    assert own == {"max.message.bytes", "compression.type"}
    assert found["max.message.bytes"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    default = found["retention.ms"]
    assert (default.value, default.source) == ("-1", ConfigSource.DEFAULT_CONFIG.value)


def test_only_the_requested_settings_are_described(log, topic, gateway):
    log.create_topic(topic)
    item = {"resource_type": 2, "resource_name": topic}
    item["configuration_keys"] = ["max.record.bytes", "segment.bytes", "unknown"]
    request = {"resources": [item], "include_synonyms": True}
    [found] = asked(gateway, "DescribeConfigs", 4, request)["results"]
    assert [each["name"] for each in found["configs"]] == ["max.record.bytes", "segment.bytes"]
    [own] = found["configs"][0]["synonyms"]
    assert (own["name"], own["source"]) == ("max.record.bytes", 5)


def test_settings_of_brokers_are_those_of_the_gateway(client):
    cluster = client.describe_cluster().result(WAIT_S)
    [node] = cluster.nodes
    found = settings_of(client, ConfigResource(ConfigResource.Type.BROKER, str(node.id)))
    assert found["auto.create.topics.enable"].value == "false"
    assert all(each.is_read_only for each in found.values())


@pytest.mark.parametrize(
    ("resource_type", "name", "code"),
    [
        (2, "missing", KafkaCode.UNKNOWN_TOPIC_OR_PARTITION),
        (4, "99", KafkaCode.INVALID_REQUEST),
        (8, "0", KafkaCode.INVALID_REQUEST),
    ],
)
def test_resources_that_are_unknown_are_refused(log, topic, gateway, resource_type, name, code):
    log.create_topic(topic)
    items = [
        {"resource_type": 2, "resource_name": topic, "configuration_keys": None},
        {"resource_type": resource_type, "resource_name": name, "configuration_keys": None},
    ]
    found = asked(gateway, "DescribeConfigs", 3, {"resources": items})["results"]
    assert [each["error_code"] for each in found] == [0, code]
    assert found[0]["configs"]
    assert name in found[1]["error_message"] or str(resource_type) in found[1]["error_message"]


def test_settings_are_changed_and_reset_one_by_one(log, topic, client):
    log.create_topic(topic, config={"retention.ms": 5000, "segment.ms": 6000})
    changed = of_topic(topic, max_message_bytes=(SET, "7000"), retention_ms=(DELETE, None))
    dry = client.incremental_alter_configs([changed], validate_only=True)
    assert refused(dry) == (0, "")
    assert log.describe(topic).overrides == ("retention.ms", "segment.ms")
    assert refused(client.incremental_alter_configs([changed])) == (0, "")
    found = log.describe(topic)
    expected = {"max.record.bytes": "7000", "segment.ms": "6000"}
    assert {name: found.config[name] for name in found.overrides} == expected
    assert found.config["retention.ms"] == "-1"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"retention_ms": (AlterConfigOpType.APPEND, "5")}, "no list"),
        ({"retention_ms": (AlterConfigOpType.SUBTRACT, "5")}, "no list"),
        ({"retention_ms": (SET, "soon")}, "whole number"),
        ({"zzz": (SET, "5")}, "unknown setting"),
        ({"zzz": (DELETE, None)}, "unknown setting"),
    ],
)
def test_a_change_of_settings_that_is_refused_changes_nothing(log, topic, client, change, text):
    log.create_topic(topic)
    resource = of_topic(topic, **({"segment_ms": (SET, "6000")} | change))
    code, message = refused(client.incremental_alter_configs([resource]))
    assert (code, text in message) == (KafkaCode.INVALID_CONFIG, True)
    assert log.describe(topic).overrides == ()


def test_settings_of_brokers_cannot_be_changed(client):
    entry = ConfigEntry("num.partitions", "3", incremental_operation=SET)
    [node] = client.describe_cluster().result(WAIT_S).nodes
    resource = ConfigResource(ConfigResource.Type.BROKER, str(node.id), incremental_configs=[entry])
    code, text = refused(client.incremental_alter_configs([resource]))
    assert (code, "only the settings of topics" in text) == (KafkaCode.INVALID_REQUEST, True)


def test_all_settings_are_replaced(log, topic, gateway):
    log.create_topic(topic, config={"retention.ms": 5000, "segment.ms": 6000})
    item = {"resource_type": 2, "resource_name": topic}
    item["configs"] = [{"name": "max.message.bytes", "value": "7000"}]
    for version in range(SERVED["AlterConfigs"].first, SERVED["AlterConfigs"].last + 1):
        [found] = asked(gateway, "AlterConfigs", version, {"resources": [item]})["responses"]
        assert (found["error_code"], found["error_message"]) == (0, None)
        assert log.describe(topic).overrides == ("max.record.bytes",)
