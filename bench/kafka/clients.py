"""The Python clients without Spark: confluent-kafka, which is C, and isolog's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, Producer, TopicPartition

from bench import clients_bench
from bench.kafka.turns import BATCHES, ISOLOG, KAFKA, Turns, rotated
from bench.kafka.world import World, messages, produce
from bench.records import batch_of

VALUE: Final = b"x" * 100
_SHARE: Final = 4
"""The rates are of this many times fewer rows than elsewhere."""

_PATIENCE_S: Final = 60.0
_MANY_S: Final = 10.0


def run(world: World, turns: Turns, rounds: int) -> None:
    """``rounds``: the number of records or transactions of a latency."""
    _acknowledged(world, turns, rounds)
    _transactions(world, turns, rounds // 4)
    _to_consumer(world, turns, rounds)
    _rates(world, turns)


def _acknowledged(world: World, turns: Turns, rounds: int) -> None:
    """One record is sent and acknowledged before the next."""
    topic = world.topic(1)
    kafka = Producer({"bootstrap.servers": world.kafka.bootstrap, "linger.ms": 0})

    def theirs() -> None:
        kafka.produce(topic, VALUE, partition=0)
        kafka.flush()

    with world.ours.log.producer() as producer:
        _percentiles(
            turns,
            "one record acknowledged",
            {
                KAFKA: theirs,
                ISOLOG: lambda: producer.send(topic, VALUE, partition=0).result(),
            },
            rounds,
            note="Kafka: linger.ms=0",
        )
    world.delete(topic)


def _transactions(world: World, turns: Turns, rounds: int) -> None:
    """The time from begin to an acknowledged commit, with one record."""
    topic = world.topic(1)
    settings = {"linger.ms": 0, "transactional.id": topic}
    kafka = Producer({"bootstrap.servers": world.kafka.bootstrap, **settings})
    kafka.init_transactions()

    def theirs() -> None:
        kafka.begin_transaction()
        kafka.produce(topic, VALUE, partition=0)
        kafka.commit_transaction()

    with world.ours.log.producer(transactional_id=topic) as producer:

        def ours() -> None:
            with producer.transaction():
                producer.send(topic, VALUE, partition=0)

        _percentiles(turns, "transaction of one record", {KAFKA: theirs, ISOLOG: ours}, rounds)
    world.delete(topic)


def _to_consumer(world: World, turns: Turns, rounds: int) -> None:
    """One record, sent, and received by a consumer at the end of the topic."""
    topic = world.topic(1)
    kafka = Producer({"bootstrap.servers": world.kafka.bootstrap, "linger.ms": 0})
    reader = _kafka_consumer(world, topic, OFFSET_END)
    log = world.ours.log
    with log.producer() as producer, log.consumer(topic, start="latest") as follower:
        records = follower.records()

        def theirs() -> None:
            kafka.produce(topic, VALUE, partition=0)
            kafka.poll(0)
            if reader.poll(_PATIENCE_S) is None:
                raise TimeoutError("the consumer sees no record")

        def ours() -> None:
            producer.send(topic, VALUE, partition=0)
            next(records)

        _percentiles(
            turns,
            "one record sent, and with a waiting consumer",
            {KAFKA: theirs, ISOLOG: ours},
            rounds,
            note="Kafka: linger.ms=0",
        )
    reader.close()
    world.delete(topic)


def _rates(world: World, turns: Turns) -> None:
    """A loop of single sends until all are acknowledged, and a read of all records."""
    rows = world.rows // _SHARE
    batch = batch_of("keyed", 10_000)
    records = (messages(batch) * (rows // batch.num_rows + 1))[:rows]

    def in_topic(write: Callable[[str], None]) -> float:
        topic = world.topic(1)
        began = time.perf_counter()
        write(topic)
        took = time.perf_counter() - began
        world.delete(topic)
        return rows / took

    def theirs(topic: str, **settings: object) -> None:
        kafka = Producer({"bootstrap.servers": world.kafka.bootstrap, **settings})
        produce(kafka, topic, records, 0)
        kafka.flush()

    def ours(topic: str) -> None:
        with world.ours.log.producer() as producer:
            for key, value in records:
                producer.send(topic, value, key=key, partition=0)

    def batches(topic: str) -> None:
        with world.ours.log.producer() as producer:
            for begin in range(0, rows, batch.num_rows):
                producer.append(topic, batch.slice(0, rows - begin), partition=0)

    turns.take(
        "clients",
        "send loop",
        "rows/s",
        {
            KAFKA: lambda: in_topic(theirs),
            ISOLOG: lambda: in_topic(ours),
            BATCHES: lambda: in_topic(batches),
        },
    )
    topic = world.topic(1)
    world.fill(topic, rows=rows, partitions=1)
    turns.take(
        "clients",
        "consume",
        "rows/s",
        {
            KAFKA: lambda: rows / _seconds(lambda: _consumed(world, topic, rows)),
            ISOLOG: lambda: rows / _seconds(lambda: _our_records(world, topic, rows)),
            BATCHES: lambda: rows / _seconds(lambda: _our_batches(world, topic, rows)),
        },
        note="Kafka: consume() of up to 10,000",
    )
    world.delete(topic)


def many(world: World, turns: Turns) -> None:
    """Producers of single rows on many connections, without and with consumers."""
    sides = {
        KAFKA: ("kafka", world.kafka.bootstrap, world.kafka.process.pid),
        ISOLOG: ("isolog", world.ours.bootstrap, world.ours.process.pid),
    }
    for producers in clients_bench.PRODUCERS:
        topic = world.topic(clients_bench.CONNECTIONS)
        figures: dict[str, dict[str, list[float]]] = {"rows/s": {}, "ms": {}, "us": {}}
        for turn in range(turns.turns):
            for each in rotated(list(sides), turn):
                side, address, pid = sides[each]
                found = clients_bench.measure(side, address, pid, topic, producers, _MANY_S)
                figures["rows/s"].setdefault(each, []).append(found.rows_s)
                figures["ms"].setdefault(each, []).append(found.p99_ms)
                figures["us"].setdefault(each, []).append(found.broker_us)
        clients = clients_bench.CONNECTIONS * (producers + (producers > 1))
        of = f"{clients:,} clients that send a row at a time"
        turns.add("clients", of, "rows/s", figures["rows/s"])
        turns.add("latency", f"{of}, p99", "ms", figures["ms"])
        turns.add("clients", f"{of}: the broker's processor time of a row", "us", figures["us"])
        world.delete(topic)


# -- how -------------------------------------------------------------------------------------------


def _percentiles(
    turns: Turns,
    name: str,
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    note: str = "",
) -> None:
    """p50 and p99 of this many calls each, in turns."""
    found: dict[str, dict[str, list[float]]] = {"p50": {}, "p99": {}}
    for turn in range(turns.turns + 1):  # the first warms up
        for each in rotated(list(contenders), turn):
            took = sorted(_seconds(contenders[each]) * 1e3 for _ in range(rounds))
            if turn:
                found["p50"].setdefault(each, []).append(took[rounds // 2])
                found["p99"].setdefault(each, []).append(took[rounds * 99 // 100])
    for percentile, figures in found.items():
        turns.add("latency", f"{name}, {percentile}", "ms", figures, note=note)


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _kafka_consumer(world: World, topic: str, start: int) -> Consumer:
    """A consumer of the topic's one partition, which is assigned already."""
    consumer = Consumer({"bootstrap.servers": world.kafka.bootstrap, "group.id": "bench"})
    consumer.assign([TopicPartition(topic, 0, start)])
    consumer.poll(0.5)
    return consumer


def _consumed(world: World, topic: str, rows: int) -> None:
    settings = {"bootstrap.servers": world.kafka.bootstrap, "group.id": "bench"}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    count = 0
    while count < rows:
        messages_read = consumer.consume(10_000, _PATIENCE_S)
        if not messages_read:
            raise TimeoutError(f"{count} of {rows} records came")
        count += sum(1 for each in messages_read if (each.key(), each.value()))
    consumer.close()


def _our_records(world: World, topic: str, rows: int) -> None:
    with world.ours.log.consumer(topic) as consumer:
        found = consumer.records(until="latest")
        count = sum(1 for each in found if (each.key, each.value))
    assert count == rows, count


def _our_batches(world: World, topic: str, rows: int) -> None:
    with world.ours.log.consumer(topic) as consumer:
        count = sum(each.num_rows for each in consumer.batches(until="latest"))
    assert count == rows, count
