"""The worker of a lake: its cost, its freshness, its effect on appends, and reads of old ranges.

Costs are processor time of the worker and the broker. The ceiling of the copy is pyarrow's Parquet
writer alone, with the same settings and rows.
"""

from __future__ import annotations

import io
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow as pa

import spark_stream as isolog
from bench.records import batch_of
from bench.results import Results
from spark_stream.lake.delta.schema import OFFSET, PARTITION, TIMESTAMP
from spark_stream.lake.storage.files import write_rows
from spark_stream.lake.storage.snapshots import read_table
from spark_stream.lake.storage.stores import LocalStore, open_store
from spark_stream.lake_worker.worker import LakeWorker

BATCH_ROWS = 20_000
COMMITS = 200
WRITTEN_MB_S = 20.0
TURNS = 3
_PATIENCE_S = 60.0


def run(log: isolog.Log, place: Path, results: Results, rows: int, seconds: float) -> None:
    """All figures without Spark. ``rows``: of the copy. ``seconds``: of each rate."""
    copy(log, place, results, rows)
    _commits(place, results)
    _freshness(log, place, results, 5 * seconds)
    _appends(log, place, results, seconds)


def copy(log: isolog.Log, place: Path, results: Results, rows: int) -> None:
    """Copy a topic of 20 typed columns, and add the costs."""
    batch = batch_of("typed", BATCH_ROWS)
    log.create_topic("copied", schema=batch.schema, config={"compression": "none"})
    count = max(1, rows // BATCH_ROWS)
    with log.producer() as producer:
        for _ in range(count):
            producer.append("copied", batch, partition=0)
    log.create_lake("copied", "copied", place / "copied")
    worker = LakeWorker(log, "copied")
    broker = psutil.Process(log.status().pid)
    before, mine = sum(broker.cpu_times()[:2]), time.process_time()
    worker.run_once()
    mine = time.process_time() - mine
    theirs = sum(broker.cpu_times()[:2]) - before
    megabytes = count * batch.nbytes / 1e6
    results.add(
        "copy of 20 typed columns into a table, worker and broker",
        "MB/s a core",
        measured=megabytes / (mine + theirs),
        ceiling=megabytes / _parquet_s(place, batch, count),
        note="ceiling: pyarrow's writer alone",
    )
    results.add(
        "broker's part of a copy, next to the worker's",
        "s",
        measured=theirs,
        ceiling=mine,
        note="processor time",
    )
    table = read_table(open_store(str(place / "copied")), "copied")
    results.add(
        "size of a table, next to the uncompressed log",
        "MiB",
        measured=sum(each.size for each in table.files.values()) / (1 << 20),
        ceiling=count * batch.nbytes / (1 << 20),
    )
    took: dict[str, list[float]] = {"never": [], "auto": []}
    for choice in ("never", "auto") * TURNS:
        started = time.process_time()
        log.read("copied", lake=choice)
        took[choice].append(time.process_time() - started)
    results.add(
        "read of a range that the log has, with a lake",
        "s",
        measured=statistics.median(took["auto"]),
        ceiling=statistics.median(took["never"]),
        note="processor time; ceiling: lake=never",
    )


def _parquet_s(place: Path, batch: pa.RecordBatch, count: int) -> float:
    """Return the processor time of the worker's Parquet writer, with all rows in memory."""
    places = {
        PARTITION: pa.repeat(pa.scalar(0, pa.int32()), len(batch)),
        OFFSET: pa.array(range(len(batch)), pa.int64()),
        TIMESTAMP: pa.repeat(pa.scalar(0, pa.timestamp("us", "UTC")), len(batch)),
    }
    for name, column in places.items():
        batch = batch.append_column(name, column)
    started = time.process_time()
    write_rows(LocalStore(place / "ceiling"), "t", "f.parquet", batch.schema, [batch] * count)
    return time.process_time() - started


def _commits(place: Path, results: Results) -> None:
    """The put of a version on the local disk, next to a plain file with the same fsyncs."""
    data, folder = b"x" * 2_000, place / "commits"
    store = LocalStore(folder)
    store.put("t/first", data)
    took = {"put": [0.0] * COMMITS, "plain": [0.0] * COMMITS}
    for number in range(COMMITS):
        started = time.perf_counter()
        assert store.put_if_absent(f"t/{number:020}.json", data)
        took["put"][number] = time.perf_counter() - started
        started = time.perf_counter()
        _put_plainly(folder / "t" / f"plain-{number}", data)
        took["plain"][number] = time.perf_counter() - started
    results.add(
        "commit of a version on the local disk, p50",
        "ms",
        measured=statistics.median(took["put"]) * 1e3,
        ceiling=statistics.median(took["plain"]) * 1e3,
        note="ceiling: a file, its fsync and that of its folder",
    )


def _put_plainly(path: Path, data: bytes) -> None:
    with io.FileIO(path, "w") as file:
        file.write(data)
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


class Process:
    """A worker in a separate process, as users run it, or another load."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen([sys.executable, "-m", *arguments])

    @classmethod
    def worker(cls, log: isolog.Log, lake: str) -> Process:
        """Run the worker of a lake."""
        return cls("isolog", "lake", "run", lake, "--bootstrap", log._connection.address)

    def cpu_s(self) -> float:
        """The processor time so far."""
        return float(sum(psutil.Process(self._process.pid).cpu_times()[:2]))

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(_PATIENCE_S)


def _freshness(log: isolog.Log, place: Path, results: Results, seconds: float) -> None:
    """The time from an acknowledged batch until a version has it, beside a writer of 20 MB/s."""
    batch = batch_of("typed", 2_000)
    log.create_topic("fresh", schema=batch.schema)
    lake = log.create_lake("fresh", "fresh", place / "fresh", freshness=1)
    store, worker = open_store(lake.location), Process.worker(log, "fresh")
    pending: list[tuple[int, float]] = []
    took: list[float] = []
    topic_id = lake.topics[0].id

    def look() -> None:
        have = read_table(store, "fresh").offset(topic_id, 0) or 0
        while pending and pending[0][0] < have:
            took.append(time.monotonic() - pending.pop(0)[1])

    try:
        with log.producer() as producer:
            producer.append("fresh", batch, partition=0).result()
            _until(lambda: (read_table(store, "fresh").offset(topic_id, 0) or 0) > 0)
            started, sent, looked = time.monotonic(), 0, 0.0
            while (now := time.monotonic()) - started < seconds:
                if sent < (now - started) * WRITTEN_MB_S * 1e6:
                    offset = producer.append("fresh", batch, partition=0).result().offset
                    pending.append((offset, time.monotonic()))
                    sent += batch.nbytes
                elif now - looked > 0.05:
                    looked = now
                    look()
                else:
                    time.sleep(0.005)
            _until(lambda: look() or not pending)
    finally:
        worker.stop()
    log.drop_lake("fresh")
    results.add(
        "freshness of a table at 1 s beside 20 MB/s, p99",
        "ms",
        measured=statistics.quantiles(took, n=100)[98] * 1e3,
        note=f"p50 {statistics.median(took) * 1e3:,.0f} ms; {sent / seconds / 1e6:,.0f} MB/s",
    )


def _appends(log: isolog.Log, place: Path, results: Results, seconds: float) -> None:
    """The rate of appends alone, beside a worker, and beside a Parquet writer with its share.

    The third rate is the machine's part of the loss: cores, caches and disk are shared.
    """
    batch = batch_of("typed", BATCH_ROWS)
    log.create_topic("beside", schema=batch.schema)
    rates: dict[str, list[float]] = {"alone": [], "worker": [], "writer": []}
    share = 0.5  # of a core, of the last worker
    for beside in ("alone", "worker", "writer") * TURNS:
        log.trim("beside", "latest")  # not by retention, which could outrun a worker
        other = None
        if beside == "worker":
            folder = place / f"beside-{len(rates[beside])}"
            log.create_lake("beside", "beside", folder, freshness=1)
            other = Process.worker(log, "beside")
            _until(lambda: log.describe_lake("beside").recorded_ms is not None)
        elif beside == "writer":
            other = Process("bench.parquet_writer", str(place / "plain.parquet"), f"{share:.2f}")
            _until(other.cpu_s)
            time.sleep(1.0)
        before_s = other.cpu_s() if other is not None else 0.0
        started, rows = time.monotonic(), 0
        with log.producer() as producer:
            while time.monotonic() - started < seconds:
                producer.append("beside", batch, partition=0)
                rows += len(batch)
            producer.flush()
        took = time.monotonic() - started
        rates[beside].append(rows / took)
        if other is not None:
            if beside == "worker":
                share = max(0.05, (other.cpu_s() - before_s) / took)
            other.stop()
        if beside == "worker":
            log.drop_lake("beside")
    medians = {beside: statistics.median(each) for beside, each in rates.items()}
    for beside, name, note in (
        ("alone", "append beside the worker of a lake", "ceiling: without a lake"),
        (
            "writer",
            "append beside the worker of a lake, next to other work",
            "ceiling: beside a Parquet writer with the worker's share of a core",
        ),
    ):
        results.add(
            name,
            "rows/s",
            measured=medians["worker"],
            ceiling=medians[beside],
            note=note,
        )


def _until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("the worker made no progress")
        time.sleep(0.05)


def run_spark(log: isolog.Log, place: Path, results: Results, rows: int, rounds: int) -> None:
    """Ranges that only the table has, through Spark, next to the ceiling of a Python source."""
    from bench.spark_bench import Bench, session

    spark = session()
    bench = Bench(spark, place, results)
    bench._fill(log, "old", "value", rows, partitions=2)
    log.create_lake("old", "old", place / "old")
    LakeWorker(log, "old").run_once()

    def pair(name: str) -> None:
        bench._paired(
            name,
            "rows/s",
            lambda: bench._rate(bench._ceiling("value", rows)),
            lambda: bench._rate(bench._topic("old")),
            rounds,
        )

    pair("streaming read of ranges that the log has, with a lake")
    log.trim("old", "latest")
    pair("streaming read of ranges that only the table has")
    spark.stop()
