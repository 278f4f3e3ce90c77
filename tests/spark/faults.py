"""``format("isolog_faulty")``: the sink, with a fault at a chosen point, once.

The fault is in a query's option ``fault``. The option ``marks`` is a directory for signals between
it and its test: ``<fault>`` exists after the fault has happened, and a query that waits at a point
continues when ``go`` exists.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.datasource.options import SinkOptions, sink_options
from spark_stream.datasource.source import IsologDataSource
from spark_stream.datasource.writing import task
from spark_stream.datasource.writing.writer import IsologStreamWriter
from spark_stream.wire.transaction_messages import CommitTransaction

AT_BATCH = 1
"""Faults of a commit come at this batch: there is one before it, and one after."""

WAIT_S = 240.0
SLICE = 10


class Fault:
    """One fault, and the directory of its marks."""

    def __init__(self, name: str, marks: Path) -> None:
        self.name = name
        self._marks = marks

    def mark(self, text: str = "", name: str | None = None) -> bool:
        """Mark that the fault is reached. Return False if it was reached before."""
        try:
            with (self._marks / (name or self.name)).open("x") as out:
                out.write(text)
        except FileExistsError:
            return False
        return True

    def wait(self) -> None:
        """Wait until the test lets it continue, or kills this process."""
        deadline = time.monotonic() + WAIT_S
        while not (self._marks / "go").exists():
            if time.monotonic() > deadline:
                raise AssertionError(f"nobody ended the wait at {self.name!r}")
            time.sleep(0.01)


def killed_task(fault: Fault) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def failed_task(fault: Fault) -> None:
    raise RuntimeError("the task fails here")


def killed_broker(fault: Fault) -> None:
    os.kill(int((fault._marks / "broker").read_text()), signal.SIGKILL)


def waiting_task(fault: Fault) -> None:
    fault.wait()


IN_A_TASK: dict[str, Callable[[Fault], None]] = {
    "task killed": killed_task,
    "task fails": failed_task,
    "broker killed": killed_broker,
    "task waits": waiting_task,
}


class FaultyWriter(IsologStreamWriter):
    """The sink, with one fault."""

    def __init__(self, options: SinkOptions, schema: StructType, fault: Fault) -> None:
        super().__init__(options, schema)
        self._fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._in_a_task:
            task._COALESCED_BYTES = 1  # so that the rows before the fault are written
            iterator = self._faulty(iterator)
        return super().write(iterator)

    @property
    def _in_a_task(self) -> list[str]:
        return [name for name in IN_A_TASK if name in self._fault.name.split(" then ")]

    def _faulty(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for start in range(0, batch.num_rows, SLICE):
                for name in self._in_a_task if start >= 2 * SLICE else ():
                    if self._fault.mark(name=name):
                        time.sleep(0.2)  # the appended rows are under way
                        IN_A_TASK[name](self._fault)
                yield batch.slice(start, SLICE)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        here = batchId == AT_BATCH and self._fault.name.startswith("commit")
        if not here or not self._fault.mark():
            super().commit(messages, batchId)
            return
        if self._fault.name == "commit begins":
            self._fault.wait()
            super().commit(messages, batchId)
        elif self._fault.name == "commit is under way":
            _leave_unanswered(self._fault)
            super().commit(messages, batchId)
        elif self._fault.name == "commit is done":
            super().commit(messages, batchId)
            self._fault.wait()
        elif self._fault.name == "commit's reply is lost":
            super().commit(messages, batchId)
            raise ConnectionError("the reply is lost")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        super().abort(messages, batchId)
        Fault(f"abort {batchId}", self._fault._marks).mark(str(len(messages)))


def _leave_unanswered(fault: Fault) -> None:
    """Send the next commit of this process without waiting for its answer."""

    call = ClusterConnection.call

    def sent(self: ClusterConnection, asked: Any, *more: Any, **options: Any) -> Any:
        if not isinstance(asked, CommitTransaction):
            return call(self, asked, *more, **options)
        shared = self.link().connect(20)
        shared.channel.open("act", asked.wire_name.encode(), asked.to_bytes(), end=True)
        fault.wait()
        return None

    ClusterConnection.call = sent  # type: ignore[method-assign, assignment]


class FaultySource(IsologDataSource):
    """``format("isolog_faulty")``."""

    @classmethod
    def name(cls) -> str:
        return "isolog_faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = dict(self.options)
        fault = Fault(options.pop("fault"), Path(options.pop("marks")))
        return FaultyWriter(sink_options(options), schema, fault)
