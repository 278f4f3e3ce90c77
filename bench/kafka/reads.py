"""Reads of Kafka's columns to ``noop``: batch and streaming, and past aborted transactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from confluent_kafka import Producer
from pyspark.sql import DataFrame

from bench.kafka.tuning import TUNED_SOURCE
from bench.kafka.turns import CEILING, KAFKA, TUNED, Turns
from bench.kafka.world import (
    PARTITIONS,
    World,
    filling,
    messages,
    produce,
    to_noop,
    wait,
    with_rows,
)
from bench.records import batch_of

TRANSACTION_ROWS: Final = 10_000

LEVELS: Final = {
    "read_uncommitted": {},
    "read_committed": {"kafka.isolation.level": "read_committed"},
}
"""isolog's levels that Kafka has too, with Kafka's option for them."""


def run(world: World, turns: Turns) -> None:
    """All kinds of read."""
    topic = world.topic()
    world.fill(topic)
    for level in LEVELS:
        _batch(world, turns, topic, level)
    for level in LEVELS:
        _streaming(world, turns, topic, level)
    world.delete(topic)
    _transactional(world, turns)


def contenders(
    world: World,
    rate: Callable[[DataFrame], float],
    ceiling: Callable[[], DataFrame],
    kafka: Callable[[Mapping[str, str]], DataFrame],
    ours: Callable[[str], DataFrame],
) -> dict[str, Callable[[], float]]:
    """All readers. ``kafka`` makes a frame with options, ``ours`` one with a way of reading."""
    return {
        CEILING: lambda: rate(ceiling()),
        KAFKA: lambda: rate(kafka({})),
        TUNED: lambda: rate(kafka(TUNED_SOURCE)),
        **{way: lambda way=way: rate(ours(way)) for way in world.ways},
    }


def _batch(world: World, turns: Turns, topic: str, level: str) -> None:
    """A batch job over the whole topic, planning included."""
    readers = contenders(
        world,
        lambda frame: world.rows / to_noop(frame),
        lambda: world.ceiling("kafka").load(),
        lambda options: world.read_kafka(topic, **LEVELS[level], **options).load(),
        lambda way: world.read_ours(topic, way, isolation=level).load(),
    )
    turns.take("read", f"batch read, {level}", "rows/s", readers, rows=world.rows)


def _streaming(world: World, turns: Turns, topic: str, level: str) -> None:
    """The first micro-batch of a query, which has the whole topic, without planning and commit."""
    readers = contenders(
        world,
        lambda frame: first_batch_rate(world, frame, "noop"),
        lambda: world.stream_ceiling("kafka", world.rows, batches="1"),
        lambda options: world.stream_kafka(topic, **LEVELS[level], **options).load(),
        lambda way: world.stream_ours(topic, way, isolation=level).load(),
    )
    turns.take("read", f"streaming read, {level}", "rows/s", readers, rows=world.rows)


def _transactional(world: World, turns: Turns) -> None:
    """A batch read of committed records, from transactions of which half were aborted."""
    topic = world.topic()
    visible = _fill_with_transactions(world, topic)
    level = "read_committed"
    counts = {
        world.read_kafka(topic, **LEVELS[level]).load().count(),
        *(world.read_ours(topic, way, isolation=level).load().count() for way in world.ways),
    }
    assert counts == {visible}, counts
    readers = contenders(
        world,
        lambda frame: visible / to_noop(frame),
        lambda: world.ceiling("kafka", visible).load(),
        lambda options: world.read_kafka(topic, **LEVELS[level], **options).load(),
        lambda way: world.read_ours(topic, way, isolation=level).load(),
    )
    turns.take(
        "read",
        "read of transactions, half of them aborted",
        "visible rows/s",
        readers,
        rows=visible,
        note=f"{TRANSACTION_ROWS:,} rows a transaction",
    )
    world.delete(topic)


def first_batch_rate(world: World, frame: DataFrame, sink: str, **options: str) -> float:
    """Rows a second of the first micro-batch with rows, by Spark's ``addBatch`` time."""
    with world.started(frame, sink, **options) as query:
        wait(query, lambda: bool(with_rows(query)))
        first = with_rows(query)[0]
    assert first["numInputRows"] == world.rows, first
    return first["numInputRows"] / (first["durationMs"]["addBatch"] / 1000)


def _fill_with_transactions(world: World, topic: str) -> int:
    """Abort every second transaction. Return the number of rows in the others."""
    batch = batch_of("keyed", TRANSACTION_ROWS)
    records = messages(batch)
    kafka = Producer(filling(world.kafka, **{"transactional.id": topic}))
    kafka.init_transactions()
    count = 2 * max(1, world.rows // batch.num_rows // 2)
    partitions = [number // 2 % PARTITIONS for number in range(count)]
    for number, partition in enumerate(partitions):
        kafka.begin_transaction()
        produce(kafka, topic, records, partition)
        kafka.flush()  # records aborted before their send would be in no log
        if number % 2:
            kafka.abort_transaction()
        else:
            kafka.commit_transaction()
    for broker in world.ways.values():
        with broker.log.producer(transactional_id=topic) as producer:
            for number, partition in enumerate(partitions):
                producer.begin_transaction()
                producer.append(topic, batch, partition=partition)
                producer.flush()
                if number % 2:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
    return count // 2 * batch.num_rows
