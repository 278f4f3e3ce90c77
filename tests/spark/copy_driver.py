"""A separate Spark driver that copies files into a topic, to be killed at any moment.

``python -m tests.spark.copy_driver LOG SOURCE TOPIC CHECKPOINT``: one file per micro-batch, until
all are written. It then exits with code 0.
"""

from __future__ import annotations

import sys

from tests.spark.conftest import session_builder


def main(log: str, source: str, topic: str, checkpoint: str) -> None:
    spark = session_builder("local[2,8]").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    frame = spark.readStream.schema("n bigint").option("maxFilesPerTrigger", 1).parquet(source)
    query = (
        frame.repartition(2)
        .writeStream.format("isolog")
        .option("path", log)
        .option("topic", topic)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
