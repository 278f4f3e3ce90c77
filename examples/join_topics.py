"""Joins orders with their payments, two topics into a third, each pair exactly once.

    spark-submit examples/join_topics.py --bootstrap localhost:9092 orders payments paid_orders

Orders have the columns order_id, customer, amount and moment. Payments have order_id, paid and
moment. A payment may come up to two hours after its order. Under read_atomic each topic is read up
to a cut that no transaction crosses. The two topics have separate cuts: if one transaction writes
both, its halves may come in different micro-batches, and the join keeps the first half until the
other arrives.
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--bootstrap", help="host:port of brokers")
    place.add_argument("--path", help="or a directory of this machine")
    for each in ("orders", "payments", "target"):
        parser.add_argument(each, help="topic to write" if each == "target" else "topic to read")
    parser.add_argument("--checkpoint", default="checkpoints/join-topics")
    parser.add_argument("--follow", action="store_true", help="continue until stopped")
    args = parser.parse_args()
    where = {"bootstrap": args.bootstrap} if args.bootstrap else {"path": args.path}

    spark = SparkSession.builder.appName("join topics").getOrCreate()

    def stream(topic: str) -> DataFrame:
        reader = spark.readStream.format("isolog").options(**where, isolation="read_atomic")
        return reader.option("subscribe", topic).load().withWatermark("moment", "10 minutes")

    soon = "p.moment BETWEEN o.moment AND o.moment + INTERVAL 2 HOURS"  # how long state is kept
    orders, payments = stream(args.orders).alias("o"), stream(args.payments).alias("p")
    paid = orders.join(payments, F.expr(f"o.order_id = p.order_id AND {soon}")).selectExpr(
        "o.order_id", "customer", "amount", "paid", "p.moment - o.moment AS waited"
    )
    query = (
        paid.writeStream.format("isolog")
        .options(**where, topic=args.target, createTopic=True)
        .option("checkpointLocation", args.checkpoint)
        .trigger(**({"processingTime": "10 seconds"} if args.follow else {"availableNow": True}))
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
