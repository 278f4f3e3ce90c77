"""Kafka's clients through a gateway, next to a Kafka broker (``make kafka-jars``).

The ceilings are those of Kafka, with the same client and the same records, in turns.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import isolog
from bench.kafka.broker import KafkaBroker
from bench.kafka.jars import WrongJars, default_cache, fetched
from bench.results import Results
from spark_stream.cli.commands.kafka_gateway import READY

VALUE: Final = b"x" * 100
RECORDS: Final = 400_000
ROUNDS: Final = 5
MESSAGES: Final = 150
"""The records of a round of latencies."""

PAUSE_S: Final = 0.01
_ISOLOG, _KAFKA = "isolog", "kafka"
_WAIT_S: Final = 60.0


def run(log: isolog.Log, place: Path, results: Results, idle_s: float) -> None:
    """Measure an idle gateway, a producer and a consumer, and Spark's real-time mode."""
    place.mkdir()
    with ExitStack() as ends:
        address, gateway = ends.enter_context(_gateway(log.status().address))
        _idle(gateway, results, idle_s)
        sides = {_ISOLOG: address}
        jars = _jars()
        if jars is not None:
            kafka = ends.enter_context(KafkaBroker(jars["broker"], place / "kafka"))
            sides[_KAFKA] = kafka.bootstrap
        _rates(sides, gateway, results)
        if jars is not None:
            _real_time(sides, jars["connector"], place, results)


def _jars() -> dict[str, list[Path]] | None:
    try:
        return fetched(default_cache())
    except WrongJars as error:
        print(f"without Kafka: {error}", file=sys.stderr)
        return None


@contextmanager
def _gateway(bootstrap: str) -> Iterator[tuple[str, psutil.Process]]:
    command = [sys.executable, "-m", "isolog", "kafka-gateway", "--bootstrap", bootstrap]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            yield line.removeprefix(READY).strip(), psutil.Process(process.pid)
        finally:
            process.terminate()


def _processor_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _idle(gateway: psutil.Process, results: Results, seconds: float) -> None:
    before = _processor_s(gateway)
    time.sleep(seconds)
    share = 100 * (_processor_s(gateway) - before) / seconds
    results.add("an idle gateway's processor time", "% of a core", measured=share)
    resident = gateway.memory_info().rss / (1 << 20)
    results.add("an idle gateway's memory", "MiB", measured=resident)


def _create(address: str, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([NewTopic(each, 1, 1) for each in names]).values():
        made.result(_WAIT_S)


def _rates(sides: Mapping[str, str], gateway: psutil.Process, results: Results) -> None:
    """Measure the median rates of a producer and of consumers, over rounds in turns."""
    steps = {
        "produced, acks=all": _produce,
        "consumed": _consume,
        "consumed, with room for all in the client": _consume_without_pauses,
    }
    rates: dict[tuple[str, str], list[float]] = {}
    spent_us: dict[str, list[float]] = {}
    for number in range(ROUNDS):
        for side, address in sides.items():
            name = f"rates-{number}"
            _create(address, name)
            for what, step in steps.items():
                before = _processor_s(gateway)
                rates.setdefault((what, side), []).append(RECORDS / step(address, name))
                if side == _ISOLOG:
                    each_us = (_processor_s(gateway) - before) / RECORDS * 1e6
                    spent_us.setdefault(what, []).append(each_us)
    for what in steps:
        of_kafka = rates.get((what, _KAFKA))
        results.add(
            f"records of {len(VALUE)} bytes by confluent-kafka: {what}",
            "records/s",
            measured=float(np.median(rates[what, _ISOLOG])),
            ceiling=None if of_kafka is None else float(np.median(of_kafka)),
        )
        median_us = float(np.median(spent_us[what]))
        results.add(f"gateway's processor time of a record {what}", "us", measured=median_us)


def _produce(address: str, topic: str) -> float:
    """Return the seconds until all records are acknowledged."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "linger.ms": 20,
            "log_level": 0,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    began = time.perf_counter()
    for _ in range(RECORDS):
        producer.produce(topic, VALUE)
    assert producer.flush(_WAIT_S) == 0
    return time.perf_counter() - began


def _consume_without_pauses(address: str, topic: str) -> float:
    """Consume as :func:`_consume`, without the pause of a second when a client's queue is full."""
    room = {"queued.min.messages": RECORDS, "queued.max.messages.kbytes": 1 << 20}
    return _consume(address, topic, room)


def _consume(address: str, topic: str, room: Mapping[str, int] | None = None) -> float:
    """Return the seconds from the first request until the last record."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "bench", "log_level": 0, **(room or {})}
    )
    began = time.perf_counter()
    consumer.assign([TopicPartition(topic, 0, 0)])
    left = RECORDS
    while left:
        found = consumer.consume(min(left, 10_000), _WAIT_S)
        assert found, "no records"
        left -= len(found)
    took = time.perf_counter() - began
    consumer.close()
    return took


def _real_time(
    sides: Mapping[str, str], connector: list[Path], place: Path, results: Results
) -> None:
    """Measure the time from an append to one topic to the arrival from another, through Spark.

    Both sides run together, and get a record in turns, because a shared machine changes its speed.
    """
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[4]")
        .config("spark.jars", ",".join(map(str, connector)))
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    took: dict[str, list[float]] = {side: [] for side in sides}
    try:
        for number in range(ROUNDS):
            with ExitStack() as ends:
                copies = {
                    side: ends.enter_context(
                        _copy(spark, address, place / f"{side}-{number}", number)
                    )
                    for side, address in sides.items()
                }
                for message in range(MESSAGES):
                    for side, copy in copies.items():
                        latency_ms = copy.pass_on(b"%d" % message)
                        if message >= MESSAGES // 10:  # the first ones do not count
                            took[side].append(latency_ms)
                        time.sleep(PAUSE_S)
    finally:
        spark.stop()
    for percent in (50, 99):
        of_side = {side: float(np.percentile(each, percent)) for side, each in took.items()}
        results.add(
            f"Spark's real-time mode, from topic to topic, p{percent}",
            "ms",
            measured=of_side[_ISOLOG],
            ceiling=of_side[_KAFKA],
        )


@contextmanager
def _copy(spark: Any, address: str, checkpoint: Path, number: int) -> Iterator[_Copy]:
    """Copy a topic to another one in real-time mode."""
    source, target = f"source-{number}", f"target-{number}"
    _create(address, source, target)
    options = {"kafka.bootstrap.servers": address}
    rows = spark.readStream.format("kafka").options(
        **options, subscribe=source, startingOffsets="earliest"
    )
    query = (
        rows.load()
        .selectExpr("key", "value")
        .writeStream.format("kafka")
        .options(**options, topic=target)
        .option("checkpointLocation", str(checkpoint))
        .outputMode("update")
        .trigger(realTime="1 hour")
        .start()
    )
    copy = _Copy(address, source, target)
    try:
        copy.pass_on(b"warm")
        yield copy
    finally:
        copy.close()
        query.stop()


class _Copy:
    """A topic, and the one that gets its records."""

    def __init__(self, address: str, source: str, target: str) -> None:
        self._source = source
        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "log_level": 0})
        self._consumer = Consumer(
            {"bootstrap.servers": address, "group.id": "bench", "log_level": 0}
        )
        self._consumer.assign([TopicPartition(target, 0, 0)])

    def pass_on(self, value: bytes) -> float:
        """Send a record. Return the milliseconds until it is received."""
        began = time.perf_counter()
        self._producer.produce(self._source, value)
        self._producer.poll(0)
        while True:
            message = self._consumer.poll(_WAIT_S)
            assert message is not None, "no record"
            if message.error() is None and message.value() == value:
                return (time.perf_counter() - began) * 1e3

    def close(self) -> None:
        self._consumer.close()
