"""Writes of keyed rows: a batch job over rows that Spark has cached, and a query's micro-batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from bench.kafka.reads import first_batch_rate
from bench.kafka.tuning import TUNED_SINK
from bench.kafka.turns import AT_LEAST_ONCE, CEILING, ISOLOG, KAFKA, TUNED, Turns
from bench.kafka.world import PARTITIONS, World
from bench.records import KEY_BYTES, VALUE_BYTES

NOTE = "isolog: exactly once; Kafka: at least once"


def run(world: World, turns: Turns) -> None:
    """Both kinds of write."""
    with cached_rows(world) as frame:

        def batch(format: str, **options: str) -> Callable[[], float]:
            return lambda: _to_new_topic(
                world,
                lambda topic: _seconds(frame, format, topic=topic, **options),
            )

        turns.take(
            "write",
            "batch write of cached rows",
            "rows/s",
            _all(world, batch),
            rows=world.rows,
            note=NOTE,
        )

    def stream(format: str, **options: str) -> Callable[[], float]:
        def write(topic: str) -> float:
            rows = world.stream_ceiling("keyed", world.rows, batches="1")
            rate = first_batch_rate(world, rows, format, topic=topic, **options)
            return world.rows / rate

        return lambda: _to_new_topic(world, write)

    turns.take(
        "write",
        "streaming write",
        "rows/s",
        _all(world, stream),
        rows=world.rows,
        note=f"{NOTE}; the rows come from the ceiling's source",
    )


@contextmanager
def cached_rows(world: World) -> Iterator[DataFrame]:
    """Rows with a key and a value that no compression could shrink, in the JVM's memory."""
    number = F.col("id").cast("string")
    digests = [F.sha2(F.concat(number, F.lit(salt)), 512) for salt in ("a", "b")]
    value = F.substring(F.unhex(F.concat(*digests)), 1, VALUE_BYTES)
    frame = world.spark.range(world.rows, numPartitions=PARTITIONS).select(
        F.lpad(number, KEY_BYTES, "0").cast("binary").alias("key"), value.alias("value")
    )
    frame.cache().count()
    try:
        yield frame
    finally:
        frame.unpersist()


def _all(
    world: World, writes: Callable[..., Callable[[], float]]
) -> dict[str, Callable[[], float]]:
    """Every sink, by its format and options."""
    bootstrap = world.ours.bootstrap
    return {
        CEILING: writes("ceiling"),
        KAFKA: writes("kafka", **world.kafka_options()),
        TUNED: writes("kafka", **world.kafka_options(**TUNED_SINK)),
        ISOLOG: writes("isolog", bootstrap=bootstrap),
        AT_LEAST_ONCE: writes("isolog", bootstrap=bootstrap, transactional="false"),
    }


def _to_new_topic(world: World, write: Callable[[str], float]) -> float:
    """Rows a second into a topic that is created before and deleted after."""
    topic = world.topic()
    try:
        return world.rows / write(topic)
    finally:
        world.delete(topic)


def _seconds(frame: DataFrame, format: str, **options: str) -> float:
    began = time.perf_counter()
    frame.write.format(format).mode("append").options(**options).save()
    return time.perf_counter() - began
