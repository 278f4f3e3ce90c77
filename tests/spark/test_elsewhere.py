"""Executors on another host, where the driver's path is another directory, or missing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, DataSourceWriter
from pyspark.sql.types import StructType

import isolog
from spark_stream.datasource import IsologDataSource
from spark_stream.datasource.options import SinkOptions, SourceOptions
from tests.spark.conftest import Queries


def moved(options: SourceOptions | SinkOptions) -> dict[str, object]:
    """Return the options as if a driver on another host had planned."""
    return {"options": replace(options, place=replace(options.place, host="another-boot-id"))}


class ElsewhereSource(IsologDataSource):
    """``format("isolog_elsewhere")``: isolog, planned on another host than its tasks run on."""

    @classmethod
    def name(cls) -> str:
        return "isolog_elsewhere"

    def reader(self, schema: StructType) -> DataSourceReader:
        reader = super().reader(schema)
        reader._ranges = replace(reader._ranges, **moved(reader._ranges.options))
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        writer = super().writer(schema, overwrite)
        writer._task = replace(writer._task, **moved(writer._task.options))
        return writer


@pytest.mark.full  # without a JVM: tests/datasource/spark/test_session.py
def test_tasks_on_another_host_than_the_path_is_on_read_and_write_nothing(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str
) -> None:
    spark.dataSource.register(ElsewhereSource)
    queries.write(spark.sql("select id as n from range(3)"), topic, createTopic=True)
    reader = spark.read.format("isolog_elsewhere").option("path", queries.path)
    writer = spark.range(3).selectExpr("id as n").write.format("isolog_elsewhere").mode("append")
    for work in (
        lambda: reader.option("subscribe", topic).load().collect(),
        lambda: writer.option("path", queries.path).option("topic", topic).save(),
    ):
        with pytest.raises(PythonException, match="runs on another host") as caught:
            work()
        assert "give bootstrap=HOST:PORT instead of path" in str(caught.value)
    assert log.read(topic).num_rows == 3
