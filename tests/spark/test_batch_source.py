"""The batch source: start and end, columns, and refusals."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import isolog
from tests.datasource.test_source_refusals import READS
from tests.examples import the_first
from tests.spark.conftest import Queries

KAFKA_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint,"
    " timestamp timestamp, timestampType int"
)


@pytest.fixture
def hundred(log: isolog.Log, topic: str) -> str:
    """A typed topic with the numbers 0 to 99: even ones in partition 0, odd ones in partition 1."""
    log.create_topic(topic, partitions=2, schema=pa.schema([("n", pa.int64())]))
    with log.producer() as producer:
        for start in range(0, 100, 20):
            for partition in (0, 1):
                numbers = pa.array(range(start + partition, start + 20, 2), pa.int64())
                producer.append(topic, pa.record_batch({"n": numbers}), partition=partition)
    return topic


def numbers(frame) -> list[int]:
    return sorted(row.n for row in frame.collect())


def test_a_batch_reads_from_earliest_to_latest_by_default(queries: Queries, hundred: str) -> None:
    assert numbers(queries.read(hundred)) == list(range(100))


def test_a_batch_reads_between_explicit_offsets(queries: Queries, hundred: str) -> None:
    frame = queries.read(
        hundred,
        startingOffsets=json.dumps({hundred: {"0": 45, "1": -2}}),
        endingOffsets=json.dumps({hundred: {"0": -1, "1": 3}}),
    )
    assert numbers(frame) == sorted([1, 3, 5, *range(90, 100, 2)])


def test_partitions_without_an_offset_are_read_whole(queries: Queries, hundred: str) -> None:
    frame = queries.read(hundred, startingOffsets=json.dumps({hundred: {"0": 50}}))
    assert numbers(frame) == list(range(1, 100, 2))


def test_the_same_frame_used_twice_gives_the_same_rows(queries: Queries, hundred: str) -> None:
    frame = queries.read(hundred)
    joined = frame.alias("a").join(frame.alias("b"), "n")
    assert joined.count() == 100
    assert frame.union(frame).count() == 200


def test_a_late_bound_end_is_bound_when_the_query_runs(
    queries: Queries, log: isolog.Log, hundred: str
) -> None:
    """It is bound at the first run, not at the definition. Spark keeps the plan."""

    def add_one(number: int) -> None:
        with log.producer() as producer:
            producer.append(hundred, pa.record_batch({"n": pa.array([number], pa.int64())}))

    frame, other = queries.read(hundred), queries.read(hundred)
    add_one(100)
    assert numbers(frame) == list(range(101))
    add_one(101)
    assert numbers(frame) == list(range(101))
    assert numbers(other) == list(range(102))
    fixed = queries.read(hundred, endingOffsets=json.dumps({hundred: {"0": 50, "1": 50}}))
    assert numbers(fixed) == list(range(100))


def test_includeMetadata_adds_columns_to_a_typed_topic(queries: Queries, hundred: str) -> None:
    frame = queries.read(hundred, includeMetadata=True)
    assert frame.columns == ["n", "_topic", "_partition", "_offset", "_timestamp"]
    rows = frame.collect()
    assert {row._topic for row in rows} == {hundred}
    assert all(row.n == 2 * row._offset + row._partition for row in rows)


def test_a_given_schema_selects_the_columns(queries: Queries, hundred: str) -> None:
    frame = queries.read(hundred, schema="_offset bigint, n bigint")
    assert sorted((row._offset, row.n) for row in frame.where("n < 4").collect()) == [
        (0, 0),
        (0, 1),
        (1, 2),
        (1, 3),
    ]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("m bigint", "has no column 'm'"),
        ("n string", "column 'n': expected string, got bigint"),
    ],
)
def test_a_projection_that_does_not_fit_is_refused_by_column(
    queries: Queries, hundred: str, schema: str, message: str
) -> None:
    with pytest.raises(AnalysisException, match="SCHEMA_MISMATCH") as caught:
        queries.read(hundred, schema=schema).count()
    assert message in str(caught.value)


def test_a_default_topic_has_kafkas_columns(
    queries: Queries, spark: SparkSession, log: isolog.Log, topic: str
) -> None:
    log.create_topic(topic)
    moment = datetime(1969, 7, 20, 20, 17, 40, 123456, tzinfo=UTC)
    with log.producer() as producer:
        producer.send(topic, b"v", key=b"k", timestamp=moment, headers=[("h", b"1"), ("i", None)])
        producer.send(topic, None, key=None, timestamp=moment)
    frame = queries.read(topic)
    row = (bytearray(b"k"), bytearray(b"v"), topic, 0, 0, moment, 0)
    nothing = (None, None, topic, 0, 1, moment, 0)
    expected = spark.createDataFrame([row, nothing], KAFKA_SCHEMA)
    assert_df_equality(frame, expected, ignore_row_order=True)


def test_includeHeaders_adds_the_column_of_headers(
    queries: Queries, log: isolog.Log, topic: str
) -> None:
    log.create_topic(topic)
    with log.producer() as producer:
        producer.send(topic, b"v", headers=[("h", b"1"), ("i", None)])
    frame = queries.read(topic, includeHeaders=True)
    assert frame.schema["headers"].simpleString() == (
        "headers:array<struct<key:string,value:binary>>"
    )
    assert [tuple(header) for header in frame.collect()[0].headers] == [("h", b"1"), ("i", None)]


def test_one_query_reads_several_topics(queries: Queries, log: isolog.Log, topic: str) -> None:
    names = [f"{topic}-a", f"{topic}-b"]
    with log.producer() as producer:
        for name in names:
            log.create_topic(name)
            producer.send(name, name)
    frame = queries.read(", ".join(names))
    assert sorted((row.topic, bytes(row.value).decode()) for row in frame.collect()) == [
        (name, name) for name in names
    ]


def test_topics_with_different_columns_are_refused(
    queries: Queries, log: isolog.Log, hundred: str
) -> None:
    other = f"{hundred}-other"
    log.create_topic(other, schema=pa.schema([("n", pa.string())]))
    with pytest.raises(AnalysisException, match="'n' is bigint and string"):
        queries.read(f"{hundred},{other}").count()


def test_an_empty_topic_is_an_empty_frame(queries: Queries, log: isolog.Log, topic: str) -> None:
    log.create_topic(topic, partitions=3)
    assert queries.read(topic).count() == 0


@pytest.mark.parametrize(
    "isolation", ["read_uncommitted", "read_replicated", "read_committed", "read_atomic"]
)
def test_without_followers_every_isolation_sees_every_record(
    queries: Queries, hundred: str, isolation: str
) -> None:
    assert queries.read(hundred, isolation=isolation).count() == 100


def test_a_value_of_ten_mebibytes_is_read(queries: Queries, log: isolog.Log, topic: str) -> None:
    log.create_topic(topic)
    with log.producer() as producer:
        producer.send(topic, b"x" * (10 << 20))
    assert queries.read(topic).select(F.length("value")).collect()[0][0] == 10 << 20


def test_load_of_a_topic_is_short_for_subscribe(
    spark: SparkSession, shared_path, hundred: str, log: isolog.Log
) -> None:
    address = log.status().address  # the embedded broker's socket serves as a bootstrap address
    reader = spark.read.format("isolog").option("bootstrap", address)
    assert reader.load(hundred).count() == 100


@pytest.mark.parametrize(("options", "message"), the_first(READS))
def test_invalid_option_has_a_specific_message(
    queries: Queries, hundred: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        queries.read(hundred, **options).count()
    assert message in str(caught.value)


def test_an_unknown_topic_is_named(queries: Queries, topic: str) -> None:
    with pytest.raises(AnalysisException, match=f"there is no topic '{topic}'"):
        queries.read(topic).count()
