"""Facts of Spark that the connector leans on (docs/spark.md); a change in one shows here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType


def test_the_format_is_known_without_registration(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="where is the log"):
        spark.read.format("isolog").load()


def test_load_with_a_path_option_is_refused_by_spark_itself(
    spark: SparkSession, shared_path: Path
) -> None:
    with pytest.raises(AnalysisException, match="'path' or 'paths' option set and load"):
        spark.read.format("isolog").option("path", str(shared_path)).load("topic")


class Told(DataSourceStreamReader):
    """Ten rows a batch for two batches; writes down what Spark asks."""

    def __init__(self, options: dict[str, str]) -> None:
        self._told = Path(options["told"])

    def _tell(self, what: str, *values: object) -> None:
        with self._told.open("a") as out:
            out.write(json.dumps([what, *values]) + "\n")

    def initialOffset(self) -> dict[str, Any]:
        self._tell("initialOffset")
        return {"at": 0}

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:
        self._tell("latestOffset", start, type(limit).__name__)
        return {"at": min(20, start["at"] + 10)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._tell("partitions", start, end)
        return [InputPartition((start["at"], end["at"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": pa.array(range(*partition.value), pa.int64())})

    def reportLatestOffset(self) -> dict[str, Any]:
        return {"at": 99}


class Writes(DataSourceStreamArrowWriter):
    """Writes down what a task and a commit can know."""

    def __init__(self, options: dict[str, str], arguments: list[str]) -> None:
        self._told = Path(options["told"])
        self._arguments = arguments

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        rows = [batch.num_rows for batch in iterator]
        names = ("streaming.sql.batchId", "sql.streaming.queryId")
        known = [context.getLocalProperty(name) for name in names]
        with self._told.open("a") as out:
            out.write(json.dumps(["write", rows, *known]) + "\n")
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with self._told.open("a") as out:
            out.write(json.dumps(["commit", len(messages), batchId]) + "\n")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with self._told.open("a") as out:
            out.write(json.dumps(["abort", len(messages), batchId]) + "\n")


class TellingSource(DataSource):
    """``format("telling")``."""

    @classmethod
    def name(cls) -> str:
        return "telling"

    def schema(self) -> str:
        return "n bigint"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return Told(dict(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return Writes(dict(self.options), schema.fieldNames())


@pytest.fixture
def told(spark: SparkSession, tmp_path: Path) -> list[list[Any]]:
    """What Spark asked of a source and a sink in one run of a query."""
    spark.dataSource.register(TellingSource)
    path = tmp_path / "told"
    query = (
        spark.readStream.format("telling")
        .option("told", str(path))
        .load()
        .writeStream.format("telling")
        .option("told", str(path))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(once=True)
        .start()
    )
    query.awaitTermination(60)
    assert query.exception() is None
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines.append(["progress", query.lastProgress["sources"][0]["latestOffset"]])
    return lines


def calls(told: list[list[Any]], what: str) -> list[list[Any]]:
    return [line[1:] for line in told if line[0] == what]


def test_the_initial_offset_is_asked_for_more_than_once(told: list[list[Any]]) -> None:
    assert len(calls(told, "initialOffset")) >= 2


def test_trigger_once_asks_for_all_that_is_available(told: list[list[Any]]) -> None:
    assert {limit for _, limit in calls(told, "latestOffset")} == {"ReadAllAvailable"}


def test_a_task_knows_its_micro_batch_by_a_local_property(told: list[list[Any]]) -> None:
    rows, batch_id, query_id = calls(told, "write")[0]
    assert sum(rows) == 10
    assert batch_id == "0"
    assert query_id


def test_a_commit_gets_the_batch_id(told: list[list[Any]]) -> None:
    assert calls(told, "commit") == [[1, 0]]


def test_what_a_reader_reports_is_the_latest_offset_of_the_progress(told: list[list[Any]]) -> None:
    latest = calls(told, "progress")[0][0]
    assert (json.loads(latest) if isinstance(latest, str) else latest) == {"at": 99}


class OffType(DataSource):
    """Yields a column in another type than it said."""

    @classmethod
    def name(cls) -> str:
        return "offtype"

    def schema(self) -> str:
        return "items array<int>"

    def reader(self, schema: StructType) -> Any:
        from pyspark.sql.datasource import DataSourceReader

        class Reader(DataSourceReader):
            def partitions(self) -> list[InputPartition]:
                return [InputPartition(0)]

            def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
                yield pa.record_batch({"items": pa.array([[1]], pa.list_(pa.int64()))})

        return Reader()


def test_the_first_batch_must_have_sparks_schema_to_the_letter(spark: SparkSession) -> None:
    spark.dataSource.register(OffType)
    with pytest.raises(PythonException, match="DATA_SOURCE_RETURN_SCHEMA_MISMATCH"):
        spark.read.format("offtype").load().collect()
