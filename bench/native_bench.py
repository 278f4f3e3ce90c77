"""The Python client alone: appends, fetches, latencies, and the broker's memory."""

from __future__ import annotations

import threading
import time

import pyarrow as pa
import pyarrow.flight as fl

import spark_stream as isolog
from bench.clock import now
from bench.records import values
from bench.results import Results

SIZES = (10, 100, 1000)
BATCHES = (1, 100, 10_000)


def run(log: isolog.Log, results: Results, seconds: float, *, ceilings: bool = True) -> None:
    """All figures but the memory. ``ceilings``: next to the rates of plain Flight."""
    highest, trips = _flight_ceilings(seconds) if ceilings else ({}, [])
    for size in SIZES:
        for rows in BATCHES:
            _rates(log, results, size, rows, seconds, highest)
    _keyed(log, results, seconds)
    _records(log, results)
    _latency(log, results, trips)


def _rates(
    log: isolog.Log,
    results: Results,
    size: int,
    rows: int,
    seconds: float,
    ceilings: dict[tuple[int, int], float],
) -> None:
    topic = f"native-{size}-{rows}"
    batch = pa.record_batch({"value": values(rows, size)})
    log.create_topic(topic, schema=batch.schema)
    appended = 0
    with log.producer() as producer:
        producer.append(topic, batch, partition=0).result()
        started = now()
        while now() - started < seconds:
            for _ in range(20):
                producer.append(topic, batch, partition=0)
            appended += 20 * rows
        producer.flush()
        took = now() - started
    name = f"{size} B, {rows} rows a batch"
    results.add(
        f"append {name}",
        "rows/s",
        measured=appended / took,
        ceiling=ceilings.get((size, rows)),
        note=f"{appended * size / took / 1e6:,.0f} MB/s",
    )
    with log.consumer(topic) as consumer:
        start = consumer.position()
        fetched, started = 0, now()
        while now() - started < seconds / 2:
            consumer.seek(start)
            fetched += sum(each.num_rows for each in consumer.batches(until="latest"))
        took = now() - started
    results.add(
        f"fetch {name}",
        "rows/s",
        measured=fetched / took,
        note=f"{fetched * size / took / 1e6:,.0f} MB/s",
    )
    log.delete_topic(topic)


class _Sink(fl.FlightServerBase):
    """A server that acknowledges each batch and drops it: the ceiling of Flight."""

    def do_put(self, context, descriptor, reader, writer) -> None:  # type: ignore[no-untyped-def]
        for _ in reader:
            writer.write(b"{}")


def _flight_ceilings(seconds: float) -> tuple[dict[tuple[int, int], float], list[float]]:
    """Rows/s into an empty Flight server in another process, and its round trips in ms."""
    import subprocess
    import sys

    with subprocess.Popen(
        [sys.executable, "-m", "bench.native_bench"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        client = fl.FlightClient(f"grpc://127.0.0.1:{process.stdout.readline().strip()}")
        found = {}
        for size in SIZES:
            for rows in BATCHES:
                batch = pa.record_batch({"value": values(rows, size)})
                descriptor = fl.FlightDescriptor.for_path("x")
                writer, acks = client.do_put(descriptor, batch.schema)
                sent = 0
                reader = threading.Thread(target=_drain, args=(acks,))
                reader.start()
                started = time.perf_counter()
                while time.perf_counter() - started < seconds:
                    for _ in range(20):
                        writer.write_with_metadata(batch, b'{"number":0,"partition":0}')
                    sent += 20 * rows
                writer.done_writing()
                reader.join()
                found[size, rows] = sent / (time.perf_counter() - started)
                writer.close()
        trips = _round_trips(client)
        process.terminate()
    return found, trips


def _round_trips(client: fl.FlightClient, rounds: int = 3_000) -> list[float]:
    """The time of one row and its answer, on one thread."""
    batch = pa.record_batch({"value": values(1)})
    writer, acks = client.do_put(fl.FlightDescriptor.for_path("x"), batch.schema)
    took = []
    for _ in range(rounds):
        started = now()
        writer.write_with_metadata(batch, b'{"number":0,"partition":0}')
        acks.read()
        took.append((now() - started) * 1e3)
    writer.close()
    return sorted(took)


def _drain(acks: fl.FlightMetadataReader) -> None:
    while acks.read() is not None:
        pass


def _keyed(log: isolog.Log, results: Results, seconds: float, rows: int = 38_000) -> None:
    """Batches of about 4 MiB, with keys for many partitions, next to the same without keys."""
    keys = pa.array([f"key-{number:06}".encode() for number in range(rows)])
    batch = pa.record_batch({"key": keys, "value": values(rows)})
    for partitions in (2, 16, 200):
        topic = f"keyed-{partitions}"
        log.create_topic(topic, partitions)
        rates = []
        with log.producer() as producer:
            for partition in (None, 0):
                producer.append(topic, batch, partition=partition).result()
                started, appended = now(), 0
                while now() - started < seconds:
                    producer.append(topic, batch, partition=partition)
                    appended += rows
                producer.flush()
                rates.append(appended / (now() - started))
        results.add(
            f"append with keys over {partitions} partitions",
            "rows/s",
            measured=rates[0],
            ceiling=rates[1],
            note="ceiling: to one of them",
        )
        log.delete_topic(topic)


def _records(log: isolog.Log, results: Results) -> None:
    log.create_topic("records")
    batch = pa.record_batch({"value": values(10_000)})
    with log.producer() as producer:
        for _ in range(200):
            producer.append("records", batch, partition=0)
    for name in ("records", "batches"):
        with log.consumer("records") as consumer:
            started = now()
            if name == "records":
                count = sum(1 for _ in consumer.records(until="latest"))
            else:
                count = sum(each.num_rows for each in consumer.batches(until="latest"))
            took = now() - started
        results.add(f"consumer {name}()", "rows/s", measured=count / took)
    with log.producer() as producer:
        started = now()
        for _ in range(200_000):
            producer.send("records", b"x" * 100)
        producer.flush()
        results.add("producer send() loop", "rows/s", measured=200_000 / (now() - started))


def _latency(log: isolog.Log, results: Results, trips: list[float], rounds: int = 3_000) -> None:
    typed = pa.schema([("value", pa.binary())])
    log.create_topic("latency", schema=typed)
    one = pa.record_batch({"value": values(1)}, schema=typed)
    with log.producer() as producer:
        took = []
        for _ in range(rounds):
            started = now()
            producer.append("latency", one, partition=0).result()
            took.append((now() - started) * 1e3)
        _percentiles(results, "one-row append acknowledged", took, trips)
        log.create_topic("latency-sent")
        took = []
        for _ in range(rounds):
            started = now()
            producer.send("latency-sent", b"x" * 100).result()
            took.append((now() - started) * 1e3)
        _percentiles(results, "one send() acknowledged", took, trips)
        took = []
        with log.consumer("latency", start="latest") as consumer:
            batches = consumer.batches()
            arrived = threading.Semaphore(0)

            def follow() -> None:
                for _ in batches:
                    arrived.release()

            follower = threading.Thread(target=follow, daemon=True)
            follower.start()
            time.sleep(0.5)
            for _ in range(rounds // 3):
                started = now()
                producer.append("latency", one, partition=0)
                arrived.acquire()
                took.append((now() - started) * 1e3)
        _percentiles(results, "append to fetch", took)


def _percentiles(
    results: Results, name: str, took: list[float], trips: list[float] | None = None
) -> None:
    """``trips``: the sorted times of plain Flight."""
    took.sort()
    for share, shown in ((0.5, "p50"), (0.99, "p99")):
        results.add(
            f"{name}, {shown}",
            "ms",
            measured=took[int(len(took) * share)],
            ceiling=trips[int(len(trips) * share)] if trips else None,
            note="ceiling: a Flight stream that only answers" if trips else "",
        )


def memory(log: isolog.Log, results: Results, gibibytes: float) -> None:
    """The broker's memory during writes of a log of this size, and during reads."""
    batch = pa.record_batch({"value": values(10_000, 1_000)})
    log.create_topic("long", partitions=2, schema=batch.schema)
    most = log.status().memory
    with log.producer() as producer:
        for number in range(int(gibibytes * 1024**3 / batch.nbytes)):
            producer.append("long", batch, partition=number % 2)
            if number % 100 == 0:
                most = max(most, log.status().memory)
    results.add(f"broker memory, {gibibytes:g} GiB written", "MiB", measured=most / 2**20)
    rows = 0
    with log.consumer("long") as consumer:
        for number, each in enumerate(consumer.batches(until="latest")):
            rows += each.num_rows
            if number % 200 == 0:
                most = max(most, log.status().memory)
    results.add(f"broker memory, {gibibytes:g} GiB read", "MiB", measured=most / 2**20)
    log.delete_topic("long")


if __name__ == "__main__":
    server = _Sink("grpc://127.0.0.1:0")
    print(server.port, flush=True)
    server.wait()
