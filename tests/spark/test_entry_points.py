"""Every way in which Spark calls the source and the sink, with the options that Spark adds.

An option that a new Spark release adds is unknown to isolog and refused, so these tests fail then.
Other files cover `load`, `save`, `foreachBatch`, and SQL's tables and views.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import isolog
from tests.spark.conftest import Queries, ended
from tests.spark.releases import has_pipelines

Start = Callable[[Queries, str, Path], StreamingQuery]


def named(queries: Queries, to: str, checkpoint: Path) -> StreamingQuery:
    writer = queries.sink(queries.stream(f"{to}-from"), checkpoint, topic=to)
    return writer.queryName(f"query {to}").start()


def by_arguments(queries: Queries, to: str, checkpoint: Path) -> StreamingQuery:
    writer = queries.stream(f"{to}-from").writeStream.trigger(availableNow=True)
    return writer.start(
        format="isolog",
        outputMode="append",
        queryName=f"query {to}",
        path=queries.path,
        topic=to,
        checkpointLocation=str(checkpoint),
    )


def to_table(queries: Queries, to: str, checkpoint: Path) -> StreamingQuery:
    table = to.replace("-", "_")
    queries.spark.sql(
        f"CREATE TABLE {table} USING isolog OPTIONS (path '{queries.path}', topic '{to}')"
    )
    writer = queries.stream(f"{to}-from").writeStream.queryName(f"query {to}")
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    return writer.option("path", queries.path).option("topic", to).toTable(table)


@pytest.mark.quick("named")
@pytest.mark.parametrize("start", [named, by_arguments, to_table])
def test_a_named_streaming_query_writes(
    start: Start, queries: Queries, topic: str, tmp_path: Path
) -> None:
    rows = queries.spark.sql("select id as n from range(3)")
    queries.write(rows, f"{topic}-from", createTopic=True)
    queries.write(rows.limit(0), topic, createTopic=True)
    try:
        query = start(queries, topic, tmp_path / "c")
        assert query.name == f"query {topic}"
        assert ended(query) is None
    finally:
        queries.spark.sql(f"DROP TABLE IF EXISTS {topic.replace('-', '_')}")
    assert queries.read(topic).count() == 3


def test_a_table_is_appended_to_by_the_writers_of_data_frames(
    spark: SparkSession, queries: Queries, topic: str
) -> None:
    rows = spark.sql("select id as n from range(3)")
    queries.write(rows, topic, createTopic=True)
    table = topic.replace("-", "_")
    place = {"path": queries.path, "topic": topic}
    spark.sql(f"CREATE TABLE {table} USING isolog OPTIONS (path '{queries.path}', topic '{topic}')")
    try:
        rows.writeTo(table).options(**place).append()
        rows.write.format("isolog").mode("append").options(**place).saveAsTable(table)
    finally:
        spark.sql(f"DROP TABLE {table}")
    assert queries.read(topic).count() == 9


PIPELINE = """
name: numbers
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""

TRANSFORMATIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
place = {{"path": "{path}"}}

dp.create_sink("written", "isolog", {{**place, "topic": "written", "createTopic": "true"}})


@dp.append_flow(target="written")
def copied():
    return spark.readStream.format("isolog").options(**place, subscribe="numbers").load()


@dp.materialized_view
def counted():
    return spark.read.format("isolog").options(**place, subscribe="numbers").load()
"""


@has_pipelines
@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_declarative_pipeline_reads_and_writes(tmp_path: Path, log_dir: Path) -> None:
    pytest.importorskip("grpc", reason="pipelines run on Spark Connect")
    with isolog.connect(path=log_dir) as log:
        log.create_topic("numbers", schema=pa.schema({"n": pa.int64()}))
        with log.producer() as producer:
            producer.append("numbers", pa.record_batch({"n": pa.array(range(5), pa.int64())}))
        (tmp_path / "transformations").mkdir()
        (tmp_path / "spark-pipeline.yml").write_text(PIPELINE.format(folder=tmp_path))
        steps = tmp_path / "transformations" / "steps.py"
        steps.write_text(TRANSFORMATIONS.format(path=log_dir))
        environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
        environment["SPARK_TESTING"] = "1"  # the port of its Connect server is the system's
        done = subprocess.run(
            [Path(pyspark.__path__[0]) / "bin" / "spark-pipelines", "run"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        assert sorted(log.read("written")["n"].to_pylist()) == list(range(5))
