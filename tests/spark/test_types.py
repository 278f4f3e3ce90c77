"""Every Spark type with an Arrow form survives a round trip. Others are refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import AnalysisException
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import isolog
from tests.spark.conftest import Queries
from tests.spark.releases import has_time

ONE_OF_EACH = """
select cast(id as boolean) as boolean_, cast(id as byte) as byte_, cast(id as short) as short_,
  cast(id as int) as int_, id as long_, cast(id / 3 as float) as float_, id / 7 as double_,
  cast(id * 1.25 as decimal(10, 2)) as decimal_, cast(id as decimal(38, 18)) as wide_decimal_,
  concat('grüße ', id) as string_, cast(concat('b', id) as binary) as binary_,
  date_add(date'1969-12-30', cast(id as int)) as date_,
  timestamp_seconds(id - 5) as timestamp_,
  cast(timestamp_seconds(id * 100000 - 500000) as timestamp_ntz) as timestamp_ntz_,
  make_dt_interval(cast(id as int), 1, 2, 3.000004) as interval_,
  array(id, null, id + 1) as array_, cast(array() as array<string>) as empty_array_,
  map(concat('k', id), id, 'none', null) as map_,
  named_struct('a', cast(id as int), 'b', array(named_struct('c', concat('x', id)))) as struct_,
  array(map('k', named_struct('d', cast(id as decimal(5, 1))))) as deep_
from range(10)
"""


@pytest.mark.rule("Spark's types as Arrow's", "datasource/spark/types.py")
def test_every_type_round_trips(spark: SparkSession, queries: Queries, topic: str) -> None:
    frame = spark.sql(ONE_OF_EACH)
    queries.write(frame, topic, createTopic=True)
    assert_df_equality(queries.read(topic).orderBy("long_"), frame.orderBy("long_"))


def test_nulls_of_every_type_round_trip(spark: SparkSession, queries: Queries, topic: str) -> None:
    frame = spark.sql(ONE_OF_EACH)
    others = [name for name in frame.columns if name != "long_"]
    nullable = frame.selectExpr(
        "long_", *[f"if(long_ % 2 = 0, null, {name}) as {name}" for name in others]
    )
    queries.write(nullable, topic, createTopic=True)
    assert_df_equality(queries.read(topic).orderBy("long_"), nullable.orderBy("long_"))


@pytest.mark.full  # the tests above have every type in a batch
def test_a_stream_copies_values_of_every_type(
    spark: SparkSession, queries: Queries, topic: str, tmp_path
) -> None:
    frame = spark.sql(ONE_OF_EACH).drop("interval_")  # Parquet files have no such type
    queries.write(frame, topic, createTopic=True)
    rows = queries.copy(queries.stream(topic), tmp_path / "out", tmp_path / "checkpoint")
    assert sum(rows) == 10
    copied = spark.read.parquet(str(tmp_path / "out")).orderBy("long_")
    assert_df_equality(copied, frame.orderBy("long_"), ignore_nullable=True)


def test_a_column_of_only_nulls_is_written_and_read(
    spark: SparkSession, queries: Queries, topic: str
) -> None:
    frame = spark.sql("select id, null as nothing from range(3)")
    queries.write(frame, topic, createTopic=True)
    assert [row.nothing for row in queries.read(topic).collect()] == [None] * 3


@pytest.fixture
def chars(spark: SparkSession, tmp_path: Path) -> Iterator[DataFrame]:
    """A row of a table with columns of char(5) and varchar(7)."""
    spark.sql(f"create table chars (a char(5), b varchar(7)) using parquet location '{tmp_path}'")
    spark.sql("insert into chars values ('ab', 'cd')")
    yield spark.table("chars")
    spark.sql("drop table chars")


@pytest.mark.full  # without a JVM: tests/datasource/spark/test_types.py
@has_time
def test_declared_types_and_vectors_are_read_back(
    spark: SparkSession, queries: Queries, topic: str, chars: DataFrame
) -> None:
    spark.conf.set("spark.sql.timeType.enabled", "true")
    try:
        vectors = [(Vectors.dense([1.0, 2.0]),), (Vectors.sparse(4, [1], [3.0]),), (None,)]
        frame = (
            spark.createDataFrame(vectors, StructType().add("v", VectorUDT()))
            .crossJoin(spark.sql("select time'01:02:03' :: time(0) t, interval '3' hour i"))
            .crossJoin(chars)
            .selectExpr("*", "array(v) as vs", "named_struct('t', t, 'i', i) as s")
        )
        queries.write(frame, topic, createTopic=True)
        found = queries.read(topic)
        assert [field.dataType for field in found.schema] == [
            field.dataType for field in frame.schema
        ]
        assert sorted(map(str, found.collect())) == sorted(map(str, frame.collect()))
        assert found.where("a = 'ab'").count() == frame.where("a = 'ab'").count() == 3
        with pytest.raises(AnalysisException, match=r"column 'a' is char\(5\)"):
            queries.read(topic, filter="a = 'ab'").count()
    finally:
        spark.conf.unset("spark.sql.timeType.enabled")


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ("make_ym_interval(1, 2)", "'bad'"),
        ("array(make_ym_interval(1, 2))", "'bad.element'"),
        ("named_struct('inner', make_ym_interval(1, 2))", "'bad.inner'"),
    ],
)
def test_unsupported_type_is_refused_by_name(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str, expression: str, named: str
) -> None:
    frame = spark.sql(f"select id, {expression} as bad from range(3)")
    with pytest.raises(AnalysisException, match="UNSUPPORTED_TYPE") as caught:
        queries.write(frame, topic, createTopic=True)
    assert named in str(caught.value)
    assert topic not in log.topics()


def test_python_types_that_spark_lacks_show_as_wider_ones(
    queries: Queries, log: isolog.Log, topic: str
) -> None:
    batch = pa.record_batch(
        {
            "small": pa.array([1, 255], pa.uint8()),
            "wide": pa.array([1, 2**32 - 1], pa.uint32()),
            "text": pa.array(["a", "b"], pa.large_string()),
            "fixed": pa.array([b"ab", b"cd"], pa.binary(2)),
            "pair": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)),
            "at": pa.array([1_000, None], pa.int64()).cast(pa.timestamp("ns")),  # as pandas has it
            "day": pa.array([0, None], pa.int64()).cast(pa.date64()),
            "took": pa.array([1_000, None], pa.int64()).cast(pa.duration("ns")),
            "huge": pa.array([2**64 - 1, None], pa.uint64()),
        }
    )
    log.create_topic(topic, schema=batch.schema)
    with log.producer() as producer:
        producer.append(topic, batch)
    shown = queries.read(topic)
    assert [field.dataType.simpleString() for field in shown.schema] == [
        "smallint",
        "bigint",
        "string",
        "binary",
        "array<int>",
        "timestamp_ntz",
        "date",
        "interval day to second",
        "decimal(20,0)",
    ]
    at = datetime(1970, 1, 1, 0, 0, 0, 1)
    assert [tuple(row) for row in shown.collect()] == [
        (1, 1, "a", b"ab", [1, 2], at, at.date(), timedelta(microseconds=1), Decimal(2**64 - 1)),
        (255, 2**32 - 1, "b", b"cd", [3, 4], None, None, None, None),
    ]
