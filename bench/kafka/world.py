"""The brokers, one Spark session, and the same records in all logs."""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming import DataStreamReader, StreamingQuery

from bench.kafka.broker import KafkaBroker
from bench.kafka.ours import IsologBroker
from bench.kafka.turns import CONNECTION, ISOLOG
from bench.records import TYPED, batch_of

PARTITIONS: Final = 2
BATCH_ROWS: Final = 20_000

_PATIENCE_S: Final = 600.0

_numbers = itertools.count()


@dataclass(frozen=True)
class World:
    """The setting of all measurements."""

    spark: SparkSession
    kafka: KafkaBroker
    ours: IsologBroker
    by_flight: IsologBroker
    place: Path
    rows: int

    @property
    def ways(self) -> dict[str, IsologBroker]:
        """The ways of isolog's records to Spark, and the broker of each."""
        return {ISOLOG: self.ours, CONNECTION: self.by_flight}

    def topic(self, partitions: int = PARTITIONS, schema: pa.Schema | None = None) -> str:
        """Make a topic with the same name in all logs."""
        name = f"bench-{next(_numbers)}"
        self.kafka.create_topic(name, partitions)
        for each in self.ways.values():
            each.create_topic(name, partitions, schema=schema)
        return name

    def delete(self, topic: str) -> None:
        self.kafka.delete_topic(topic)
        for each in self.ways.values():
            each.delete_topic(topic)

    # -- reading -----------------------------------------------------------------------------------

    def kafka_options(self, **more: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.kafka.bootstrap, **more}

    def read_kafka(self, topic: str, **options: str) -> DataFrameReader:
        reader = self.spark.read.format("kafka").options(**self.kafka_options(), **options)
        return reader.option("subscribe", topic)

    def read_ours(self, topic: str, way: str = ISOLOG, **options: str) -> DataFrameReader:
        reader = self.spark.read.format("isolog").option("bootstrap", self.ways[way].bootstrap)
        return reader.option("subscribe", topic).options(**options)

    def stream_kafka(self, topic: str, **options: str) -> DataStreamReader:
        reader = self.spark.readStream.format("kafka").options(**self.kafka_options(), **options)
        return reader.option("subscribe", topic).option("startingOffsets", "earliest")

    def stream_ours(self, topic: str, way: str = ISOLOG, **options: str) -> DataStreamReader:
        reader = self.spark.readStream.format("isolog").option(
            "bootstrap", self.ways[way].bootstrap
        )
        return reader.option("subscribe", topic).options(**options)

    def ceiling(self, columns: str, rows: int | None = None) -> DataFrameReader:
        reader = self.spark.read.format("ceiling")
        return reader.options(rows=str(rows or self.rows), columns=columns)

    def stream_ceiling(self, columns: str, rows: int, **options: str) -> DataFrame:
        reader = self.spark.readStream.format("ceiling").options(rows=str(rows), columns=columns)
        return reader.options(**options).load()

    # -- filling -----------------------------------------------------------------------------------

    def fill(
        self,
        topic: str,
        columns: str = "keyed",
        rows: int | None = None,
        partitions: int = PARTITIONS,
    ) -> None:
        """Write the same records, in the same partitions, to all logs."""
        count = (rows or self.rows) // partitions
        batch = batch_of(columns, min(count, BATCH_ROWS))
        parts = [
            (partition, batch.slice(0, min(batch.num_rows, count - begin)))
            for begin in range(0, count, batch.num_rows)
            for partition in range(partitions)
        ]
        for each in self.ways.values():
            with each.log.producer() as producer:
                for partition, part in parts:
                    producer.append(topic, part, partition=partition)
        records = messages(batch)
        kafka = Producer(filling(self.kafka))
        for partition, part in parts:
            produce(kafka, topic, records[: part.num_rows], partition)
        kafka.flush()

    # -- running -----------------------------------------------------------------------------------

    @contextmanager
    def started(self, frame: DataFrame, sink: str, **options: str) -> Iterator[StreamingQuery]:
        """A query with a separate checkpoint. It is stopped at the end."""
        with tempfile.TemporaryDirectory(dir=self.place) as checkpoint:
            writer = frame.writeStream.format(sink).options(**options)
            query = writer.option("checkpointLocation", checkpoint).start()
            try:
                yield query
            finally:
                query.stop()


Record = tuple[bytes | None, bytes]
"""A key and a value."""


def messages(batch: pa.RecordBatch) -> list[Record]:
    """The batch as Kafka has it: keys and values, or a JSON object for typed columns."""
    if batch.schema == TYPED:
        return [(None, json.dumps(row, default=_iso).encode()) for row in batch.to_pylist()]
    keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
    return list(zip(keys, values, strict=True))


def filling(kafka: KafkaBroker, **more: Any) -> dict[str, Any]:
    """A producer's settings that fill a topic quickly."""
    return {
        "bootstrap.servers": kafka.bootstrap,
        "linger.ms": 20,
        "queue.buffering.max.messages": 1_000_000,
        **more,
    }


def produce(producer: Producer, topic: str, records: list[Record], partition: int) -> None:
    """Send records, and wait if the producer's buffer is full."""
    for key, value in records:
        while True:
            try:
                producer.produce(topic, value, key, partition=partition)
                break
            except BufferError:
                producer.poll(0.05)
    producer.poll(0)


def to_noop(frame: DataFrame) -> float:
    """Seconds of a batch job that computes all rows and drops them."""
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def with_rows(query: StreamingQuery) -> list[dict[str, Any]]:
    """The progress of the micro-batches that had rows."""
    return [each for each in query.recentProgress if each["numInputRows"]]


def wait(query: StreamingQuery, holds: Callable[[], bool], pause_s: float = 0.05) -> None:
    """Wait until the condition holds. A failed query raises its error."""
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        error = query.exception()
        if error is not None:
            raise error
        if time.monotonic() > deadline:
            raise TimeoutError("the query made no progress")
        time.sleep(pause_s)


def _iso(moment: Any) -> str:
    return str(moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
