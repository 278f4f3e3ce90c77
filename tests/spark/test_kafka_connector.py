"""Spark's own Kafka connector over the Kafka gateway: batch and streaming, reads and writes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import isolog
from tests.spark.releases import has_kafka
from tests.support import eventually

pytestmark = has_kafka

ROWS = [
    {"key": b"k", "value": b"v", "partition": 0, "headers": [{"key": "h", "value": b"1"}]},
    {"key": None, "value": b"", "partition": 1, "headers": None},
    {"key": b"", "value": None, "partition": 1, "headers": [{"key": "n", "value": None}]},
]
DDL = "key binary, value binary, partition int, headers array<struct<key: string, value: binary>>"
MOMENT = datetime(2026, 1, 31, 12, 0, 0, 123_000, UTC)


class Connector:
    """Short forms for ``format("kafka")``."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        self.spark = spark
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


@pytest.fixture
def connector(spark: SparkSession, kafka: str) -> Connector:
    return Connector(spark, kafka)


def stored(log: isolog.Log, topic: str) -> list[dict[str, Any]]:
    names = ["key", "value", "partition"]
    rows = log.read(topic, columns=names, headers=True, isolation="read_committed").to_pylist()
    return sorted(rows, key=lambda row: (row["partition"], row["key"] is not None))


def test_batch_write_and_read(log: isolog.Log, topic: str, connector: Connector) -> None:
    """Keys, values, nulls, headers and partitions are the same after both."""
    log.create_topic(topic, partitions=2)
    connector.write(connector.spark.createDataFrame(ROWS, DDL).coalesce(1), topic)
    assert stored(log, topic) == ROWS
    found = connector.read(topic).orderBy("partition", "offset").collect()
    names = ("key", "value", "partition")
    assert [{name: row[name] for name in names} for row in found] == [
        {name: row[name] for name in names} for row in ROWS
    ]
    headers = [row["headers"] and [each.asDict() for each in row["headers"]] for row in found]
    assert headers == [row["headers"] for row in ROWS]
    assert [(row["topic"], row["offset"]) for row in found] == [(topic, 0), (topic, 0), (topic, 1)]


@pytest.mark.full
def test_batch_read_of_a_range(log: isolog.Log, topic: str, connector: Connector) -> None:
    """By offsets, or by times, which are those of the records."""
    log.create_topic(topic)
    with log.producer() as producer:
        for number in range(10):
            moment = MOMENT + timedelta(milliseconds=number)
            producer.send(topic, b"%d" % number, timestamp=moment)
    ends = {"startingOffsets": f'{{"{topic}": {{"0": 3}}}}'}
    found = connector.read(topic, **ends, endingOffsets=f'{{"{topic}": {{"0": 7}}}}')
    milliseconds = F.unix_millis("timestamp").alias("at")
    rows = found.select("offset", "value", milliseconds).orderBy("offset").collect()
    assert [(row["offset"], row["value"]) for row in rows] == [(n, b"%d" % n) for n in range(3, 7)]
    first = round(MOMENT.timestamp() * 1_000)
    assert [row["at"] - first for row in rows] == [3, 4, 5, 6]
    times = {"startingTimestamp": str(first + 5), "endingTimestamp": str(first + 8)}
    assert sorted(row["offset"] for row in connector.read(topic, **times).collect()) == [5, 6, 7]
    late = connector.read(topic, startingTimestamp=str(first + 10))
    with pytest.raises(Exception, match="No offset matched"):
        late.collect()


@pytest.mark.full
def test_committed_reader_skips_aborted_records(
    log: isolog.Log, topic: str, connector: Connector
) -> None:
    """The offsets of aborted records are gaps, also at the end of a topic."""
    log.create_topic(topic)
    with log.producer(transactional_id=topic) as producer:
        for number in range(6):
            producer.begin_transaction()
            producer.send(topic, b"%d" % number)
            producer.abort_transaction() if number % 2 else producer.commit_transaction()
    level = {"kafka.isolation.level": "read_committed"}
    found = connector.read(topic, **level).orderBy("offset").collect()
    assert [(row["offset"], row["value"]) for row in found] == [(0, b"0"), (2, b"2"), (4, b"4")]


@pytest.mark.full
def test_streaming_read_and_write(
    log: isolog.Log, topic: str, connector: Connector, tmp_path: Path
) -> None:
    """A restarted query continues at its checkpoint. Its micro-batches keep to the limit."""
    log.create_topic(topic, partitions=2)
    log.create_topic(f"{topic}-copy", partitions=2)

    def add(first: int) -> None:
        with log.producer() as producer:
            values = pa.array([b"%d" % each for each in range(first, first + 100)])
            for partition in (0, 1):
                rows = pa.RecordBatch.from_arrays([values], ["value"])
                producer.append(topic, rows, partition=partition).result()

    copied = connector.stream(topic, maxOffsetsPerTrigger=80).select("value", "partition")
    add(0)
    assert connector.copy(copied, f"{topic}-copy", tmp_path) == 3
    add(100)
    assert connector.copy(copied, f"{topic}-copy", tmp_path) == 3
    for partition in (0, 1):
        rows = log.read(f"{topic}-copy", columns=["value"], partitions=[partition])
        assert sorted(map(int, rows["value"].to_pylist())) == list(range(200))


@pytest.mark.full
def test_running_query_reads_new_records_and_partitions(
    log: isolog.Log, topic: str, connector: Connector, tmp_path: Path
) -> None:
    log.create_topic(topic)
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
        with log.producer() as producer:
            producer.send(topic, b"first").result()
            eventually(lambda: values() == {b"first"})
            log.alter_topic(topic, 2)
            producer.send(topic, b"second", partition=1).result()
            eventually(lambda: values() == {b"first", b"second"})
    finally:
        query.stop()
