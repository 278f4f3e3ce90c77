"""Kafka's own clients in Java, by the tools of its command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from bench.kafka.broker import BRIEF
from bench.kafka.jars import java
from tests.kafka.clients import WAIT_S, create_topic, producer_at, read_at, sent, values_at
from tests.kafka_jars import jars_of, needs_kafka_jars
from tests.support import eventually

pytestmark = [needs_kafka_jars, pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(900)]

TOOLS = "org.apache.kafka.tools"
CONFIGS = "kafka.admin.ConfigCommand"
WAIT_MS = "60000"


class Tools:
    """The tools, with the address of a server."""

    def __init__(self, address: str) -> None:
        self._address = address

    def run(self, tool: str, *arguments: str, text: str = "") -> list[str]:
        """Run a tool to its end. Return the lines of its output, which has no error."""
        classpath = os.pathsep.join(map(str, (*jars_of("tools"), *jars_of("broker"))))
        done = subprocess.run(
            [
                *(java(), *BRIEF, "-cp", classpath, tool if tool == CONFIGS else f"{TOOLS}.{tool}"),
                *("--bootstrap-server", self._address, *arguments),
            ],
            input=text,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert not re.search(r"ERROR|Exception", done.stdout + done.stderr), done.stderr
        return done.stdout.splitlines()

    def consume(self, topic: str, count: int, *arguments: str) -> list[str]:
        """Run the console consumer. Return the lines of ``count`` records."""
        ends = ("--max-messages", str(count), "--timeout-ms", WAIT_MS)
        return self.run("consumer.ConsoleConsumer", "--topic", topic, *ends, *arguments)


@pytest.fixture
def tools(server: str) -> Tools:
    return Tools(server)


def events(lines: list[str], name: str) -> list[dict[str, Any]]:
    """Return the events of a verifiable client."""
    return [each for each in map(json.loads, lines) if each["name"] == name]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_producer_performance(topic, server, tools, compression):
    create_topic(server, topic, 3)
    settings = ("--command-property", f"compression.type={compression}")
    load = ("--num-records", "20000", "--record-size", "100", "--throughput", "-1")
    said = tools.run("ProducerPerformance", "--topic", topic, *load, *settings)
    assert said[-1].startswith("20000 records sent")
    assert Counter(map(len, values_at(server, topic, 3))) == {100: 20_000}


@pytest.mark.parametrize("acks", ["-1", "1", "0"])
def test_verifiable_producer_and_console_consumer_by_assignment(topic, server, tools, acks):
    """The acknowledged offsets are those of the records. Without `acks` there are none."""
    create_topic(server, topic, 2)
    load = ("--max-messages", "500", "--acks", acks)
    said = tools.run("VerifiableProducer", "--topic", topic, *load)
    acknowledged = events(said, "producer_send_success")
    assert sorted(int(each["value"]) for each in acknowledged) == list(range(500))
    messages = read_at(server, topic, 2)
    if acks != "0":
        stored = {
            (m.partition(), m.offset()): m.value().decode() for n in (0, 1) for m in messages[n]
        }
        found = {(each["partition"], each["offset"]): each["value"] for each in acknowledged}
        assert found == stored
    for number in (0, 1):
        values = [each.value().decode() for each in messages[number]]
        place = ("--partition", str(number))
        if values:
            lines = tools.consume(topic, len(values), *place, "--offset", "earliest")
            assert lines == values
        if len(values) > 5:
            lines = tools.consume(topic, 5, *place, "--offset", str(len(values) - 5))
            assert lines == values[-5:]


def test_console_producer_and_consumer_of_a_group(topic, server, tools):
    """A second consumer of the group continues after the committed offset."""
    create_topic(server, topic)
    parse = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    text = "".join(f"k{number}:v{number}\n" for number in range(10))
    tools.run("ConsoleProducer", "--topic", topic, *parse, text=text)
    shown = [f"{name}=true" for name in ("print.key", "print.offset", "print.partition")]
    words = [word for name in shown for word in ("--formatter-property", name)]
    group = ("--group", topic, *words)
    lines = tools.consume(topic, 4, *group, "--from-beginning")
    assert lines == [f"Partition:0\tOffset:{each}\tk{each}\tv{each}" for each in range(4)]
    lines = tools.consume(topic, 6, *group)
    assert lines == [f"Partition:0\tOffset:{each}\tk{each}\tv{each}" for each in range(4, 10)]
    described = tools.run("consumer.group.ConsumerGroupCommand", "--describe", "--group", topic)
    [row] = [line.split() for line in described if line.startswith(f"{topic} ")]
    assert row[:6] == [topic, topic, "0", "10", "10", "0"]
    reset = ("--reset-offsets", "--to-offset", "8", "--execute", "--topic", topic)
    tools.run("consumer.group.ConsumerGroupCommand", "--group", topic, *reset)
    assert len(tools.consume(topic, 2, *group)) == 2


def test_verifiable_consumer_reads_and_commits(topic, server, tools):
    create_topic(server, topic, 2)
    rows = [{"value": b"%d" % number, "partition": number % 2} for number in range(300)]
    sent(producer_at(server), topic, rows)
    words = ("--group-id", topic, "--max-messages", "300", "--reset-policy", "earliest")
    said = tools.run("VerifiableConsumer", "--topic", topic, *words)
    consumed = sum(each["count"] for each in events(said, "records_consumed"))
    assert consumed == 300
    commits = events(said, "offsets_committed")
    assert all(each["success"] for each in commits)
    last = {place["partition"]: place["offset"] for c in commits for place in c["offsets"]}
    assert last == {0: 150, 1: 150}


def test_transactional_producer(topic, server, tools):
    create_topic(server, topic)
    load = ("--num-records", "500", "--record-size", "100", "--throughput", "2000")
    words = ("--transactional-id", topic, "--transaction-duration-ms", "50")
    tools.run("ProducerPerformance", "--topic", topic, *load, *words)
    level = ("--isolation-level", "read_committed", "--from-beginning")
    assert len(tools.consume(topic, 500, *level)) == 500


def test_offsets_of_partitions(topic, server, admin_client, tools):
    create_topic(server, topic, 2)
    sent(producer_at(server), topic, [{"value": b"v", "partition": 0}] * 10)
    [trimmed] = admin_client.delete_records([TopicPartition(topic, 0, 3)]).values()
    assert trimmed.result(WAIT_S).low_watermark == 3

    def offsets(time: str) -> list[str]:
        return tools.run("GetOffsetShell", "--topic", topic, "--time", time)

    assert offsets("earliest") == [f"{topic}:0:3", f"{topic}:1:0"]
    assert offsets("latest") == [f"{topic}:0:10", f"{topic}:1:0"]


def test_administration(topic, server, admin_client, tools, tmp_path):
    """Topics and their settings, and the deletion of records."""
    of_topic = ("--topic", topic)
    create = ("--create", "--partitions", "2", "--config", "retention.ms=100000")
    tools.run("TopicCommand", *create, *of_topic)
    described = tools.run("TopicCommand", "--describe", *of_topic)
    assert "PartitionCount: 2" in described[0]
    assert "retention.ms=100000" in described[0]
    assert len(described) == 3
    tools.run("TopicCommand", "--alter", "--partitions", "3", *of_topic)
    eventually(lambda: len(admin_client.list_topics(topic).topics[topic].partitions) == 3)
    assert topic in tools.run("TopicCommand", "--list")

    of_settings = ("--entity-type", "topics", "--entity-name", topic)
    changed = "retention.ms=200000,segment.bytes=2000000"
    tools.run(CONFIGS, "--alter", "--add-config", changed, *of_settings)
    tools.run(CONFIGS, "--alter", "--delete-config", "retention.ms", *of_settings)
    [line] = tools.run(CONFIGS, "--describe", *of_settings)[1:]
    assert line.split()[0] == "segment.bytes=2000000"

    rows = [{"value": b"%d" % number, "partition": 0} for number in range(5)]
    sent(producer_at(server), topic, rows)
    before = {"topic": topic, "partition": 0, "offset": 3}
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps({"partitions": [before], "version": 1}))
    tools.run("DeleteRecordsCommand", "--offset-json-file", str(file))
    assert values_at(server, topic, 3, start=OFFSET_BEGINNING) == [b"3", b"4"]
    tools.run("TopicCommand", "--delete", *of_topic)
    eventually(lambda: topic not in admin_client.list_topics(timeout=WAIT_S).topics)
