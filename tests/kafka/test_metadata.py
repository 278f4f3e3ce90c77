"""Metadata: topics by their names, by their ids, and all of them."""

from __future__ import annotations

from collections import Counter

import pytest
from confluent_kafka.admin import AdminClient

import spark_stream.client.topics as topics_module
from isolog.testing import LocalCluster
from spark_stream.client.connecting.link import BrokerLink
from spark_stream.kafka.refusals import KafkaCode
from tests.kafka.clients import WAIT_S, asked, started

UNKNOWN = bytes(range(16))


def test_a_topic_is_found_by_its_name_and_by_its_id(log, topic, gateway):
    topic_id = bytes.fromhex(log.create_topic(topic, partitions=3).id)
    for named in ({"name": topic}, {"name": None, "topic_id": topic_id}):
        [found] = asked(gateway, "Metadata", 12, {"topics": [named]})["topics"]
        assert (found["name"], found["topic_id"], found["error_code"]) == (topic, topic_id, 0)
        assert [each["partition_index"] for each in found["partitions"]] == [0, 1, 2]


def test_an_unknown_id_has_an_error_code(log, topic, gateway):
    log.create_topic(topic)
    wanted = [{"name": None, "topic_id": UNKNOWN}, {"name": topic}]
    unknown, known = asked(gateway, "Metadata", 12, {"topics": wanted})["topics"]
    assert unknown["error_code"] == KafkaCode.UNKNOWN_TOPIC_ID
    assert (unknown["name"], unknown["topic_id"]) == (None, UNKNOWN)
    assert (known["name"], known["error_code"]) == (topic, 0)


@pytest.mark.parametrize("version", [10, 11])
def test_an_id_without_a_name_needs_a_later_version(log, topic, gateway, version):
    topic_id = bytes.fromhex(log.create_topic(topic).id)
    wanted = [{"name": None, "topic_id": topic_id}, {"name": topic}]
    refused, known = asked(gateway, "Metadata", version, {"topics": wanted})["topics"]
    assert (refused["name"], refused["error_code"]) == ("", KafkaCode.INVALID_REQUEST)
    assert (known["name"], known["topic_id"]) == (topic, topic_id)


def test_a_list_of_all_topics_takes_few_requests(log, topic, gateway, monkeypatch):
    names = {f"{topic}-{number}": number % 3 + 1 for number in range(20)}
    for name, partitions in names.items():
        log.create_topic(name, partitions)
    made: Counter[str] = Counter()
    call = BrokerLink.call

    def counted(self, request, *arguments):
        made[request.wire_name] += 1
        return call(self, request, *arguments)

    monkeypatch.setattr(BrokerLink, "call", counted)
    monkeypatch.setattr(topics_module, "_OUTLINES_MAX", 7)
    found = asked(gateway, "Metadata", 12, {"topics": None})["topics"]
    counts = {each["name"]: len(each["partitions"]) for each in found if each["name"] in names}
    assert counts == names
    assert made["list-topics"] == 1
    assert made["list-offsets"] == -(-len(found) // 7)
    assert not made["describe-topic"]


@pytest.mark.slow
def test_librdkafka_lists_many_topics_with_short_names():
    """It takes at most four times the size of an answer for its copy."""
    with LocalCluster(1) as cluster, cluster.connect() as log:
        names = {f"{number:x}" for number in range(300)}
        for name in names:
            log.create_topic(name)
        with started(cluster.bootstrap) as gateway:
            listed = AdminClient({"bootstrap.servers": gateway}).list_topics(timeout=WAIT_S)
        assert names <= listed.topics.keys()
