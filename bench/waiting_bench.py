"""One-row appends while many fetches wait: on other partitions, and on the same one.

The waiting fetches are long polls of another process, each asked again as soon as it is answered.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pyarrow.flight as fl

import spark_stream as isolog
from bench.clock import now
from bench.records import values
from bench.results import Results

WAITING = 500
ROUNDS = 4
APPENDS = 200
WAIT_MS = 60_000
RETRY_PAUSE_S = 0.1


def run(log: isolog.Log, results: Results) -> None:
    """The p50 with nobody waiting, and its ratio to that with many waiting, in turns."""
    one = pa.record_batch({"value": values(1)})
    for topic in ("quiet", "busy"):
        log.create_topic(topic, schema=one.schema)
    alone: list[float] = []
    others: list[float] = []
    same: list[float] = []
    for _ in range(ROUNDS):
        alone.append(_append_ms(log, one))
        with _Pollers(log.status().address, "quiet"):
            others.append(_append_ms(log, one))
        with _Pollers(log.status().address, "busy"):
            same.append(_append_ms(log, one))
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
    for topic in ("quiet", "busy"):
        log.delete_topic(topic)


def _append_ms(log: isolog.Log, one: pa.RecordBatch) -> float:
    took = []
    with log.producer() as producer:
        producer.append("busy", one, partition=0).result()
        for _ in range(APPENDS):
            started = now()
            producer.append("busy", one, partition=0).result()
            took.append((now() - started) * 1e3)
    return statistics.median(took)


class _Pollers:
    """A process in which many threads poll one partition for what comes next."""

    def __init__(self, address: str, topic: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.waiting_bench", address, topic],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def _poll(address: str, topic: str, started: threading.Semaphore) -> None:
    scheme = "grpc+unix://" if address.startswith("unix:") else "grpc://"
    client = fl.FlightClient(scheme + address.removeprefix("unix:"))
    start = -1  # the end
    asked = {"topic": topic, "partition": 0, "wait_ms": WAIT_MS}
    while True:
        try:
            reader = client.do_get(fl.Ticket(json.dumps({**asked, "start": start}).encode()))
            started.release()
            for chunk in reader:
                start = json.loads(chunk.app_metadata.to_pybytes())["next"]
        except fl.FlightError:  # a leader may be missing for a moment
            time.sleep(RETRY_PAUSE_S)


if __name__ == "__main__":
    begun = threading.Semaphore(0)
    for _ in range(WAITING):
        threading.Thread(target=_poll, args=(*sys.argv[1:3], begun), daemon=True).start()
    for _ in range(WAITING):
        begun.acquire()
    print("polling", flush=True)
    sys.stdin.read()
