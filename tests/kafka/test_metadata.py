"""Metadata: topics by their names, by their ids, and all of them."""

from __future__ import annotations

from collections import Counter

import pytest
from confluent_kafka.admin import AdminClient

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


@pytest.mark.parametrize("lists_all", [True, False], ids=["all", "named"])
def test_a_list_of_topics_takes_few_requests(log, topic, gateway, monkeypatch, lists_all):
    names = {f"{topic}-{number}": number % 3 + 1 for number in range(20)}
    for name, partitions in names.items():
        log.create_topic(name, partitions)
    made: Counter[str] = Counter()
    call = BrokerLink.call

    def counted(self, request, *arguments):
        made[request.wire_name] += 1
        return call(self, request, *arguments)

    monkeypatch.setattr(BrokerLink, "call", counted)
    wanted = None if lists_all else [{"name": name} for name in (*names, "missing")]
    found = asked(gateway, "Metadata", 12, {"topics": wanted})["topics"]
    counts = {each["name"]: len(each["partitions"]) for each in found if each["name"] in names}
    assert counts == names
    assert made.total() < len(names)
    missing = [each["error_code"] for each in found if each["name"] == "missing"]
    assert missing == ([] if lists_all else [KafkaCode.UNKNOWN_TOPIC_OR_PARTITION])


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
