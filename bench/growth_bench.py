"""The growth of costs with the size of a cluster: one curve for each dimension, in one run.

Each curve has its own broker, which grows from size to size.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow as pa

import isolog
from bench import access_bench
from bench.clock import now
from bench.records import values
from bench.results import Results
from bench.waiting_bench import Pollers, append_ms, idle_share

PARTITIONS = (10, 100, 1_000, 4_000)
SEGMENTS = (10, 100, 1_000, 5_000)
WAITING = (1, 10, 100, 1_000)
IDS = (100, 500, 1_000, 5_000)
TOPICS = (10, 100, 500, 2_000)
COLUMNS = (1, 10, 100, 1_000)
NAMES = (10, 100, 1_000)
RULES = (1, 100, 10_000)
OF_A_TOPIC = 1_000  # partitions
REPEATED = 50
SETTLE_S = 10.0  # after many changes a broker has work for some seconds
SEGMENT_BYTES = 64 * 1024

ONE = pa.record_batch({"value": values(1)})


def run(place: Path, results: Results, seconds: float) -> None:
    """All curves, each in a folder of its own. ``seconds``: for each figure of an idle broker."""
    place.mkdir()
    _partitions(place / "partitions", results, seconds)
    _segments(place / "segments", results)
    with isolog.connect(path=place / "others") as log:
        log.create_topic("t", schema=ONE.schema)
        _waiting(log, results)
        _ids(log, results)
        _names(log, results)
        _columns(log, results)
        _topics(log, results)
        _end(log)
    _rules(results)


def _partitions(place: Path, results: Results, seconds: float) -> None:
    """Each partition gets a record. The broker is killed and starts again at each size."""
    topics: list[str] = []
    for size in PARTITIONS:
        of = f"{size:,} partitions"
        with _killed(place) as log:
            empty = _memory(log)
            began = now()
            before = 0 if not topics else sum(len(log.describe(each).partitions) for each in topics)
            while before < size:
                count = min(OF_A_TOPIC, size - before)
                topics.append(f"t{len(topics)}")
                log.create_topic(topics[-1], count, schema=ONE.schema)
                before += count
            _add(results, "creation of the missing ones", of, "s", now() - began)
            began = now()
            with log.producer() as producer:
                for each in topics:
                    for partition in range(len(log.describe(each).partitions)):
                        producer.append(each, ONE, partition=partition)
            _add(results, "a write of a row each", of, "s", now() - began)
            began = now()
            log.read(topics)
            _add(results, "first read of all", of, "s", now() - began)
            _add(results, "all ends", of, "ms", _p50_ms(lambda: [log.describe(e) for e in topics]))
            _add(results, "append", of, "ms", append_ms(log, ONE, topics[0]))
            time.sleep(SETTLE_S)
            _add(results, "memory", of, "MiB", (_memory(log) - empty) / 2**20)
            _add(results, "idle", of, "% of a core", idle_share(_pid(log), seconds))
            files = psutil.Process(_pid(log)).num_fds()
            _add(results, "open files", of, "files", files)
        began = now()
        with isolog.connect(path=place) as log:
            log.describe(topics[-1])
            _add(results, "start after a kill", of, "s", now() - began)
            _end(log)


def _segments(place: Path, results: Results) -> None:
    """One partition with many small segments."""
    batch = pa.record_batch({"value": values(SEGMENT_BYTES // 1024, 1024)})
    written = 0
    for size in SEGMENTS:
        of = f"{size:,} segments"
        with _killed(place) as log:
            if not written:
                log.create_topic(
                    "t", schema=ONE.schema, config={"segment.bytes": str(SEGMENT_BYTES)}
                )
            with log.producer() as producer:
                for _ in range(size - written):
                    producer.append("t", batch, partition=0)
            written = size
            _add(results, "append", of, "ms", append_ms(log, ONE, "t"))
            read = _p50_ms(lambda: log.read("t", start={0: 0}, end={0: 1}))
            _add(results, "read of the first row", of, "ms", read)
        began = now()
        with isolog.connect(path=place) as log:
            log.describe("t")
            _add(results, "start after a kill", of, "s", now() - began)
            _end(log)


def _waiting(log: isolog.Log, results: Results) -> None:
    """Consumers that wait on the partition of the append."""
    for size in WAITING:
        of = f"{size:,} waiting consumers"
        with Pollers(log.status().address, "t", size):
            _add(results, "append", of, "ms", append_ms(log, ONE, "t"))
            _add(results, "idle", of, "% of a core", idle_share(_pid(log)))


def _ids(log: isolog.Log, results: Results) -> None:
    """Transactional ids that have committed once."""
    used = 0
    for size in IDS:
        for number in range(used, size):
            _transaction(log, f"id-{number}")
        used = size
        took = _p50_ms(lambda: _transaction(log, "id-0"))
        _add(results, "transaction of one row", f"{size:,} transactional ids", "ms", took)


def _transaction(log: isolog.Log, transactional_id: str) -> None:
    with log.producer(transactional_id=transactional_id) as producer, producer.transaction():
        producer.append("t", ONE, partition=0)


def _names(log: isolog.Log, results: Results) -> None:
    """Named consumers with a stored position."""
    used = 0
    for size in NAMES:
        for number in range(used, size):
            log.reset_consumer(f"name-{number}", "earliest", topics="t")
        used = size
        took = _p50_ms(lambda: log.reset_consumer("name-0", "latest", topics="t"))
        _add(results, "reset of a consumer", f"{size:,} named consumers", "ms", took)
        _add(
            results, "list of consumers", f"{size:,} named consumers", "ms", _p50_ms(log.consumers)
        )


def _columns(log: isolog.Log, results: Results) -> None:
    """Topics with so many integer columns."""
    for size in COLUMNS:
        name, of = f"columns-{size}", f"{size:,} columns"
        row = pa.record_batch({f"c{number}": pa.array([number]) for number in range(size)})
        log.create_topic(name, schema=row.schema)
        _add(results, "append", of, "ms", append_ms(log, row, name))
        _add(results, "read of 200 rows", of, "ms", _p50_ms(lambda name=name: log.read(name)))


def _topics(log: isolog.Log, results: Results) -> None:
    """Topics of one partition."""
    used = 0
    for size in TOPICS:
        began = now()
        for number in range(used, size):
            log.create_topic(f"many-{number}", schema=ONE.schema)
        of = f"{size:,} topics"
        _add(results, "creation of a topic", of, "ms", (now() - began) * 1e3 / (size - used))
        used = size
        _add(results, "append", of, "ms", append_ms(log, ONE, "t"))
        _add(results, "list of topics", of, "ms", _p50_ms(log.topics))


def _rules(results: Results) -> None:
    """Rules of a broker with authentication."""
    for size in RULES:
        with access_bench.broker_with_rules(ONE.schema, size) as at:
            took = _p50_ms(at.appender(ONE), 4 * REPEATED)
            _add(results, "append", f"{size:,} access rules", "ms", took)


def _add(results: Results, what: str, of: str, unit: str, measured: float) -> None:
    results.add(f"{what}, {of}", unit, measured=measured)


def _p50_ms(work: Callable[[], object], times: int = REPEATED) -> float:
    took = []
    for _ in range(times):
        began = now()
        work()
        took.append((now() - began) * 1e3)
    return statistics.median(took)


@contextmanager
def _killed(place: Path) -> Iterator[isolog.Log]:
    """A broker that is killed at the end."""
    with isolog.connect(path=place) as log:
        yield log
        _end(log, signal.SIGKILL)


def _end(log: isolog.Log, how: signal.Signals = signal.SIGTERM) -> None:
    """End the broker, and wait for its end."""
    broker = psutil.Process(_pid(log))
    os.kill(broker.pid, how)
    broker.wait(60)


def _pid(log: isolog.Log) -> int:
    return log.status().pid


def _memory(log: isolog.Log) -> int:
    """The broker's memory without mapped files."""
    facts = psutil.Process(_pid(log)).memory_info()
    return facts.rss - facts.shared
