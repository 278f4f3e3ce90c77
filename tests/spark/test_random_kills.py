"""Workers, the driver and the broker of a running query are killed at random. No row is lost.

A failure prints its seed. ``ISOLOG_CHAOS_SEED`` runs the same choices again.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import isolog
from tests.conftest import stop_broker
from tests.spark.python_workers import python_workers
from tests.support import alive, end_process, eventually

pytestmark = [pytest.mark.spark, pytest.mark.chaos, pytest.mark.timeout(400), pytest.mark.full]

FILES = 40
ROWS_PER_FILE = 50
VICTIMS = ("worker", "broker", "worker", "driver", "worker")


class Driver:
    """The copying driver, with its processes. It is restarted after each kill."""

    def __init__(self, log: Path, folder: Path) -> None:
        self._arguments = [str(log), str(folder / "source"), "t", str(folder / "checkpoint")]
        self._said = (folder / "driver.log").open("a")
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.copy_driver", *self._arguments],
            stdout=self._said,
            stderr=self._said,
            start_new_session=True,
        )

    def kill(self) -> None:
        """kill -9 of the driver and everything that it started."""
        mine = self._processes()
        self.process.kill()
        for each in mine:
            end_process(each.pid)
        self.process.wait()

    def workers(self) -> list[psutil.Process]:
        """Return the Python workers that run tasks now: children of Spark's daemon."""
        return python_workers(self._processes())

    def _processes(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self._said.close()


def test_every_row_is_written_once_despite_random_kills(tmp_path: Path) -> None:
    seed = int(os.environ.get("ISOLOG_CHAOS_SEED", random.randrange(1 << 32)))
    print(f"ISOLOG_CHAOS_SEED={seed}")
    chance = random.Random(seed)
    (tmp_path / "source").mkdir()
    for number in range(FILES):
        first = number * ROWS_PER_FILE
        rows = pa.table({"n": pa.array(range(first, first + ROWS_PER_FILE), pa.int64())})
        file = tmp_path / "source" / f"{number:03}.parquet"
        pq.write_table(rows, file)
        os.utime(file, (number, number))
    folder = tmp_path / "log"
    killed: Counter[str] = Counter()
    try:
        with isolog.connect(path=folder) as log:
            log.create_topic("t", partitions=3, schema=pa.schema([("n", pa.int64())]))
            driver = Driver(folder, tmp_path)
            try:
                for victim in VICTIMS:
                    before = committed(log)
                    eventually(
                        lambda before=before: (
                            committed(log) > before or driver.process.poll() is not None
                        ),
                        120,
                    )
                    time.sleep(chance.random() * 0.5)
                    killed[victim] += kill(victim, driver, log, chance)
                    if driver.process.poll() not in (None, 0):
                        driver.start()
                while driver.process.wait(240) != 0:
                    driver.start()
            finally:
                driver.close()
            found = log.read("t", isolation="read_committed")["n"].to_pylist()
    finally:
        stop_broker(folder)
    assert sorted(found) == list(range(FILES * ROWS_PER_FILE))
    assert killed["driver"] >= 1, killed
    assert killed["broker"] >= 1, killed
    assert killed["worker"] >= 1, killed


def committed(log: isolog.Log) -> int:
    """Return the number of rows that are visible to readers of committed records."""
    return sum(each.last_stable_offset for each in log.describe("t").partitions)


def kill(victim: str, driver: Driver, log: isolog.Log, chance: random.Random) -> bool:
    """kill -9 of one of these processes, if there is one at the moment."""
    if victim == "driver":
        driver.kill()
        return True
    if victim == "broker":
        end_process(log.status().pid, signal.SIGKILL)
        return True
    workers = driver.workers()
    if not workers:
        return False
    chosen = chance.choice(workers).pid
    end_process(chosen)
    return not alive(chosen)
