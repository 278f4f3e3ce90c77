"""A sink's tasks and its driver against a broker, without Spark: Spark's calls, in any order."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage

import isolog
from isolog.errors import (
    DifferentReplay,
    InvalidOption,
    ProducerFenced,
    SinkInUse,
    StaleBatch,
    TransactionAborted,
    UnknownTopic,
)
from spark_stream.datasource.options import SinkOptions, sink_options
from spark_stream.datasource.spark.types import to_spark
from spark_stream.datasource.values.earlier_content import measure_by_column
from spark_stream.datasource.writing import task
from spark_stream.datasource.writing import transactions as branches
from spark_stream.datasource.writing.identity import BranchIdentity
from spark_stream.datasource.writing.transactions import open_branch
from spark_stream.datasource.writing.writer import IsologWriter
from spark_stream.sql.ddl import parse_schema
from tests.support import NUMBERS, BrokerProcess, eventually, log, numbers, shared, topic

__all__ = ["log", "shared", "topic"]

SCHEMA = to_spark(NUMBERS)


@pytest.fixture
def target(log: isolog.Log, topic: str) -> str:
    log.create_topic(topic, 2, schema=NUMBERS)
    return topic


@pytest.fixture
def transactions(shared: BrokerProcess) -> Iterator[isolog.Log]:
    with shared.connect() as log:
        yield log


def options(broker: BrokerProcess, to: str, **more: object) -> SinkOptions:
    given = {"bootstrap": broker.address, "topic": to, **{k: str(v) for k, v in more.items()}}
    return sink_options(given, streaming=False)


def batch_writer(
    broker: BrokerProcess, to: str, sink: str, batch: int, **more: object
) -> IsologWriter:
    """The writer of one attempt at a numbered batch."""
    return IsologWriter(options(broker, to, sinkId=sink, batchId=batch, **more), SCHEMA)


def written(log: isolog.Log, name: str) -> list[int]:
    return sorted(log.read(name, isolation="read_committed")["n"].to_pylist())


def last_stable(log: isolog.Log, name: str) -> list[bool]:
    """Return, for each partition, whether it has no open transaction."""
    return [
        each.last_stable_offset == each.log_end_offset for each in log.describe(name).partitions
    ]


# -- slow tasks -----------------------------------------------------------------------------------

ORDERS = {
    "the quick first": ("quick", "slow"),
    "the slow first": ("slow", "quick"),
    "one that is empty last": ("quick", "slow and empty"),
    "one behind the other": ("quick", "slow", "slow and empty", "slow"),
}


@pytest.mark.quick("one that is empty last")
@pytest.mark.parametrize("order", ORDERS)
def test_tasks_that_end_further_apart_than_the_timeout_commit(
    shared: BrokerProcess, log: isolog.Log, target: str, order: str
) -> None:
    """A task that still computes its first row renews the transaction in which another wrote."""
    timeout_ms = 2_000
    writer = IsologWriter(options(shared, target, transactionTimeout=f"{timeout_ms}ms"), SCHEMA)
    quick_ended = threading.Event()

    def rows(kind: str, number: int) -> Iterator[pa.RecordBatch]:
        if kind != "quick":
            if order != "the slow first":
                assert quick_ended.wait(20)
            time.sleep(1.25 * timeout_ms / 1000)  # it computes for longer than the timeout
        if "empty" not in kind:
            yield numbers(number, 1)

    def run(kind: str, number: int) -> None:
        messages[number] = writer.write(rows(kind, number))
        if kind == "quick":
            quick_ended.set()

    messages: dict[int, object] = {}
    kinds = ORDERS[order]
    if order == "one behind the other":
        for number, kind in enumerate(kinds):
            run(kind, number)
    else:
        tasks = [
            threading.Thread(target=run, args=(kind, number)) for number, kind in enumerate(kinds)
        ]
        for each in tasks:
            each.start()
        for each in tasks:
            each.join(60)
    writer.commit(list(messages.values()))
    expected = [number for number, kind in enumerate(kinds) if "empty" not in kind]
    assert written(log, target) == expected


@pytest.mark.full  # tests/datasource/writing/test_transactions_renewal.py
def test_a_transaction_is_renewed_between_its_last_task_and_its_commit(
    shared: BrokerProcess, log: isolog.Log, transactions: isolog.Log, target: str
) -> None:
    """The driver may be slow to commit. Its workers run, so the transaction does not time out."""
    writer = IsologWriter(options(shared, target, transactionTimeout="3s"), SCHEMA)
    message = writer.write(iter([numbers(0, 10)]))
    name = message.written.branch.transactional_id

    def outlived_its_first_deadline() -> bool:
        found = transactions.describe_transaction(name)
        assert found.state == "open"
        return found.deadline_ms > found.began_ms + 2 * found.timeout_ms

    eventually(outlived_its_first_deadline)
    writer.commit([message])
    assert written(log, target) == list(range(10))


@pytest.mark.rule(
    "the time for which the transaction of a dead driver holds readers back",
    "datasource/writing/transactions.py",
    "scripts/transactions/finishing.py",
)
def test_the_transaction_of_a_query_without_workers_times_out_after_the_option(
    shared: BrokerProcess,
    log: isolog.Log,
    transactions: isolog.Log,
    target: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver and its workers were killed, or paused: a later commit fails as a whole."""
    monkeypatch.setattr(branches.UndecidedTransactions, "add", lambda *_: None)
    monkeypatch.setattr(branches.TransactionRenewal, "__enter__", lambda kept: kept)
    writer = batch_writer(shared, target, f"sink-{target}", 3, transactionTimeout="1s")
    message = writer.write(iter([numbers(0, 10)]))
    eventually(lambda: all(last_stable(log, target)))
    with pytest.raises(TransactionAborted, match="timeout of 1000 ms") as raised:
        writer.commit([message])
    assert raised.value.details["cause"] == "expired"
    assert written(log, target) == []
    again = batch_writer(shared, target, f"sink-{target}", 3)
    again.commit([again.write(iter([numbers(0, 10)]))])
    assert written(log, target) == list(range(10))


def test_a_transaction_has_the_name_of_its_query(
    shared: BrokerProcess, transactions: isolog.Log, target: str
) -> None:
    writer = batch_writer(shared, target, f"sink-{target}", 0, queryName="nightly")
    message = writer.write(iter([numbers(0, 10)]))
    name = message.written.branch.transactional_id
    assert transactions.describe_transaction(name).query_name == "nightly"
    writer.commit([message])
    assert {each.transactional_id: each.query_name for each in transactions.transactions()}[
        name
    ] == ("nightly")
    assert {each.transactional_id: each.query_name for each in transactions.sinks()}[name] == (
        "nightly"
    )


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "and created again"])
def test_a_batch_fails_if_its_topic_was_deleted_and_is_written_once_later(
    shared: BrokerProcess, log: isolog.Log, target: str, again: bool
) -> None:
    """Spark aborts the batch after the error of its commit, and a later run writes it."""
    writer = batch_writer(shared, target, f"sink-{target}", 3)
    message = writer.write(iter([numbers(0, 10)]))
    log.delete_topic(target)
    if again:
        log.create_topic(target, 2, schema=NUMBERS)
    with pytest.raises(UnknownTopic, match=f"topic '{target}', which was deleted"):
        writer.commit([message])
    writer.abort([message])
    if not again:
        log.create_topic(target, 2, schema=NUMBERS)
    for _ in range(2):  # the second is a replay
        later = batch_writer(shared, target, f"sink-{target}", 3)
        later.commit([later.write(iter([numbers(0, 10)]))])
    assert written(log, target) == list(range(10))
    assert all(last_stable(log, target))


# -- tasks that fail, drivers that stop -----------------------------------------------------------


def bad_rows() -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"n": pa.array(range(1 << 19), pa.int64())})  # enough to be sent
    raise ValueError("a bad row")


def test_a_failing_task_aborts_its_own_branch_and_the_others_commit(
    shared: BrokerProcess, log: isolog.Log, target: str
) -> None:
    writer = IsologWriter(options(shared, target), SCHEMA)
    with pytest.raises(ValueError, match="a bad row"):
        writer.write(bad_rows())
    assert log.read(target).num_rows == 1 << 19
    assert all(last_stable(log, target))
    good = writer.write(iter([numbers(7, 1)]))
    assert not all(last_stable(log, target))
    writer.commit([None, good])
    assert written(log, target) == [7]


def test_neither_a_failed_job_nor_its_late_task_blocks_readers(
    shared: BrokerProcess,
    log: isolog.Log,
    transactions: isolog.Log,
    target: str,
) -> None:
    writer = IsologWriter(options(shared, target), SCHEMA)
    writer.write(iter([numbers(1, 1)]))
    writer.abort([])
    assert all(last_stable(log, target))
    late = IsologWriter(options(shared, target), SCHEMA)
    late.abort([])  # before its first task has begun to write
    with pytest.raises(isolog.errors.TransactionAborted):
        late.write(iter([numbers(2, 1)]))
    assert (
        transactions.describe_transaction(late._task.identity.transactional_id).state == "aborted"
    )
    assert all(last_stable(log, target))


# -- numbered batches -----------------------------------------------------------------------------


@pytest.mark.rule(
    "a micro-batch is written once",
    "consistency/transactions/sinks.py",
    "datasource/writing/transactions.py",
)
def test_a_numbered_batch_is_written_once_whatever_is_replayed(
    shared: BrokerProcess, log: isolog.Log, target: str
) -> None:
    sink = uuid.uuid4().hex

    def write(batch: int, *parts: pa.RecordBatch) -> None:
        writer = batch_writer(shared, target, sink, batch)
        writer.commit([writer.write(iter([part])) for part in parts])

    write(40, numbers(0, 4), numbers(4, 6))  # ids begin anywhere
    write(40, numbers(4, 6), numbers(0, 4))  # the same rows, by other tasks
    write(40, numbers(0, 10))
    assert written(log, target) == list(range(10))
    write(42, numbers(10, 2))
    with pytest.raises(StaleBatch):
        write(41, numbers(12, 1))
    assert written(log, target) == list(range(12))


def test_a_replay_that_is_not_the_same_is_refused(
    shared: BrokerProcess, log: isolog.Log, target: str
) -> None:
    sink = uuid.uuid4().hex

    def write(rows: pa.RecordBatch | None, **more: object) -> None:
        writer = batch_writer(shared, target, sink, 0, **more)
        writer.commit([writer.write(iter([] if rows is None else [rows]))])

    write(numbers(0, 10))
    for other, says in (
        (numbers(0, 11), f"committed 10 rows to '{target}', now 11 rows"),
        (numbers(1, 10), "of other values"),
        (None, "now no rows"),
    ):
        with pytest.raises(DifferentReplay, match=says) as caught:
            write(other)
        assert "differentReplay to keep" in caught.value.hint
        write(other, differentReplay="keep")
    write(numbers(0, 10))
    assert written(log, target) == list(range(10))


def test_a_replay_with_other_rows_of_the_same_values_is_refused(
    shared: BrokerProcess, log: isolog.Log, topic: str
) -> None:
    """50 and 50 rows of two partitions are not 20 and 80, with the same values in each column."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    log.create_topic(topic, schema=schema)
    given = options(shared, topic, sinkId=uuid.uuid4().hex, batchId=0)

    def write(first: int, second: int) -> None:
        rows = [
            (n % 10, (n + 5 * part) % 10) for part in (0, 1) for n in range((first, second)[part])
        ]
        batch = pa.record_batch([[a for a, _ in rows], [str(b) for _, b in rows]], schema=schema)
        writer = IsologWriter(given, to_spark(schema))
        writer.commit([writer.write(iter([batch]))])

    write(50, 50)
    with pytest.raises(DifferentReplay, match=r"now 100 rows .* of other values"):
        write(20, 80)
    write(50, 50)
    assert log.read(topic, isolation="read_committed").num_rows == 100


def test_a_batch_is_recognised_after_its_topic_was_altered(
    shared: BrokerProcess, log: isolog.Log, topic: str
) -> None:
    before = parse_schema("n int, f float, d decimal(9,2), s struct<a:int>, l array<int>")
    after = parse_schema(
        "n double, f double, d decimal(20,6), s struct<a:bigint,b:string>, l array<double>, c int"
    )
    row = {"n": 7, "f": 0.1, "d": Decimal("12.50"), "s": {"a": 1}, "l": [1, None]}
    log.create_topic(topic, schema=before)
    given = options(shared, topic, sinkId=uuid.uuid4().hex, batchId=0)

    def write(schema: pa.Schema, **more: object) -> None:
        writer = IsologWriter(given, to_spark(schema))
        f = pa.scalar(0.1, pa.float32()).as_py()
        rows = pa.RecordBatch.from_pylist([row | {"f": f} | more], schema=schema)
        writer.commit([writer.write(iter([rows]))])

    write(before)
    log.alter_topic(topic, schema=after)
    write(after)
    assert log.read(topic, isolation="read_committed").num_rows == 1
    with pytest.raises(DifferentReplay) as caught:
        write(after, c=1)
    assert caught.value.hint.startswith("If a topic or the query was altered")


def test_a_batch_that_the_previous_release_committed_is_recognised(
    shared: BrokerProcess, log: isolog.Log, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = uuid.uuid4().hex

    def write(rows: pa.RecordBatch) -> None:
        writer = batch_writer(shared, target, sink, 0)
        writer.commit([writer.write(iter([rows]))])

    with monkeypatch.context() as previous:
        previous.setattr(task, "measure", measure_by_column)
        write(numbers(0, 10))
    write(numbers(0, 10))
    with pytest.raises(DifferentReplay, match="of other values"):
        write(numbers(1, 10))
    assert written(log, target) == list(range(10))


@pytest.mark.parametrize("later", ["open", "committed", "aborted"])
@pytest.mark.parametrize("stage", ["open", "write", "commit"])
def test_an_earlier_run_that_resumes_is_fenced_at_every_stage(
    shared: BrokerProcess, log: isolog.Log, target: str, stage: str, later: str
) -> None:
    """A run pauses at the stage, and a later run takes the batch over. Then the first resumes."""
    sink = uuid.uuid4().hex
    name = f"sink/{sink}"
    earlier = batch_writer(shared, target, sink, 3)
    message = earlier.write(iter([numbers(0, 5)]))

    again = batch_writer(shared, target, sink, 3)
    mine: list[WriterCommitMessage] = []

    def take_over() -> None:
        mine.append(again.write(iter([numbers(0, 5)])))
        if later == "committed":
            again.commit(mine)
        elif later == "aborted":
            again.abort(mine)

    def rows() -> Iterator[pa.RecordBatch]:
        if stage == "write":
            yield numbers(0, 1 << 19)  # enough to be sent
            take_over()
        yield numbers(5, 5)

    if stage != "write":
        take_over()
    with pytest.raises(ProducerFenced, match=f"another producer has taken over .*{name}") as caught:
        earlier.commit([message]) if stage == "commit" else earlier.write(rows())
    assert not caught.value.retriable
    assert caught.value.hint == "A later run of the query continues. Do not restart this one."
    earlier.abort([message])
    if later == "open":
        again.commit(mine)
    assert written(log, target) == ([] if later == "aborted" else list(range(5)))
    assert all(last_stable(log, target))


def test_a_sink_id_is_a_streams_or_batch_writes(
    shared: BrokerProcess, transactions: isolog.Log, target: str
) -> None:
    sink = uuid.uuid4().hex
    writer = batch_writer(shared, target, sink, 0)
    writer.commit([writer.write(iter([numbers(0, 1)]))])
    assert transactions.describe_transaction(f"sink/{sink}").query == f"batch writes of {sink}"
    other = uuid.uuid4().hex
    query = str(uuid.uuid4())
    with pytest.raises(SinkInUse, match="batch writes"):
        open_branch(transactions._connection, BranchIdentity(f"sink/{sink}", query, "run", 1))
    open_branch(transactions._connection, BranchIdentity(f"sink/{other}", query, "run", 0))
    with pytest.raises(SinkInUse, match=f"another query .{query}"):
        batch_writer(shared, target, other, 1).write(iter([numbers(0, 1)]))


# -- topics that are made -------------------------------------------------------------------------


def test_sink_creates_a_topic_with_its_settings(
    shared: BrokerProcess, log: isolog.Log, topic: str
) -> None:
    wanted = {"topic.retention.ms": 60_000, "topic.compression": "zstd", "createTopic": "true"}
    IsologWriter(options(shared, topic, **wanted), SCHEMA)
    config = log.describe(topic).config
    assert (config["retention.ms"], config["compression"]) == ("60000", "zstd")
    IsologWriter(options(shared, topic, **wanted), SCHEMA)  # it is there


def test_missing_topic_is_reported_with_the_remedy(shared: BrokerProcess, topic: str) -> None:
    with pytest.raises(UnknownTopic, match=topic) as caught:
        IsologWriter(options(shared, topic), SCHEMA)
    assert "createTopic=true" in caught.value.hint


def test_kept_settings_of_an_existing_topic_are_logged_once(
    shared: BrokerProcess, log: isolog.Log, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    wanted = {"partitions": 8, "topic.retention.ms": 60_000, "createTopic": "true"}
    for _ in range(2):
        IsologWriter(options(shared, topic, **wanted), SCHEMA)
    IsologWriter(options(shared, topic, partitions=1, createTopic="true"), SCHEMA)
    assert sorted(each.message.partition(";")[0] for each in caplog.records) == [
        f"topic '{topic}' already exists and keeps -1, not topic.retention.ms=60000",
        f"topic '{topic}' already exists and keeps 1, not partitions=8",
    ]


def test_more_replicas_than_brokers_are_refused_by_the_name_of_the_option(
    shared: BrokerProcess, log: isolog.Log, topic: str
) -> None:
    with pytest.raises(InvalidOption, match=r"option 'replicationFactor': .* factor of 3 needs"):
        IsologWriter(options(shared, topic, replicationFactor=3, createTopic="true"), SCHEMA)
    assert topic not in log.topics()


@pytest.mark.parametrize("there", [False, True], ids=["made", "there"])
def test_a_setting_that_no_topic_has_is_refused_by_the_nearest_name(
    shared: BrokerProcess, log: isolog.Log, topic: str, there: bool
) -> None:
    if there:
        log.create_topic(topic, schema=NUMBERS)
    wrong = {"topic.retention.mss": 60_000, "createTopic": "true"}
    with pytest.raises(InvalidOption, match=r"retention\.mss.*did you mean .*retention\.ms"):
        IsologWriter(options(shared, topic, **wrong), SCHEMA)
    assert (topic in log.topics()) is there
    bad = {"topic.retention.ms": "long", "createTopic": "true"}
    if not there:
        with pytest.raises(InvalidOption, match=r"topic\.retention\.ms.*whole number"):
            IsologWriter(options(shared, topic, **bad), SCHEMA)
