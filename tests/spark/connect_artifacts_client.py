"""A client of Spark Connect whose server's Python lacks isolog, run by test_connect.

It sends and registers isolog. Its last line is the result in JSON.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(isolog_zip: str, path: str) -> None:
    spark = SparkSession.builder.remote("local[2]").getOrCreate()

    def read(topic: str) -> list[int]:
        reader = spark.read.format("isolog").options(path=path, subscribe=topic)
        return sorted(row.n for row in reader.load().collect())

    try:
        read("sent")
        told = {"before": ""}
    except Exception as error:
        told = {"before": str(error)}

    from pyspark_isolog import DefaultSource

    spark.addArtifacts(isolog_zip, pyfile=True)
    spark.dataSource.register(DefaultSource)
    frame = spark.range(5).selectExpr("id AS n").write.format("isolog").mode("append")
    frame.options(path=path, topic="sent", createTopic="true").save()
    frames = spark.read.format("isolog").options(path=path, subscribe="sent").load()
    frames.write.parquet(f"{path}-files")
    files = spark.readStream.schema("n bigint").parquet(f"{path}-files")
    own = spark.readStream.format("isolog").options(path=path, subscribe="sent")
    streams = {"sink": lambda: files, "source": lambda: own.load()}
    for name, stream in streams.items():
        try:
            query = (
                stream()
                .writeStream.format("isolog")
                .options(path=path, topic=name, createTopic="true")
                .option("checkpointLocation", f"{path}-checkpoint-{name}")
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination(120)
            told[name] = read(name)
        except Exception as error:
            told[name] = str(error)
    print(json.dumps(told | {"batch": read("sent")}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
