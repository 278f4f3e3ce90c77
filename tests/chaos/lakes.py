"""Workers of two lakes beside the mishaps of a cluster: one on the local disk, one in S3 (moto).

Each lake has two workers, which are killed, paused and stopped at any time, and the object store
refuses requests and loses answers. At the end each table has exactly the committed records of the
log, at their offsets, and no worker has stopped for a reason that a person has to decide.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import pyarrow as pa

import isolog
from isolog.testing import LocalCluster
from spark_stream.lake.reading import read_rows
from spark_stream.lake.storage.snapshots import read_table
from spark_stream.lake.storage.stores import open_store
from tests.lake.storage.object_server import Faults, object_server
from tests.system.replication.clusters import with_retries

COLUMNS = ("_partition", "_offset", "_timestamp", "writer", "number")
PAUSED_S = 3.0
_ATTEMPTS = 60


class Lakes(threading.Thread):
    """The lakes of a cluster, and a thread that harms their workers until :meth:`check`."""

    def __init__(
        self, cluster: LocalCluster, log: isolog.Log, topics: Sequence[str], folder: Path, seed: int
    ) -> None:
        super().__init__(name="lakes", daemon=True)
        self.strikes: Counter[str] = Counter()
        self._cluster, self._topics, self._folder = cluster, list(topics), folder
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._ended = ExitStack()
        self._objects = self._ended.enter_context(object_server())
        os.environ.update(self._objects.environment())
        for name in self._objects.environment():
            self._ended.callback(os.environ.pop, name, None)
        self._objects.faults = Faults(refused=0.05, lost=0.05, slow_s=0.005, seed=seed)
        self._names = {"disk": str(folder / "lake"), "objects": "s3://lake/chaos"}
        for name, location in self._names.items():
            log.create_lake(name, self._topics, location, freshness=1, file_bytes=1 << 20)
        self._workers = [(name, self._worker(name)) for name in self._names for _ in range(2)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self.is_alive():
            self.join(60)
        for _, each in self._workers:
            each.kill()
            each.wait()
        self._ended.close()

    def _worker(self, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "isolog", "lake", "run", name]
        with self._said(name).open("ab") as errors:
            return subprocess.Popen(
                [*command, "--bootstrap", self._cluster.bootstrap], stderr=errors
            )

    def _said(self, name: str) -> Path:
        return self._folder / f"worker-{name}"

    def run(self) -> None:
        while not self._over.wait(self._random.uniform(1.0, 6.0)):
            at = self._random.randrange(len(self._workers))
            name, worker = self._workers[at]
            kind = self._random.choice(("kill", "kill", "stop", "pause"))
            self.strikes[kind] += 1
            if kind == "pause":
                worker.send_signal(signal.SIGSTOP)
                self._over.wait(PAUSED_S)
                worker.send_signal(signal.SIGCONT)
                continue
            if kind == "kill":
                worker.kill()
            elif not self._stopped(worker):
                self.strikes["hung"] += 1
                worker.kill()
            worker.wait()
            # One that could not connect has ended too.
            self._workers[at] = name, self._worker(name)

    def _stopped(self, worker: subprocess.Popen[bytes]) -> bool:
        """Return whether a worker ends. The first signal ends it after its round, the second now.

        A round may last for as long as the brokers do not answer.
        """
        for _ in range(2):
            worker.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                worker.wait(60)
                return True
        return False

    def check(self, log: isolog.Log) -> list[str]:
        """End the workers, copy the rest, and compare the tables with the log."""
        self._over.set()
        self.join(120)
        problems = [f"a worker did not end after two signals: {self.strikes['hung']}"] * (
            self.strikes["hung"] > 0
        )
        for _, each in self._workers:
            each.kill()
            each.wait()
        self._objects.faults = Faults()
        for name in self._names:
            said = self._said(name).read_text()
            if "LAKE_STOPPED" in said or log.describe_lake(name).stopped:
                problems.append(f"a worker of {name} stopped: {said[-2_000:]}")
            self._copy_rest(log, name)
        for topic in self._topics:
            wanted = with_retries(
                lambda t=topic: log.read(t, isolation="read_committed", metadata=True, lake="never")
            )
            for name in self._names:
                found = self._rows(log, topic, name)
                for column in COLUMNS:
                    if found[column].to_pylist() != wanted[column].to_pylist():
                        problems.append(
                            f"{column} of the table {topic} of {name} differs from the log:"
                            f" {found.num_rows} and {wanted.num_rows} rows"
                        )
        return problems

    def _copy_rest(self, log: isolog.Log, name: str) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                return isolog.LakeWorker(log, name).run_once()
            except isolog.IsologError as error:
                if not error.retriable or attempt + 1 == _ATTEMPTS:
                    raise
                time.sleep(1)
        return None

    def _rows(self, log: isolog.Log, topic: str, name: str) -> pa.Table:
        """Return all rows of a table by partition and offset."""
        store = open_store(self._names[name])
        table = read_table(store, topic)
        described = log.describe(topic)
        columns = [each for each in COLUMNS if each != "_partition"]
        found = []
        for partition in range(len(described.partitions)):
            end = table.offset(described.id, partition) or 0
            for batch in read_rows(store, table, partition, 0, end, columns):
                rows = pa.Table.from_batches([batch])
                places = pa.repeat(pa.scalar(partition, pa.int32()), len(rows))
                found.append(rows.append_column("_partition", places).select(COLUMNS))
        return pa.concat_tables(
            found, promote_options="default"
        )  # nulls are only permitted in some
