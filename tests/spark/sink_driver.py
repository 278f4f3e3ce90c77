"""A separate Spark driver, for tests that kill it: ``python -m tests.spark.sink_driver FILE``.

The file is JSON: ``path`` of the log and ``source``, the directory of files that all queries read,
and for each of ``queries`` the topic ``to``, the ``fault``, ``checkpoint`` and ``marks``, and
perhaps more ``options``. What a query ended with is in its ``marks`` as ``ended``: nothing, or its
error. With ``foreach`` a query writes to two ``topics``, and waits between them. The driver goes on
until it is killed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.spark.conftest import session_builder
from tests.spark.faults import AT_BATCH, WAIT_S, Fault, FaultySource

FILES = 6
FILES_PER_BATCH = 2
ROWS_PER_BATCH = 100


def micro_batches(spark: SparkSession, source: str) -> DataFrame:
    """The rows of the files, in three micro-batches of two tasks, planned alike in every run."""
    reader = spark.readStream.schema("n bigint").option("maxFilesPerTrigger", FILES_PER_BATCH)
    return reader.parquet(source)


def both_sinks(
    spark: SparkSession,
    path: str,
    source: str,
    topics: list[str],
    checkpoint: Path,
    between: Callable[[int], None] = lambda batch_id: None,
) -> StreamingQuery:
    """A query that writes each micro-batch to two topics, once each, despite replays."""

    def write(batch: DataFrame, batch_id: int) -> None:
        for topic in topics:
            (
                batch.write.format("isolog")
                .mode("append")
                .option("path", path)
                .option("topic", topic)
                .option("sinkId", f"{checkpoint}-{topic}"[-100:])
                .option("batchId", str(batch_id))
                .save()
            )
            if topic != topics[-1]:
                between(batch_id)

    writer = micro_batches(spark, source).writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def main(file: Path) -> None:
    """Start the queries one after the other, each when the one before has reached its fault.

    Concurrent queries would each start Python workers. In sequence they share most of them.
    """
    job = json.loads(file.read_text())
    spark: SparkSession = session_builder("local[2,3]").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(FaultySource)
    if "foreach" in job:
        marks = Path(job["marks"])

        def between(batch_id: int) -> None:
            if batch_id == AT_BATCH:
                (marks / "between").touch()
                Fault("between", marks).wait()

        place, checkpoint = job["foreach"], Path(job["foreach"]["checkpoint"])
        both_sinks(spark, job["path"], job["source"], place["topics"], checkpoint, between)
    running = {}
    deadline = time.monotonic() + WAIT_S
    for query in job["queries"]:
        running[query["marks"]] = started = (
            micro_batches(spark, job["source"])
            .writeStream.format("isolog_faulty")
            .option("path", job["path"])
            .option("topic", query["to"])
            .option("fault", query["fault"])
            .option("marks", query["marks"])
            .option("checkpointLocation", query["checkpoint"])
            .options(**query.get("options", {}))
            .trigger(availableNow=True)
            .start()
        )
        while started.isActive and not Path(query["marks"], query["fault"]).exists():
            time.sleep(0.02)
    while time.monotonic() < deadline:
        for marks, query in list(running.items()):
            try:
                if not query.awaitTermination(0.05):
                    continue
                ended = ""
            except StreamingQueryException as error:
                ended = str(error)
            del running[marks]
            whole = Path(marks, "ended.part")
            whole.write_text(ended)
            whole.rename(Path(marks, "ended"))
        time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
