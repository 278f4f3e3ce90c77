"""Spark's own Kafka connector over a gateway and a real Kafka: batch and streaming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.kafka.clients import MOMENT_MS, WAIT_S, create_topic, producer_at, read_at, sent
from tests.kafka_jars import GATEWAY_AND_KAFKA
from tests.spark.releases import has_kafka
from tests.support import eventually

pytestmark = has_kafka

ROWS = [
    {"key": b"k", "value": b"v", "partition": 0, "headers": [{"key": "h", "value": b"1"}]},
    {"key": None, "value": b"", "partition": 1, "headers": None},
    {"key": b"", "value": None, "partition": 1, "headers": [{"key": "n", "value": None}]},
]
DDL = "key binary, value binary, partition int, headers array<struct<key: string, value: binary>>"


class Connector:
    """Short forms for ``format("kafka")``."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        self.spark, self.address = spark, address
        self.options = {"kafka.bootstrap.servers": address, "includeHeaders": "true"}

    def read(self, topic: str, **options: Any) -> DataFrame:
        reader = self.spark.read.format("kafka").options(**self.options)
        return reader.options(subscribe=topic, **options).load()

    def stream(self, topic: str, **options: Any) -> DataFrame:
        reader = self.spark.readStream.format("kafka").options(**self.options)
        return reader.options(subscribe=topic, startingOffsets="earliest", **options).load()

    def write(self, frame: DataFrame, topic: str, **options: Any) -> None:
        frame.write.format("kafka").options(**self.options).options(topic=topic, **options).save()

    def copy(self, frame: DataFrame, topic: str, checkpoint: Path) -> int:
        """Stream the present records into a topic. Return the number of micro-batches."""
        query = (
            frame.writeStream.format("kafka")
            .options(**self.options, topic=topic, checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(240)
        return sum(each["numInputRows"] > 0 for each in query.recentProgress)


@pytest.fixture(params=GATEWAY_AND_KAFKA)
def connector(request: pytest.FixtureRequest, spark: SparkSession) -> Connector:
    if request.param == "gateway":
        return Connector(spark, request.getfixturevalue("kafka"))
    return Connector(spark, request.getfixturevalue("real_kafka").bootstrap)


def test_batch_write_and_read(topic: str, connector: Connector) -> None:
    """Keys, values, nulls, headers and partitions are the same after both."""
    create_topic(connector.address, topic, 2)
    connector.write(connector.spark.createDataFrame(ROWS, DDL).coalesce(1), topic)
    found = connector.read(topic).orderBy("partition", "offset").collect()
    names = ("key", "value", "partition")
    assert [{name: row[name] for name in names} for row in found] == [
        {name: row[name] for name in names} for row in ROWS
    ]
    headers = [row["headers"] and [each.asDict() for each in row["headers"]] for row in found]
    assert headers == [row["headers"] for row in ROWS]
    assert [(row["topic"], row["offset"]) for row in found] == [(topic, 0), (topic, 0), (topic, 1)]


@pytest.mark.full
def test_batch_read_of_a_range(topic: str, connector: Connector) -> None:
    """By offsets, or by times, which are those of the records."""
    create_topic(connector.address, topic)
    rows = [{"value": b"%d" % n, "timestamp": MOMENT_MS + n, "partition": 0} for n in range(10)]
    sent(producer_at(connector.address), topic, rows)
    ends = {"startingOffsets": f'{{"{topic}": {{"0": 3}}}}'}
    found = connector.read(topic, **ends, endingOffsets=f'{{"{topic}": {{"0": 7}}}}')
    milliseconds = F.unix_millis("timestamp").alias("at")
    rows = found.select("offset", "value", milliseconds).orderBy("offset").collect()
    assert [(row["offset"], row["value"]) for row in rows] == [(n, b"%d" % n) for n in range(3, 7)]
    assert [row["at"] - MOMENT_MS for row in rows] == [3, 4, 5, 6]
    times = {"startingTimestamp": str(MOMENT_MS + 5), "endingTimestamp": str(MOMENT_MS + 8)}
    assert sorted(row["offset"] for row in connector.read(topic, **times).collect()) == [5, 6, 7]
    late = connector.read(topic, startingTimestamp=str(MOMENT_MS + 10))
    with pytest.raises(Exception, match="No offset matched"):
        late.collect()


@pytest.mark.full
def test_committed_reader_skips_aborted_records(topic: str, connector: Connector) -> None:
    """The offsets of aborted records are gaps, also at the end of a topic."""
    create_topic(connector.address, topic)
    producer = producer_at(connector.address, **{"transactional.id": topic})
    producer.init_transactions(WAIT_S)
    for number in range(6):
        producer.begin_transaction()
        sent(producer, topic, [{"value": b"%d" % number, "partition": 0}])
        if number % 2:
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
    level = {"kafka.isolation.level": "read_committed"}
    found = connector.read(topic, **level).orderBy("offset").collect()
    assert [row["value"] for row in found] == [b"0", b"2", b"4"]


@pytest.mark.full
def test_streaming_read_and_write(topic: str, connector: Connector, tmp_path: Path) -> None:
    """A restarted query continues at its checkpoint. Its micro-batches keep to the limit."""
    create_topic(connector.address, topic, 2)
    create_topic(connector.address, f"{topic}-copy", 2)

    def add(first: int) -> None:
        rows = [
            {"value": b"%d" % number, "partition": partition}
            for number in range(first, first + 100)
            for partition in (0, 1)
        ]
        sent(producer_at(connector.address), topic, rows)

    copied = connector.stream(topic, maxOffsetsPerTrigger=80).select("value", "partition")
    add(0)
    assert connector.copy(copied, f"{topic}-copy", tmp_path) == 3
    add(100)
    assert connector.copy(copied, f"{topic}-copy", tmp_path) == 3
    for messages in read_at(connector.address, f"{topic}-copy", 2).values():
        assert sorted(int(each.value()) for each in messages) == list(range(200))


@pytest.mark.full
def test_running_query_reads_new_records_and_partitions(
    topic: str, connector: Connector, tmp_path: Path
) -> None:
    create_topic(connector.address, topic)
    stream = connector.stream(topic, **{"kafka.metadata.max.age.ms": "100"})
    query = (
        stream.select("value")
        .writeStream.format("memory")
        .queryName(topic.replace("-", "_"))
        .option("checkpointLocation", str(tmp_path))
        .start()
    )

    def values() -> set[bytes]:
        return {row["value"] for row in connector.spark.table(topic.replace("-", "_")).collect()}

    try:
        sent(producer_at(connector.address), topic, [{"value": b"first"}])
        eventually(lambda: values() == {b"first"})
        admin = AdminClient({"bootstrap.servers": connector.address})
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(WAIT_S)
        eventually(lambda: len(admin.list_topics(topic).topics[topic].partitions) == 2)
        sent(producer_at(connector.address), topic, [{"value": b"second", "partition": 1}])
        eventually(lambda: values() == {b"first", b"second"})
    finally:
        query.stop()
