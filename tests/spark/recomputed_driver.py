"""A Spark driver with two executors that has tasks of the source computed again.

``python -m tests.spark.recomputed_driver ADDRESS FOLDER``. It writes to FOLDER/told.json the rows
of a salted repartition whose executor is killed after some of them, and the errors of a micro-batch
that is committed and then replayed, each or null.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from tests.spark.conftest import ended, session_builder

REPLAYS = 2
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


def main(address: str, folder: Path) -> None:
    builder = session_builder("local-cluster[2,1,1024]")
    # Both executors compute map tasks, and no reduce task computes several partitions.
    for name, value in {
        "spark.sql.adaptive.enabled": "false",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    options = {"bootstrap": address, "subscribe": "t", "isolation": "read_committed"}
    mark, executor = folder / "killed", EXECUTOR

    def kill_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Kill the executor of a late reduce task, and with it the results of its map tasks."""
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() >= 2 and not mark.exists():
            mark.touch()
            for each in psutil.Process().parents():
                if executor in each.cmdline():
                    each.kill()
        yield from batches

    read = spark.read.format("isolog").options(**options, maxRecordsPerPartition="7500")
    salted = read.load().selectExpr("n", "floor(rand(7) * 4) AS salt").repartition(4, "salt")
    rows = sorted(row.n for row in salted.mapInArrow(kill_once, "n bigint, salt bigint").collect())
    assert mark.exists()

    def write_half(batch: DataFrame, batch_id: int) -> None:
        writer = batch.where("rand(7) < 0.5").write.format("isolog").mode("append")
        once = {"sinkId": "half", "batchId": str(batch_id)}
        writer.options(bootstrap=address, topic="half", **once).save()

    def copied() -> str | None:
        numbers = spark.readStream.format("isolog").options(**options).load()
        writer = numbers.writeStream.foreachBatch(write_half)  # elsewhere rand(7) has another seed
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        return ended(writer.trigger(availableNow=True).start())

    errors = [copied()]
    for _ in range(REPLAYS):
        for file in (folder / "checkpoint" / "commits").iterdir():
            file.unlink()
        errors.append(copied())
    (folder / "told.json").write_text(json.dumps({"rows": rows, "errors": errors}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
