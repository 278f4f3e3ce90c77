"""examples/import_from_kafka.py and its page, with a real Kafka and Spark's connector."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession

import isolog
from bench.kafka.broker import KafkaBroker
from tests.conftest import ROOT
from tests.kafka.clients import read_at, sent
from tests.kafka_jars import jars_of
from tests.spark.releases import has_kafka
from tests.spark.test_examples import EXAMPLES, run

pytestmark = [has_kafka, pytest.mark.full, pytest.mark.timeout(600)]

PAGE = (ROOT / "docs/how-to/migrate-from-kafka.md").read_text()
MARKED = re.findall(r"<!-- test: (\w+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
PARTITIONS = 3
Copy = dict[int, list[tuple[Any, ...]]]
"""Key, value, timestamp and headers of the records, by partition."""


def fill(source: KafkaBroker, topic: str, count: int, first: int = 0) -> None:
    """Write records with and without keys, values and headers, and an aborted transaction."""
    client = {"bootstrap.servers": source.bootstrap}
    rows: list[dict[str, Any]] = [
        {
            "key": None if number % 5 else b"k%d" % number,
            "value": b"v%d" % number if number % 7 else None,
            "headers": [("h", b"%d" % number), ("h", None)] if number % 2 else None,
            "timestamp": 1_700_000_000_000 + number,
            "partition": number % PARTITIONS,
        }
        for number in range(first, first + count)
    ]
    sent(confluent_kafka.Producer(client), topic, rows[: count // 2])
    producer = confluent_kafka.Producer({**client, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    sent(producer, topic, [{"value": b"aborted", "partition": 0}])
    producer.abort_transaction()
    producer.begin_transaction()
    sent(producer, topic, rows[count // 2 :])
    producer.commit_transaction()


def in_kafka(source: KafkaBroker, topic: str, partitions: int = PARTITIONS) -> Copy:
    level = {"isolation.level": "read_committed"}
    found = read_at(source.bootstrap, topic, partitions, **level)
    return {
        number: [(e.key(), e.value(), e.timestamp()[1], e.headers() or []) for e in messages]
        for number, messages in found.items()
    }


def in_isolog(log: isolog.Log, topic: str) -> Copy:
    found: Copy = {each.partition: [] for each in log.describe(topic).partitions}
    for row in log.read(topic, isolation="read_committed", headers=True).to_pylist():
        headers = [(each["key"], each["value"]) for each in row["headers"] or []]
        milliseconds = round(row["timestamp"].timestamp() * 1_000)
        found[row["partition"]].append((row["key"], row["value"], milliseconds, headers))
    return found


def test_records_are_copied_once_and_unchanged(
    real_kafka: KafkaBroker,
    shared_path: Path,
    log: isolog.Log,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
) -> None:
    """Also over several micro-batches, runs and a new partition."""
    real_kafka.create_topic(topic, PARTITIONS, {"retention.ms": "-1", "segment.bytes": "1048576"})
    real_kafka.create_topic(f"{topic}-c", 1, {"cleanup.policy": "compact", "retention.ms": "1000"})
    words = ("--kafka", real_kafka.bootstrap, topic, f"{topic}-c", "--checkpoint", tmp_path)

    def copy() -> None:
        run("import_from_kafka", shared_path, *words, "--batch", 50, monkeypatch=monkeypatch)

    fill(real_kafka, topic, 200)
    sent(
        confluent_kafka.Producer({"bootstrap.servers": real_kafka.bootstrap}),
        f"{topic}-c",
        [{"key": b"k", "value": b"v"}],
    )
    copy()
    assert in_isolog(log, topic) == in_kafka(real_kafka, topic)
    assert in_isolog(log, f"{topic}-c") == in_kafka(real_kafka, f"{topic}-c", 1)
    settings = log.describe(topic).config
    assert (settings["retention.ms"], settings["segment.bytes"]) == ("-1", "1048576")
    assert log.describe(f"{topic}-c").config["retention.ms"] == "-1"
    admin = AdminClient({"bootstrap.servers": real_kafka.bootstrap})
    admin.create_partitions([NewPartitions(topic, PARTITIONS + 1)])[topic].result(60)
    fill(real_kafka, topic, 100, first=200)
    more = [{"value": b"new", "partition": PARTITIONS}]
    sent(confluent_kafka.Producer({"bootstrap.servers": real_kafka.bootstrap}), topic, more)
    copy()
    copy()
    found = in_isolog(log, topic)
    assert found == in_kafka(real_kafka, topic, PARTITIONS + 1)
    assert sum(map(len, found.values())) == 301


def test_group_continues_at_the_positions_of_the_page(
    real_kafka: KafkaBroker,
    kafka: str,
    shared_path: Path,
    log: isolog.Log,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
) -> None:
    """The page's commands run with other addresses and names.

    The group's members may be clients of isolog and, through a gateway, of Kafka.
    """
    real_kafka.create_topic(topic, PARTITIONS)
    fill(real_kafka, topic, 200)
    members = {"bootstrap.servers": real_kafka.bootstrap, "group.id": topic}
    consumer = confluent_kafka.Consumer({**members, "isolation.level": "read_committed"})
    places = [confluent_kafka.TopicPartition(topic, each, 0) for each in range(PARTITIONS)]
    consumer.assign(places)
    read = {(m.partition(), m.timestamp()[1]) for m in (consumer.poll(60) for _ in range(120))}
    consumer.commit(asynchronous=False)
    committed = {each.partition: each.offset for each in consumer.committed(places, 60)}
    consumer.close()
    assert len(read) == 120

    code = dict(MARKED)
    [command, words] = re.findall(r"examples/(\w+)\.py (.*)", code["import"].replace("\\\n", ""))[0]
    words = words.replace("--bootstrap localhost:9092", "").replace("--follow", "")
    words = words.replace("kafka:9092", real_kafka.bootstrap).replace("flights orders", topic)
    more = ("--checkpoint", tmp_path)
    run(command, shared_path, *words.split(), *more, monkeypatch=monkeypatch)

    positions = code["positions"].replace('"localhost:9092"', f"path={str(shared_path)!r}")
    positions = positions.replace('"flights"', repr(topic)).replace('"billing"', repr(topic))
    positions = re.sub(r"committed = \{.*\}", f"committed = {committed}", positions)
    names: dict[str, Any] = {}
    try:
        exec(compile(positions, "migrate-from-kafka.md", "exec"), names)
    finally:
        names["log"].close()
    member = {"bootstrap.servers": kafka, "group.id": topic, "isolation.level": "read_committed"}
    by_kafka = confluent_kafka.Consumer(
        {**member, "enable.auto.commit": False, "auto.offset.reset": "error"}
    )
    by_kafka.subscribe([topic])
    messages = [by_kafka.poll(60) for _ in range(80)]
    rest = {(each.partition(), each.timestamp()[1]) for each in messages}
    assert by_kafka.poll(1) is None
    by_kafka.close()
    assert len(rest) == 80
    assert not rest & read
    with log.consumer(topic, group=topic, isolation="read_committed") as ours:
        records = list(ours.records(timeout=5.0))
    assert len(records) == 80
    assert {(each.partition, round(each.timestamp.timestamp() * 1_000)) for each in records} == rest


def test_job_has_its_command_line() -> None:
    text = (EXAMPLES / "import_from_kafka.py").read_text().split('"""')[1]
    assert "examples/import_from_kafka.py --bootstrap " in text
    package = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
    assert package in text
    assert package in dict(MARKED)["import"]
    assert "spark-sql-kafka-0-10_2.13-4.2.0.jar" in {each.name for each in jars_of("connector")}
