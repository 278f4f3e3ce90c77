"""The planned faults of the flights demo: a micro-batch fails, and a load is aborted.

Both leave records in the log that no query under read_committed ever sees. Their number follows
from the demo's actions, without a look into the log. So the demo can predict every count. (The
death of a leader, in ``flights_brokers``, changes no count.)

Spark's workers import this module too, which the demo sends to them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

import isolog

FAILING_BATCH = 1
FAILING_TASK = 1  # of a micro-batch's two files, and tasks, the second
WAIT_S = 30.0
POLL_S = 0.05

WRONG_CARRIER = "ZZ"
WRONG_FLIGHTS = 5_000
BATCH_ROWS = 1_000


class PlannedFailure(Exception):
    """A planned failure of a task."""


@dataclass(frozen=True)
class Stumble:
    """One task of one micro-batch fails, as long as ``mark`` is a file.

    It fails only after all other rows of its micro-batch are in the log, so that the failed attempt
    leaves exactly these. ``ends``: the number of the topic's records after the micro-batch. The
    task writes the number of its rows, which never get to the log, to ``mark``.
    """

    place: dict[str, str]
    topic: str
    mark: Path
    ends: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For ``DataFrame.mapInArrow``: the unchanged rows."""
        task = TaskContext.get()
        assert task is not None
        number = task.getLocalProperty("streaming.sql.batchId")
        chosen = number == str(FAILING_BATCH) and task.partitionId() == FAILING_TASK
        if not (chosen and self.mark.exists()):
            yield from batches
            return
        own = sum(batch.num_rows for batch in batches)
        self._wait_for(self.ends - own)
        self.mark.write_text(str(own))
        raise PlannedFailure(f"one of the tasks of micro-batch {FAILING_BATCH} fails, as planned")

    def _wait_for(self, records: int) -> None:
        deadline = time.monotonic() + WAIT_S
        with isolog.connect(**self.place) as log:
            while sum(log_ends(log, self.topic).values()) < records:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self.topic} did not come to {records} records")
                time.sleep(POLL_S)


class Hush:
    """Keeps Spark's output about the planned failure off standard error, until it is lifted.

    The task's error would be logged several times, and a Python worker gets a broken pipe. The JVM
    passes the output of workers to its standard error at the start of the first one.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm = spark.sparkContext._jvm
        java = self._jvm.java
        self._shown = java.lang.System.err
        java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))
        self._log_from("FATAL")

    def lift(self) -> None:
        """Log only errors: warnings would come between the lines of progress."""
        self._jvm.java.lang.System.setErr(self._shown)
        self._log_from("ERROR")

    def _log_from(self, level: str) -> None:
        log4j = self._jvm.org.apache.logging.log4j
        root, least = log4j.LogManager.ROOT_LOGGER_NAME, log4j.Level.toLevel(level)
        log4j.core.config.Configurator.setAllLevels(root, least)


class WrongLoad:
    """Flights of an invented airline, in one transaction that is never committed."""

    def __init__(self, log: isolog.Log, topic: str, flights: pa.Table) -> None:
        self._producer = log.producer(transactional_id=f"wrong-load/{time.time_ns()}")
        self.open = True
        self._producer.begin_transaction()
        wrong = flights.slice(0, WRONG_FLIGHTS)
        carrier = pa.array([WRONG_CARRIER] * wrong.num_rows)
        wrong = wrong.set_column(wrong.schema.get_field_index("carrier"), "carrier", carrier)
        written = [
            self._producer.append(topic, batch)
            for batch in wrong.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)
        ]
        self._producer.flush()
        self.records = sum(each.result().count for each in written)
        """The number of acknowledged records."""

    def abort(self) -> None:
        """Abort it."""
        self._producer.abort_transaction()
        self._producer.close()
        self.open = False


def log_ends(log: isolog.Log, topic: str) -> dict[int, int]:
    """Partition → log end offset. Empty if there is no such topic.

    Only a leader has the end of its log. While a partition has no leader, this waits for one.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            found = log.describe(topic).partitions
        except isolog.errors.UnknownTopic:
            return {}
        unknown = next((each.error for each in found if each.error is not None), None)
        if unknown is None:
            return {each.partition: each.log_end_offset for each in found}
        if time.monotonic() > deadline:
            raise unknown
        time.sleep(POLL_S)
