"""One-row appends while many fetches wait: on other partitions, and on the same one.

The waiting fetches are those of consumers in other processes that follow the log. Each is repeated
as soon as it has ended.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time

import psutil
import pyarrow as pa

import spark_stream as isolog
from bench.clock import now
from bench.records import values
from bench.results import Results
from spark_stream.transport.client import ClientChannel
from spark_stream.transport.streams import CallFailed
from spark_stream.wire.stream_messages import Fetch, FetchRange

WAITING = 500
PROCESSES = 5
IDLE_S = 5.0
ROUNDS = 4
APPENDS = 200
WAIT_MS = 60_000
RETRY_PAUSE_S = 0.1


def run(log: isolog.Log, results: Results) -> None:
    """The p50 without waiting fetches, and its ratio to that with many, in turns."""
    one = pa.record_batch({"value": values(1)})
    for topic in ("quiet", "busy"):
        log.create_topic(topic, schema=one.schema)
    alone: list[float] = []
    others: list[float] = []
    same: list[float] = []
    idle: list[tuple[float, int]] = []
    for _ in range(ROUNDS):
        alone.append(append_ms(log, one, "busy"))
        with Pollers(log.status().address, "quiet", WAITING):
            others.append(append_ms(log, one, "busy"))
            pid = log.status().pid
            idle.append((idle_share(pid), psutil.Process(pid).num_threads()))
        with Pollers(log.status().address, "busy", WAITING):
            same.append(append_ms(log, one, "busy"))
    results.add("append, no fetch waits, p50", "ms", measured=statistics.median(alone))
    for name, took in (("other partitions", others), ("the same partition", same)):
        ratio = statistics.median(a / b for a, b in zip(took, alone, strict=True))
        results.add(
            f"append, {WAITING} fetches wait on {name}, p50",
            "ms",
            measured=statistics.median(took),
            ceiling=statistics.median(took) / ratio,
            note="ratio: to that with none, round by round",
        )
    name = f"broker at rest, {WAITING} fetches wait"
    results.add(f"{name}, of a core", "%", measured=statistics.median(part for part, _ in idle))
    results.add(f"{name}, threads", "", measured=max(threads for _, threads in idle))
    for topic in ("quiet", "busy"):
        log.delete_topic(topic)


def idle_share(pid: int, seconds: float = IDLE_S) -> float:
    """Return the share of a core that a process uses at rest, in percent."""
    process = psutil.Process(pid)
    before = process.cpu_times()
    time.sleep(seconds)
    after = process.cpu_times()
    return 100 * (after.user + after.system - before.user - before.system) / seconds


def append_ms(log: isolog.Log, one: pa.RecordBatch, topic: str) -> float:
    """Return the p50 of the appends of a batch to partition 0, each after the one before."""
    took = []
    with log.producer() as producer:
        producer.append(topic, one, partition=0).result()
        for _ in range(APPENDS):
            started = now()
            producer.append(topic, one, partition=0).result()
            took.append((now() - started) * 1e3)
    return statistics.median(took)


class Pollers:
    """Processes in which ``count`` threads poll one partition for its next records."""

    def __init__(self, address: str, topic: str, count: int) -> None:
        shares = [len(range(first, count, PROCESSES)) for first in range(PROCESSES)]
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.waiting_bench", address, topic, str(share)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for share in shares
            if share
        ]

    def __enter__(self) -> None:
        for each in self._processes:
            assert each.stdout is not None
            each.stdout.readline()

    def __exit__(self, *_: object) -> None:
        for each in self._processes:
            each.kill()
            each.communicate()


def _poll(channel: ClientChannel, topic: str, started: threading.Semaphore) -> None:
    start = -1  # the end
    while True:
        each = FetchRange(topic=topic, partition=0, start=start, wait_ms=WAIT_MS, follow=True)
        asked = Fetch(ranges=[each])
        try:
            stream = channel.open("fetch", b"", asked.to_bytes(), end=True, timeout_s=WAIT_MS)
            started.release()
            while (received := stream.receive()) is not None:
                if received.header:
                    start = json.loads(bytes(received.header))["next"]
        except CallFailed:  # a leader may be missing for a moment
            time.sleep(RETRY_PAUSE_S)


if __name__ == "__main__":
    begun = threading.Semaphore(0)
    broker = ClientChannel(sys.argv[1], timeout_s=30)
    for _ in range(int(sys.argv[3])):
        threading.Thread(target=_poll, args=(broker, sys.argv[2], begun), daemon=True).start()
    for _ in range(int(sys.argv[3])):
        begun.acquire()
    print("polling", flush=True)
    sys.stdin.read()
