"""Our errors in Spark: the useful line first, and no Python traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession

import isolog
from tests.spark.conftest import Queries, ended

LOOSE = "select if(id = 1, null, id) as n, array(if(id = 1, null, id)) as items from range(3)"


def first_line(message: str) -> str:
    assert "Traceback" not in message
    assert "\\x" not in message  # no bytes of the wire
    return message.splitlines()[0]


def test_planning_error_is_in_the_first_line(
    spark: SparkSession, queries: Queries, topic: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        queries.read(topic)
    assert f"[UNKNOWN_TOPIC] there is no topic '{topic}'" in first_line(str(caught.value))
    with pytest.raises(AnalysisException) as caught:
        queries.write(spark.range(3), topic)
    assert f"[UNKNOWN_TOPIC] there is no topic '{topic}'" in first_line(str(caught.value))


def test_task_error_has_no_traceback(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str
) -> None:
    log.create_topic(topic)
    with pytest.raises(PythonException) as caught:
        queries.write(spark.sql("select 'v' as value, 7 as partition"), topic)
    message = str(caught.value)
    assert "Traceback" not in message
    assert "has partitions 0 to 0, not 7" in "".join(message.splitlines()[:3])


@pytest.mark.full  # without a JVM: tests/datasource/spark/test_types_nulls.py
def test_not_null_over_a_nullable_column_is_refused_in_batch_and_streaming(
    spark: SparkSession, queries: Queries, topic: str, tmp_path: Path
) -> None:
    queries.write(spark.sql(LOOSE), topic, createTopic=True)
    assert queries.read(topic, "n bigint").where("n is null").count() == 1
    said = f"column 'n' is NOT NULL in the query's schema, and may be null in topic '{topic}'"
    with pytest.raises(AnalysisException) as caught:
        queries.read(topic, "n bigint not null").collect()
    assert said in first_line(str(caught.value))
    stream = queries.stream(topic, "n bigint not null").writeStream.format("noop")
    # Spark answers such calls without the source (docs/spark/facts.md).
    assert queries.read("no-such-topic", "n bigint not null").where("n is null").count() == 0
    failure = ended(stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start())
    assert failure is not None
    assert said in first_line(failure)


def test_columns_written_as_not_null_are_read_as_not_null(
    spark: SparkSession, queries: Queries, topic: str
) -> None:
    queries.write(
        spark.sql("select id as n, array(id) as items from range(3)"), topic, createTopic=True
    )
    shown = queries.read(topic)
    assert not shown.schema["n"].nullable
    assert shown.where("n is not null").count() == 3
    assert queries.read(topic, "n bigint not null").count() == 3
    assert queries.read(topic, "n bigint, items array<bigint>").count() == 3
    queries.write(shown, f"{topic}-copy", createTopic=True)
    assert queries.read(f"{topic}-copy").schema == shown.schema
