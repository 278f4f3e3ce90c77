"""The cost of a micro-batch with few rows, and the latency of a record in a query."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Final

from confluent_kafka import Producer
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from bench.kafka.tuning import TUNED_WAIT
from bench.kafka.turns import AT_LEAST_ONCE, CEILING, ISOLOG, KAFKA, TUNED, Turns
from bench.kafka.world import World, filling, wait, with_rows

ROWS: Final = 20
PARTITIONS: Final = 64
_WARM: Final = 5
"""The first micro-batches of a query, which are left out."""


def run(world: World, turns: Turns, batches: int) -> None:
    """``batches``: the number of micro-batches of a query, for the median."""
    _reads(world, turns, batches)
    _writes(world, turns, batches)
    _partitions(world, turns, batches)
    _visible(world, turns, batches)


def _reads(world: World, turns: Turns, batches: int) -> None:
    topic = world.topic(1)
    world.fill(topic, rows=ROWS * batches, partitions=1)
    ceiling = world.stream_ceiling(
        "kafka", ROWS, tasks="1", batches=str(batches), batchrows=str(ROWS)
    )
    turns.take(
        "small",
        f"micro-batch of {ROWS} rows to noop",
        "ms",
        {
            CEILING: lambda: _trigger_ms(world, ceiling, batches),
            KAFKA: lambda: _trigger_ms(world, _kafka(world, topic, ROWS), batches),
            ISOLOG: lambda: _trigger_ms(world, _ours(world, topic, ROWS), batches),
        },
        note="the whole trigger",
    )
    world.delete(topic)


def _writes(world: World, turns: Turns, batches: int) -> None:
    """The rows come from the ceiling's source, for all sinks."""
    topic = world.topic(1)
    frame = world.stream_ceiling(
        "keyed", ROWS, tasks="1", batches=str(batches), batchrows=str(ROWS)
    )
    ours = {"bootstrap": world.ours.bootstrap, "topic": topic}
    turns.take(
        "small",
        f"micro-batch of {ROWS} rows into a topic",
        "ms",
        {
            CEILING: lambda: _trigger_ms(world, frame, batches, "ceiling"),
            KAFKA: lambda: _trigger_ms(
                world, frame, batches, "kafka", world.kafka_options(topic=topic)
            ),
            ISOLOG: lambda: _trigger_ms(world, frame, batches, "isolog", ours),
            AT_LEAST_ONCE: lambda: _trigger_ms(
                world, frame, batches, "isolog", {**ours, "transactional": "false"}
            ),
        },
        note="the whole trigger; isolog: exactly once; Kafka: at least once",
    )
    world.delete(topic)


def _partitions(world: World, turns: Turns, batches: int) -> None:
    """A micro-batch with a row of each partition, and one with as many rows of one partition."""
    count = max(_WARM + 3, batches // 4)
    for partitions in (1, PARTITIONS):
        topic = world.topic(partitions)
        world.fill(topic, rows=PARTITIONS * count, partitions=partitions)
        kafka, ours = _kafka(world, topic, PARTITIONS), _ours(world, topic, PARTITIONS)
        turns.take(
            "small",
            f"micro-batch of {PARTITIONS} rows, {partitions} partition(s)",
            "ms",
            {
                KAFKA: lambda kafka=kafka: _trigger_ms(world, kafka, count),
                ISOLOG: lambda ours=ours: _trigger_ms(world, ours, count),
            },
            note="the whole trigger, to noop",
        )
        world.delete(topic)


def _visible(world: World, turns: Turns, batches: int) -> None:
    """The time from the send of a record to the end of the micro-batch that has it."""
    topic = world.topic(1)
    kafka = Producer(filling(world.kafka, **{"linger.ms": 0}))
    with world.ours.log.producer() as producer:

        def send_theirs() -> None:
            kafka.produce(topic, b"x" * 100, partition=0)
            kafka.poll(0)

        def send_ours() -> None:
            producer.send(topic, b"x" * 100, partition=0)

        theirs = world.stream_kafka(topic).option("startingOffsets", "latest").load()
        waits = world.stream_kafka(topic, **TUNED_WAIT).option("startingOffsets", "latest").load()
        ours = world.stream_ours(topic, startingOffsets="latest").load()
        turns.take(
            "latency",
            "a record sent, and its micro-batch to noop ended",
            "ms",
            {
                KAFKA: lambda: _seen_ms(world, theirs, send_theirs, batches),
                TUNED: lambda: _seen_ms(world, waits, send_theirs, batches),
                ISOLOG: lambda: _seen_ms(world, ours, send_ours, batches),
            },
            note="default trigger; looked for every 2 ms",
        )
    world.delete(topic)


# -- how -------------------------------------------------------------------------------------------


def _kafka(world: World, topic: str, rows: int) -> DataFrame:
    return world.stream_kafka(topic, maxOffsetsPerTrigger=str(rows)).load()


def _ours(world: World, topic: str, rows: int) -> DataFrame:
    return world.stream_ours(topic, maxOffsetsPerTrigger=str(rows)).load()


def _trigger_ms(
    world: World,
    frame: DataFrame,
    batches: int,
    sink: str = "noop",
    options: Mapping[str, str] | None = None,
) -> float:
    """The median of a query's consecutive triggers. All of them have rows."""
    with world.started(frame, sink, **(options or {})) as query:
        wait(query, lambda: _batch_id(query) >= batches - 1)
        took = [each["durationMs"]["triggerExecution"] for each in with_rows(query)]
    assert len(took) == batches, took
    return statistics.median(took[_WARM:])


def _seen_ms(world: World, frame: DataFrame, send: Callable[[], None], times: int) -> float:
    """The median of this many records, one after the other."""
    took = []
    with world.started(frame, "noop") as query:
        query.processAllAvailable()  # the query has determined its start
        for number in range(times):
            began = time.perf_counter()
            send()
            wait(query, lambda number=number: _batch_id(query) >= number, pause_s=0.002)
            took.append((time.perf_counter() - began) * 1e3)
    return statistics.median(took[_WARM:])


def _batch_id(query: StreamingQuery) -> int:
    """The number of the last micro-batch with rows, or -1 without one."""
    last = query.lastProgress
    if last is None:
        return -1
    return int(last["batchId"]) - (0 if last["numInputRows"] else 1)
