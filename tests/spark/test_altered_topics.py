"""Running queries and topics that get more partitions: sources read them, sinks fill them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import isolog
from tests.spark.conftest import Queries
from tests.support import eventually


def sent(log: isolog.Log, topic: str, start: int, partition: int) -> None:
    keys = [str(number).encode() for number in range(start, start + 20)]
    with log.producer() as producer:
        batch = pa.record_batch({"key": keys, "value": keys})
        producer.append(topic, batch, partition=partition)


@pytest.mark.full  # the test below has partitions that are added while it runs
def test_partitions_added_while_a_query_is_stopped_are_read_from_their_start(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    log.create_topic(topic)
    sent(log, topic, 0, 0)
    stream, place = queries.stream(topic), (tmp_path / "out", tmp_path / "checkpoint")
    assert queries.copy(stream, *place) == [20]
    log.alter_topic(topic, partitions=3)
    for first, partition in ((20, 2), (40, 1), (60, 0)):
        sent(log, topic, first, partition)
    assert queries.copy(stream, *place) == [60]
    rows = queries.spark.read.parquet(str(place[0])).select("key").collect()
    assert sorted(int(bytes(row.key)) for row in rows) == list(range(80))


@pytest.mark.full  # without a JVM: tests/datasource/options/test_query_selection.py
def test_a_running_query_reads_and_fills_partitions_that_are_added(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    """From "latest" on: a new partition is still read from its first record."""
    copied = f"{topic}-copied"
    for name in (topic, copied):
        log.create_topic(name)
    sent(log, topic, 0, 0)  # before the start
    stream = queries.stream(topic, startingOffsets="latest").select("key", "value")
    query = (
        queries.sink(stream, tmp_path / "checkpoint", topic=copied)
        .trigger(processingTime="50 milliseconds")
        .start()
    )
    try:

        def values() -> list[int]:
            assert query.exception() is None
            found = log.read(copied, isolation="read_committed").column("value")
            return sorted(int(value) for value in found.to_pylist())

        eventually(lambda: query.lastProgress is not None, 60)
        sent(log, topic, 20, 0)
        eventually(lambda: values() == list(range(20, 40)), 60)
        for name in (topic, copied):
            log.alter_topic(name, partitions=3)
        sent(log, topic, 40, 2)
        sent(log, topic, 60, 1)
        eventually(lambda: values() == list(range(20, 80)), 60)
        ends = [each.log_end_offset for each in log.describe(copied).partitions]
        assert all(ends), ends
    finally:
        query.stop()
