"""Queries of a topic whose first two thirds are only in the table of a lake.

Each result is compared row by row with the one before the trim. `tests/datasource/reading/
test_older_records.py` has the plans and the micro-batches, without a JVM.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

import isolog
from spark_stream.datasource.spark.releases import PUSHES_FILTERS
from tests.lake.local_lake import LocalLake
from tests.spark.conftest import Queries
from tests.spark.releases import passes_limits

SCHEMA = "n int, name string, price decimal(7,2), tags array<string>, moment timestamp"
LEVELS = ["read_uncommitted", "read_replicated", "read_committed", "read_atomic"]
PARTITIONS = 3
TRANSACTIONS = 12
STARTS = {0: 160, 1: 161, 2: 200}
Rows = list[tuple[Any, ...]]


def block(first: int, schema: pa.Schema) -> pa.Table:
    numbers = range(first, first + 20)
    columns = {
        "n": list(numbers),
        "name": [None if n % 5 == 0 else f"name {n}" for n in numbers],
        "price": [Decimal(n) / 4 for n in numbers],
        "tags": [["a", None, str(n)][: n % 4] for n in numbers],
        "moment": [n * 1_000_001 for n in numbers],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


class LakeTopic:
    """A topic with transactions, of which a quarter is aborted, and its lake."""

    def __init__(self, log: isolog.Log, name: str, root: Path) -> None:
        self.log, self.name = log, name
        self.schema = log.create_topic(name, partitions=PARTITIONS, schema=SCHEMA).schema
        self._lake = LocalLake(log, [name], root)
        self._written = 0

    def write(self, transactions: int) -> None:
        with self.log.producer(transactional_id=f"{self.name}-writer") as producer:
            for number in range(self._written, self._written + transactions):
                producer.begin_transaction()
                for partition in range(PARTITIONS):
                    rows = block(1000 * partition + 20 * number, self.schema)
                    producer.append(self.name, rows, partition=partition)
                producer.flush()
                if number % 4 == 2:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
                self._lake.run()
        self._written += transactions

    def trim(self) -> None:
        self.log.trim(self.name, STARTS)
        self.log.read(self.name, start=0, end=1)  # the table has the removed records
        starts = [each.log_start_offset for each in self.log.describe(self.name).partitions]
        assert starts == list(STARTS.values())

    def committed(self) -> set[tuple[int, int]]:
        read = self.log.read(self.name, isolation="read_committed", columns=[], metadata=True)
        columns = (read.column(each).to_pylist() for each in ("_partition", "_offset"))
        return set(zip(*columns, strict=True))

    def moment(self) -> int:
        """A time in milliseconds within the first third of the records."""
        times = self.log.read(self.name, metadata=True).column("_timestamp").to_pylist()
        return int(sorted(times)[len(times) // 4].timestamp() * 1000)


@pytest.fixture
def older(log: isolog.Log, topic: str, tmp_path: Path) -> LakeTopic:
    return LakeTopic(log, topic, tmp_path / "lake")


def rows_of(frame: DataFrame) -> Rows:
    return sorted(map(tuple, frame.collect()), key=lambda row: row[-3:-1])


def visible(rows: Rows, level: str, committed: set[tuple[int, int]]) -> Rows:
    """Leave out rows of aborted transactions below the log start, which the table does not have."""
    if level in ("read_committed", "read_atomic"):
        return rows
    return [row for row in rows if row[-2] >= STARTS[row[-3]] or row[-3:-1] in committed]


def batches(queries: Queries, older: LakeTopic, level: str, moment: int) -> dict[str, Rows]:
    name = older.name

    def read(**options: Any) -> DataFrame:
        return queries.read(name, isolation=level, includeMetadata=True, **options)

    frames = {
        "whole": read(),
        "tasks": read(minPartitions=7),
        "starts": read(startingOffsets=f'{{"{name}":{{"0":7,"1":-2,"2":210}}}}'),
        "ends": read(endingOffsets=f'{{"{name}":{{"0":90,"1":-1,"2":60}}}}'),
        "time": read(startingTimestamp=moment),
        "filter": read(filter="n > 50 and n < 2100 and name like 'name%'"),
        "where": read(pushFilters=PUSHES_FILTERS).where("n between 30 and 2120 and name is null"),
    }
    return {each: rows_of(frame) for each, frame in frames.items()}


@pytest.mark.quick("read_atomic")
@pytest.mark.parametrize("level", LEVELS)
def test_batch_queries_return_the_same_rows(queries: Queries, older: LakeTopic, level: str) -> None:
    older.write(TRANSACTIONS)
    moment, committed = older.moment(), older.committed()
    before = batches(queries, older, level, moment)
    older.trim()
    after = batches(queries, older, level, moment)
    for name, rows in before.items():
        assert after[name] == visible(rows, level, committed), name
    assert len(after["whole"]) >= PARTITIONS * 20 * 9
    assert all(after.values())


STREAMS: dict[str, Callable[[LakeTopic], dict[str, Any]]] = {
    "earliest": lambda _: {"startingOffsets": "earliest"},
    "limit": lambda _: {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 100},
    "offsets": lambda older: {"startingOffsets": f'{{"{older.name}":{{"0":7,"1":-2,"2":210}}}}'},
    "time": lambda older: {"startingTimestamp": older.moment()},
    "filter": lambda _: {"startingOffsets": "earliest", "filter": "n > 50 and n < 2100"},
}


@pytest.mark.full  # without a JVM: tests/datasource/reading/test_older_records.py
@passes_limits
@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed", "read_atomic"])
@pytest.mark.parametrize("start", STREAMS)
def test_streams_return_the_same_rows_within_the_same_limits(
    queries: Queries, older: LakeTopic, tmp_path: Path, level: str, start: str
) -> None:
    older.write(TRANSACTIONS)
    committed = older.committed()
    options = {"isolation": level, "includeMetadata": True, **STREAMS[start](older)}

    def copied(name: str) -> tuple[list[int], Rows]:
        stream = queries.stream(older.name, **options)
        counts = queries.copy(stream, tmp_path / name, tmp_path / f"{name}-checkpoint")
        return counts, rows_of(queries.spark.read.parquet(str(tmp_path / name)))

    counts, before = copied("before")
    older.trim()
    counts_after, after = copied("after")
    assert after == visible(before, level, committed)
    if level == "read_committed":
        assert counts_after == counts
    if start == "limit":
        assert max(counts_after) <= 100


@pytest.mark.quick("read_committed")
@pytest.mark.parametrize("level", ["read_committed", "read_atomic"])
def test_a_stream_restarts_from_a_checkpoint_that_points_into_the_table(
    queries: Queries, older: LakeTopic, tmp_path: Path, level: str
) -> None:
    older.write(4)
    options = {"isolation": level, "includeMetadata": True, "startingOffsets": "earliest"}

    def copy() -> int:
        stream = queries.stream(older.name, **options)
        return sum(queries.copy(stream, tmp_path / "copy", tmp_path / "checkpoint"))

    assert copy() == PARTITIONS * 20 * 3
    older.write(TRANSACTIONS - 4)
    expected = rows_of(queries.read(older.name, isolation=level, includeMetadata=True))
    older.trim()
    assert copy() == PARTITIONS * 20 * 6
    assert rows_of(queries.spark.read.parquet(str(tmp_path / "copy"))) == expected
    assert copy() == 0
