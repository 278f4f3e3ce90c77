"""Many small clients of one broker: each producer waits for the answer to one row.

The producers are threads of several processes. A connection has one producer, or four producers and
a consumer of their rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

import numpy as np
import psutil
from msgspec import Struct

import isolog
from bench.results import Results

PROCESSES: Final = 10
CONNECTIONS: Final = 200
PRODUCERS: Final = (1, 4)
"""The producers of a connection. With several it has a consumer too."""

VALUE: Final = b"x" * 100
START_S: Final = 120.0
_ISOLOG: Final = "isolog"

Send = Callable[[int], None]
"""A function that sends a row to a partition and waits for its acknowledgement."""


class ManyClients(Struct, frozen=True):
    """The result of many clients: the rate, the latencies of all rows, the broker's CPU time."""

    rows_s: float
    p50_ms: float
    p99_ms: float
    broker_us: float
    """The processor time of the broker for a row."""

    received: int
    """The rows that the consumers have received."""


def run(log: isolog.Log, results: Results, seconds: float) -> None:
    """Producers of single rows on many connections, without and with consumers."""
    for producers in PRODUCERS:
        topic = f"clients-{producers}"
        log.create_topic(topic, partitions=CONNECTIONS)
        status = log.status()
        found = measure(_ISOLOG, status.address, status.pid, topic, producers, seconds)
        clients = CONNECTIONS * (producers + (producers > 1))
        of = f"{clients:,} clients on {CONNECTIONS} connections"
        results.add(f"rows, {of}", "rows/s", measured=found.rows_s)
        results.add(f"one row acknowledged, {of}, p50", "ms", measured=found.p50_ms)
        results.add(f"one row acknowledged, {of}, p99", "ms", measured=found.p99_ms)
        results.add(f"broker's processor time of a row, {of}", "us", measured=found.broker_us)
        log.delete_topic(topic)


def measure(
    side: str, address: str, pid: int, topic: str, producers: int, seconds: float
) -> ManyClients:
    """Run the clients of a side, ``isolog`` or ``kafka``. ``pid``: the broker's process."""
    command = [sys.executable, "-m", "bench.clients_bench", side, address, topic]
    with ExitStack() as ends:
        processes = []
        for number in range(PROCESSES):
            partitions = range(number, CONNECTIONS, PROCESSES)
            given = {"partitions": list(partitions), "producers": producers, "seconds": seconds}
            process = subprocess.Popen(
                [*command, json.dumps(given)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            ends.callback(process.wait)
            ends.callback(process.kill)
            processes.append(process)
        for process in processes:
            _line(process)
        before = _processor_s(pid)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        reports = [json.loads(_line(process)) for process in processes]
        spent = _processor_s(pid) - before
    took = np.concatenate([np.array(each["took_ms"]) for each in reports])
    p50, p99 = np.percentile(took, (50, 99))
    received = sum(each["received"] for each in reports)
    return ManyClients(
        len(took) / seconds, float(p50), float(p99), spent / len(took) * 1e6, received
    )


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a client ended with exit code {process.wait()}")
    return line


def _processor_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


# -- in a process of clients -----------------------------------------------------------------------


class _Clients:
    """The clients of one process. Each connection has a partition."""

    def __init__(self, side: str, address: str, topic: str) -> None:
        self._connect = _IsologConnection if side == _ISOLOG else _KafkaConnection
        self._address = address
        self._topic = topic
        self._begin = threading.Event()
        self.took_ms: list[float] = []
        self.received = 0
        self._lock = threading.Lock()

    def run(self, partitions: list[int], producers: int, seconds: float) -> None:
        threads = []
        with ExitStack() as ends:
            for partition in partitions:
                connection = self._connect(self._address, self._topic, ends)
                if producers > 1:
                    rows = connection.rows(partition)
                    threading.Thread(target=self._receive, args=(rows,), daemon=True).start()
                for _ in range(producers):
                    send = connection.producer()
                    send(partition)
                    given = send, partition, seconds
                    threads.append(threading.Thread(target=self._produce, args=given))
            for each in threads:
                each.start()
            print("ready", flush=True)
            sys.stdin.readline()
            self._begin.set()
            for each in threads:
                each.join()
            report = {"took_ms": self.took_ms, "received": self.received}
            print(json.dumps(report), flush=True)
            os._exit(0)  # the consumers still wait

    def _produce(self, send: Send, partition: int, seconds: float) -> None:
        self._begin.wait()
        took = []
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            send(partition)
            took.append((time.perf_counter() - began) * 1e3)
        with self._lock:
            self.took_ms += took

    def _receive(self, rows: Iterator[object]) -> None:
        for _ in rows:
            with self._lock:
                self.received += 1


class _IsologConnection:
    def __init__(self, address: str, topic: str, ends: ExitStack) -> None:
        self._log = ends.enter_context(isolog.connect(address))
        self._topic = topic
        self._ends = ends

    def producer(self) -> Send:
        producer = self._ends.enter_context(self._log.producer())
        return lambda partition: producer.send(self._topic, VALUE, partition=partition).result()

    def rows(self, partition: int) -> Iterator[object]:
        consumer = self._log.consumer(self._topic, partitions=[partition], start="latest")
        return consumer.records()


class _KafkaConnection:
    """As many producers as isolog's. Each of confluent-kafka's has its own connection."""

    def __init__(self, address: str, topic: str, ends: ExitStack) -> None:
        self._address = address
        self._topic = topic

    def producer(self) -> Send:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self._address, "linger.ms": 0})

        def send(partition: int) -> None:
            producer.produce(self._topic, VALUE, partition=partition)
            producer.flush()

        return send

    def rows(self, partition: int) -> Iterator[object]:
        from confluent_kafka import OFFSET_END, Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self._address, "group.id": self._topic})
        consumer.assign([TopicPartition(self._topic, partition, OFFSET_END)])
        while True:
            if (found := consumer.poll(START_S)) is not None:
                yield found


if __name__ == "__main__":
    _Clients(*sys.argv[1:4]).run(**json.loads(sys.argv[4]))
