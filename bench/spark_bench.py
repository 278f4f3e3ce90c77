"""Spark: streaming read, streaming write and small micro-batches, each next to its ceiling."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import spark_stream as isolog
from bench.records import batch_of
from bench.results import Results
from bench.sources import CeilingSource

ROWS = 4_000_000
RANGES = 64
"""Partitions of a topic whose ranges of ``RANGE_ROWS`` share tasks."""
RANGE_ROWS = 20_000
SMALL = 20


def session(jars: Sequence[Path] = ()) -> SparkSession:
    """Two cores, with the settings of conf/spark-defaults.conf that matter here."""
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("isolog bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .config(
            "spark.sql.streaming.checkpointFileManagerClass",
            "org.apache.spark.sql.execution.streaming.checkpointing"
            ".FileSystemBasedCheckpointFileManager",
        )
        .config("spark.jars", ",".join(map(str, jars)))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    # After another session was stopped, the new one is not active by itself.
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
    spark.dataSource.register(CeilingSource)
    return spark


class Bench:
    """One Spark session and one embedded broker for all Spark measurements."""

    def __init__(self, spark: SparkSession, place: Path, results: Results) -> None:
        self._spark = spark
        self._place = place
        self._results = results
        self._path = str(place / "log")

    def run(self, log: isolog.Log, rounds: int) -> None:
        for columns in ("value", "kafka"):
            self._fill(log, f"read-{columns}", columns, ROWS, partitions=2)
            self._paired(
                f"streaming read, {columns} columns",
                "rows/s",
                lambda columns=columns: self._rate(self._ceiling(columns)),
                lambda columns=columns: self._rate(self._topic(f"read-{columns}")),
                rounds,
            )
        rows = RANGES * RANGE_ROWS
        self._fill(log, "read-ranges", "value", rows, partitions=RANGES)
        self._paired(
            f"streaming read, {RANGES} small ranges in shared tasks",
            "rows/s",
            lambda: self._rate(self._ceiling("value", rows)),
            lambda: self._rate(self._topic("read-ranges")),
            rounds,
        )
        log.create_topic("written", partitions=2, schema=batch_of("value", 1).schema)
        for name, transactional in (("exactly once", True), ("at least once", False)):
            self._paired(
                f"streaming write, {name}",
                "rows/s",
                lambda: self._rate(self._ceiling("value"), sink="ceiling"),
                lambda transactional=transactional: self._rate(
                    self._ceiling("value"), sink="isolog", transactional=transactional
                ),
                rounds,
            )
        self._small(log)
        self._commits(log)

    def _fill(
        self, log: isolog.Log, topic: str, columns: str, rows: int, *, partitions: int
    ) -> None:
        typed = columns == "value"
        schema = batch_of("value", 1).schema if typed else None
        log.create_topic(topic, partitions=partitions, schema=schema)
        batch = batch_of("value" if typed else "keyed", RANGE_ROWS)
        with log.producer() as producer:
            for number in range(rows // RANGE_ROWS):
                producer.append(topic, batch, partition=number % partitions)

    def _ceiling(self, columns: str, rows: int = ROWS) -> DataFrame:
        reader = self._spark.readStream.format("ceiling")
        return reader.options(rows=rows, columns=columns, batches=1).load()

    def _topic(self, topic: str) -> DataFrame:
        reader = self._spark.readStream.format("isolog").option("path", self._path)
        return reader.option("subscribe", topic).load()

    def _rate(self, frame: DataFrame, sink: str = "noop", *, transactional: bool = True) -> float:
        """Rows a second of the first micro-batch with rows, planning and commit left out."""
        writer = frame.writeStream.format(sink)
        if sink == "isolog":
            writer = writer.option("path", self._path).option("topic", "written")
            writer = writer.option("transactional", transactional)
        with tempfile.TemporaryDirectory(dir=self._place) as checkpoint:
            query = writer.option("checkpointLocation", checkpoint).start()
            try:
                progress = _first_with_rows(query)
            finally:
                query.stop()
        return progress["numInputRows"] / (progress["durationMs"]["addBatch"] / 1000)

    def _paired(
        self,
        name: str,
        unit: str,
        ceiling: Callable[[], float],
        measured: Callable[[], float],
        rounds: int,
    ) -> None:
        ceiling(), measured()  # warm: workers, caches, code generation
        pairs = [(ceiling(), measured()) for _ in range(rounds)]
        self._results.add(
            name,
            unit,
            measured=statistics.median(pair[1] for pair in pairs),
            ceiling=statistics.median(pair[0] for pair in pairs),
        )

    def _small(self, log: isolog.Log) -> None:
        """A micro-batch of 20 rows: the whole trigger, to ``noop``."""
        log.create_topic("small", partitions=1, schema=batch_of("value", 1).schema)
        few = batch_of("value", SMALL)
        rounds = 60
        with log.producer() as producer:
            for _ in range(rounds):
                producer.append("small", few, partition=0)
        reader = self._spark.readStream.format("isolog").option("path", self._path)
        ours = reader.option("subscribe", "small").option("maxOffsetsPerTrigger", SMALL).load()
        bound = self._spark.readStream.format("ceiling")
        theirs = bound.options(rows=SMALL, tasks=1, batches=rounds, batchrows=SMALL).load()
        medians = {}
        for name, frame in (
            ("ceiling", theirs),
            ("isolog", ours),
            ("ceiling", theirs),
            ("isolog", ours),
        ):
            with tempfile.TemporaryDirectory(dir=self._place) as checkpoint:
                writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
                query = writer.trigger(availableNow=True) if name == "isolog" else writer
                query = query.start()
                if name == "isolog":
                    query.awaitTermination(120)
                else:
                    _until(lambda query=query: len(_with_rows(query)) >= rounds, 120)
                took = [each["durationMs"]["triggerExecution"] for each in _with_rows(query)[10:]]
                query.stop()
            medians[name] = statistics.median(took)
        self._results.add(
            "micro-batch of 20 rows",
            "ms",
            measured=medians["isolog"],
            ceiling=medians["ceiling"],
            note=f"{medians['isolog'] - medians['ceiling']:+.0f} ms over the ceiling",
        )

    def _commits(self, log: isolog.Log, rounds: int = 60) -> None:
        """A micro-batch of 20 rows into a topic: the whole trigger, exactly and at least once."""
        log.create_topic("committed", schema=batch_of("value", 1).schema)
        few = self._spark.readStream.format("ceiling")
        frame = few.options(rows=SMALL, tasks=1, batches=rounds, batchrows=SMALL).load()
        medians: dict[bool, float] = {}
        for transactional in (False, True, False, True):
            with tempfile.TemporaryDirectory(dir=self._place) as checkpoint:
                writer = frame.writeStream.format("isolog").option("path", self._path)
                writer = writer.option("topic", "committed").option("transactional", transactional)
                query = writer.option("checkpointLocation", checkpoint).start()
                _until(lambda query=query: len(_with_rows(query)) >= rounds, 120)
                took = [each["durationMs"]["triggerExecution"] for each in _with_rows(query)[10:]]
                query.stop()
            medians[transactional] = statistics.median(took)
        self._results.add(
            "micro-batch of 20 rows into a topic, exactly once",
            "ms",
            measured=medians[True],
            ceiling=medians[False],
            note=f"{medians[True] - medians[False]:+.0f} ms over at least once",
        )


def _with_rows(query: StreamingQuery) -> list[dict]:
    return [each for each in query.recentProgress if each["numInputRows"]]


def _first_with_rows(query: StreamingQuery) -> dict:
    _until(lambda: bool(_with_rows(query)), 120)
    return _with_rows(query)[0]


def _until(holds: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("the query made no progress")
        time.sleep(0.05)
