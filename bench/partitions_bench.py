"""Many partitions: the cost of their creation, of an open, of their memory, and at rest."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pyarrow as pa

import spark_stream as isolog
from bench.records import values
from bench.results import Results

TOPICS = 4
PARTITIONS = 1_000


def run(place: Path, results: Results, seconds: float) -> None:
    """A separate broker in ``place``, measured for ``seconds`` without calls."""
    one = pa.record_batch({"value": values(1)})
    many = f"{TOPICS * PARTITIONS:,} partitions"
    with isolog.connect(path=place) as log:
        empty = _memory(log)
        took = []
        for number in range(TOPICS):
            started = time.perf_counter()
            log.create_topic(f"many-{number}", PARTITIONS, schema=one.schema)
            took.append(time.perf_counter() - started)
        results.add(f"creation of {PARTITIONS:,} partitions", "s", measured=min(took))
        _hold(log, results, f"{many}, empty", empty, seconds)
        with log.producer() as producer:
            for number in range(TOPICS):
                for partition in range(PARTITIONS):
                    producer.append(f"many-{number}", one, partition=partition)
        _hold(log, results, f"{many} with a record each", empty, seconds)
        _end(log)
    started = time.perf_counter()
    with isolog.connect(path=place) as log:
        results.add(f"start of a broker, {many}", "s", measured=time.perf_counter() - started)
        _hold(log, results, f"{many}, opened again", empty, seconds)
        _end(log)


def _hold(log: isolog.Log, results: Results, what: str, empty: int, seconds: float) -> None:
    """Memory, open files, and the share of a core of an idle broker."""
    each = (_memory(log) - empty) / (TOPICS * PARTITIONS)
    results.add(f"memory of a partition, {what}", "KiB", measured=each / 1024)
    broker = psutil.Process(log.status().pid)
    results.add(f"open files, {what}", "files", measured=broker.num_fds())
    time.sleep(10)  # after a move there is work for some seconds
    before = sum(broker.cpu_times()[:2])
    time.sleep(seconds)
    share = (sum(broker.cpu_times()[:2]) - before) / seconds
    results.add(f"idle broker, {what}", "% of a core", measured=share * 100)


def _memory(log: isolog.Log) -> int:
    """The broker's memory without mapped files."""
    facts = psutil.Process(log.status().pid).memory_info()
    return facts.rss - facts.shared


def _end(log: isolog.Log) -> None:
    """Stop the broker, and wait for its end."""
    broker = psutil.Process(log.status().pid)
    os.kill(broker.pid, signal.SIGTERM)
    broker.wait(60)
