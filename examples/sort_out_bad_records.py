"""Sorts JSON records into columns and dead letters: two topics, one transaction.

    isolog topic create flights --schema "carrier string NOT NULL, delay int NOT NULL,
        corrupt string, origin string"
    spark-submit examples/sort_out_bad_records.py --bootstrap localhost:9092 raw flights rejected \\
        --schema "carrier string, delay int"

A job moved over from Kafka: the source topic has Kafka's key and value. Valid records go to a typed
topic that takes no nulls. Invalid JSON lacks a column, so it becomes a dead letter, with its text
(column corrupt) and its origin (topic, partition and offset).
"""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

ORIGIN = F.expr("concat_ws('/', topic, partition, offset) AS origin")
PERMISSIVE = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "corrupt"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--bootstrap", help="host:port of brokers")
    place.add_argument("--path", help="or a directory of this machine")
    parser.add_argument("source", help="topic to read")
    parser.add_argument("good", help="topic of valid records")
    parser.add_argument("bad", help="topic of dead letters")
    parser.add_argument("--schema", required=True, help="columns, as Spark's SQL declares them")
    parser.add_argument("--checkpoint", default="checkpoints/sort-out-bad-records")
    parser.add_argument("--follow", action="store_true", help="continue until stopped")
    args = parser.parse_args()
    where = {"bootstrap": args.bootstrap} if args.bootstrap else {"path": args.path}

    spark = SparkSession.builder.appName("sort out bad records").getOrCreate()
    source = {"subscribe": args.source, "isolation": "read_committed"}
    raw = spark.readStream.format("isolog").options(**where, **source).load()
    text, columns = F.col("value").cast("string"), f"{args.schema}, corrupt string"
    row = F.from_json(text, columns, PERMISSIVE).alias("row")

    sink = {"topic": args.good, "onBadRecord": "deadLetter", "deadLetterTopic": args.bad}
    query = raw.select(row, ORIGIN).select("row.*", "origin").writeStream.format("isolog")
    query = query.options(**where, **sink, createTopic=True)
    query = query.option("checkpointLocation", args.checkpoint)
    follow = {"processingTime": "10 seconds"} if args.follow else {"availableNow": True}
    query.trigger(**follow).start().awaitTermination()


if __name__ == "__main__":
    main()
