"""Three brokers on this machine: the cost of replication, and the time of a failover.

Each figure is next to the same with one replica, measured in turns in the same run.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from statistics import median

import psutil
import pyarrow as pa

import spark_stream as isolog
from bench.records import values
from bench.results import Results
from spark_stream.testing.local_cluster import LocalCluster

BROKERS = 3
ROWS = 10_000
TURNS = 3
ROUNDS = 1_000
FAILOVERS = 5
PARTITIONS = 1_000
BEHIND_MB = 500
_PATIENCE_S = 120.0

_names = itertools.count()


def run(results: Results, seconds: float, idle_s: float) -> None:
    """``seconds`` for each rate. ``idle_s``: the time of measurement of idle brokers."""
    with LocalCluster(brokers=BROKERS, cuttable=False) as cluster:
        with cluster.connect() as log:
            _append_rates(log, results, seconds)
            _acknowledgements(log, results)
        _catch_up(cluster, results)
        _failovers(cluster, results)
    with LocalCluster(brokers=BROKERS, cuttable=False) as cluster:
        _many_partitions(cluster, results, idle_s)


# -- rates -----------------------------------------------------------------------------------------


def _append_rates(log: isolog.Log, results: Results, seconds: float) -> None:
    batch = pa.record_batch({"value": values(ROWS)})
    for isolation in ("read_uncommitted", "read_committed"):
        rates: dict[int, list[float]] = {1: [], BROKERS: []}
        for factor in (1, BROKERS) * TURNS:
            topic = _topic(log, batch.schema, BROKERS, factor)
            rates[factor].append(_rate(log, topic, batch, isolation, seconds))
            log.delete_topic(topic)
        results.add(
            f"append, {BROKERS} replicas, {isolation}, next to one replica",
            "rows/s",
            measured=median(rates[BROKERS]),
            ceiling=median(rates[1]),
        )


def _rate(
    log: isolog.Log, topic: str, batch: pa.RecordBatch, isolation: str, seconds: float
) -> float:
    """Rows a second, of batches of 10,000 rows, from the first to the last acknowledgement."""
    with log.producer(isolation=isolation) as producer:
        for partition in range(BROKERS):
            producer.append(topic, batch, partition=partition)
        producer.flush()
        began, sent = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            producer.append(topic, batch, partition=sent % BROKERS)
            sent += 1
        producer.flush()
        return sent * batch.num_rows / (time.perf_counter() - began)


def _acknowledgements(log: isolog.Log, results: Results) -> None:
    one = pa.record_batch({"value": values(1)})
    took = {}
    for factor in (1, BROKERS):
        topic = _topic(log, one.schema, 1, factor)
        with log.producer(isolation="read_committed") as producer:
            took[factor] = sorted(_took_ms(producer, topic, one) for _ in range(ROUNDS))
    for name, place in (("p50", ROUNDS // 2), ("p99", ROUNDS * 99 // 100)):
        results.add(
            f"read_committed acknowledgement of one row, {BROKERS} replicas, {name}",
            "ms",
            measured=took[BROKERS][place],
            ceiling=took[1][place],
        )


def _took_ms(producer: isolog.Producer, topic: str, one: pa.RecordBatch) -> float:
    began = time.perf_counter()
    producer.append(topic, one, partition=0).result()
    return (time.perf_counter() - began) * 1e3


# -- stopped followers and leaders -----------------------------------------------------------------


def _catch_up(cluster: LocalCluster, results: Results) -> None:
    """A follower restarts with much to catch up. Its start is not counted."""
    batch = pa.record_batch({"value": values(ROWS)})
    with cluster.connect() as log:
        topic = _topic(log, batch.schema, 1, BROKERS)
        away = next(n for n in cluster.brokers if n != cluster.leader(topic))
        cluster.stop(away)
        size = 0
        with log.producer() as producer:
            while size < BEHIND_MB * 1_000_000:
                producer.append(topic, batch, partition=0)
                size += batch.nbytes
        cluster.restart(away)
        began = time.perf_counter()
        _await(lambda: str(away) in log.describe(topic).partitions[0].isr)
        took_s = time.perf_counter() - began
    results.add("catch-up of a follower that was away", "MB/s", measured=size / took_s / 1e6)


def _failovers(cluster: LocalCluster, results: Results) -> None:
    """The time without acknowledgements after ``kill -9`` of the leader, seen by a producer."""
    one = pa.record_batch({"value": values(1)})
    gaps = []
    with cluster.connect(timeout=60) as log:
        topic = _topic(log, one.schema, 1, BROKERS)
        for _ in range(FAILOVERS):
            _await(lambda: len(log.describe(topic).partitions[0].isr) == BROKERS)
            gaps.append(_gap_s(cluster, log, topic, one))
    results.add("writes not acknowledged after kill -9 of the leader", "s", measured=max(gaps))


def _gap_s(cluster: LocalCluster, log: isolog.Log, topic: str, one: pa.RecordBatch) -> float:
    """The longest time between two acknowledgements while the leader is killed."""
    leader = cluster.leader(topic)
    times: list[float] = []
    stop = threading.Event()

    def write() -> None:
        with log.producer(isolation="read_committed", timeout_ms=60_000) as producer:
            while not stop.is_set():
                producer.append(topic, one, partition=0).result(60)
                times.append(time.perf_counter())

    writer = threading.Thread(target=write)
    writer.start()
    time.sleep(1)
    killed_at = time.perf_counter()
    cluster.kill(leader)
    _await(lambda: bool(times) and times[-1] > killed_at + 0.5)
    stop.set()
    writer.join()
    cluster.restart(leader)
    return max(after - before for before, after in itertools.pairwise(times))


# -- many partitions -------------------------------------------------------------------------------


def _many_partitions(cluster: LocalCluster, results: Results, idle_s: float) -> None:
    one = pa.record_batch({"value": values(1)})
    many = f"{PARTITIONS:,} partitions with {BROKERS} replicas"
    with cluster.connect(timeout=60) as log:
        began = time.perf_counter()
        topic = _topic(log, one.schema, PARTITIONS, BROKERS)
        results.add(f"creation of {many}", "s", measured=time.perf_counter() - began)
        processes = {n: psutil.Process(each.pid) for n, each in cluster.brokers.items()}
        time.sleep(10)  # after a move there is work for some seconds
        before = {n: sum(each.cpu_times()[:2]) for n, each in processes.items()}
        time.sleep(idle_s)
        shares = [
            (sum(each.cpu_times()[:2]) - before[n]) / idle_s * 100 for n, each in processes.items()
        ]
        memory = [each.memory_info().rss / (1 << 20) for each in processes.values()]
        results.add(f"idle broker, {many}", "% of a core", measured=max(shares))
        results.add(f"memory of a broker, {many}", "MiB", measured=max(memory))
        dead = cluster.leader(topic)
        began = time.perf_counter()
        cluster.kill(dead)
        _await(lambda: _is_led(log, topic, str(dead)))
        took_s = time.perf_counter() - began
        results.add(f"all led again after kill -9, {many}", "s", measured=took_s)


def _is_led(log: isolog.Log, topic: str, dead: str) -> bool:
    return all(
        each.error is None and each.leader != dead for each in log.describe(topic).partitions
    )


def _topic(log: isolog.Log, schema: pa.Schema, partitions: int, factor: int) -> str:
    name = f"bench-{next(_names)}"
    log.create_topic(name, partitions, factor, schema)
    return name


def _await(done: Callable[[], bool]) -> None:
    deadline = time.perf_counter() + _PATIENCE_S
    while not done():
        if time.perf_counter() > deadline:
            raise TimeoutError(f"not in {_PATIENCE_S:g} s: {done}")
        time.sleep(0.01)
