"""The ceilings: a Python source and sink without I/O, with the columns of what they bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

VALUE_BYTES = 100
SCHEMAS = {
    "value": "value binary",
    "kafka": (
        "key binary, value binary, topic string, partition int, offset bigint,"
        " timestamp timestamp, timestampType int"
    ),
}


def values(rows: int, size: int = VALUE_BYTES) -> pa.Array:
    """Binary values of one size that no compression could shrink."""
    data = np.random.default_rng(7).bytes(rows * size)
    offsets = np.arange(0, (rows + 1) * size, size, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def batch_of(columns: str, rows: int) -> pa.RecordBatch:
    """A batch with the columns of ``SCHEMAS[columns]``."""
    if columns == "value":
        return pa.record_batch({"value": values(rows)})
    moments = pa.array(np.arange(rows), pa.int64()).cast(pa.timestamp("us", "UTC"))
    return pa.record_batch(
        {
            "key": pa.nulls(rows, pa.binary()),
            "value": values(rows),
            "topic": pa.repeat(pa.scalar("bench"), rows),
            "partition": pa.array(np.zeros(rows, np.int32)),
            "offset": pa.array(np.arange(rows)),
            "timestamp": moments,
            "timestampType": pa.array(np.zeros(rows, np.int32)),
        }
    )


class CeilingReader(DataSourceStreamReader):
    """``rows`` rows a micro-batch in ``tasks`` tasks, made of one batch again and again."""

    def __init__(self, options: dict[str, str]) -> None:
        self._rows = int(options["rows"])
        self._tasks = int(options.get("tasks", "2"))
        self._batch_rows = int(options.get("batchrows", "20000"))
        self._columns = options.get("columns", "value")
        self._at = 0
        self._limit = int(options.get("batches", "1000000"))

    def initialOffset(self) -> dict[str, Any]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"at": min(self._limit, start["at"] + 1)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        each = self._rows // self._tasks
        return [InputPartition(each) for _ in range(self._tasks) if start["at"] < end["at"]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = partition.value
        batch = batch_of(self._columns, min(left, self._batch_rows))
        while left:
            rows = min(left, batch.num_rows)
            yield batch.slice(0, rows)
            left -= rows


class CountingWriter(DataSourceStreamArrowWriter):
    """Takes the rows and counts them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for batch in iterator:
            _ = batch.num_rows
        return WriterCommitMessage()

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

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return CeilingReader(dict(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return CountingWriter()
