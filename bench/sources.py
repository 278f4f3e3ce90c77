"""The ceilings: a Python source and sink without I/O, with the columns of what they bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from bench.records import SCHEMAS, batch_of


class Rows:
    """``rows`` rows in ``tasks`` tasks, from one repeated batch."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._rows = int(options["rows"])
        self._tasks = int(options.get("tasks", "2"))
        self._batch_rows = int(options.get("batchrows", "20000"))
        self._columns = options.get("columns", "value")
        self._names = schema.fieldNames()

    def tasks(self) -> list[InputPartition]:
        return [InputPartition(self._rows // self._tasks) for _ in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = partition.value
        batch = batch_of(self._columns, min(left, self._batch_rows)).select(self._names)
        while left:
            rows = min(left, batch.num_rows)
            yield batch.slice(0, rows)
            left -= rows


class CeilingReader(Rows, DataSourceReader):
    """The rows, once."""

    def partitions(self) -> list[InputPartition]:
        return self.tasks()


class CeilingStreamReader(Rows, DataSourceStreamReader):
    """The rows in each of ``batches`` micro-batches."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        self._limit = int(options.get("batches", "1000000"))

    def initialOffset(self) -> dict[str, Any]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"at": min(self._limit, start["at"] + 1)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return self.tasks() if start["at"] < end["at"] else []


class Counts:
    """Counts the rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for batch in iterator:
            _ = batch.num_rows
        return WriterCommitMessage()


class CountingWriter(Counts, DataSourceArrowWriter):
    """A batch job's."""


class CountingStreamWriter(Counts, DataSourceStreamArrowWriter):
    """A query's."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass


class CeilingSource(DataSource):
    """``format("ceiling")``."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return SCHEMAS[self.options.get("columns", "value")]

    def reader(self, schema: StructType) -> DataSourceReader:
        return CeilingReader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return CeilingStreamReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return CountingWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return CountingStreamWriter()
