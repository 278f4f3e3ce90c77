"""Topics whose schema is altered: running queries continue, new ones have the new columns."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

import isolog
from isolog.errors import SchemaMismatch
from spark_stream.sql.ddl import parse_schema
from tests.spark.conftest import Queries, ended

FIRST = pa.schema([pa.field("id", pa.int32(), nullable=False), ("x", pa.int16())])
SECOND = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("x", pa.float64()), ("name", pa.string())]
)


def records(schema: pa.Schema, first: int, rows: int) -> pa.RecordBatch:
    numbers = range(first, first + rows)
    values = {
        "id": list(numbers),
        "x": [n % 100 for n in numbers],
        "name": [f"name {n}" for n in numbers],
    }
    columns = [pa.array(values[each.name], each.type) for each in schema]
    return pa.record_batch(columns, schema=schema)


def append(log: isolog.Log, topic: str, batch: pa.RecordBatch, partition: int = 0) -> None:
    with log.producer() as producer:
        producer.append(topic, batch, partition)


def forget_last_commit(checkpoint: Path) -> None:
    """Remove the last commit, as if the query stopped between the sink's commit and Spark's."""
    last = max(int(each.name) for each in (checkpoint / "commits").glob("[0-9]*"))
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


def test_a_batch_read_has_old_and_new_rows_in_the_present_schema(
    queries: Queries, spark: SparkSession, log: isolog.Log, topic: str
) -> None:
    log.create_topic(topic, schema=FIRST, partitions=2)
    append(log, topic, records(FIRST, 0, 2))
    append(log, topic, records(FIRST, 2, 1), 1)
    before = queries.read(topic)
    assert before.dtypes == [("id", "int"), ("x", "smallint")]
    log.alter_topic(topic, schema=SECOND)
    append(log, topic, records(SECOND, 3, 1))
    rows = [(0, 0.0, None), (1, 1.0, None), (2, 2.0, None), (3, 3.0, "name 3")]
    expected = spark.createDataFrame(rows, "id bigint not null, x double, name string")
    found = queries.read(topic)
    assert_df_equality(found, expected, ignore_row_order=True)
    only = found.where("name is null and x >= 1.0").select("id")
    assert_df_equality(only, expected.where("id in (1, 2)").select("id"), ignore_row_order=True)
    # A DataFrame that was made before has its own types.
    narrow = spark.createDataFrame([(n, n) for n in range(4)], "id int not null, x smallint")
    assert_df_equality(before, narrow, ignore_row_order=True)


@pytest.mark.full  # planning: tests/datasource/reading/test_planning_altered_schema.py
def test_query_continues_over_an_alteration_and_has_the_new_column_after_a_restart(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    """So does its sink: a job without the new column writes to a topic that has it."""
    copied = f"{topic}-copied"
    for name in (topic, copied):
        log.create_topic(name, schema=FIRST)
    append(log, topic, records(FIRST, 0, 3))

    def ids() -> list[int]:
        return sorted(log.read(copied, isolation="read_committed").column("id").to_pylist())

    def started(**options: str) -> StreamingQuery:
        stream = queries.stream(topic)
        writer = queries.sink(stream, tmp_path / "checkpoint", topic=copied, **options)
        return writer.trigger(processingTime="50 milliseconds").start()

    def reaches(query: StreamingQuery, count: int) -> None:
        query.processAllAvailable()
        assert ids() == list(range(count))

    query = started()
    try:
        reaches(query, 3)
        log.alter_topic(topic, schema=SECOND)
        append(log, topic, records(SECOND, 3, 3))
        reaches(query, 6)
        log.alter_topic(copied, schema=SECOND)
        append(log, topic, records(FIRST, 6, 2))
        append(log, topic, records(SECOND, 8, 2))
        reaches(query, 10)
    finally:
        query.stop()
    assert log.read(copied).column("name").null_count == 10
    forget_last_commit(tmp_path / "checkpoint")
    append(log, topic, records(SECOND, 10, 2))
    query = started()
    with pytest.raises(StreamingQueryException) as caught:
        query.processAllAvailable()
    query.stop()
    assert "DIFFERENT_REPLAY" in str(caught.value)
    assert "If a topic or the query was altered" in str(caught.value)
    query = started(differentReplay="keep")
    try:
        reaches(query, 12)
    finally:
        query.stop()
    named = log.read(copied, filter="name IS NOT NULL")
    assert named.to_pylist() == [{"id": n, "x": float(n), "name": f"name {n}"} for n in (10, 11)]


@pytest.mark.full  # without a JVM: tests/schema/test_evolution.py
def test_queries_that_start_later_have_a_new_field_of_a_struct(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    """A sink without the field continues. A batch is recognised after its topics were altered."""
    before = parse_schema("id int, s struct<a:int>, l array<struct<a:int>>")
    after = parse_schema("id int, s struct<a:int,b:string>, l array<struct<a:int,b:string>>")
    copied = f"{topic}-copied"
    for name in (topic, copied):
        log.create_topic(name, schema=before)

    def rows(schema: pa.Schema, *numbers: int) -> pa.RecordBatch:
        items = [{"a": n, "b": f"b{n}"} for n in numbers]
        values = [{"id": i["a"], "s": i, "l": [i, None]} for i in items]
        return pa.RecordBatch.from_pylist(values, schema=schema)

    def copy_of(number: int, b: str | None) -> dict[str, object]:
        item = {"a": number, "b": b}
        return {"id": number, "s": item, "l": [item, None]}

    def started() -> StreamingQuery:
        writer = queries.sink(queries.stream(topic), tmp_path / "checkpoint", topic=copied)
        return writer.trigger(processingTime="50 milliseconds").start()

    append(log, topic, rows(before, 0))
    query = started()
    try:
        query.processAllAvailable()
        for name in (topic, copied):
            log.alter_topic(name, schema=after)
        append(log, topic, rows(after, 1))
        query.processAllAvailable()
    finally:
        query.stop()
    assert log.read(copied).to_pylist() == [copy_of(0, None), copy_of(1, None)]
    append(log, topic, rows(after, 2))
    query = started()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert log.read(copied).to_pylist()[2:] == [copy_of(2, "b2")]
    forget_last_commit(tmp_path / "checkpoint")
    wider = "id bigint, s struct<a:double,b:string,c:int>, l array<struct<a:int,b:string>>, n int"
    for name in (topic, copied):
        log.alter_topic(name, schema=parse_schema(wider))
    query = started()
    try:
        query.processAllAvailable()  # the replay is recognised, with its wider rows
    finally:
        query.stop()
    assert log.read(copied).num_rows == 3
    found = queries.read(topic).orderBy("id").selectExpr("s.b", "l[0].b")
    assert [tuple(each) for each in found.collect()] == [(None, None), ("b1", "b1"), ("b2", "b2")]


def test_query_fails_at_a_value_outside_its_types_with_the_remedy(
    queries: Queries, log: isolog.Log, topic: str
) -> None:
    log.create_topic(topic, schema=FIRST)
    append(log, topic, records(FIRST, 0, 3))
    before = queries.read(topic).select("id")
    log.alter_topic(topic, schema=SECOND)
    append(log, topic, pa.record_batch([[1 << 40], [0.5], ["wide"]], schema=SECOND))
    with pytest.raises(PySparkException) as caught:
        before.collect()
    assert "column 'id': the value 1099511627776" in str(caught.value)
    assert "Restart the query" in str(caught.value)
    assert queries.read(topic).agg(f.max("id")).first()[0] == 1 << 40


@pytest.mark.full  # without a JVM: tests/datasource/spark/test_types.py
def test_dataframe_of_the_old_schema_still_fits(
    queries: Queries, spark: SparkSession, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    log.create_topic(topic, schema=FIRST)
    log.alter_topic(topic, schema=SECOND)
    old = spark.createDataFrame([(1, 2)], "id int not null, x smallint")
    queries.write(old, topic)
    assert log.read(topic).to_pylist() == [{"id": 1, "x": 2.0, "name": None}]
    text = old.select("id", f.lit("a").alias("x"))
    for bad, said in ((old.select("id"), "'x' (double) is missing"), (text, "got string")):
        with pytest.raises((PySparkException, SchemaMismatch)) as caught:
            queries.write(bad, topic)
        assert said in str(caught.value)


# Of Spark's state. The types of a query: tests/datasource/reading/test_planning_altered_schema.py.
@pytest.mark.full
def test_stateful_query_over_a_widened_column_continues_with_its_old_schema(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    """Spark's state has the type of the key: with the wider one the query cannot go on."""
    log.create_topic(topic, schema=FIRST)

    def counted(schema: str | None) -> str | None:
        stream = queries.stream(topic, schema).groupBy("id").count()
        writer = stream.writeStream.format("memory").queryName(f"counts_{topic[6:]}")
        writer = writer.outputMode("complete").trigger(availableNow=True)
        return ended(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start())

    append(log, topic, records(FIRST, 0, 3))
    assert counted(None) is None
    log.alter_topic(topic, schema=SECOND)
    append(log, topic, records(SECOND, 0, 3))
    refused = counted(None)
    assert refused is not None
    assert "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE" in refused
    assert counted("id int not null, x smallint") is None
    rows = queries.spark.sql(f"select id, count from counts_{topic[6:]}").collect()
    assert sorted(map(tuple, rows)) == [(0, 2), (1, 2), (2, 2)]
