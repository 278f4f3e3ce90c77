"""Writes the records of a topic between two times to Parquet, a folder for each day.

    spark-submit examples/backfill_to_parquet.py --bootstrap localhost:9092 flights archive/ \\
        --start 2026-01-01 --end 2026-02-01T06:00

The times are those of the records' appends, the end exclusive. Without a zone they are in UTC. In
each partition the first record at or after the start begins the range, and the first at or after
the end ends it. Existing days are overwritten, so a run can be repeated.
"""

import argparse

from pyspark.sql import SparkSession


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--bootstrap", help="host:port of brokers")
    place.add_argument("--path", help="or a directory of this machine")
    parser.add_argument("topic", help="topic to read, one with a schema")
    parser.add_argument("folder", help="folder of the files: a path or URL that Spark can write")
    parser.add_argument("--start", required=True, help="ISO 8601, or milliseconds since 1970")
    parser.add_argument("--end", required=True)
    parser.add_argument("--tasks", type=int, help="least number of tasks that read the range")
    args = parser.parse_args()
    where = {"bootstrap": args.bootstrap} if args.bootstrap else {"path": args.path}

    spark = SparkSession.builder.appName("backfill to Parquet").getOrCreate()
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    spark.conf.set("spark.sql.session.timeZone", "UTC")  # of the days, as of the two times
    reader = (
        spark.read.format("isolog")
        .options(**where, subscribe=args.topic, isolation="read_committed", includeMetadata=True)
        .options(startingTimestamp=args.start, endingTimestamp=args.end)
    )
    if args.tasks:
        reader = reader.option("minPartitions", args.tasks)
    rows = reader.load().selectExpr("*", "to_date(_timestamp) AS day")
    rows.write.mode("overwrite").partitionBy("day").parquet(args.folder)


if __name__ == "__main__":
    main()
