"""After any failure, every input row is in the topic exactly once under read_committed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

import isolog
from spark_stream.wire.transaction_messages import TransactionDescription
from tests.spark.conftest import Queries, ended
from tests.spark.copies import (
    ROWS,
    assert_exactly_once,
    assert_nothing_open,
    copying,
    faulty,
    in_session,
    kill_session,
    source,
    target,
    transactions,
)
from tests.spark.faults import AT_BATCH, FaultySource
from tests.spark.sink_driver import ROWS_PER_BATCH
from tests.spark.test_stream_source import NUMBERS, add, wait_until

__all__ = ["source", "target", "transactions"]


# -- the driver dies ------------------------------------------------------------------------------


@dataclass
class Mishaps:
    """The outcomes of the queries of a separate driver, which was killed at the end."""

    directory: Path

    def of(self, fault: str) -> Path:
        """The directory of the query with this fault."""
        return self.directory / fault.replace(" ", "-")

    def topic(self, fault: str) -> str:
        return f"mishap-{fault.replace(' ', '-')}"

    def ended(self, fault: str) -> str:
        return (self.of(fault) / "ended").read_text()


AT_A_COMMIT = ("commit begins", "commit is under way", "commit is done")
IN_A_TASK = "task killed then task fails"
OLDER = "commit begins and a newer run comes"


@pytest.fixture(scope="module")
def mishaps(
    queries_of_module: Queries,
    log: isolog.Log,
    source: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Mishaps:
    """Run all that needs a separate driver, in one, and kill it with all its processes.

    Its tests are those of `make test-all`. `make test` has the same rules without a JVM: of a
    replayed batch and of a new attempt in `tests/datasource/writing/test_task.py`, of a newer run
    in `tests/consistency/transactions/test_sinks.py`. And below a micro-batch is replayed in the
    shared session.

    The faults at a commit wait there until they are killed. The older of two runs waits too, until
    the newer one, with a copy of its checkpoint, has ended.
    """
    found = Mishaps(tmp_path_factory.mktemp("mishaps"))
    for fault in (*AT_A_COMMIT, IN_A_TASK, OLDER):
        found.of(fault).mkdir()
        log.create_topic(found.topic(fault), partitions=2, schema=NUMBERS)
    job = found.directory / "job.json"
    job.write_text(
        json.dumps(
            {
                "path": queries_of_module.path,
                "source": source,
                "queries": [
                    {
                        "to": found.topic(fault),
                        "fault": AT_A_COMMIT[0] if fault == OLDER else fault,
                        "marks": str(found.of(fault)),
                        "checkpoint": str(found.of(fault) / "checkpoint"),
                    }
                    for fault in (*AT_A_COMMIT, IN_A_TASK, OLDER)
                ],
            }
        )
    )
    with (found.directory / "driver.log").open("w") as out:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.sink_driver", str(job)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        marks = [found.of(fault) / fault for fault in AT_A_COMMIT]
        marks += [found.of(IN_A_TASK) / "ended", found.of(OLDER) / AT_A_COMMIT[0]]

        def arrived() -> bool:
            assert driver.poll() is None, (found.directory / "driver.log").read_text()
            return all(mark.exists() for mark in marks)

        wait_until(arrived, "every query is where its fault is", 200)
        newer = found.of(OLDER) / "newer"
        shutil.copytree(found.of(OLDER) / "checkpoint", newer)
        query = copying(queries_of_module, source, found.topic(OLDER), newer).start()
        assert ended(query) is None
        (found.of(OLDER) / "go").touch()
        wait_until((found.of(OLDER) / "ended").exists, "the older run has ended")
    finally:
        kill_session(driver)
    return found


@pytest.fixture(scope="module")
def queries_of_module(spark: SparkSession, shared_path: Path) -> Queries:
    return Queries(spark, shared_path)


@pytest.mark.rule(
    "a micro-batch is written once",
    "consistency/transactions/sinks.py",
    "datasource/writing/transactions.py",
)
@pytest.mark.chaos
@pytest.mark.full
@pytest.mark.parametrize("fault", AT_A_COMMIT)
def test_each_row_is_written_once_if_the_driver_is_killed_around_its_commit(
    queries: Queries, mishaps: Mishaps, source: str, fault: str
) -> None:
    assert not (mishaps.of(fault) / "ended").exists()
    checkpoint = mishaps.of(fault) / "checkpoint"
    assert not (checkpoint / "commits" / str(AT_BATCH)).exists()
    query = copying(queries, source, mishaps.topic(fault), checkpoint).start()
    assert ended(query) is None
    assert query.recentProgress[0]["batchId"] == AT_BATCH
    assert_exactly_once(queries, mishaps.topic(fault))


@contextmanager
def lone_driver(
    queries: Queries, source: str, target: str, marks: Path, fault: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A separate driver whose query has reached the fault. It is killed at the end."""
    options = {"transactionTimeout": "3s", "queryName": target}
    query = {"to": target, "fault": fault, "marks": str(marks), "options": options}
    query["checkpoint"] = str(marks / "checkpoint")
    job = marks / "job.json"
    job.write_text(json.dumps({"path": queries.path, "source": source, "queries": [query]}))
    with (marks / "driver.log").open("w") as out:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.sink_driver", str(job)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        wait_until((marks / fault).exists, "the query has come to its fault", 120)
        yield driver
    finally:
        kill_session(driver)


def present(transactions: isolog.Log, query_name: str) -> TransactionDescription:
    """The transaction of the query of this name."""
    (found,) = [each for each in transactions.transactions() if each.query_name == query_name]
    return found


@pytest.mark.rule(
    "the time for which the transaction of a dead driver holds readers back",
    "datasource/writing/transactions.py",
    "scripts/transactions/finishing.py",
)
@pytest.mark.chaos
@pytest.mark.full  # without a JVM: tests/datasource/writing/test_task.py
def test_readers_continue_soon_after_the_kill_of_a_driver_in_mid_batch(
    queries: Queries,
    log: isolog.Log,
    transactions: isolog.Log,
    source: str,
    target: str,
    tmp_path: Path,
) -> None:
    with lone_driver(queries, source, target, tmp_path, "task waits"):

        def outlived_its_first_deadline() -> bool:
            found = present(transactions, target)
            assert found.state == "open"
            return found.deadline_ms > found.began_ms + 2 * found.timeout_ms

        wait_until(outlived_its_first_deadline, "the task that waits renews its transaction")
    number = present(transactions, target).number
    wait_until(lambda: present(transactions, target).state == "aborted", "the transaction expires")
    assert present(transactions, target).number == number
    assert_nothing_open(log, target)
    assert log.read(target, isolation="read_committed").num_rows == 0
    assert ended(copying(queries, source, target, tmp_path / "checkpoint").start()) is None
    assert_exactly_once(queries, target)


@pytest.mark.chaos
@pytest.mark.full  # without a JVM: tests/datasource/writing/test_task.py
def test_a_driver_paused_beyond_the_timeout_gets_an_error_and_its_batch_is_written_once(
    queries: Queries,
    log: isolog.Log,
    transactions: isolog.Log,
    source: str,
    target: str,
    tmp_path: Path,
) -> None:
    with lone_driver(queries, source, target, tmp_path, "commit begins") as driver:
        members = [each for each in psutil.process_iter() if in_session(each, driver.pid)]
        for each in members:
            each.suspend()
        wait_until(
            lambda: present(transactions, target).state == "aborted", "the transaction expires"
        )
        assert_nothing_open(log, target)
        for each in members:
            each.resume()
        (tmp_path / "go").touch()
        wait_until((tmp_path / "ended").exists, "the query has ended")
    failure = (tmp_path / "ended").read_text()
    assert "TRANSACTION_ABORTED" in failure
    assert "it was not renewed within its timeout of 3000 ms" in failure
    assert_exactly_once(queries, target, AT_BATCH * ROWS_PER_BATCH)
    query = copying(queries, source, target, tmp_path / "checkpoint").start()
    assert ended(query) is None
    assert query.recentProgress[0]["batchId"] == AT_BATCH
    assert_exactly_once(queries, target)


@pytest.mark.chaos
@pytest.mark.full
def test_of_two_runs_of_a_query_the_older_is_fenced(queries: Queries, mishaps: Mishaps) -> None:
    assert "PRODUCER_FENCED" in mishaps.ended(OLDER)
    assert_exactly_once(queries, mishaps.topic(OLDER))


@pytest.mark.chaos
@pytest.mark.full
def test_task_killed_or_failed_in_mid_write_is_retried(
    queries: Queries, log: isolog.Log, mishaps: Mishaps
) -> None:
    assert {"task killed", "task fails"} <= {each.name for each in mishaps.of(IN_A_TASK).iterdir()}
    assert mishaps.ended(IN_A_TASK) == ""
    topic = mishaps.topic(IN_A_TASK)
    assert log.read(topic).num_rows > ROWS  # the first attempts had written
    assert_exactly_once(queries, topic)


# -- commits, answers, restarts -------------------------------------------------------------------


def test_commit_whose_reply_is_lost_is_retried(
    queries: Queries, source: str, target: str, tmp_path: Path
) -> None:
    fault = "commit's reply is lost"
    query = faulty(queries, source, target, tmp_path, fault).start()
    assert "the reply is lost" in str(ended(query))
    assert (tmp_path / f"abort {AT_BATCH}").read_text() == "2"  # with all its messages
    assert_exactly_once(queries, target, (AT_BATCH + 1) * ROWS_PER_BATCH)
    assert ended(copying(queries, source, target, tmp_path / "checkpoint").start()) is None
    assert_exactly_once(queries, target)


def test_query_restarted_after_a_failed_task_keeps_none_of_its_rows(
    queries: Queries, log: isolog.Log, source: str, target: str, tmp_path: Path
) -> None:
    query = faulty(queries, source, target, tmp_path, "task fails").start()
    assert "the task fails here" in str(ended(query))
    assert log.read(target).num_rows > 0
    assert_nothing_open(log, target)
    assert log.read(target, isolation="read_committed").num_rows == 0
    assert ended(copying(queries, source, target, tmp_path / "checkpoint").start()) is None
    assert log.read(target).num_rows > ROWS
    assert_exactly_once(queries, target)


def test_query_stopped_in_mid_batch_blocks_no_reader(
    queries: Queries, log: isolog.Log, source: str, target: str, tmp_path: Path
) -> None:
    """No task has ended, so Spark's abort gets no message of any."""
    query = faulty(queries, source, target, tmp_path, "task waits").start()
    wait_until(lambda: log.read(target).num_rows > 0, "a task has written")
    assert not all(
        each.last_stable_offset == each.log_end_offset for each in log.describe(target).partitions
    )
    query.stop()
    assert (tmp_path / "abort 0").exists()
    assert_nothing_open(log, target)


@pytest.mark.full  # without a JVM: tests/datasource/writing/test_task.py
def test_a_micro_batch_fails_with_the_name_of_a_topic_that_was_deleted(
    queries: Queries, log: isolog.Log, source: str, target: str, tmp_path: Path
) -> None:
    """After a restart the batches from the failed one on are in the new topic, once."""
    query = faulty(queries, source, target, tmp_path, "commit begins").start()
    wait_until((tmp_path / "commit begins").exists, "the second batch is about to commit")
    log.delete_topic(target)
    log.create_topic(target, partitions=2, schema=NUMBERS)
    (tmp_path / "go").touch()
    failure = str(ended(query))
    assert "UNKNOWN_TOPIC" in failure
    assert f"topic '{target}', which was deleted" in failure
    assert ended(copying(queries, source, target, tmp_path / "checkpoint").start()) is None
    rows = log.read(target, isolation="read_committed")["n"].to_pylist()
    assert sorted(rows) == list(range(AT_BATCH * ROWS_PER_BATCH, ROWS))


@pytest.mark.full  # without a JVM: tests/datasource/writing/test_task.py
def test_tasks_that_end_further_apart_than_the_timeout_commit(
    queries: Queries, log: isolog.Log, target: str, tmp_path: Path
) -> None:
    """One task writes immediately. The other computes for longer than the timeout."""
    timeout_s = 15  # which has to hold from the last task's end to the commit as well
    for number in range(2):
        rows = pa.table({"n": pa.array([number], pa.int64())})
        pq.write_table(rows, tmp_path / f"{number}.parquet")

    def slow(n: int) -> int:
        if n == 1:
            time.sleep(1.2 * timeout_s)
        return n

    computed = udf(slow, "bigint", useArrow=False)
    frame = queries.spark.readStream.schema("n bigint").parquet(str(tmp_path / "*.parquet"))
    queries.spark.dataSource.register(FaultySource)
    writer = queries.sink(
        frame.select(computed("n").alias("n")), tmp_path / "checkpoint", topic=target
    )
    writer = writer.format("isolog_faulty").option("fault", "none").option("marks", str(tmp_path))
    assert ended(writer.option("transactionTimeout", f"{timeout_s}s").start()) is None
    assert_exactly_once(queries, target, 2)


def test_query_restarted_from_its_checkpoint_continues(
    queries: Queries,
    log: isolog.Log,
    transactions: isolog.Log,
    topic: str,
    target: str,
    tmp_path: Path,
) -> None:
    log.create_topic(f"{topic}-in", schema=NUMBERS)
    for first in (0, 10):
        add(log, f"{topic}-in", range(first, first + 10))
        stream = queries.stream(f"{topic}-in")
        query = queries.sink(stream, tmp_path / "checkpoint", topic=target).start()
        assert ended(query) is None
        facts = transactions.describe_transaction(f"query/{query.id}")
        assert facts.state == "committed"
    assert_exactly_once(queries, target, 20)


# -- the broker dies ------------------------------------------------------------------------------


# Brokers die in tests/spark/test_failover.py and tests/system/transactions/test_sinks.py.
@pytest.mark.full
@pytest.mark.chaos
def test_each_row_is_written_once_if_a_broker_is_killed_in_a_micro_batch(
    spark: SparkSession, source: str, log_dir: Path, tmp_path: Path
) -> None:
    with isolog.connect(path=log_dir) as log:
        log.create_topic("out", schema=NUMBERS, partitions=2)
        (tmp_path / "broker").write_text(str(log.status().pid))
        queries = Queries(spark, log_dir)
        query = faulty(queries, source, "out", tmp_path, "broker killed").start()
        failure = ended(query)
        assert (tmp_path / "broker killed").exists()
        if failure is not None:
            query = copying(queries, source, "out", tmp_path / "checkpoint").start()
            assert ended(query) is None
        assert_exactly_once(queries, "out")
