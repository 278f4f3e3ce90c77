"""A job whose executors lack modules, run by test_cluster.

It reads and writes, in batch and as a stream, existing topics and new ones, or makes only the named
attempts. It writes the error of each to a JSON file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession


def main(path: str, folder: str, *names: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    source = {"path": path, "subscribe": "numbers", "maxRecordsPerPartition": "100"}
    numbers = spark.range(0, 1000, 1, 4).selectExpr("id AS n")
    stream = spark.readStream.format("isolog").options(**source).load()

    def write() -> None:
        numbers.write.format("isolog").mode("append").options(path=path, topic="target").save()

    def read() -> None:
        spark.read.format("isolog").options(**source).load().collect()

    def write_stream() -> None:
        numbers.write.parquet(f"{folder}/numbers")
        files = spark.readStream.schema("n bigint").parquet(f"{folder}/numbers")
        sink = files.writeStream.format("isolog").options(path=path, topic="target")
        sink = sink.option("checkpointLocation", f"{folder}/sink").trigger(availableNow=True)
        sink.start().awaitTermination()

    def read_stream() -> None:
        sink = stream.writeStream.format("noop").trigger(availableNow=True)
        sink.option("checkpointLocation", f"{folder}/source").start().awaitTermination()

    attempts: tuple[Callable[[], None], ...] = (write, read, write_stream, read_stream)
    told = {}
    for attempt in attempts:
        if names and attempt.__name__ not in names:
            continue
        try:
            attempt()
            told[attempt.__name__] = ""
        except Exception as error:
            told[attempt.__name__] = str(error)
    Path(folder, "told.json").write_text(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
