"""A sink's transactions: one per micro-batch or batch write, under an id of one query."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PythonException

import isolog
from spark_stream.datasource.options import sink_options
from spark_stream.datasource.spark.types import to_spark
from spark_stream.datasource.writing.writer import IsologWriter
from tests.spark.conftest import Queries, ended
from tests.spark.copies import (
    ROWS,
    assert_exactly_once,
    copying,
    faulty,
    source,
    target,
    transactions,
)
from tests.spark.sink_driver import ROWS_PER_BATCH, micro_batches
from tests.spark.test_stream_source import NUMBERS, add, wait_until

__all__ = ["source", "target", "transactions"]


# -- the id of a sink ------------------------------------------------------------------------------


def test_a_micro_batch_without_rows_begins_no_transaction(
    queries: Queries, transactions: isolog.Log, source: str, target: str, tmp_path: Path
) -> None:
    frame = micro_batches(queries.spark, source).where("n < 0")
    query = queries.sink(frame, tmp_path, topic=target).start()
    assert ended(query) is None
    with pytest.raises(isolog.errors.UnknownTransaction):
        transactions.describe_transaction(f"query/{query.id}")


@pytest.mark.full  # without a JVM: tests/datasource/writing/test_identity.py
def test_sink_id_names_the_transactions_and_belongs_to_one_query(
    queries: Queries,
    transactions: isolog.Log,
    source: str,
    target: str,
    tmp_path: Path,
) -> None:
    mine = copying(queries, source, target, tmp_path / "mine").option("sinkId", target).start()
    assert ended(mine) is None
    assert transactions.describe_transaction(f"sink/{target}").query == str(mine.id)
    other = copying(queries, source, target, tmp_path / "other").option("sinkId", target).start()
    assert "SINK_IN_USE" in str(ended(other))
    assert_exactly_once(queries, target)


@pytest.mark.full  # without a JVM: tests/datasource/writing/test_task.py
def test_a_sink_id_of_a_running_query_is_refused_to_another(
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
        assert "Give every query a unique sinkId" in str(ended(other))
        add(log, f"{topic}-in", range(10, 20))
        wait_until(lambda: log.read(target, isolation="read_committed").num_rows == 20, "goes on")
    finally:
        running.stop()
    assert_exactly_once(queries, target, 20)


@pytest.mark.full  # without a JVM: tests/consistency/transactions/test_sinks.py
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


@pytest.mark.full  # the test below has a failure in one topic
def test_rows_to_several_topics_in_one_micro_batch_are_one_transaction(
    queries: Queries,
    log: isolog.Log,
    transactions: isolog.Log,
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
    assert transactions.describe_transaction(f"query/{query.id}").committed_batch == 2
    for remainder, name in enumerate(names):
        rows = log.read(name, isolation="read_committed")["n"].to_pylist()
        assert sorted(rows) == list(range(remainder, ROWS, 2))


def test_failure_in_one_topic_aborts_the_rows_in_the_others(
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
    queries: Queries, log: isolog.Log, transactions: isolog.Log, target: str
) -> None:
    before = {facts.transactional_id for facts in transactions.transactions()}
    queries.write(queries.spark.range(0, 100, 1, 4).toDF("n"), target)
    (made,) = [
        facts for facts in transactions.transactions() if facts.transactional_id not in before
    ]
    assert made.transactional_id.startswith("job/")
    assert made.state == "committed"
    assert len(made.branches) == 4
    assert_exactly_once(queries, target, 100)


def test_batch_write_with_a_failing_task_leaves_no_row(
    queries: Queries, log: isolog.Log, transactions: isolog.Log, topic: str
) -> None:
    log.create_topic(topic)
    frame = queries.spark.range(0, 100, 1, 4).selectExpr(
        "string(id) as value", "if(id < 90, 0, 7) as partition"
    )
    with pytest.raises(PythonException, match="has partitions 0 to 0, not 7"):
        queries.write(frame, topic)
    assert log.read(topic, isolation="read_committed").num_rows == 0
    assert "open" not in {
        facts.state for facts in transactions.transactions() if "job/" in facts.query
    }
    queries.write(frame.drop("partition"), topic)
    assert log.read(topic, isolation="read_committed").num_rows == 100


def test_only_the_attempt_in_the_commit_messages_is_committed(
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
    writer.abort([second, other])  # and the commit stays
    assert log.read(target).num_rows == 30
    assert_exactly_once(queries, target, 20)
    late = writer.write(iter([batch]))  # an attempt without news of the commit
    assert late.written.branch.committed
    assert log.read(target).num_rows == 30


@pytest.mark.full  # a stream without them: test_sink.py
def test_without_transactions_rows_are_written_at_least_once(
    queries: Queries,
    log: isolog.Log,
    transactions: isolog.Log,
    source: str,
    target: str,
    tmp_path: Path,
) -> None:
    before = len(transactions.transactions())
    fault = "commit's reply is lost"
    writer = faulty(queries, source, target, tmp_path, fault).option("transactional", "false")
    assert "the reply is lost" in str(ended(writer.start()))
    again = copying(queries, source, target, tmp_path / "checkpoint")
    assert ended(again.option("transactional", "false").start()) is None
    rows = log.read(target, isolation="read_committed")["n"].to_pylist()
    assert set(rows) == set(range(ROWS))
    assert len(rows) == ROWS + ROWS_PER_BATCH  # the batch of the lost reply is duplicated
    assert len(transactions.transactions()) == before
