"""Copies topics of Kafka into isolog: each record once, in its partition and with its timestamp.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 \\
        examples/import_from_kafka.py --bootstrap localhost:9092 --kafka kafka:9092 flights orders

A missing topic gets the partitions and the retention of Kafka's. The checkpoint has the offsets in
Kafka, so a restarted job continues there, and a partly written micro-batch causes no duplicates.
Records of aborted transactions are not copied. --with-offsets adds a header with Kafka's offset.
"""

import argparse

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import isolog

SAME = ("retention.ms", "retention.bytes", "segment.ms", "segment.bytes")
WITH_OFFSET = (
    "concat(coalesce(headers, array()), array(named_struct("
    "'key', 'kafka.offset', 'value', encode(string(offset), 'utf-8')))) AS headers"
)


def settings(admin: AdminClient, topic: str) -> dict[str, str]:
    """Return the settings of a topic in Kafka that isolog has too."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        found = admin.describe_configs([resource])[resource].result(60)
    except KafkaException as error:
        print(f"{topic}: the settings are isolog's defaults, because Kafka refused: {error}")
        return {}
    if "delete" not in found["cleanup.policy"].value:
        print(f"{topic}: compacted in Kafka. isolog keeps all records")
        return {}
    return {name: found[name].value for name in SAME}


def create(log: isolog.Log, admin: AdminClient, topics: list[str]) -> None:
    """Create the missing topics, and add missing partitions."""
    known = admin.list_topics(timeout=60).topics
    for topic in topics:
        if topic not in known:
            raise SystemExit(f"Kafka has no topic {topic}")
        partitions = len(known[topic].partitions)
        if topic not in log.topics():
            log.create_topic(topic, partitions, config=settings(admin, topic))
        elif len(log.describe(topic).partitions) < partitions:
            log.alter_topic(topic, partitions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--bootstrap", help="host:port of brokers")
    place.add_argument("--path", help="or a directory of this machine")
    parser.add_argument("--kafka", required=True, help="host:port of Kafka's brokers")
    parser.add_argument("topics", nargs="+")
    parser.add_argument("--checkpoint", default="checkpoints/import-from-kafka")
    parser.add_argument("--follow", action="store_true", help="continue until stopped")
    parser.add_argument("--with-offsets", action="store_true", help="add the header kafka.offset")
    parser.add_argument("--batch", default=1_000_000, type=int, help="most records in a batch")
    pair = {"action": "append", "default": [], "type": lambda text: text.split("=", 1)}
    parser.add_argument("--source", **pair, metavar="kafka.NAME=VALUE", help="of Spark's source")
    parser.add_argument("--admin", **pair, metavar="NAME=VALUE", help="of confluent-kafka's client")
    args = parser.parse_args()
    where = {"bootstrap": args.bootstrap} if args.bootstrap else {"path": args.path}

    spark = SparkSession.builder.appName("import from Kafka").getOrCreate()
    with isolog.connect(**where) as log:
        admin = AdminClient({"bootstrap.servers": args.kafka, **dict(args.admin)})
        create(log, admin, args.topics)
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", args.kafka)
        .option("kafka.isolation.level", "read_committed")
        .options(subscribe=",".join(args.topics), startingOffsets="earliest", includeHeaders=True)
        .options(maxOffsetsPerTrigger=args.batch, **dict(args.source))
        .load()
    )
    headers = F.expr(WITH_OFFSET) if args.with_offsets else "headers"
    query = (
        records.select("key", "value", headers, "topic", "partition", "timestamp")
        .writeStream.format("isolog")
        .options(**where)
        .option("checkpointLocation", args.checkpoint)
        .trigger(**({"processingTime": "10 seconds"} if args.follow else {"availableNow": True}))
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
