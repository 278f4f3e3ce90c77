"""Whatever dies, every input row is in the topic exactly once under read_committed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming import DataStreamWriter

import spark_stream as isolog
from spark_stream.client.connecting.connection import Connection
from spark_stream.client.transactions import TransactionsClient
from spark_stream.datasource.options import sink_options
from spark_stream.datasource.types import to_spark
from spark_stream.datasource.writer import IsologWriter
from tests.spark.conftest import Queries, ended
from tests.spark.faults import AT_BATCH, FaultySource
from tests.spark.sink_driver import FILES, ROWS_PER_BATCH, micro_batches
from tests.spark.test_stream_source import NUMBERS, add, wait_until

ROWS = 3 * ROWS_PER_BATCH


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the queries write into the log: three micro-batches."""
    directory = tmp_path_factory.mktemp("source")
    size = ROWS // FILES
    for number in range(FILES):
        rows = pa.array(range(number * size, (number + 1) * size), pa.int64())
        file = directory / f"{number}.parquet"
        pq.write_table(pa.table({"n": rows}), file)
        os.utime(file, (number, number))  # in this order
    return str(directory)


@pytest.fixture
def target(log: isolog.Log, topic: str) -> str:
    """An empty topic for the copy."""
    log.create_topic(topic, partitions=2, schema=NUMBERS)
    return topic


@pytest.fixture(scope="session")
def transactions(shared_path: Path) -> Iterator[TransactionsClient]:
    connection = Connection(path=shared_path)
    yield TransactionsClient(connection)
    connection.close()


def copying(queries: Queries, source: str, to: str, checkpoint: Path) -> DataStreamWriter:
    """The query of all these tests."""
    return queries.sink(micro_batches(queries.spark, source), checkpoint, topic=to)


def faulty(queries: Queries, source: str, to: str, directory: Path, fault: str) -> DataStreamWriter:
    """The same with a fault; its marks and its checkpoint are in the directory."""
    queries.spark.dataSource.register(FaultySource)
    writer = copying(queries, source, to, directory / "checkpoint").format("isolog_faulty")
    return writer.option("fault", fault).option("marks", str(directory))


def assert_exactly_once(queries: Queries, topic: str, rows: int = ROWS) -> None:
    shown = queries.read(topic, isolation="read_committed")
    expected = queries.spark.range(rows).toDF("n")
    assert_df_equality(shown, expected, ignore_row_order=True, ignore_nullable=True)


def assert_nothing_open(log: isolog.Log, topic: str) -> None:
    """No reader of committed records waits for what a query left behind."""
    for each in log.describe(topic).partitions:
        assert each.last_stable_offset == each.log_end_offset


# -- the driver dies ------------------------------------------------------------------------------


@dataclass
class Mishaps:
    """What became of the queries of a driver of its own, which was killed in the end."""

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
    """Runs all that needs a driver of its own, in one, and kills it with all its processes.

    The faults at a commit wait there until they are killed. The older of two runs waits as well,
    until the newer one, of a copy of its checkpoint, has come to its end.
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


def kill_session(driver: subprocess.Popen[bytes]) -> None:
    """kill -9 of the driver, its JVM and its Python workers, with those that begin meanwhile."""
    while members := [each for each in psutil.process_iter() if in_session(each, driver.pid)]:
        for process in members:
            with contextlib.suppress(psutil.NoSuchProcess):  # it may end by itself meanwhile
                process.kill()
        driver.wait(20)
        psutil.wait_procs(members, 20)


def in_session(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session
    except ProcessLookupError:
        return False


@pytest.mark.chaos
@pytest.mark.parametrize("fault", AT_A_COMMIT)
def test_a_driver_killed_before_in_or_after_its_commit(
    queries: Queries, mishaps: Mishaps, source: str, fault: str
) -> None:
    assert not (mishaps.of(fault) / "ended").exists()
    checkpoint = mishaps.of(fault) / "checkpoint"
    assert not (checkpoint / "commits" / str(AT_BATCH)).exists()
    query = copying(queries, source, mishaps.topic(fault), checkpoint).start()
    assert ended(query) is None
    assert query.recentProgress[0]["batchId"] == AT_BATCH
    assert_exactly_once(queries, mishaps.topic(fault))


@pytest.mark.chaos
def test_of_two_runs_of_a_query_the_older_is_fenced(queries: Queries, mishaps: Mishaps) -> None:
    assert "PRODUCER_FENCED" in mishaps.ended(OLDER)
    assert_exactly_once(queries, mishaps.topic(OLDER))


@pytest.mark.chaos
def test_a_task_killed_or_failed_in_mid_write_is_tried_again(
    queries: Queries, log: isolog.Log, mishaps: Mishaps
) -> None:
    assert {"task killed", "task fails"} <= {each.name for each in mishaps.of(IN_A_TASK).iterdir()}
    assert mishaps.ended(IN_A_TASK) == ""
    topic = mishaps.topic(IN_A_TASK)
    assert log.read(topic).num_rows > ROWS  # the first attempts had written
    assert_exactly_once(queries, topic)


# -- commits, answers, restarts -------------------------------------------------------------------


def test_a_commit_that_works_and_whose_reply_is_lost(
    queries: Queries, source: str, target: str, tmp_path: Path
) -> None:
    fault = "commit's reply is lost"
    query = faulty(queries, source, target, tmp_path, fault).start()
    assert "the reply is lost" in str(ended(query))
    assert (tmp_path / f"abort {AT_BATCH}").read_text() == "2"  # with all its messages
    assert_exactly_once(queries, target, (AT_BATCH + 1) * ROWS_PER_BATCH)
    assert ended(copying(queries, source, target, tmp_path / "checkpoint").start()) is None
    assert_exactly_once(queries, target)


def test_a_query_restarted_after_a_failed_task_leaves_nothing_of_it(
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


def test_a_query_stopped_in_mid_batch_holds_no_reader_up(
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


def test_tasks_that_end_further_apart_than_the_timeout_commit(
    queries: Queries, log: isolog.Log, target: str, tmp_path: Path
) -> None:
    """One task writes at once, the other computes for longer than a transaction may be open."""
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
    assert ended(writer.option("timeout_ms", str(1000 * timeout_s)).start()) is None
    assert_exactly_once(queries, target, 2)


def test_a_query_restarted_from_its_checkpoint_goes_on(
    queries: Queries,
    log: isolog.Log,
    transactions: TransactionsClient,
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
        facts = transactions.describe(f"query/{query.id}")
        assert facts.instance == str(query.runId)
        assert facts.state == "committed"
    assert_exactly_once(queries, target, 20)


def test_a_micro_batch_without_rows_begins_no_transaction(
    queries: Queries, transactions: TransactionsClient, source: str, target: str, tmp_path: Path
) -> None:
    frame = micro_batches(queries.spark, source).where("n < 0")
    query = queries.sink(frame, tmp_path, topic=target).start()
    assert ended(query) is None
    with pytest.raises(isolog.errors.UnknownTransaction):
        transactions.describe(f"query/{query.id}")


def test_a_sink_id_names_the_transactions_and_is_one_querys(
    queries: Queries,
    transactions: TransactionsClient,
    source: str,
    target: str,
    tmp_path: Path,
) -> None:
    mine = copying(queries, source, target, tmp_path / "mine").option("sinkId", target).start()
    assert ended(mine) is None
    assert transactions.describe(f"sink/{target}").query == str(mine.id)
    other = copying(queries, source, target, tmp_path / "other").option("sinkId", target).start()
    assert "SINK_IN_USE" in str(ended(other))
    assert_exactly_once(queries, target)


def test_the_same_sink_id_in_two_running_queries(
    queries: Queries, log: isolog.Log, topic: str, target: str, tmp_path: Path
) -> None:
    log.create_topic(f"{topic}-in", schema=NUMBERS)
    add(log, f"{topic}-in", range(10))
    stream = queries.stream(f"{topic}-in")
    running = queries.sink(stream, tmp_path / "running", topic=target, sinkId=target)
    running = running.trigger(processingTime="0 seconds").start()
    try:
        wait_until(lambda: log.read(target, isolation="read_committed").num_rows == 10, "it runs")
        other = queries.sink(stream, tmp_path / "other", topic=target, sinkId=target).start()
        assert "SINK_IN_USE" in str(ended(other))
        assert "Give every query a sinkId of its own" in str(ended(other))
        add(log, f"{topic}-in", range(10, 20))
        wait_until(lambda: log.read(target, isolation="read_committed").num_rows == 20, "goes on")
    finally:
        running.stop()
    assert_exactly_once(queries, target, 20)


def test_a_restored_old_checkpoint_is_refused(
    queries: Queries, source: str, target: str, tmp_path: Path
) -> None:
    checkpoint, old = tmp_path / "checkpoint", tmp_path / "old"
    assert ended(copying(queries, source, target, checkpoint).start()) is None
    shutil.copytree(checkpoint, old)
    for batch in (1, 2):  # as it was after its first batch
        for each in ("offsets", "commits"):
            (old / each / str(batch)).unlink()
            (old / each / f".{batch}.crc").unlink(missing_ok=True)
        (old / "sources" / "0" / str(batch)).unlink()
        (old / "sources" / "0" / f".{batch}.crc").unlink(missing_ok=True)
    failed = str(ended(copying(queries, source, target, old).start()))
    assert "STALE_BATCH" in failed
    assert "batch 1" in failed
    assert_exactly_once(queries, target)


# -- one transaction ------------------------------------------------------------------------------


def test_rows_to_several_topics_in_one_micro_batch_are_one_transaction(
    queries: Queries,
    log: isolog.Log,
    transactions: TransactionsClient,
    source: str,
    topic: str,
    tmp_path: Path,
) -> None:
    names = [f"{topic}-even", f"{topic}-odd"]
    for name in names:
        log.create_topic(name, schema=NUMBERS)
    routed = micro_batches(queries.spark, source).selectExpr(
        f"concat('{topic}-', if(n % 2 = 0, 'even', 'odd')) as topic", "n"
    )
    query = queries.sink(routed, tmp_path / "checkpoint").start()
    assert ended(query) is None
    facts = transactions.describe(f"query/{query.id}")
    assert {each.topic for each in facts.partitions} == set(names)
    assert facts.committed_batch == 2
    for remainder, name in enumerate(names):
        rows = log.read(name, isolation="read_committed")["n"].to_pylist()
        assert sorted(rows) == list(range(remainder, ROWS, 2))


def test_a_topic_that_fails_leaves_nothing_in_the_others(
    queries: Queries, log: isolog.Log, source: str, topic: str, tmp_path: Path
) -> None:
    log.create_topic(f"{topic}-even", schema=NUMBERS)
    routed = micro_batches(queries.spark, source).selectExpr(
        f"concat('{topic}-', if(n % 2 = 0, 'even', 'missing')) as topic", "n"
    )
    query = queries.sink(routed, tmp_path / "checkpoint").start()
    assert "UNKNOWN_TOPIC" in str(ended(query))
    assert log.read(f"{topic}-even", isolation="read_committed").num_rows == 0


def test_a_batch_write_is_one_transaction(
    queries: Queries, log: isolog.Log, transactions: TransactionsClient, target: str
) -> None:
    before = {facts.transactional_id for facts in transactions.all()}
    queries.write(queries.spark.range(0, 100, 1, 4).toDF("n"), target)
    (made,) = [facts for facts in transactions.all() if facts.transactional_id not in before]
    assert made.transactional_id.startswith("job/")
    assert made.state == "committed"
    assert len(made.branches) == 4
    assert_exactly_once(queries, target, 100)


def test_a_batch_write_with_a_failing_task_leaves_nothing(
    queries: Queries, log: isolog.Log, transactions: TransactionsClient, topic: str
) -> None:
    log.create_topic(topic)
    frame = queries.spark.range(0, 100, 1, 4).selectExpr(
        "string(id) as value", "if(id < 90, 0, 7) as partition"
    )
    with pytest.raises(PythonException, match="has partitions 0 to 0, not 7"):
        queries.write(frame, topic)
    assert log.read(topic, isolation="read_committed").num_rows == 0
    assert "open" not in {facts.state for facts in transactions.all() if "job/" in facts.query}
    queries.write(frame.drop("partition"), topic)
    assert log.read(topic, isolation="read_committed").num_rows == 100


def test_of_two_attempts_of_a_task_only_the_one_in_the_messages_counts(
    queries: Queries, log: isolog.Log, target: str
) -> None:
    """As with a speculative copy. (Of those Spark lets one commit, and hands over its message.)"""
    options = sink_options({"path": queries.path, "topic": target}, streaming=False)
    writer = IsologWriter(options, to_spark(NUMBERS))
    batch = pa.record_batch({"n": pa.array(range(10), pa.int64())})
    first = writer.write(iter([batch]))
    second = writer.write(iter([batch]))
    other = writer.write(iter([pa.record_batch({"n": pa.array(range(10, 20), pa.int64())})]))
    assert len({each.written.branch.producer_id for each in (first, second, other)}) == 3
    assert log.read(target, isolation="read_committed").num_rows == 0
    writer.commit([second, other])
    writer.commit([second, other])  # once more: the answer was lost
    writer.abort([second, other])  # and nothing is undone
    assert log.read(target).num_rows == 30
    assert_exactly_once(queries, target, 20)
    late = writer.write(iter([batch]))  # an attempt that nobody told of the commit
    assert late.written.branch.committed
    assert log.read(target).num_rows == 30


def test_without_transactions_rows_are_there_at_least_once(
    queries: Queries,
    log: isolog.Log,
    transactions: TransactionsClient,
    source: str,
    target: str,
    tmp_path: Path,
) -> None:
    before = len(transactions.all())
    fault = "commit's reply is lost"
    writer = faulty(queries, source, target, tmp_path, fault).option("transactional", "false")
    assert "the reply is lost" in str(ended(writer.start()))
    again = copying(queries, source, target, tmp_path / "checkpoint")
    assert ended(again.option("transactional", "false").start()) is None
    rows = log.read(target, isolation="read_committed")["n"].to_pylist()
    assert set(rows) == set(range(ROWS))
    assert len(rows) == ROWS + ROWS_PER_BATCH  # the batch of the lost reply is there twice
    assert len(transactions.all()) == before


# -- the broker dies ------------------------------------------------------------------------------


@pytest.mark.chaos
def test_a_broker_killed_during_a_micro_batch(
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
