"""A client of Spark Connect that starts a server, writes and reads. Run by test_connect."""

from __future__ import annotations

import json
import os
import threading
import uuid

from pyspark.sql import SparkSession


def main() -> None:
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    os.chdir("/")  # the client's directory does not count
    place = {"path": "data"}

    def write() -> None:
        frame = spark.range(5).selectExpr("id as n").write.format("isolog").mode("append")
        frame.options(**place, topic="written", createTopic="true").save()

    thread = threading.Thread(target=write)  # no thread needs an active session here
    thread.start()
    thread.join()
    stream = spark.readStream.format("isolog").options(**place, subscribe="written").load()
    query = (
        stream.writeStream.format("isolog")
        .options(**place, topic="copied", createTopic="true", checkpointLocation="checkpoint")
        .queryName("copies")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240)
    assert query.exception() is None, query.exception()

    def numbers(topic: str) -> list[int]:
        reader = spark.read.format("isolog").options(**place, subscribe=topic)
        return sorted(row.n for row in reader.load().collect())

    files = f"/tmp/spark-{uuid.uuid4()}/userFiles-{uuid.uuid4()}/data"
    try:
        spark.read.format("isolog").options(path=files, subscribe="t").load().collect()
        refused = ""
    except Exception as error:
        refused = str(error)
    told = {"batch": numbers("written"), "stream": numbers("copied"), "in_files": refused}
    spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
