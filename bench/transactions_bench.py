"""Transactions: the cost of writes, of commits, and of reads across them."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pyarrow as pa

import spark_stream as isolog
from bench.clock import now
from bench.records import values
from bench.results import Results


def run(log: isolog.Log, results: Results, seconds: float) -> None:
    """Everything here."""
    batch = pa.record_batch({"value": values(10_000)})
    _writes(log, results, batch, seconds)
    _reads(log, results, batch)
    _latency(log, results, partitions=1)
    _latency(log, results, partitions=4)
    _wide(log, results)


def _writes(log: isolog.Log, results: Results, batch: pa.RecordBatch, seconds: float) -> None:
    """The same batches in transactions of about half a second, next to the same without."""
    log.create_topic("written-by-both", schema=batch.schema)
    plain: list[float] = []
    within: list[float] = []
    with log.producer() as outside, log.producer(transactional_id="bench") as inside:
        for _ in range(5):
            plain.append(_rate(outside, batch, seconds / 2))
            started, rows = now(), 0
            while now() - started < seconds / 2:
                with inside.transaction():
                    for _ in range(500):
                        inside.append("written-by-both", batch, partition=0)
                        rows += batch.num_rows
            within.append(rows / (now() - started))
    results.add(
        "append in transactions, 100 B, 10,000 rows a batch",
        "rows/s",
        measured=statistics.median(within),
        ceiling=statistics.median(plain),
        note="ceiling: outside of any",
    )
    log.delete_topic("written-by-both")


def _rate(producer: isolog.Producer, batch: pa.RecordBatch, seconds: float) -> float:
    started, rows = now(), 0
    while now() - started < seconds:
        for _ in range(500):
            producer.append("written-by-both", batch, partition=0)
            rows += batch.num_rows
        producer.flush()
    return rows / (now() - started)


def _reads(log: isolog.Log, results: Results, batch: pa.RecordBatch) -> None:
    for rows, times in ((10_000, 1_500), (100, 12_000)):
        part = batch.slice(0, rows)
        for aborted in (False, True):
            name = f"read-{rows}-{aborted}"
            log.create_topic(name, schema=batch.schema)
            with log.producer(transactional_id=name) as producer:
                for number in range(times):
                    producer.begin_transaction()
                    producer.append(name, part, partition=0)
                    if aborted and number % 2:
                        producer.abort_transaction()
                    else:
                        producer.commit_transaction()
            what = f"{rows:,}-row transactions, {'half' if aborted else 'none'} aborted"
            _compared(
                results,
                f"read_committed, {what}",
                lambda name=name: _read(log, name, "read_committed"),
                lambda name=name: _read(log, name, "read_uncommitted"),
            )
            log.delete_topic(name)


def _compared(
    results: Results, name: str, measured: Callable[[], float], ceiling: Callable[[], float]
) -> None:
    ceiling(), measured()
    pairs = [(measured(), ceiling()) for _ in range(5)]
    results.add(
        name,
        "visible rows/s",
        measured=statistics.median(pair[0] for pair in pairs),
        ceiling=statistics.median(pair[1] for pair in pairs),
        note="ceiling: read_uncommitted",
    )


def _read(log: isolog.Log, topic: str, level: str, times: int = 5) -> float:
    """Read the topic as a whole repeatedly, so that the start of a consumer weighs little."""
    with log.consumer(topic, isolation=level) as consumer:
        start = consumer.position()
        started, rows = now(), 0
        for _ in range(times):
            consumer.seek(start)
            rows += sum(each.num_rows for each in consumer.batches(until="latest"))
        return rows / (now() - started)


def _latency(log: isolog.Log, results: Results, partitions: int, rounds: int = 1_000) -> None:
    """The time from begin to an acknowledged, and so visible, commit."""
    topic = f"transactions-{partitions}"
    rows = 1 if partitions == 1 else 20
    batch = pa.record_batch({"value": values(rows)})
    log.create_topic(topic, partitions, schema=batch.schema)
    took = []
    with log.producer(transactional_id=topic) as producer:
        for _ in range(rounds + 50):
            started = now()
            producer.begin_transaction()
            for partition in range(partitions):
                producer.append(topic, batch, partition=partition)
            producer.commit_transaction()
            took.append((now() - started) * 1e3)
    took = sorted(took[50:])
    name = f"transaction of {rows} row(s) on each of {partitions} partition(s)"
    results.add(f"{name}, p50", "ms", measured=statistics.median(took))
    results.add(f"{name}, p99", "ms", measured=took[int(len(took) * 0.99)])


def _wide(log: isolog.Log, results: Results, partitions: int = 2_000) -> None:
    """A record in each of many partitions: first and later ones, plain and in transactions."""
    one = pa.record_batch({"value": values(1)})
    for name in ("wide", "wide-in-transactions"):
        log.create_topic(name, partitions, schema=one.schema)

    def append(producer: isolog.Producer, topic: str = "wide") -> float:
        started = now()
        for partition in range(partitions):
            producer.append(topic, one, partition=partition)
        producer.flush()
        return now() - started

    with log.producer() as outside:
        results.add(f"first append to {partitions:,} partitions", "s", measured=append(outside))
        plain = min(append(outside) for _ in range(3))
    took = []
    with log.producer(transactional_id="wide") as inside:
        with inside.transaction():
            first = append(inside, "wide-in-transactions")
        name = f"first append to {partitions:,} partitions in one transaction"
        results.add(name, "s", measured=first)
        for _ in range(3):
            started = now()
            with inside.transaction():
                append(inside)
            took.append(now() - started)
    results.add(
        f"append to {partitions:,} partitions in one transaction, and its commit",
        "s",
        measured=min(took),
        note=f"outside of any: {plain:.2f} s",
    )
