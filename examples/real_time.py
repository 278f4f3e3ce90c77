"""Copies records of a topic into another in Spark's real-time mode, within milliseconds.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 \\
        examples/real_time.py --gateway localhost:9192 flights late --where "value LIKE '%late%'"

Spark has this mode for sources and sinks in the JVM only. So the job uses Spark's Kafka connector
and a gateway (`isolog kafka-gateway`). The second topic has Kafka's columns. Each partition of the
first one occupies a core. The connector writes at least once: after a failure Spark repeats the
records since the last checkpoint. The header `origin` has the place of each record, so readers can
drop duplicates.
"""

import argparse

from pyspark.sql import SparkSession

COLUMNS = (
    "key",
    "value",
    "array(named_struct('key', 'origin', 'value',"
    " encode(concat_ws('/', topic, partition, offset), 'utf-8'))) AS headers",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gateway", required=True, help="host:port of a Kafka gateway")
    parser.add_argument("source", help="topic to read")
    parser.add_argument("target", help="topic to write")
    parser.add_argument("--where", default="true", help="a condition in SQL, with value as text")
    parser.add_argument("--checkpoint", default="checkpoints/real-time")
    parser.add_argument("--every", default="1 minute", help="time between two checkpoints")
    args = parser.parse_args()
    gateway = {"kafka.bootstrap.servers": args.gateway}

    spark = SparkSession.builder.appName("real time").getOrCreate()
    records = (
        spark.readStream.format("kafka")
        .options(**gateway, subscribe=args.source, startingOffsets="earliest")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    query = (
        records.withColumn("value", records.value.cast("string"))
        .where(args.where)
        .selectExpr(*COLUMNS)
        .writeStream.format("kafka")
        .options(**gateway, topic=args.target)
        .option("checkpointLocation", args.checkpoint)
        .outputMode("update")
        .trigger(realTime=args.every)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
