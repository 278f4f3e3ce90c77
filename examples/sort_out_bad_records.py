"""Sorts JSON records into columns and dead letters: two topics, each exactly once.

    spark-submit examples/sort_out_bad_records.py --bootstrap localhost:9092 raw flights rejected \\
        --schema "carrier string, origin string, delay int, moment timestamp"

A job moved over from Kafka: the topic read has Kafka's key, value and headers. What fits the schema
goes to a typed topic; the rest keeps key, value and headers, and gets one more header that says
where it came from. A micro-batch that is replayed is known by its sinkId and batchId, in both.
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

ORIGIN = """array(struct('origin' AS key,
    CAST(concat_ws('/', topic, partition, offset) AS BINARY) AS value))"""
BAD = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_bad"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--bootstrap", help="host:port of brokers")
    place.add_argument("--path", help="or a directory of this machine")
    parser.add_argument("source", help="topic to read")
    parser.add_argument("good", help="topic of what fits")
    parser.add_argument("bad", help="topic of the rest")
    parser.add_argument("--schema", required=True, help="columns, as Spark's SQL declares them")
    parser.add_argument("--checkpoint", default="checkpoints/sort-out-bad-records")
    parser.add_argument("--follow", action="store_true", help="go on until stopped")
    args = parser.parse_args()
    where = {"bootstrap": args.bootstrap} if args.bootstrap else {"path": args.path}

    spark = SparkSession.builder.appName("sort out bad records").getOrCreate()
    source = {"subscribe": args.source, "isolation": "read_committed", "includeHeaders": True}
    raw = spark.readStream.format("isolog").options(**where, **source).load()
    parsed = F.from_json(F.col("value").cast("string"), f"{args.schema}, _bad string", BAD)

    def write(batch: DataFrame, number: int) -> None:
        batch.persist()
        fits = F.expr("row IS NOT NULL AND row._bad IS NULL")
        good = batch.where(fits).select("row.*").drop("_bad")
        kept = f"concat(coalesce(headers, array()), {ORIGIN}) AS headers"
        bad = batch.where(~fits).selectExpr("key", "value", kept)
        for topic, rows in ((args.good, good), (args.bad, bad)):
            sink = {"topic": topic, "createTopic": True, "sinkId": f"sorting to {topic}"}
            writer = rows.write.format("isolog").mode("append").options(**where, **sink)
            writer.option("batchId", number).save()
        batch.unpersist()

    query = raw.withColumn("row", parsed).writeStream.foreachBatch(write)
    query = query.option("checkpointLocation", args.checkpoint)
    follow = {"processingTime": "10 seconds"} if args.follow else {"availableNow": True}
    query.trigger(**follow).start().awaitTermination()


if __name__ == "__main__":
    main()
