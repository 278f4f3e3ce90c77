"""Starts and ends by time, in Spark. The session is in New York. Times without a zone are UTC."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import isolog
from tests.spark.conftest import Queries

DAY_MS = 86_400_000


@pytest.fixture
def days(log: isolog.Log, topic: str) -> str:
    """A record of each day from 28 December 1969 to 4 January 1970, in two partitions in turn."""
    log.create_topic(topic, partitions=2)
    with log.producer() as producer:
        for day in range(-4, 4):
            producer.send(topic, str(day), partition=day % 2, timestamp=day * DAY_MS)
            producer.flush()  # each in a separate batch
    return topic


def values(frame: DataFrame) -> list[int]:
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


def test_a_batch_read_between_two_times_before_and_after_1970(queries: Queries, days: str) -> None:
    frame = queries.read(days, startingTimestamp="1969-12-30", endingTimestamp=str(2 * DAY_MS))
    assert values(frame) == [-2, -1, 0, 1]
    assert values(queries.read(days, startingTimestamp=str(-DAY_MS))) == [-1, 0, 1, 2, 3]
    assert values(queries.read(days, startingTimestamp="2024-01-01")) == []


def test_a_start_and_an_end_by_time_apply_to_each_partition(queries: Queries, days: str) -> None:
    frame = queries.read(
        days,
        startingOffsetsByTimestamp=json.dumps({days: {"0": -DAY_MS, "1": "1970-01-02"}}),
        endingOffsetsByTimestamp=json.dumps({days: {"0": "1970-01-03T00:00:00Z"}}),
    )
    assert values(frame) == [0, 1, 3]


@pytest.mark.full  # without a JVM: tests/datasource/reading/test_bounds.py
def test_a_stream_starts_at_a_time(
    queries: Queries, spark: SparkSession, days: str, tmp_path: Path, log: isolog.Log
) -> None:
    stream = queries.stream(days, startingTimestamp="1969-12-31T12:00:00")
    stream = stream.selectExpr("cast(cast(value as string) as bigint) as n")
    assert sum(queries.copy(stream, tmp_path / "out", tmp_path / "checkpoint")) == 4
    with log.producer() as producer:
        producer.send(days, "-9", partition=0, timestamp=-9 * DAY_MS)
    assert sum(queries.copy(stream, tmp_path / "out", tmp_path / "checkpoint")) == 1
    written = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(row.n for row in written.collect()) == [-9, 0, 1, 2, 3]


def test_an_end_before_the_start_is_refused(queries: Queries, days: str) -> None:
    with pytest.raises(AnalysisException, match="is before startingTimestamp"):
        queries.read(days, startingTimestamp="5", endingTimestamp="4").count()
    ending = json.dumps({days: {"0": 1}})
    with pytest.raises(AnalysisException, match="at offset 1, before it starts"):
        queries.read(days, startingTimestamp="0", endingOffsets=ending).count()
