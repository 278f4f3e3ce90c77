"""A job for several executors, run by test_cluster.

It writes a topic, streams it into another over all executors, and reads that one. It writes the
rows, and the executor that wrote each, to a JSON file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

EXECUTOR = "reflect('java.lang.System', 'getProperty', 'user.dir') AS executor"


def main(path: str, folder: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    committed = {"path": path, "isolation": "read_committed"}
    made = {"path": path, "createTopic": "true", "partitions": "4"}
    numbers = spark.range(0, 1000, 1, 4).selectExpr("id AS n")
    numbers.write.format("isolog").mode("append").options(**made, topic="numbers").save()
    copied = (
        spark.readStream.format("isolog")
        .options(**committed, subscribe="numbers", maxRecordsPerPartition="100")
        .load()
        .selectExpr("n", EXECUTOR)  # the executor that reads a row also writes it
        .writeStream.format("isolog")
        .options(**made, topic="copy", checkpointLocation=f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    assert copied.awaitTermination(200)
    rows = spark.read.format("isolog").options(**committed, subscribe="copy").load().collect()
    told = {"n": sorted(row.n for row in rows), "by": sorted({row.executor for row in rows})}
    Path(folder, "told.json").write_text(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
