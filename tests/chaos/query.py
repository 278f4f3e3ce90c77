"""A streaming query that copies a topic into another, whatever becomes of their leaders."""

from __future__ import annotations

import threading
from pathlib import Path

import pandas as pd
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import spark_stream as isolog
from spark_stream.testing import LocalCluster
from tests.chaos.workers import SCHEMA
from tests.replication.clusters import patiently
from tests.spark.conftest import session_builder

SOURCE, TARGET = "t", "copied"
_STARTS_MAX = 20
_LOOK_S = 0.5


class Copy:
    """The query: begun again from its checkpoint when it fails, as a supervisor would do."""

    def __init__(self, cluster: LocalCluster, log: isolog.Log, config: dict[str, object]) -> None:
        log.create_topic(TARGET, 3, 3, schema=SCHEMA, config=config)
        self.failures: list[str] = []
        self._bootstrap = cluster.bootstrap
        self._checkpoint = cluster.folder / "checkpoint"
        self._spark: SparkSession = (
            session_builder("local[2]")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        self._spark.sparkContext.setLogLevel("OFF")
        self._calm = threading.Event()
        self._query = self._begun()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self._supervisor.start()

    def finish(self) -> None:
        """Copies what there is, and ends; for when all brokers are there again."""
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

    def close(self) -> None:
        """Lets go of Spark."""
        self._calm.set()
        self._spark.stop()

    def problems(self, log: isolog.Log) -> list[str]:
        """What the copy has otherwise than its source, as read_committed sees both."""
        source, copied = (self._content(log, topic) for topic in (SOURCE, TARGET))
        both = source.merge(copied, how="outer", on=list(SCHEMA.names), suffixes=("", "_copied"))
        wrong = both[both["times"].fillna(0) != both["times_copied"].fillna(0)]
        if not len(wrong):
            return []
        return [f"the copy is not its source: {len(wrong)} records, first\n{wrong.head(5)}"]

    def _content(self, log: isolog.Log, topic: str) -> pd.DataFrame:
        table = patiently(lambda: log.read(topic, isolation="read_committed"))
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
        while not self._calm.wait(_LOOK_S):
            error = self._query.exception()
            if error is None:
                continue
            self.failures.append(str(error))
            if len(self.failures) > _STARTS_MAX:
                return
            self._query = self._begun()
