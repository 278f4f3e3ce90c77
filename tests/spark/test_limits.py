"""Limits and splits in Spark: rows of a micro-batch, tasks of a job."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import isolog
from tests.spark.conftest import Queries
from tests.spark.releases import passes_limits
from tests.spark.test_stream_source import NUMBERS, Collected, add, read_back, wait_until


@pytest.mark.full  # without a JVM: tests/datasource/values/test_limits.py
def test_maximum_and_minimum_of_records_and_maximum_of_bytes_hold_together(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    log.create_topic(topic, partitions=3, schema=NUMBERS)
    add(log, topic, range(600), partition=0)
    add(log, topic, range(600, 1000), partition=2)
    asked = {"maxOffsetsPerTrigger": 300, "maxBytesPerTrigger": 2_000, "minOffsetsPerTrigger": 50}
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    rows = queries.copy(queries.stream(topic, **asked), out, checkpoint)
    assert all(200 <= count <= 250 for count in rows[:-1])  # of 8 bytes, with what Arrow adds
    assert read_back(spark, out) == list(range(1000))
    asked["maxBytesPerTrigger"] = 1_000_000  # a query may change its limits
    add(log, topic, range(1000, 1700), partition=1)
    rows = queries.copy(queries.stream(topic, **asked), out, checkpoint)
    assert rows == [300, 300, 100]


@pytest.mark.full  # without a JVM: tests/datasource/values/test_limits.py
def test_query_waits_for_the_minimum_up_to_its_delay(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    asked = {"minOffsetsPerTrigger": 100, "maxTriggerDelay": "2s"}
    running = Collected(queries.stream(topic, **asked), tmp_path)
    try:
        add(log, topic, range(100))
        wait_until(lambda: running.numbers() == list(range(100)), "the least is there")
        add(log, topic, range(100, 110))
        begun = time.monotonic()
        wait_until(lambda: len(running.numbers()) == 110, "the delay is over")
        assert time.monotonic() - begun > 1.5
    finally:
        running.stop()


@passes_limits
@pytest.mark.full  # without a JVM: tests/datasource/values/test_limits.py
def test_available_now_reaches_its_target_and_ignores_new_partitions(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    """Partitions that are added, and records that come, while it runs belong to the next run."""
    log.create_topic(topic, schema=NUMBERS)
    add(log, topic, range(100))
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"

    def meanwhile(batch: object, number: int) -> None:
        if number == 0:
            log.alter_topic(topic, partitions=2)
            add(log, topic, range(100, 150), partition=1)
            add(log, topic, range(150, 160), partition=0)
        batch.write.mode("append").parquet(str(out))  # type: ignore[attr-defined]

    def run() -> None:
        query = (
            queries.stream(topic, maxOffsetsPerTrigger=40)
            .writeStream.foreachBatch(meanwhile)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(240)

    run()
    assert read_back(spark, out) == list(range(100))
    run()
    assert read_back(spark, out) == list(range(160))


@pytest.mark.full  # without a JVM: tests/datasource/values/test_limits_tasks.py
def test_ranges_are_split_and_no_record_is_dropped(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    log.create_topic(topic, partitions=2, schema=NUMBERS)
    add(log, topic, range(900), partition=0)
    add(log, topic, range(900, 1000), partition=1)
    expected = spark.range(1000).select(F.col("id").alias("n"))
    for asked, tasks in (
        ({}, 1),
        ({"minPartitions": 2}, 2),
        ({"minPartitions": 10}, 10),
        ({"maxRecordsPerPartition": 300}, 4),
        ({"minPartitions": 2, "maxRecordsPerPartition": 100}, 10),
    ):
        frame = queries.read(topic, **asked)
        assert frame.rdd.getNumPartitions() == tasks
        assert_df_equality(frame, expected, ignore_row_order=True, ignore_nullable=True)
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    queries.copy(queries.stream(topic, minPartitions=7), out, checkpoint)
    assert read_back(spark, out) == list(range(1000))


def test_many_partitions_with_few_records_each_are_one_task(
    queries: Queries, log: isolog.Log, topic: str
) -> None:
    log.create_topic(topic, partitions=64, schema=NUMBERS)
    batch = pa.record_batch({"n": pa.array([1], pa.int64())})
    with log.producer() as producer:
        for partition in range(64):
            producer.append(topic, batch, partition=partition)
    frame = queries.read(topic)
    assert frame.rdd.getNumPartitions() == 1
    assert frame.count() == 64
