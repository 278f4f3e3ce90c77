"""Tables and views: one set of options for reading and writing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import isolog
from tests.spark.conftest import Queries


@pytest.fixture
def table(spark: SparkSession, topic: str) -> Iterator[str]:
    """The name of a table that is dropped after the test."""
    name = topic.replace("-", "_")
    yield name
    for kind in ("TABLE", "VIEW"):
        spark.sql(f"DROP {kind} IF EXISTS {name}_{kind.lower()}")


def numbers(spark: SparkSession, query: str) -> list[int]:
    return sorted(row[0] for row in spark.sql(query).collect())


@pytest.mark.full  # the test below has a view
def test_a_table_is_read_and_written_with_one_set_of_options(
    spark: SparkSession, queries: Queries, topic: str, table: str, tmp_path: Path
) -> None:
    rows = spark.sql("select id as n, 'x' as s from range(3)").coalesce(1)  # in their order
    queries.write(rows, topic, createTopic=True)
    spark.sql(
        f"CREATE TABLE {table}_table USING isolog OPTIONS (path '{queries.path}', subscribe"
        f" '{topic}', topic '{topic}', isolation 'read_committed', maxOffsetsPerTrigger '4')"
    )
    spark.sql(f"INSERT INTO {table}_table VALUES (3, 'x')")
    spark.sql(f"INSERT INTO {table}_table SELECT id + 4, 'y' FROM range(1)")
    spark.sql(f"INSERT INTO {table}_table (s, n) VALUES ('x', 5)")
    assert numbers(spark, f"SELECT n FROM {table}_table") == list(range(6))
    spark.sql(f"CREATE VIEW {table}_view AS SELECT n FROM {table}_table WHERE s = 'y'")
    assert numbers(spark, f"SELECT * FROM {table}_view") == [4]
    ends = f'{{"{topic}": {{"0": 2}}}}'
    assert numbers(spark, f"SELECT n FROM {table}_table WITH (endingOffsets '{ends}')") == [0, 1]
    copied = queries.copy(spark.readStream.table(f"{table}_table"), tmp_path / "o", tmp_path / "c")
    assert copied == [4, 2]
    # Spark does not change rows that have the table's names, so they have no comment.
    insert = f"INSERT INTO {table}_table {{}} SELECT 6L AS n, 'x' AS s"
    with pytest.raises(AnalysisException, match="WITH \\(path"):
        spark.sql(insert.format(""))
    spark.sql(insert.format(f"WITH (path '{queries.path}', topic '{topic}')"))
    spark.sql(f"DROP TABLE {table}_table")
    assert queries.read(topic).count() == 7


def test_a_temporary_view_is_read_and_written_with_one_set_of_options(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str, table: str
) -> None:
    queries.write(spark.sql("select id as n from range(3)"), topic, createTopic=True)
    options = f"bootstrap '{log.status().address}', subscribe '{topic}', topic '{topic}'"
    spark.sql(f"CREATE TEMPORARY VIEW {table}_view USING isolog OPTIONS ({options})")
    spark.sql(f"INSERT INTO {table}_view SELECT 3L AS n")
    spark.sql(f"INSERT INTO {table}_view VALUES (4)")
    assert numbers(spark, f"SELECT n FROM {table}_view") == [0, 1, 2, 3, 4]
    spark.sql(f"CREATE TABLE {table}_table USING isolog OPTIONS ({options})")
    assert numbers(spark, f"SELECT n FROM {table}_table") == [0, 1, 2, 3, 4]


@pytest.mark.full  # without a JVM: tests/datasource/options/test_catalog_tables.py
def test_declared_columns_bring_their_options_in_a_comment(
    spark: SparkSession, queries: Queries, topic: str, table: str
) -> None:
    """Spark passes the OPTIONS of such a table to no source. The error reports that."""
    queries.write(spark.sql("select id as n, 'x' as s from range(3)"), topic, createTopic=True)
    spark.sql(
        f"CREATE TABLE {table}_table (n bigint) USING isolog"
        f" OPTIONS (path '{queries.path}', topic '{topic}')"
    )
    with pytest.raises(AnalysisException, match="nor to a table with declared columns"):
        spark.sql(f"SELECT * FROM {table}_table").collect()
    query = f"SELECT n FROM {table}_table WITH (path '{queries.path}', subscribe '{topic}')"
    assert numbers(spark, query) == [0, 1, 2]
    spark.sql(f"DROP TABLE {table}_table")
    options = f'{{"path": "{queries.path}", "topic": "{topic}"}}'
    spark.sql(
        f"CREATE TABLE {table}_table (n bigint COMMENT 'isolog {options}', s string) USING isolog"
    )
    spark.sql(f"INSERT INTO {table}_table VALUES (3, 'y')")
    assert numbers(spark, f"SELECT n FROM {table}_table") == [0, 1, 2, 3]


def test_table_with_a_wrong_path_or_option_is_not_created(
    spark: SparkSession, queries: Queries, topic: str, table: str, tmp_path: Path
) -> None:
    typo = tmp_path / "typo"
    for options, message in (
        (f"path '{typo}', topic '{topic}'", "there is no log at"),
        (f"path 's3a://bucket/log', topic '{topic}'", "has the scheme s3a"),
        (f"path '{queries.path}', topic '{topic}', sinkIdd 'x'", "did you mean 'sinkId'"),
    ):
        with pytest.raises(AnalysisException, match=message):
            spark.sql(f"CREATE TABLE {table}_table USING isolog OPTIONS ({options})")
    assert not typo.exists()
    assert not spark.catalog.tableExists(f"{table}_table")


def test_create_table_as_select_is_refused_with_working_statements(
    spark: SparkSession, queries: Queries, topic: str, table: str
) -> None:
    queries.write(spark.sql("select id as n from range(3)"), topic, createTopic=True)
    options = f"USING isolog OPTIONS (path '{queries.path}', topic '{topic}')"
    with pytest.raises(AnalysisException, match="then INSERT INTO t SELECT"):
        spark.sql(f"CREATE TABLE {table}_table {options} AS SELECT id AS n FROM range(2)")
    assert not spark.catalog.tableExists(f"{table}_table")
    spark.sql(f"CREATE TABLE {table}_table {options}")
    spark.sql(f"INSERT INTO {table}_table SELECT id + 3 FROM range(2)")
    assert numbers(spark, f"SELECT n FROM {table}_table") == [0, 1, 2, 3, 4]
