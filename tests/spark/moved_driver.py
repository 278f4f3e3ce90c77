"""A separate Spark driver with a copy, a join and counts by window, to be killed at any moment.

``python -m tests.spark.moved_driver LOG CHECKPOINTS``: the queries continue from their checkpoints,
and run until the driver is killed. With ``latest`` as a third argument there is one query instead:
a copy of the records that arrived after its start.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from tests.spark.conftest import session_builder

LEFT, RIGHT, LATEST = "left", "right", "latest"
COPIED, JOINED, COUNTED = "copied", "joined", "counted"
PER_TRIGGER = 150

LATE_WORKER = ("Python worker failed to connect back", "CANNOT_OPEN_SOCKET")
"""What Spark reports when a Python worker exceeds its ten seconds, as on a busy machine."""


def continued(writer: DataStreamWriter, query: StreamingQuery) -> StreamingQuery:
    """Return the query, started again if Spark gave up a Python worker. Raise its other errors."""
    failure = query.exception()
    if failure is None:
        return query
    if any(each in str(failure) for each in LATE_WORKER):
        return writer.start()
    raise failure


def main(log: str, checkpoints: str, only: str = "") -> None:
    spark = (
        session_builder("local[2]").config("spark.ui.showConsoleProgress", "false").getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")

    def stream(topic: str, start_at: str = "earliest") -> DataFrame:
        reader = spark.readStream.format("isolog").option("path", log).option("subscribe", topic)
        reader = reader.option("startingOffsets", start_at)
        return reader.option("maxOffsetsPerTrigger", PER_TRIGGER).load()

    running: list[tuple[DataStreamWriter, StreamingQuery]] = []

    def start(writer: DataStreamWriter, topic: str) -> None:
        """Start a query. The next one is started later, because each starts several workers."""
        writer = writer.option("checkpointLocation", str(Path(checkpoints, topic)))
        query = writer.start()
        while query.lastProgress is None:
            query = continued(writer, query)
            time.sleep(0.1)
        running.append((writer, query))

    def await_failure() -> None:
        while True:
            running[:] = [(writer, continued(writer, query)) for writer, query in running]
            time.sleep(0.1)

    def sink(frame: DataFrame, topic: str) -> None:
        writer = frame.writeStream.format("isolog").option("path", log)
        start(writer.option("topic", topic), topic)

    def write(counts: DataFrame, batch_id: int) -> None:
        writer = counts.write.format("isolog").mode("append").option("path", log)
        writer = writer.option("topic", COUNTED).option("sinkId", COUNTED)
        writer.option("batchId", str(batch_id)).save()

    if only == LATEST:
        sink(stream(LEFT, LATEST), COPIED)
        await_failure()
    sink(stream(LEFT).join(stream(RIGHT), "n"), JOINED)
    at = F.timestamp_seconds(F.col("n"))
    windows = stream(LEFT).groupBy(F.window(at, "100 seconds")).count()
    counts = windows.select(F.unix_timestamp("window.start").alias("start"), "count")
    start(counts.writeStream.outputMode("update").foreachBatch(write), COUNTED)
    sink(stream(LEFT), COPIED)
    await_failure()


if __name__ == "__main__":
    main(*sys.argv[1:])
