"""Reads of Kafka's columns to ``noop``: batch and streaming, and past aborted transactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from confluent_kafka import Producer
from pyspark.sql import DataFrame

from bench.kafka.turns import CEILING, ISOLOG, KAFKA, TUNED, Turns
from bench.kafka.world import (
    TUNED_SOURCE,
    World,
    filling,
    messages,
    produce,
    to_noop,
    wait,
    with_rows,
)
from bench.records import batch_of

WAYS: Final[Mapping[str, Mapping[str, str]]] = {ISOLOG: {}}
"""Each way in which isolog's records reach Spark, with the options that choose it. The default is
Arrow Flight."""

TRANSACTION_ROWS: Final = 10_000

LEVELS: Final = {
    "read_uncommitted": {},
    "read_committed": {"kafka.isolation.level": "read_committed"},
}
"""isolog's levels that Kafka has as well, with its option for them."""


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
    rate: Callable[[DataFrame], float],
    ceiling: Callable[[], DataFrame],
    kafka: Callable[[Mapping[str, str]], DataFrame],
    ours: Callable[[Mapping[str, str]], DataFrame],
) -> dict[str, Callable[[], float]]:
    """All readers; ``kafka`` and ``ours`` make a frame with the options that they are given."""
    return {
        CEILING: lambda: rate(ceiling()),
        KAFKA: lambda: rate(kafka({})),
        TUNED: lambda: rate(kafka(TUNED_SOURCE)),
        **{way: lambda options=options: rate(ours(options)) for way, options in WAYS.items()},
    }


def _batch(world: World, turns: Turns, topic: str, level: str) -> None:
    """A batch job over the whole topic, planning included."""
    readers = contenders(
        lambda frame: world.rows / to_noop(frame),
        lambda: world.ceiling("kafka").load(),
        lambda options: world.read_kafka(topic, **LEVELS[level], **options).load(),
        lambda options: world.read_ours(topic, isolation=level, **options).load(),
    )
    turns.take("read", f"batch read, {level}", "rows/s", readers, rows=world.rows)


def _streaming(world: World, turns: Turns, topic: str, level: str) -> None:
    """The first micro-batch of a query, which has the whole topic; planning and commit left out."""
    readers = contenders(
        lambda frame: first_batch_rate(world, frame, "noop"),
        lambda: world.stream_ceiling("kafka", world.rows, batches="1"),
        lambda options: world.stream_kafka(topic, **LEVELS[level], **options).load(),
        lambda options: world.stream_ours(topic, isolation=level, **options).load(),
    )
    turns.take("read", f"streaming read, {level}", "rows/s", readers, rows=world.rows)


def _transactional(world: World, turns: Turns) -> None:
    """A batch read of committed records only: of transactions of which half were aborted."""
    topic = world.topic()
    visible = _fill_with_transactions(world, topic)
    level = "read_committed"
    counts = [
        world.read_kafka(topic, **LEVELS[level]).load().count(),
        world.read_ours(topic, isolation=level).load().count(),
    ]
    assert counts == [visible, visible], counts
    readers = contenders(
        lambda frame: visible / to_noop(frame),
        lambda: world.ceiling("kafka", visible).load(),
        lambda options: world.read_kafka(topic, **LEVELS[level], **options).load(),
        lambda options: world.read_ours(topic, isolation=level, **options).load(),
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
    """Rows a second of the first micro-batch with rows, as Spark's ``addBatch`` counts it."""
    with world.started(frame, sink, **options) as query:
        wait(query, lambda: bool(with_rows(query)))
        first = with_rows(query)[0]
    assert first["numInputRows"] == world.rows, first
    return first["numInputRows"] / (first["durationMs"]["addBatch"] / 1000)


def _fill_with_transactions(world: World, topic: str) -> int:
    """Every second transaction is aborted; gives the number of rows in the others."""
    batch = batch_of("keyed", TRANSACTION_ROWS)
    records = messages(batch)
    kafka = Producer(filling(world.kafka, **{"transactional.id": topic}))
    kafka.init_transactions()
    count = 2 * max(1, world.rows // batch.num_rows // 2)
    with world.ours.log.producer(transactional_id=topic) as producer:
        for number in range(count):
            partition = number // 2 % 2
            producer.begin_transaction()
            producer.append(topic, batch, partition=partition)
            kafka.begin_transaction()
            produce(kafka, topic, records, partition)
            if number % 2:
                producer.abort_transaction()
                kafka.flush()  # else they never leave the client
                kafka.abort_transaction()
            else:
                producer.commit_transaction()
                kafka.commit_transaction()
    return count // 2 * batch.num_rows
