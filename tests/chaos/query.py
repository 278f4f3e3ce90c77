"""A streaming query that copies a topic into another, while their leaders fail."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pyarrow as pa
from msgspec import Struct
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import isolog
from isolog.testing import LocalCluster
from tests.chaos.workers import SCHEMA, Notes
from tests.histories.writing import HistoryWriter
from tests.spark.conftest import session_builder
from tests.system.replication.clusters import with_retries

SOURCE, TARGET = "t", "copied"
_STARTS_MAX = 20
_LOSS = "DATA_LOSS"
_LOOK_S = 0.5
_FILE_CLOCK_NS = 10_000_000  # a file may be written this much later than its recorded time


_Places = dict[str, tuple[int, int]]
"""(partition, offset) of each record."""


class _MicroBatch(Struct):
    """One transaction of the query: its number, and the times of its plan and of its commit."""

    number: int
    called: int
    returned: int | None

    def write(
        self,
        history: HistoryWriter,
        at: int,
        start: int,
        end: int,
        source: _Places,
        copied: _Places,
    ) -> None:
        """Write the planned range of a partition, and the output for it.

        The records that it read are derived from its output.
        """
        planned = {
            offset: record
            for record, (partition, offset) in source.items()
            if partition == at and start <= offset < end
        }
        for record in planned.values():
            history.write(
                "append",
                client="copy",
                topic=TARGET,
                partition=copied.get(record, (0, 0))[0],
                call=self.called,
                **{"return": self.returned},
                outcome="unknown" if self.returned is None else "ok",
                values=[f"{TARGET}/{record}"],
                transaction=f"{TARGET} {self.number}",
                acks="replicated",
            )
        if self.returned is None:
            return
        history.write(
            "read",
            client="copy",
            topic=SOURCE,
            partition=at,
            call=self.called,
            **{"return": self.returned, "from": start},
            to=end,
            isolation="read_committed",
            records=[
                [offset, planned[offset]] for offset in sorted(planned) if planned[offset] in copied
            ],
        )

    def write_commit(self, history: HistoryWriter) -> None:
        history.write(
            "commit",
            client="copy",
            transaction=f"{TARGET} {self.number}",
            call=self.called,
            **{"return": self.returned},
            outcome="unknown" if self.returned is None else "ok",
        )


def _offsets_of(table: pa.Table) -> _Places:
    columns = (table[name].to_pylist() for name in ("writer", "number", "_partition", "_offset"))
    return {
        f"{writer}/{number}": (at, offset)
        for writer, number, at, offset in zip(*columns, strict=True)
    }


def _moment(path: Path) -> int:
    """Return the time of a file's write, on the clock of histories, or a little earlier."""
    return path.stat().st_mtime_ns - time.time_ns() + time.monotonic_ns()


class Copy:
    """The query. After a failure it restarts from its checkpoint, as with a supervisor."""

    def __init__(self, cluster: LocalCluster, log: isolog.Log, config: dict[str, object]) -> None:
        log.create_topic(TARGET, 3, 3, schema=SCHEMA, config=config)
        self.failures: list[str] = []
        self.target = TARGET
        self._bootstrap = cluster.bootstrap
        self._checkpoint = cluster.folder / "checkpoint"
        self._spark: SparkSession = (
            session_builder("local[2]")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.streaming.minBatchesToRetain", "100000")  # histories have all
            .getOrCreate()
        )
        self._spark.sparkContext.setLogLevel("OFF")
        self._calm = threading.Event()
        self._query = self._begun()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self._supervisor.start()

    def finish(self) -> None:
        """Copy the rest, and end. All brokers must be back."""
        self._calm.set()
        self._supervisor.join()
        try:
            self._query.processAllAvailable()
        except StreamingQueryException as error:
            self.failures.append(str(error))
            self._query = self._begun()
            self._query.processAllAvailable()
        finally:
            self._query.stop()

    def write_history(self, notes: Notes, tables: Mapping[str, pa.Table]) -> None:
        """Write the input and output of each micro-batch, from its checkpoint and topics.

        ``tables``: the final content of both topics, read_atomic.
        """
        if notes.history is None:
            return
        source, copied = (_offsets_of(tables[topic]) for topic in (SOURCE, self.target))
        starts: dict[int, int] = {}
        for number in sorted(
            int(each.name) for each in (self._checkpoint / "offsets").glob("[0-9]*")
        ):
            planned = self._checkpoint / "offsets" / str(number)
            done = self._checkpoint / "commits" / str(number)
            told = json.loads(planned.read_text().splitlines()[-1])[SOURCE]["partitions"]
            ends = {int(at): facts["offset"] for at, facts in told.items()}
            batch = _MicroBatch(
                number, _moment(planned), _moment(done) + _FILE_CLOCK_NS if done.exists() else None
            )
            for at, end in ends.items():
                batch.write(notes.history, at, starts.get(at, 0), end, source, copied)
            batch.write_commit(notes.history)
            starts |= ends

    def close(self) -> None:
        """Stop Spark."""
        self._calm.set()
        self._spark.stop()

    def problems(self, log: isolog.Log) -> list[str]:
        """Return the differences of the copy from its source, at read_committed."""
        source, copied = (self._content(log, topic) for topic in (SOURCE, TARGET))
        both = source.merge(copied, how="outer", on=list(SCHEMA.names), suffixes=("", "_copied"))
        wrong = both[both["times"].fillna(0) != both["times_copied"].fillna(0)]
        # It reads committed records only.
        found = [f"false alarm of the query: {each}" for each in self.failures if _LOSS in each]
        if len(wrong):
            found.append(
                f"the copy is not its source: {len(wrong)} records, first\n{wrong.head(5)}"
            )
        return found

    def _content(self, log: isolog.Log, topic: str) -> pd.DataFrame:
        table = with_retries(lambda: log.read(topic, isolation="read_committed"))
        return table.to_pandas().groupby(SCHEMA.names).size().rename("times").reset_index()

    def _begun(self) -> StreamingQuery:
        return (
            self._spark.readStream.format("isolog")
            .option("bootstrap", self._bootstrap)
            .option("subscribe", SOURCE)
            .option("isolation", "read_committed")
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.format("isolog")
            .option("bootstrap", self._bootstrap)
            .option("topic", TARGET)
            .option("checkpointLocation", str(Path(self._checkpoint)))
            .trigger(processingTime="200 milliseconds")
            .start()
        )

    def _supervise(self) -> None:
        # Spark looks for Python data sources in the active session of the thread.
        self._spark._jvm.SparkSession.setActiveSession(self._spark._jsparkSession)
        while not self._calm.wait(_LOOK_S):
            error = self._query.exception()
            if error is None:
                continue
            self.failures.append(str(error))
            if len(self.failures) > _STARTS_MAX:
                return
            try:
                self._query = self._begun()
            except Exception as failure:  # the next round tries again
                self.failures.append(f"the query does not start again: {failure}")
