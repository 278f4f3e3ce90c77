"""Replayed batches: the same rows are deduplicated, other rows are refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import isolog
from spark_stream.wire.transaction_messages import OpenBranch
from tests.spark.conftest import Queries, ended
from tests.spark.test_stream_source import NUMBERS


@pytest.fixture(scope="module")
def transactions(shared_path: Path) -> Iterator[isolog.Log]:
    with isolog.connect(path=shared_path) as log:
        yield log


class Copy:
    """A query between two topics, whose checkpoint is set back as by a backup."""

    def __init__(
        self,
        queries: Queries,
        log: isolog.Log,
        topic: str,
        directory: Path,
        schema: pa.Schema = NUMBERS,
    ) -> None:
        self._queries = queries
        self._log = log
        self.source, self.target = directory / "source", topic
        self.source.mkdir()
        log.create_topic(topic, schema=schema)
        self._kind = schema.field("n").type
        self.checkpoint = directory / "checkpoint"
        self.query_id = ""

    def run(self, where: str = "true", **options: object) -> str | None:
        """Run it over the present records, in two tasks. Return its error, or None."""
        column = "n double" if pa.types.is_floating(self._kind) else "n bigint"
        frame = self._queries.spark.readStream.schema(column).parquet(str(self.source))
        rows = frame.where(where).repartition(2)
        query = self._queries.sink(rows, self.checkpoint, topic=self.target, **options).start()
        self.query_id = str(query.id)
        return ended(query)

    def add(self, *rows: float) -> None:
        table = pa.table({"n": pa.array(rows, self._kind)})
        pq.write_table(table, self.source / f"{rows[0]}.parquet")

    def forget(self, batch: int, *, plan: bool = False) -> None:
        """Remove the batch's commit, and perhaps its plan, from the checkpoint."""
        for folder in ("commits", "offsets", "sources/0") if plan else ("commits",):
            for name in (str(batch), f".{batch}.crc"):
                (self.checkpoint / folder / name).unlink(missing_ok=True)

    def written(self) -> list[float]:
        table: pa.Table = self._log.read(self.target, isolation="read_committed")
        return sorted(table["n"].to_pylist())


@pytest.fixture
def copy(queries: Queries, log: isolog.Log, topic: str, tmp_path: Path) -> Copy:
    return Copy(queries, log, topic, tmp_path)


@pytest.mark.full  # without a JVM: tests/datasource/writing/test_transactions.py
def test_a_batch_planned_with_other_rows_is_a_different_replay(copy: Copy) -> None:
    """There are more rows now, so the batch is planned with other rows. The loss is reported."""
    copy.add(*range(10))
    assert copy.run() is None
    whole = copy.checkpoint.with_name("whole")
    shutil.copytree(copy.checkpoint, whole)
    copy.forget(0)
    assert copy.run() is None  # the same rows, in whatever order: silent
    assert copy.written() == list(range(10))

    copy.forget(0, plan=True)
    copy.add(*range(10, 15))
    failed = str(copy.run())
    assert "DIFFERENT_REPLAY" in failed
    assert f"committed 10 rows to '{copy.target}', now 15 rows" in failed
    assert "restore the newer one" in failed
    assert copy.written() == list(range(10))

    shutil.rmtree(copy.checkpoint)
    shutil.copytree(whole, copy.checkpoint)
    assert copy.run() is None  # the newer checkpoint is restored
    assert copy.written() == list(range(15))


@pytest.mark.full  # without a JVM: tests/datasource/writing/test_transactions.py
def test_a_replay_of_other_values_is_refused_or_ignored(copy: Copy) -> None:
    """Two concurrent runs may cause it, if both write a plan and one of the plans is in the log."""
    copy.add(*range(10))
    assert copy.run() is None
    copy.forget(0, plan=True)
    copy.add(*range(10, 20))
    failed = str(copy.run(where="n >= 10"))
    assert "DIFFERENT_REPLAY" in failed
    assert "of other values" in failed
    assert copy.written() == list(range(10))
    copy.forget(0)
    assert copy.run(where="n >= 10", differentReplay="keep") is None
    assert copy.written() == list(range(10))


@pytest.mark.full  # without a JVM: tests/datasource/writing/test_transactions.py
def test_replay_that_differs_in_floats_alone(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    copy = Copy(queries, log, topic, tmp_path, pa.schema([("n", pa.float64())]))
    copy.add(0.5, 1.25, 2.0)
    assert copy.run() is None
    copy.forget(0)
    assert copy.run() is None  # the same rows again
    copy.forget(0, plan=True)
    copy.add(3.5, 1.25, 2.0)
    failed = str(copy.run(where="input_file_name() LIKE '%3.5.parquet'"))
    assert "DIFFERENT_REPLAY" in failed
    assert "of other floating-point values" in failed
    assert "ignoreFloats" in failed
    assert copy.written() == [0.5, 1.25, 2.0]


@pytest.mark.full  # without a JVM: tests/system/transactions/test_sinks.py
def test_new_sink_id_takes_over_the_committed_batches_of_the_query(copy: Copy) -> None:
    copy.add(*range(10))
    assert copy.run() is None
    copy.forget(0)
    assert copy.run(sinkId=copy.target) is None  # its last batch has to be replayed
    copy.add(10)
    assert copy.run(sinkId=copy.target) is None
    copy.forget(1)
    assert copy.run() is None  # and is taken away again
    assert copy.written() == list(range(11))


@pytest.mark.full  # without a JVM: tests/system/transactions/test_sinks.py
def test_replay_without_rows_aborts_the_transaction_of_a_dead_run(
    copy: Copy, transactions: isolog.Log
) -> None:
    copy.add(0)
    assert copy.run() is None
    dead = OpenBranch(
        transactional_id=f"query/{copy.query_id}", query=copy.query_id, instance="dead", batch=1
    )
    transactions._connection.call(dead)
    assert transactions.describe_transaction(dead.transactional_id).state == "open"
    copy.add(1)
    assert copy.run(where="n < 0") is None
    assert transactions.describe_transaction(dead.transactional_id).state == "aborted"
