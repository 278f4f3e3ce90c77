"""Counts late flights by airport and hour, from topic to topic, each window exactly once.

    spark-submit examples/count_by_window.py --bootstrap localhost:9092 flights late_flights

The topic read has the columns carrier, origin, delay and moment (see ingest_files.py). Its leader
applies the filter, so punctual flights never leave the broker. A window is written once, when the
watermark has passed its end. Flights that arrive later are left out.
"""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--bootstrap", help="host:port of brokers")
    place.add_argument("--path", help="or a directory of this machine")
    parser.add_argument("source", help="topic to read")
    parser.add_argument("target", help="topic to write")
    parser.add_argument("--minutes", default=15, type=int, help="more than these are late")
    parser.add_argument("--window", default="1 hour")
    parser.add_argument("--watermark", default="10 minutes", help="accept flights this late")
    parser.add_argument("--checkpoint", default="checkpoints/count-by-window")
    parser.add_argument("--follow", action="store_true", help="continue until stopped")
    args = parser.parse_args()
    where = {"bootstrap": args.bootstrap} if args.bootstrap else {"path": args.path}

    spark = SparkSession.builder.appName("count by window").getOrCreate()
    late = (
        spark.readStream.format("isolog")
        .options(**where, subscribe=args.source, isolation="read_committed")
        .option("filter", f"delay > {args.minutes}")
        .schema("origin string, delay int, moment timestamp")  # no other column travels
        .load()
    )
    counts = (
        late.withWatermark("moment", args.watermark)
        .groupBy(F.window("moment", args.window), "origin")
        .agg(F.count("*").alias("flights"), F.avg("delay").alias("mean_delay"))
        .selectExpr("window.start AS start", "origin", "flights", "mean_delay")
    )
    query = (
        counts.writeStream.format("isolog")
        .options(**where, topic=args.target, createTopic=True)
        .option("checkpointLocation", args.checkpoint)
        .trigger(**({"processingTime": "10 seconds"} if args.follow else {"availableNow": True}))
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
