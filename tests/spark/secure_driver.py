"""A Spark driver with two executors and two streams, at a cluster with authentication.

``python -m tests.spark.secure_driver FOLDER``. FOLDER has ``options.json``: the options of the
stream that writes ``t``, and of the one that copies it to ``u``. It goes on until FOLDER has
``stop``: the first stream is stopped wherever it is, and started again to finish its batch.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from tests.spark.conftest import session_builder

ROWS_PER_BATCH = 100


def main(folder: Path) -> None:
    writing, copying = json.loads((folder / "options.json").read_text())
    spark = session_builder("local-cluster[2,1,1024]").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")

    def start(
        rows: DataFrame, options: dict[str, str], topic: str, **trigger: Any
    ) -> StreamingQuery:
        place = str(folder / f"checkpoint-{topic}")
        writer = rows.writeStream.format("isolog").options(**options, topic=topic)
        writer = writer.option("checkpointLocation", place)
        return writer.trigger(**(trigger or {"processingTime": "200 milliseconds"})).start()

    numbers = spark.readStream.format("rate-micro-batch").options(
        rowsPerBatch=ROWS_PER_BATCH, numPartitions=2
    )
    made = numbers.load().selectExpr("value n")
    written = spark.readStream.format("isolog").options(**copying, isolation="read_committed")
    first = start(made, writing, "t")
    second = start(written.option("subscribe", "t").load().select("n"), copying, "u")
    while not (folder / "stop").exists():
        for query in (first, second):
            if not query.isActive:
                query.awaitTermination()  # raises its error
        time.sleep(0.1)
    first.stop()
    start(made, writing, "t", availableNow=True).awaitTermination()
    second.processAllAvailable()
    second.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
