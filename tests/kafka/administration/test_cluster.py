"""The gateways and the sizes of partitions, by Kafka's administration clients."""

from __future__ import annotations

from contextlib import closing

import confluent_kafka
import kafka
import kafka.admin
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
)

from spark_stream.kafka.refusals import KafkaCode
from tests.kafka.administration.answers import (
    settings_of,
)
from tests.kafka.clients import (
    WAIT_S,
    asked,
    create_topic,
    producer_at,
    sent,
    started_together,
)

pytestmark = pytest.mark.slow


def test_the_cluster_has_the_gateway_as_its_broker(log, gateway, client):
    found = client.describe_cluster().result(WAIT_S)
    assert found.cluster_id == log.cluster().cluster_id
    assert [f"{each.host}:{each.port}" for each in found.nodes] == [gateway]
    assert found.controller.id == found.nodes[0].id
    for version in range(3):
        same = asked(gateway, "DescribeCluster", version, {})
        assert (same["cluster_id"], len(same["brokers"])) == (found.cluster_id, 1)
    other = asked(gateway, "DescribeCluster", 1, {"endpoint_type": 2})
    assert other["error_code"] == KafkaCode.MISMATCHED_ENDPOINT_TYPE


def test_the_sizes_of_partitions_are_described(topic, server, python_client):
    other = f"{topic}-other"
    create_topic(server, topic, 2)
    create_topic(server, other)
    sent(producer_at(server), topic, [{"value": bytes(5_000), "partition": 1}])
    [broker] = python_client.describe_log_dirs({topic: [0, 1], other: [0], "missing": [0]})
    [directory] = broker["log_dirs"]
    found = {each["name"]: each["partitions"] for each in directory["topics"]}
    assert {name: len(partitions) for name, partitions in found.items()} == {topic: 2, other: 1}
    sizes = {each["partition_index"]: each["partition_size"] for each in found[topic]}
    assert sizes[1] >= sizes[0] + 5_000
    [broker] = python_client.describe_log_dirs()
    named = [each["name"] for each in broker["log_dirs"][0]["topics"]]
    assert {topic, other} <= set(named)


def test_several_gateways_are_brokers_with_parts_of_the_partitions(shared, log, topic):
    log.create_topic(topic, partitions=8)
    with started_together(shared.address, 2) as gateways:
        first, second = gateways
        client = AdminClient({"bootstrap.servers": first})
        cluster = client.describe_cluster().result(WAIT_S)
        assert {f"{each.host}:{each.port}" for each in cluster.nodes} == {first, second}
        for node in cluster.nodes:
            assert settings_of(client, ConfigResource(ConfigResource.Type.BROKER, str(node.id)))
        with closing(kafka.admin.KafkaAdminClient(bootstrap_servers=second)) as other:
            brokers = other.describe_log_dirs({topic: list(range(8))})
        assert len(brokers) == 2
        parts = [part for each in brokers for part in each["log_dirs"][0]["topics"]]
        numbers = [each["partition_index"] for part in parts for each in part["partitions"]]
        assert sorted(numbers) == list(range(8))
        places = [confluent_kafka.TopicPartition(topic, number, 0) for number in range(8)]
        starts = [each.result(WAIT_S) for each in client.delete_records(places).values()]
        assert [each.low_watermark for each in starts] == [0] * 8
