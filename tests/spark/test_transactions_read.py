"""Transactions in queries: no aborted row, and under read_atomic no part of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import isolog
from spark_stream.datasource.options import source_options
from spark_stream.datasource.reading.stream_reader import IsologStreamReader
from spark_stream.datasource.spark.types import to_spark
from tests.spark.conftest import Queries
from tests.spark.releases import passes_limits
from tests.spark.test_stream_source import NUMBERS, add, read_back

SIZE = 10


def rows(numbers: range) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


@pytest.fixture
def pair(log: isolog.Log, topic: str) -> tuple[str, str]:
    """Two topics of one partition."""
    names = f"{topic}-a", f"{topic}-b"
    for name in names:
        log.create_topic(name, schema=NUMBERS)
    return names


def both(log: isolog.Log, pair: tuple[str, str], transactional_id: str, first: int) -> None:
    """A transaction of ``SIZE`` rows, half of them in each topic."""
    with log.producer(transactional_id=transactional_id) as producer, producer.transaction():
        producer.append(pair[0], rows(range(first, first + SIZE // 2)))
        producer.append(pair[1], rows(range(first + SIZE // 2, first + SIZE)))


@pytest.mark.full  # without a JVM: tests/datasource/reading/test_stream_reader_not_visible_yet.py
def test_aborted_rows_are_skipped_without_data_loss(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    """At the start, in the middle and at the end of ranges, and in a range of only aborted rows."""
    log.create_topic(topic, schema=NUMBERS)
    with log.producer(transactional_id=topic) as producer:
        for first in range(0, 60, 10):
            producer.begin_transaction()
            producer.append(topic, rows(range(first, first + 10))).result()
            if first in (10, 40):
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    committed = [*range(10, 20), *range(40, 50)]
    shown = queries.read(topic, isolation="read_committed").collect()
    assert sorted(row.n for row in shown) == committed
    for limit in (15, 10):
        out = tmp_path / f"out-{limit}", tmp_path / f"checkpoint-{limit}"
        stream = queries.stream(topic, isolation="read_committed", maxOffsetsPerTrigger=limit)
        taken = queries.copy(stream, *out)
        assert sum(taken) == len(committed)
        assert read_back(spark, out[0]) == committed
        assert len(list((out[1] / "commits").glob("[0-9]*"))) == -(-60 // limit)


def test_read_committed_stops_at_an_open_transaction(
    queries: Queries, log: isolog.Log, topic: str
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    add(log, topic, range(10))
    with log.producer(transactional_id=topic) as producer:
        producer.begin_transaction()
        producer.append(topic, rows(range(10, 20))).result()
        add(log, topic, range(20, 30))
        seen = {
            isolation: queries.read(topic, isolation=isolation).count()
            for isolation in ("read_uncommitted", "read_replicated", "read_committed")
        }
        assert seen == {"read_uncommitted": 30, "read_replicated": 30, "read_committed": 10}
        late = json.dumps({topic: {"0": 25}})
        assert queries.read(topic, isolation="read_committed", endingOffsets=late).count() == 10
        producer.commit_transaction()
    assert queries.read(topic, isolation="read_committed").count() == 30


@pytest.fixture
def fractured(log: isolog.Log, pair: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """A committed transaction in both topics. In the first it is after an undecided one."""
    both(log, pair, f"{pair[0]}-first", 0)
    with log.producer(transactional_id=f"{pair[0]}-open") as producer:
        producer.begin_transaction()
        producer.append(pair[0], rows(range(100, 110))).result()
        both(log, pair, f"{pair[0]}-second", SIZE)
        yield pair
        producer.abort_transaction()


def numbers(queries: Queries, pair: tuple[str, str], **options: object) -> list[int]:
    return sorted(row.n for row in queries.read(",".join(pair), **options).collect())


def test_read_atomic_shows_a_transaction_in_all_topics_or_in_none(
    queries: Queries, log: isolog.Log, fractured: tuple[str, str]
) -> None:
    in_part = numbers(queries, fractured, isolation="read_committed")
    assert in_part == [*range(SIZE), *range(15, 20)]  # half of the second transaction
    assert numbers(queries, fractured, isolation="read_atomic") == list(range(SIZE))
    late = json.dumps({name: {"0": 10} for name in fractured})
    assert numbers(queries, fractured, isolation="read_atomic", endingOffsets=late) == list(
        range(SIZE)
    )


def test_read_atomic_ends_at_or_below_the_requested_offsets(
    queries: Queries, log: isolog.Log, pair: tuple[str, str]
) -> None:
    for number in range(3):
        both(log, pair, pair[0], number * SIZE)
    inside = json.dumps({pair[0]: {"0": 12}, pair[1]: {"0": 15}})
    assert numbers(queries, pair, isolation="read_atomic", endingOffsets=inside) == list(range(20))
    one = json.dumps({pair[0]: {"0": -1}, pair[1]: {"0": 5}})
    assert numbers(queries, pair, isolation="read_atomic", endingOffsets=one) == list(range(10))


def test_a_stream_that_starts_at_latest_starts_at_a_cut(
    queries: Queries, log: isolog.Log, fractured: tuple[str, str]
) -> None:
    asked = {
        "path": queries.path,
        "subscribe": ",".join(fractured),
        "isolation": "read_atomic",
        "startingOffsets": "latest",
    }
    reader = IsologStreamReader(source_options(asked, streaming=True), to_spark(NUMBERS))
    initial = reader.initialOffset()
    assert [initial[name]["partitions"]["0"]["offset"] for name in fractured] == [5, 5]
    latest = reader.reportLatestOffset()
    places = [latest[name]["partitions"]["0"] for name in fractured]
    assert [each["offset"] for each in places] == [5, 5]
    assert all(each.pop("held_back") > 0 for each in places)
    assert latest == initial


@pytest.mark.quick("25-batches0")
@pytest.mark.parametrize(("limit", "batches"), [(25, [20, 20]), (3, [10] * 4)])
def test_a_limited_micro_batch_holds_whole_transactions(
    spark: SparkSession,
    queries: Queries,
    log: isolog.Log,
    pair: tuple[str, str],
    tmp_path: Path,
    limit: int,
    batches: list[int],
) -> None:
    """As many as fit the limit. A larger one is read alone."""
    for number in range(4):
        both(log, pair, pair[0], number * SIZE)
    stream = queries.stream(",".join(pair), isolation="read_atomic", maxOffsetsPerTrigger=limit)
    assert queries.copy(stream, tmp_path / "out", tmp_path / "checkpoint") == batches
    assert read_back(spark, tmp_path / "out") == list(range(40))


@pytest.mark.full  # without a JVM: tests/datasource/reading/test_reader_atomic.py
def test_atomic_stream_reads_a_transaction_after_its_decision(
    spark: SparkSession, queries: Queries, log: isolog.Log, pair: tuple[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out", tmp_path / "checkpoint"
    stream = queries.stream(",".join(pair), isolation="read_atomic")
    both(log, pair, f"{pair[0]}-first", 0)
    with log.producer(transactional_id=f"{pair[0]}-open") as producer:
        producer.begin_transaction()
        producer.append(pair[0], rows(range(100, 110))).result()
        both(log, pair, f"{pair[0]}-second", SIZE)
        queries.copy(stream, *out)
        assert read_back(spark, out[0]) == list(range(SIZE))
        producer.commit_transaction()
    queries.copy(stream, *out)
    assert read_back(spark, out[0]) == [*range(2 * SIZE), *range(100, 110)]


@pytest.mark.full  # without a JVM: tests/datasource/reading/test_reader_atomic.py
@passes_limits
def test_a_union_of_parts_of_one_stream_is_one_source_and_splits_no_transaction(
    queries: Queries, log: isolog.Log, pair: tuple[str, str], tmp_path: Path
) -> None:
    """The form in ``docs/spark/read.md``: each micro-batch ends after the same transaction."""
    for number in range(3):
        both(log, pair, pair[0], number * SIZE)
    stream = queries.stream(
        ",".join(pair), isolation="read_atomic", maxOffsetsPerTrigger=3, includeMetadata=True
    )
    one, two = (stream.where(f"_topic = '{name}'").select("n") for name in pair)
    query = (
        one.union(two)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert query.exception() is None
    ends = []
    for progress in query.recentProgress:
        (source,) = progress["sources"]
        found = source["endOffset"]
        found = json.loads(found) if isinstance(found, str) else found
        ends.append([found[name]["partitions"]["0"]["offset"] for name in pair])
    assert ends == [[5, 5], [10, 10], [15, 15]]
