"""The lake of the flights demo: a worker copies the topic into a Delta table during the run.

At the end the table has all committed records up to one cut. DuckDB, polars and Spark read it at
the version of that cut, and the log is read up to the same cut. Then the first two thirds of the
log are removed, and `isolog sql` and Spark read the topic once more. The table has the removed
records.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import polars
from deltalake import DeltaTable
from flights_brokers import WAIT_S
from flights_jobs import TOPIC
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import isolog

LAKE = "flights-lake"
FRESHNESS_S = 1.0

Totals = tuple[int, int]
"""The number of flights, and the sum of their distances."""


@dataclass
class Lake:
    """The lake of a run. ``folder``: the location of its tables."""

    log: isolog.Log
    place: dict[str, str]
    folder: Path
    worker: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Create the lake, and start its worker: `isolog lake run`."""
        self.log.create_lake(LAKE, TOPIC, self.folder, freshness=FRESHNESS_S)
        with self.folder.with_name("lake-worker.log").open("wb") as said:
            command = [*self._isolog("lake", "run", LAKE), *self._where]
            self.worker = subprocess.Popen(command, stderr=said)

    def finish(self) -> None:
        """End the worker, and copy the records that it has not copied yet."""
        self.stop()
        subprocess.run([*self._isolog("lake", "run", LAKE, "--once"), *self._where], check=True)

    def stop(self) -> None:
        """End the worker, if it runs."""
        if self.worker is not None:
            self.worker.terminate()
            self.worker.wait(WAIT_S)
            self.worker = None

    def counts(self, spark: SparkSession) -> tuple[str, dict[str, Totals]]:
        """Return a text about the last cut, and the totals of each reader at it."""
        cut = json.loads(self._said("lake", "versions", LAKE, "--at", "0s", "-o", "json"))[-1]
        version, path = cut["versions"][TOPIC], str(self.folder / TOPIC)
        table = DeltaTable(path, version=version)
        files = len(table.file_uris())
        what = f"version {version} of the table, {files} files"
        ends = self.log.describe_lake(LAKE).topics[0].tiered
        found = {
            "log": _totals(self.log.read(TOPIC, columns=["distance"], end=ends, **_COMMITTED)),
            "DuckDB": _by_duckdb(table),
            "polars": _by_polars(path, version),
            "Spark": self._by_spark(spark),
        }
        self._trim(ends)
        found["isolog sql, two thirds of the log removed"] = self._by_sql()
        found["Spark, two thirds of the log removed"] = self._by_spark(spark, lake="auto")
        return what, found

    def _by_spark(self, spark: SparkSession, lake: str = "only") -> Totals:
        reader = spark.read.format("isolog").options(**self.place, subscribe=TOPIC, lake=lake)
        frame = reader.options(**_COMMITTED).load()
        [row] = frame.agg(f.count("*"), f.sum("distance")).collect()
        return row[0], row[1]

    def _by_sql(self) -> Totals:
        [row] = map(
            json.loads,
            self._said(
                "sql", f"SELECT count(*) AS n, sum(distance) AS far FROM {TOPIC}", "-o", "json"
            ).splitlines(),
        )
        return row["n"], row["far"]

    def _trim(self, ends: dict[int, int]) -> None:
        """Remove the first two thirds of each partition from the log."""
        self.log.trim(TOPIC, {number: end * 2 // 3 for number, end in ends.items()})

    @property
    def _where(self) -> list[str]:
        [(option, where)] = self.place.items()
        return [f"--{option}", where]

    def _isolog(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "isolog", *arguments]

    def _said(self, *arguments: str) -> str:
        command = [*self._isolog(*arguments), *self._where]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


_COMMITTED = {"isolation": "read_committed"}


def _totals(rows: object) -> Totals:
    # DuckDB finds the variable by its name.
    [(count, distance)] = duckdb.sql("SELECT count(*), sum(distance) FROM rows").fetchall()
    return count, distance


def _by_duckdb(table: DeltaTable) -> Totals:
    return _totals(table.to_pyarrow_dataset())


def _by_polars(path: str, version: int) -> Totals:
    frame = polars.scan_delta(path, version=version)
    [row] = frame.select(polars.len(), polars.col("distance").sum()).collect().rows()
    return row[0], row[1]


@contextmanager
def open_lake(log: isolog.Log, place: dict[str, str], folder: Path) -> Iterator[Lake]:
    """A lake that is created by :meth:`Lake.begin`. Its worker ends with the block."""
    lake = Lake(log, place, folder)
    try:
        yield lake
    finally:
        lake.stop()
