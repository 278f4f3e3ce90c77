"""Filters on real Spark: by option in batches and streams, and pushed down in batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import isolog
from tests.examples import part, the_first
from tests.spark.conftest import Queries, ended
from tests.spark.releases import pushes_filters

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
ROWS = """
select id as n, if(id % 7 = 0, null, concat('name ', id)) as name, id / 3 as share,
  cast(id * 1.25 as decimal(10, 2)) as price, timestamp_seconds(id * 86400) as at,
  date_add(date'1970-01-01', cast(id as int)) as day, id % 2 = 0 as even,
  cast(concat('b', id) as binary) as raw, named_struct('a', id, 'b', concat('x', id)) as deep
from range(2000)
"""


@pytest.fixture
def rows(spark: SparkSession, queries: Queries, topic: str) -> DataFrame:
    """The rows of a topic of two partitions."""
    frame = spark.sql(ROWS).localCheckpoint()
    queries.write(frame, topic, createTopic=True, partitions=2)
    return frame


@contextmanager
def pushdown(spark: SparkSession, value: bool) -> Iterator[None]:
    spark.conf.set(PUSHDOWN, value)
    try:
        yield
    finally:
        spark.conf.unset(PUSHDOWN)


def same(found: DataFrame, expected: DataFrame) -> None:
    assert_df_equality(found.orderBy("n"), expected.orderBy("n"), ignore_nullable=True)


def filters(frame: DataFrame) -> bool:
    """Return whether Spark filters the rows of the source."""
    return " Filter " in frame._jdf.queryExecution().executedPlan().toString()


def test_batch_query_reads_the_rows_that_match_its_filter(
    rows: DataFrame, queries: Queries, topic: str
):
    text = "n between 100 and 1200 and (name like 'name 1%' or name is null) and not even"
    same(queries.read(topic, filter=text), rows.where(text))
    narrow = queries.read(topic, "name string, n bigint", filter="deep.a >= 1990 and price > 10")
    same(narrow, rows.where("n >= 1990").select("name", "n"))
    shown = queries.read(topic, filter="_partition = 1 and _offset < 10", includeMetadata=True)
    assert {(row["_partition"], row["_offset"]) for row in shown.collect()} == {
        (1, offset) for offset in range(10)
    }
    assert queries.read(topic, filter="n < 0").count() == 0
    assert queries.read(topic, filter="n >= 0").count() == 2000


@pushes_filters
@pytest.mark.rule("the filters that Spark pushes", "datasource/reading/reader.py")
@pytest.mark.parametrize("pushes", [pytest.param(False, marks=pytest.mark.full), True])
def test_spark_pushes_filters_only_with_its_setting_and_our_option(
    spark: SparkSession, rows: DataFrame, queries: Queries, topic: str, pushes: bool
):
    """With the setting off Spark refuses a reader that would take filters."""
    taken = [
        F.col("n") == 77,
        F.col("n") > 1900,
        F.col("n") <= 5,
        F.col("n").isin(1, 5, 1999),
        F.col("share") >= 600.5,
        F.col("price") < F.lit("3.7").cast("decimal(10,2)"),
        F.col("name") == "name 8",
        F.col("name").isNull(),
        ~F.col("name").startswith("name 1"),
        F.col("name").contains("99"),
        F.col("name").endswith("7"),
        F.col("name").eqNullSafe("name 3"),
        F.col("at") >= F.expr("timestamp_seconds(86400 * 1990)"),
        F.col("day") == F.lit("1970-02-01").cast("date"),
        F.col("even") == True,  # noqa: E712
        F.col("raw") == F.expr("X'6239'"),
        F.col("deep.a") > 1995,
    ]
    with pushdown(spark, pushes):
        for condition in part(taken):
            found = queries.read(topic, pushFilters=pushes).where(condition)
            assert filters(found) != pushes, str(condition)
            same(found, rows.where(condition))
        mixed = queries.read(topic, pushFilters=pushes).where(
            "n > 1000 and n % 5 = 0 and upper(name) like 'NAME 1%'"
        )
        assert filters(mixed)
        same(mixed, rows.where("n > 1000 and n % 5 = 0 and upper(name) like 'NAME 1%'"))


def test_dataframe_that_is_read_several_times_has_each_querys_rows(
    spark: SparkSession, rows: DataFrame, queries: Queries, topic: str
):
    """Spark would keep what a reader took for all of them (decision 81)."""
    with pushdown(spark, True):
        frame = queries.read(topic)
        assert frame.where("n < 10").count() == 10
        assert frame.count() == 2000
        assert frame.where("n >= 1990").unionAll(frame.where("n < 5")).count() == 15


@pushes_filters
def test_spark_keeps_taken_filters_for_the_next_query_over_the_dataframe(
    spark: SparkSession, rows: DataFrame, queries: Queries, topic: str
):
    """The reason for the option: if Spark counts 2000 here, it is no longer necessary."""
    with pushdown(spark, True):
        frame = queries.read(topic, pushFilters=True)
        assert frame.where("n < 10").count() == 10
        assert frame.count() == 10


@pushes_filters
def test_pushed_filter_and_option_filter_both_apply(
    spark: SparkSession, rows: DataFrame, queries: Queries, topic: str
):
    with pushdown(spark, True):
        found = queries.read(topic, filter="n < 100 or n > 1900", pushFilters=True).where(
            "n >= 95 and n < 1903"
        )
        same(found, rows.where("n in (95, 96, 97, 98, 99, 1901, 1902)"))


@pushes_filters
def test_comparisons_that_differ_at_the_leader_are_left_to_spark(
    spark: SparkSession, rows: DataFrame, queries: Queries, topic: str
):
    caseless = "n bigint, name string collate unicode_ci"
    with pushdown(spark, True):
        found = queries.read(topic, caseless, pushFilters=True).where("name = 'NAME 8'")
        assert [row.n for row in found.collect()] == [8]
    with pytest.raises(AnalysisException, match="column 'name' is string collate UNICODE_CI"):
        queries.read(topic, caseless, filter="name = 'NAME 8'").collect()


@pushes_filters
@pytest.mark.full  # without a JVM: tests/datasource/reading/test_reader_pushing.py
def test_a_decimal_that_python_may_have_rounded_is_left_to_spark(
    spark: SparkSession, queries: Queries, topic: str
):
    """PySpark gives 10^30 for 10^30 + 1."""
    great = "1000000000000000000000000000000BD"
    frame = spark.sql(
        f"select cast(d as decimal(38, 0)) d from values ({great}), ({great} + 1), (7) as t(d)"
    )
    queries.write(frame, topic, createTopic=True)
    with pushdown(spark, True):
        for text in (f"d = {great} + 1", f"d in (7, {great} + 1)", f"not d <= {great}"):
            found = queries.read(topic, pushFilters=True).where(text)
            assert filters(found), text
            assert sorted(found.collect()) == sorted(frame.where(text).collect()), text
        pushed = queries.read(topic, pushFilters=True).where("d < 999999999999999999999999999BD")
        assert not filters(pushed)
        assert pushed.count() == 1


@pushes_filters
def test_kafkas_columns_are_filtered(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str
):
    log.create_topic(topic)
    keys = [f"k{n % 3}".encode() for n in range(30)]
    with log.producer() as producer:
        producer.append(topic, pa.record_batch({"key": keys, "value": keys}), partition=0)
    text = "key = 'k1' and offset > 20 and timestamp > '2020-01-01'"
    found = queries.read(topic, filter=text)
    assert [row.offset for row in found.orderBy("offset").collect()] == [22, 25, 28]
    with pushdown(spark, True):
        pushed = queries.read(topic, pushFilters=True).where(
            "offset >= 28 and topic is not null and partition = 0"
        )
        assert not filters(pushed)
        assert sorted(row.offset for row in pushed.collect()) == [28, 29]


@pytest.mark.full  # without a JVM: tests/datasource/reading/test_reader_pushing.py
def test_stream_reads_matching_rows_and_its_offsets_cover_all(
    spark: SparkSession, rows: DataFrame, queries: Queries, topic: str, tmp_path: Path
):
    text = "n >= 1990 or name = 'name 1'"
    stream = queries.stream(topic, filter=text, maxOffsetsPerTrigger=700)
    counts = queries.copy(stream, tmp_path / "out", tmp_path / "checkpoint")
    assert len(counts) >= 3, "limits count what is looked at"
    same(spark.read.parquet(str(tmp_path / "out")), rows.where(text))
    queries.write(rows.where("n < 5").withColumn("n", F.col("n") + 5000), topic)
    queries.copy(stream, tmp_path / "out", tmp_path / "checkpoint")
    found = spark.read.parquet(str(tmp_path / "out"))
    assert found.where("n >= 5000").count() == 5
    assert found.count() == 11 + 5


@pytest.mark.full  # without a JVM: tests/datasource/reading/test_reader_pushing.py
@pytest.mark.parametrize(
    ("text", "words"),
    the_first(
        [
            ("nme = 'a'", "no column 'nme' (is 'name' meant?)"),
            ("n = 'one'", "'one' is not a whole number"),
            ("n = ", "not valid SQL"),
            ("upper(name) = 'A'", "UPPER(name)"),
            ("", "it is empty"),
        ]
    ),
)
def test_a_bad_filter_is_refused_at_the_start(
    rows: DataFrame, queries: Queries, topic: str, tmp_path: Path, text: str, words: str
):
    with pytest.raises(AnalysisException) as raised:
        queries.read(topic, filter=text).collect()
    assert words in str(raised.value)
    assert words in str(_refused(queries.stream(topic, "n bigint", filter=text), tmp_path))


def _refused(stream: DataFrame, folder: Path) -> str | None:
    """Return the error of a stream at its start."""
    try:
        writer = stream.writeStream.format("noop").option("checkpointLocation", str(folder / "c"))
        return ended(writer.start())
    except AnalysisException as error:
        return str(error)


def test_a_table_and_a_view_may_have_a_filter(
    spark: SparkSession, rows: DataFrame, queries: Queries, topic: str
):
    view = f"v_{topic.replace('-', '_')}"
    spark.sql(
        f"create temporary view {view} using isolog options ("
        f"path '{queries.path}', subscribe '{topic}', filter 'n < 3')"
    )
    assert sorted(row.n for row in spark.table(view).collect()) == [0, 1, 2]
