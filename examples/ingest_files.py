"""Writes JSON files from a folder to a typed topic, each record exactly once.

    spark-submit examples/ingest_files.py --bootstrap localhost:9092 landing/ flights \\
        --schema "carrier string, origin string, delay int, moment timestamp"

Each line of a file is a JSON object. The schema is that of the topic, which is created if it is
missing. The checkpoint has the names of the processed files, so each file is written once. A
restarted job continues there, and a partly written micro-batch causes no duplicates.
"""

import argparse

from pyspark.sql import SparkSession


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--bootstrap", help="host:port of brokers")
    place.add_argument("--path", help="or a directory of this machine")
    parser.add_argument("folder", help="folder of the files: a path or URL that Spark can read")
    parser.add_argument("topic")
    parser.add_argument("--schema", required=True, help="columns, as Spark's SQL declares them")
    parser.add_argument("--partitions", default=4, type=int, help="of a new topic")
    parser.add_argument("--checkpoint", default="checkpoints/ingest-files")
    parser.add_argument("--follow", action="store_true", help="continue until stopped")
    args = parser.parse_args()
    where = {"bootstrap": args.bootstrap} if args.bootstrap else {"path": args.path}

    spark = SparkSession.builder.appName("ingest files").getOrCreate()
    records = spark.readStream.schema(args.schema).option("mode", "FAILFAST").json(args.folder)
    query = (
        records.writeStream.format("isolog")
        .options(**where, topic=args.topic, createTopic=True, partitions=args.partitions)
        .option("checkpointLocation", args.checkpoint)
        .trigger(**({"processingTime": "10 seconds"} if args.follow else {"availableNow": True}))
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
