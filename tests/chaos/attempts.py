"""Random queries, whose tasks and micro-batches are compared row by row between their attempts.

Each seed creates a topic with random columns, partitions, aborted transactions and options. Then

- one DataFrame is computed several times,
- a stream calls ``foreachBatch``, and its last micro-batch is replayed,
- a stream copies each third row of a task, and its last committed micro-batch is replayed. (Spark
  gives ``rand(7)`` another seed whenever it plans a micro-batch.)

Python workers and brokers are killed in these attempts, and brokers are paused. All attempts must
have the same rows in the same order. ``make attempts MINUTES=… SEED=…`` runs it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import psutil
import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import monotonically_increasing_id, rand
from pyspark.sql.streaming import DataStreamWriter

import isolog
from isolog.testing import LocalCluster
from tests.spark.conftest import end_jvm, session_builder
from tests.spark.python_workers import python_workers
from tests.support import end_process
from tests.system.replication.clusters import with_retries

T = TypeVar("T")
_COMPUTED = 4
_STARTS_MAX = 20
_PARTS = 6
_SIZES = (200, 3_000, 30_000, 120_000)
_LEVELS = ("read_uncommitted", "read_replicated", "read_committed", "read_atomic")
_COLUMNS: dict[str, tuple[pa.DataType, Callable[[Sequence[int]], list[object]]]] = {
    "text": (pa.string(), lambda n: [f"{each:x}" * (each % 5) or None for each in n]),
    "x": (pa.float64(), lambda n: [each / 7 for each in n]),
    "pair": (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        lambda n: [{"a": each % 9, "b": str(each)} for each in n],
    ),
    "many": (pa.list_(pa.int64()), lambda n: [list(range(each % 4)) for each in n]),
}


class Case:
    """A topic, and the options of the queries that read it."""

    def __init__(self, seed: int) -> None:
        chance = self.chance = random.Random(seed)
        self.topic, self.copy = f"t{seed}", f"copy{seed}"
        self.partitions = chance.randint(1, 8)
        self.rows = chance.choice(_SIZES)
        self.columns = chance.sample(sorted(_COLUMNS), chance.randint(0, 3))
        self.aborts = chance.random() < 0.5
        self.options = {
            "isolation": chance.choice(_LEVELS),
            "mappedReads": chance.choice(["true", "false"]),
        }
        if chance.random() < 0.3:
            self.options["minPartitions"] = str(chance.randint(1, 12))
        if chance.random() < 0.3:
            self.options["maxRecordsPerPartition"] = str(max(50, self.rows // 7))
        if chance.random() < 0.3:
            self.options["filter"] = "n >= 20 AND n NOT IN (30, 99)"
        self.in_batch = max(50, self.rows // chance.randint(1, 4))

    @property
    def schema(self) -> pa.Schema:
        """The columns. ``n`` is different in each row."""
        return pa.schema([("n", pa.int64()), *((each, _COLUMNS[each][0]) for each in self.columns)])

    def __str__(self) -> str:
        columns = ",".join(self.schema.names)
        return (
            f"{self.topic}: {self.rows} rows of {columns} in {self.partitions} partitions,"
            f" {self.options}, {self.in_batch} a batch"
        )

    def write(self, log: isolog.Log) -> None:
        """Create both topics, and write the rows in several transactions."""
        for topic in (self.topic, self.copy):
            log.create_topic(topic, self.partitions, 3, schema=self.schema)
        with log.producer(transactional_id=self.topic) as producer:
            part = max(1, self.rows // _PARTS)
            for first in range(0, self.rows, part):
                producer.begin_transaction()
                self._append(producer, range(first, min(self.rows, first + part)))
                if self.aborts and self.chance.random() < 0.4:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()

    def _append(self, producer: isolog.TransactionalProducer, numbers: range) -> None:
        """Append the rows in small batches, so that each partition has many."""
        step = max(1, len(numbers) // (4 * self.partitions))
        for first in range(numbers.start, numbers.stop, step):
            some = range(first, min(numbers.stop, first + step))
            columns = [pa.array(some, pa.int64())]
            columns += [
                pa.array(_COLUMNS[each][1](some), _COLUMNS[each][0]) for each in self.columns
            ]
            rows = pa.table(columns, schema=self.schema)
            producer.append(self.topic, rows, partition=self.chance.randrange(self.partitions))


class Strikes:
    """Kills of Python workers, and kills and pauses of brokers, until the end of a ``with``.

    ``left``: the number of remaining strikes. An attempt sets it at its begin.
    """

    def __init__(self, cluster: LocalCluster, seed: int) -> None:
        self._cluster = cluster
        self._chance = random.Random(seed)
        self._calm = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.left = 0
        self.made: Counter[str] = Counter()

    def __enter__(self) -> Strikes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._calm.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._calm.wait(self._chance.uniform(0.2, 2.0)):
            if self.left > 0:
                self.left -= 1
                getattr(self, self._chance.choice(["worker", "worker", "kill", "pause"]))()

    def worker(self) -> None:
        gateway = SparkContext._gateway
        assert gateway is not None
        with contextlib.suppress(psutil.Error):
            workers = python_workers(psutil.Process(gateway.proc.pid).children(recursive=True))
            if workers:
                end_process(self._chance.choice(workers).pid, signal.SIGKILL)
                self.made["worker"] += 1

    def kill(self) -> None:
        broker = self._chance.choice(list(self._cluster.brokers))
        self._cluster.kill(broker)
        time.sleep(self._chance.uniform(0.0, 1.0))
        self._cluster.restart(broker)
        self.made["kill"] += 1

    def pause(self) -> None:
        broker = self._chance.choice(list(self._cluster.brokers))
        self._cluster.pause(broker)
        time.sleep(self._chance.uniform(0.1, 1.5))
        self._cluster.resume(broker)
        self.made["pause"] += 1


class Attempts:
    """The runs of one case, and the differences between them."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: LocalCluster,
        case: Case,
        strikes: Strikes,
        folder: Path,
    ) -> None:
        self._spark = spark
        self._strikes = strikes
        self._cluster = cluster
        self._case = case
        self._folder = folder
        self._batches: dict[int, list[pa.Table]] = {}
        self.compared = 0
        self.failures = 0
        self.problems: list[str] = []

    def run(self) -> None:
        """Run all queries of the case."""
        self._compute()
        self._call_for_each_batch()
        self._copy()

    def _compute(self) -> None:
        """Compute one DataFrame several times. A failed plan is final, so each time has its own."""

        def compute() -> pa.Table:
            reader = self._spark.read.format("isolog").options(**self._options)
            return numbered(reader.option("subscribe", self._case.topic).load()).toArrow()

        self._compare("a DataFrame", [self._repeated(compute) for _ in range(_COMPUTED)])

    def _call_for_each_batch(self) -> None:
        """Compute each micro-batch twice, and the last one in a replay too."""

        def keep(rows: DataFrame, batch: int) -> None:
            found = [numbered(rows).toArrow() for _ in range(2)]
            self._batches.setdefault(batch, []).extend(found)

        writer = self._repeated(self._stream).writeStream.foreachBatch(keep)
        checkpoint = self._folder / "each"
        self._finish(writer, checkpoint)
        forget_last_commit(checkpoint)
        self._finish(writer, checkpoint)
        for batch, found in self._batches.items():
            self._compare(f"micro-batch {batch}", found)

    def _copy(self) -> None:
        """Copy each third row of a task. The replay of a committed batch changes nothing."""

        def each_third(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            before = 0
            for batch in batches:
                yield batch.take(pa.array(range(-before % 3, batch.num_rows, 3), pa.int64()))
                before += batch.num_rows

        stream = self._repeated(self._stream)
        rows = stream.mapInArrow(each_third, stream.schema)
        writer = (
            rows.writeStream.format("isolog")
            .option("bootstrap", self._cluster.bootstrap)
            .option("topic", self._case.copy)
        )
        checkpoint = self._folder / "copy"
        copies = []
        for _ in range(3):
            self._finish(writer, checkpoint)
            copies.append(self._copied())
            forget_last_commit(checkpoint)
        self._compare("a copied topic", copies)
        numbers = copies[0]["n"].to_pylist()
        if len(set(numbers)) != len(numbers):
            self.problems.append(f"{self._case}: a row was copied twice")

    def _copied(self) -> pa.Table:
        with self._cluster.connect() as log:
            return with_retries(lambda: log.read(self._case.copy, isolation="read_committed"))

    @property
    def _options(self) -> dict[str, str]:
        return {"bootstrap": self._cluster.bootstrap, **self._case.options}

    def _stream(self) -> DataFrame:
        reader = self._spark.readStream.format("isolog").options(**self._options)
        reader = reader.option("maxOffsetsPerTrigger", self._case.in_batch)
        reader = reader.option("startingOffsets", "earliest")
        return reader.option("subscribe", self._case.topic).load()

    def _finish(self, writer: DataStreamWriter, checkpoint: Path) -> None:
        """Run the query to the present end of its topic. Restart it after a failure."""

        def finish() -> None:
            query = (
                writer.option("checkpointLocation", str(checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            try:
                query.awaitTermination()
            finally:
                query.stop()

        self._repeated(finish)

    def _repeated(self, act: Callable[[], T]) -> T:
        """Retry until it succeeds. Strikes may end an attempt, but not with a wrong replay."""
        for failed in range(_STARTS_MAX):
            self._strikes.left = max(0, self._case.chance.randint(1, 3) - failed)
            try:
                return act()
            except Exception as error:
                self.failures += 1
                text = str(error)
                if "DIFFERENT_REPLAY" in text or "DATA_LOSS" in text:
                    raise
        raise AssertionError(f"{self._case}: no attempt of {_STARTS_MAX} succeeded: {text}")

    def _compare(self, what: str, found: Sequence[pa.Table]) -> None:
        self.compared += len(found) - 1
        for number, each in enumerate(found[1:], 1):
            if not each.equals(found[0]):
                self.problems.append(
                    f"{self._case}: {what}: attempt {number} has {difference(found[0], each)}"
                )


def find_source(spark: SparkSession, cluster: LocalCluster, case: Case) -> None:
    """Make Spark list its data sources before a worker is killed.

    Spark lists them once for all sessions, in a Python worker. If that worker is killed, Spark
    keeps an empty list, and each later query fails with DATA_SOURCE_NOT_FOUND.
    """
    reader = spark.read.format("isolog").option("bootstrap", cluster.bootstrap)
    with_retries(reader.option("subscribe", case.topic).load)


def numbered(rows: DataFrame) -> DataFrame:
    """Add two columns that depend on the order of the rows within a task."""
    return rows.withColumn("at", monotonically_increasing_id()).withColumn("chance", rand(7))


def difference(one: pa.Table, other: pa.Table) -> str:
    """Describe how the second table differs from the first one."""
    if one.num_rows != other.num_rows:
        return f"{other.num_rows} rows, and the first one {one.num_rows}"
    if sorted(one["n"].to_pylist()) != sorted(other["n"].to_pylist()):
        return "other rows"
    first = next(
        at for at in range(one.num_rows) if not one.slice(at, 1).equals(other.slice(at, 1))
    )
    return f"another order from row {first} on"


def forget_last_commit(checkpoint: Path) -> None:
    """Remove the last micro-batch's end from a checkpoint, so that the batch is replayed."""
    commits = [each for each in (checkpoint / "commits").iterdir() if each.name.isdigit()]
    last = max(commits, key=lambda each: int(each.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def run(seconds: float, seed: int) -> tuple[Counter[str], list[str]]:
    """Run cases from a seed on for a while. Return counts of cases and faults, and all problems."""
    until = time.monotonic() + seconds
    done: Counter[str] = Counter()
    problems: list[str] = []
    spark = (
        session_builder("local[2,100]")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    try:
        with LocalCluster(3, cuttable=False) as cluster, tempfile.TemporaryDirectory() as folder:
            while not done["cases"] or time.monotonic() < until:
                case = Case(seed)
                print(case, flush=True)
                with cluster.connect() as log:
                    case.write(log)
                find_source(spark, cluster, case)
                with Strikes(cluster, seed) as strikes:
                    attempts = Attempts(spark, cluster, case, strikes, Path(folder) / str(seed))
                    try:
                        attempts.run()
                    except Exception as error:
                        attempts.problems.append(f"{case}: {str(error)[:2_000]}")
                done.update(strikes.made)
                done.update(cases=1, compared=attempts.compared, failures=attempts.failures)
                problems += attempts.problems
                print(dict(strikes.made), f"{attempts.failures} failures", flush=True)
                for each in attempts.problems:
                    print(f"PROBLEM {each}", flush=True)
                with cluster.connect() as log:
                    for topic in (case.topic, case.copy):
                        with_retries(lambda topic=topic, log=log: log.delete_topic(topic))
                seed += 1
    finally:
        spark.stop()
        end_jvm()
    return done, problems


def main() -> None:
    """Run cases for some minutes. End with an error if there were problems."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.randrange(1 << 20) if options.seed is None else options.seed
    print(f"SEED={seed}", flush=True)
    done, problems = run(options.minutes * 60, seed)
    print(json.dumps(done), f"{len(problems)} problems", flush=True)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
