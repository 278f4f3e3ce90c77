"""Transactions of a Python producer: atomic, one owner, aborted records invisible."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

import isolog
from isolog.errors import (
    ConsumerFenced,
    InvalidOption,
    InvalidRequest,
    InvalidTransaction,
    ProducerFenced,
    RecordTooLarge,
    TransactionAborted,
    UnknownTopic,
    UnknownTransaction,
)
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.writing import transactional
from spark_stream.client.writing.transactional import TransactionalProducer
from spark_stream.testing.local_cluster import pause_process
from spark_stream.wire.transaction_messages import (
    BeginTransaction,
    CommitTransaction,
    InitTransactions,
)
from tests.client.writing.seen import entries, found
from tests.support import eventually, values

pytestmark = pytest.mark.slow  # each test uses a broker


@pytest.fixture
def identity() -> str:
    return f"loader-{uuid.uuid4()}"


@pytest.fixture
def producer(log: isolog.Log, identity: str) -> Iterator[TransactionalProducer]:
    with log.producer(transactional_id=identity) as found:
        yield found


# -- commit and abort -----------------------------------------------------------------------------


def test_a_commit_makes_all_records_visible_together(log, topic, producer):
    """In all partitions and topics, for the next read."""
    other = f"{topic}-other"
    log.create_topic(topic, partitions=3)
    log.create_topic(other)
    for turn in range(5):
        with producer.transaction():
            for partition in range(3):
                producer.append(topic, values(str(turn)), partition)
            producer.send(other, str(turn))
            producer.flush()
            assert len(found(log, topic)) == 3 * turn
            assert found(log, other) == list(range(turn))
        assert len(found(log, topic)) == 3 * (turn + 1)
        assert found(log, other) == list(range(turn + 1))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The requests of all clients, without appends."""
    made: list[object] = []
    original = ClusterConnection.call

    def call(self, request, *more, **options):
        made.append(request)
        return original(self, request, *more, **options)

    monkeypatch.setattr(ClusterConnection, "call", call)
    return made


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_only_the_first_transaction_is_begun_by_a_request(log, topic, identity, asked, end):
    log.create_topic(topic, partitions=2)
    with log.producer(transactional_id=identity) as producer:
        for turn in range(4):
            producer.begin_transaction()
            for partition in range(turn % 3):  # none, too
                producer.append(topic, values(str(turn)), partition)
            getattr(producer, f"{end}_transaction")()
    begun = [each for each in asked if isinstance(each, BeginTransaction)]
    assert len(begun) == 1
    assert found(log, topic) == ([1, 2, 2] if end == "commit" else [])


def test_a_number_that_was_reserved_long_ago_is_not_used(log, topic, producer, asked, monkeypatch):
    """The broker may have deleted the id."""
    log.create_topic(topic)
    with producer.transaction():
        producer.append(topic, values("0"))
    later = time.monotonic() + 3_601
    monkeypatch.setattr(transactional.time, "monotonic", lambda: later)
    with producer.transaction():
        producer.append(topic, values("1"))
    assert len([each for each in asked if isinstance(each, BeginTransaction)]) == 2
    assert found(log, topic) == [0, 1]


def test_a_producer_continues_after_a_refused_position(log, topic, producer):
    """The refused commit has announced the position."""
    log.create_topic(topic)
    log.create_topic(f"{topic}-in")
    with log.producer() as source:
        source.send(f"{topic}-in", b"1").result(20)
    settings = {"isolation": "read_committed", "name": f"{topic}-reader"}
    with log.consumer(f"{topic}-in", **settings) as consumer:
        list(consumer.records(until="latest"))
        producer.begin_transaction()
        producer.append(topic, values("0"))
        producer.commit_position(consumer)
        with log.consumer(f"{topic}-in", **settings), pytest.raises(ConsumerFenced):
            producer.commit_transaction()
    with producer.transaction():
        producer.append(topic, values("1"))
    assert found(log, topic) == [1]


def test_a_producer_continues_after_its_reserved_number_was_lost(log, topic, producer):
    """A restored backup has no reserved numbers."""
    log.create_topic(topic)
    with producer.transaction():
        producer.append(topic, values("0"))
    producer._reserved = replace(producer._reserved, number=producer._reserved.number + 10_000)
    with pytest.raises((UnknownTransaction, TransactionAborted)), producer.transaction():
        producer.append(topic, values("1"))
    with producer.transaction():
        producer.append(topic, values("2"))
    assert found(log, topic) == [0, 2]


def test_a_transaction_is_open_from_its_first_write_on(log, topic, producer, identity):
    """Before, it cannot time out."""
    log.create_topic(topic)
    with producer.transaction():
        producer.append(topic, values("0"))
    producer.begin_transaction()
    assert log.describe_transaction(identity).state == "committed"
    producer.append(topic, values("1")).result(20)
    assert log.describe_transaction(identity).state == "open"
    producer.commit_transaction()
    assert found(log, topic) == [0, 1]


def test_aborted_records_are_not_visible(log, topic, producer):
    log.create_topic(topic)
    producer.begin_transaction()
    aborted = producer.append(topic, values("0", "1"))
    assert aborted.result(20).offset == 0
    producer.abort_transaction()
    with producer.transaction():
        committed = producer.append(topic, values("2"))
    assert committed.result(0).offset == 2
    assert found(log, topic) == [2]
    assert found(log, topic, "read_uncommitted") == [0, 1, 2]
    bounds = log.describe(topic).partitions[0]
    assert bounds.last_stable_offset == bounds.log_end_offset == 3


def test_an_exception_aborts_the_transaction_and_is_raised(log, topic, producer):
    log.create_topic(topic)

    def fail() -> None:
        with producer.transaction():
            producer.append(topic, values("0")).result(20)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert found(log, topic) == []
    with producer.transaction():
        producer.append(topic, values("1"))
    assert found(log, topic) == [1]


def test_unacknowledged_writes_fail_with_the_abort(log, topic, identity):
    log.create_topic(topic)
    with log.producer(transactional_id=identity, linger_ms=60_000) as producer:
        producer.begin_transaction()
        waiting = producer.send(topic, b"0")
        producer.abort_transaction()
        assert isinstance(waiting.exception(0), TransactionAborted)
        producer.flush()  # a requested abort is not a failure
    assert entries(log, topic) == 0


def test_leaving_the_block_with_an_open_transaction_aborts_it(log, topic, identity):
    log.create_topic(topic)
    with log.producer(transactional_id=identity) as producer:
        producer.begin_transaction()
        producer.append(topic, values("0")).result(20)
    assert log.describe_transaction(identity).state == "aborted"
    assert found(log, topic) == []
    assert log.describe(topic).partitions[0].last_stable_offset == 1


def test_a_transaction_without_writes_changes_no_log(log, topic, producer, identity):
    log.create_topic(topic)
    with producer.transaction():
        pass
    producer.begin_transaction()
    producer.abort_transaction()
    assert log.describe_transaction(identity).partitions == ()
    assert entries(log, topic) == 0
    with producer.transaction():
        producer.append(topic, values("0"))
    assert found(log, topic) == [0]


def test_writes_outside_a_transaction_are_refused(log, topic, producer):
    log.create_topic(topic)
    for call in (
        lambda: producer.send(topic, b"v"),
        lambda: producer.append(topic, values("v")),
        producer.commit_transaction,
        producer.abort_transaction,
    ):
        with pytest.raises(InvalidTransaction, match="outside a transaction"):
            call()
    assert entries(log, topic) == 0


def test_a_second_concurrent_transaction_is_refused(log, topic, producer):
    log.create_topic(topic)
    with producer.transaction():
        with pytest.raises(InvalidTransaction, match=r"open already.*abort_transaction\(\)"):
            producer.begin_transaction()
        producer.append(topic, values("0"))
    with pytest.raises(InvalidTransaction):
        producer.commit_transaction()
    assert found(log, topic) == [0]


def test_each_of_many_transactions_commits_or_aborts_separately(log, topic, producer):
    """Each has its own epoch. Commits and aborts are mixed."""
    log.create_topic(topic, partitions=2)
    expected = []
    for number in range(60):
        producer.begin_transaction()
        for row in range(7):
            producer.append(topic, values(str(number * 10 + row)), 0)
        if number % 3:
            producer.commit_transaction()
            expected += [number * 10 + row for row in range(7)]
        else:
            producer.abort_transaction()
    assert found(log, topic) == expected


def test_a_large_transaction_keeps_its_order(log, topic, producer):
    log.create_topic(topic)
    with producer.transaction():
        futures = [producer.append(topic, values(str(n))) for n in range(500)]
    assert [future.result(0).offset for future in futures] == list(range(500))
    assert found(log, topic) == list(range(500))


# -- failures -------------------------------------------------------------------------------------


def test_a_failed_write_aborts_the_commit(log, topic, producer):
    log.create_topic(topic, config={"max.record.bytes": 100})
    producer.begin_transaction()
    producer.append(topic, values("0"))
    bad = producer.append(topic, values("1", b"x" * 1000, "2"))
    producer.append(topic, values("3"))
    with pytest.raises(TransactionAborted, match=r"max.record.bytes is 100") as caught:
        producer.commit_transaction()
    assert caught.value.__cause__ is bad.exception(0)
    assert isinstance(caught.value.__cause__, RecordTooLarge)
    assert bad.exception(0).kept == 0  # in a transaction a batch is atomic
    assert found(log, topic) == []
    with producer.transaction():
        producer.append(topic, values("4"))
    assert found(log, topic) == [4]


def test_a_failure_raised_by_flush_still_aborts_the_commit(log, topic, producer):
    log.create_topic(topic)
    producer.begin_transaction()
    producer.append(topic, values("0"))
    producer.append("no-such-topic", values("0"))
    with pytest.raises(UnknownTopic):
        producer.flush()
    with pytest.raises(TransactionAborted, match="no-such-topic"):
        producer.commit_transaction()
    assert found(log, topic) == []


def test_a_block_whose_write_failed_raises_and_aborts(log, topic, producer):
    log.create_topic(topic)

    def fail() -> None:
        with producer.transaction():
            producer.append(topic, values("0"))
            producer.append("no-such-topic", values("0"))

    with pytest.raises(TransactionAborted, match="no-such-topic"):
        fail()
    assert found(log, topic) == []


def test_an_error_without_a_decision_leaves_the_transaction_open(log, topic, producer, monkeypatch):
    log.create_topic(topic)
    producer.begin_transaction()
    producer.append(topic, values("0")).result(20)
    wrong = InitTransactions(transactional_id="", instance="i", timeout_ms=1)
    call = ClusterConnection.call
    with monkeypatch.context() as patch:
        patch.setattr(ClusterConnection, "call", lambda self, _: call(self, wrong))
        with pytest.raises(InvalidRequest):
            producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        producer.append(topic, values("1"))
    assert found(log, topic) == [1]


# -- fencing --------------------------------------------------------------------------------------


def test_a_new_instance_fences_the_old_one_and_aborts_its_transaction(log, topic, identity):
    log.create_topic(topic)
    old = log.producer(transactional_id=identity)
    old.begin_transaction()
    old.append(topic, values("0")).result(20)
    with log.producer(transactional_id=identity) as new:
        late = old.append(topic, values("1"))
        assert isinstance(late.exception(20), ProducerFenced)
        for _ in range(2):
            for call in (
                old.commit_transaction,
                old.abort_transaction,
                old.begin_transaction,
                lambda: old.append(topic, values("2")),
                lambda: old.send(topic, b"2"),
            ):
                with pytest.raises(ProducerFenced):
                    call()
        with new.transaction():
            new.append(topic, values("3"))
    old.close()
    assert found(log, topic) == [3]


@pytest.mark.parametrize("call", ["commit", "abort", "begin"])
def test_each_call_of_a_fenced_producer_raises_producer_fenced(log, topic, identity, call):
    log.create_topic(topic)
    old = log.producer(transactional_id=identity)
    if call != "begin":
        old.begin_transaction()
        old.append(topic, values("0")).result(20)
    log.producer(transactional_id=identity).close()
    with pytest.raises(ProducerFenced):
        getattr(old, f"{call}_transaction")()
    with pytest.raises(ProducerFenced):
        old.begin_transaction()
    old.close()
    assert found(log, topic) == []


def test_a_producer_fenced_between_transactions_cannot_write(log, topic, identity):
    log.create_topic(topic)
    old = log.producer(transactional_id=identity)
    with old.transaction():
        old.append(topic, values("0"))
    with log.producer(transactional_id=identity) as new:
        with pytest.raises(ProducerFenced), old.transaction():
            old.append(topic, values("9"))
        with new.transaction():
            new.append(topic, values("1"))
    old.close()
    assert found(log, topic) == [0, 1]


def test_a_fenced_producer_gets_producer_fenced_after_its_successor_began(log, topic, identity):
    log.create_topic(topic)
    old = log.producer(transactional_id=identity)
    old.begin_transaction()
    with log.producer(transactional_id=identity) as new, new.transaction():
        old.append(topic, values("0"))
        with pytest.raises(ProducerFenced):
            old.commit_transaction()
        with pytest.raises(ProducerFenced):
            old.begin_transaction()
    old.close()


# -- deleted topics --------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "and created again"])
def test_commit_fails_with_the_name_of_a_deleted_topic(log, topic, producer, identity, again):
    """The transaction is not visible, also in its other topics. The next one commits."""
    other = f"{topic}-other"
    for name in (topic, other):
        log.create_topic(name)
    producer.begin_transaction()
    for name in (topic, other):
        producer.append(name, values("1")).result(20)
    log.delete_topic(topic)
    if again:
        log.create_topic(topic)
    with pytest.raises(UnknownTopic, match=f"topic '{topic}', which was deleted") as raised:
        producer.commit_transaction()
    assert raised.value.details["topic"] == topic
    assert log.describe_transaction(identity).state == "aborted"
    assert found(log, other) == []
    with producer.transaction():
        producer.append(other, values("2"))
        if again:
            producer.append(topic, values("3"))
    assert found(log, other) == [2]
    assert not again or found(log, topic) == [3]


def test_a_repeated_commit_succeeds_although_a_topic_was_deleted_after_the_first(
    log, topic, producer, identity
):
    """The answer to the first commit was lost."""
    log.create_topic(topic)
    producer.begin_transaction()
    producer.append(topic, values("1")).result(20)
    branch = producer._branch
    producer.commit_transaction()
    log.delete_topic(topic)
    repeated = log._connection.call(
        CommitTransaction(**producer._own, number=branch.number, branches=(branch.producer_id,))
    )
    assert repeated.state == "committed"


# -- timeouts and operators -----------------------------------------------------------------------


def test_a_timeout_aborts_the_transaction_and_fails_its_producer(log, topic, identity):
    log.create_topic(topic)
    with log.producer(transactional_id=identity, transaction_timeout_ms=2_000) as producer:
        producer.begin_transaction()
        producer.append(topic, values("0")).result(20)
        eventually(lambda: log.describe_transaction(identity).state == "aborted")
        late = producer.append(topic, values("1"))
        assert isinstance(late.exception(20), TransactionAborted)
        with pytest.raises(TransactionAborted, match="timeout of 2000 ms"):
            producer.commit_transaction()
        assert log.describe(topic).partitions[0].last_stable_offset == 1
        with producer.transaction():
            producer.append(topic, values("2"))
    assert found(log, topic) == [2]


_PAUSED = """
import asyncio
import sys

import isolog

address, kind, topic, identity = sys.argv[1:]
timeout = {"transactional_id": identity, "transaction_timeout_ms": 1_000}


def told(text):
    print(text, flush=True)
    sys.stdin.readline()


def sync():
    with isolog.connect(address) as log, log.producer(**timeout) as producer:
        try:
            with producer.transaction():
                producer.send(topic, "once").result()
                told("written")
        except isolog.errors.TransactionAborted as error:
            told(error)
        with producer.transaction():
            producer.send(topic, "once")


async def with_asyncio():
    async with isolog.aio.connect(address) as log, log.producer(**timeout) as producer:
        try:
            async with producer.transaction():
                await (await producer.send(topic, "once"))
                told("written")
        except isolog.errors.TransactionAborted as error:
            told(error)
        async with producer.transaction():
            await producer.send(topic, "once")


asyncio.run(with_asyncio()) if kind == "asyncio" else sync()
"""


@pytest.mark.quick("sync")
@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_a_producer_paused_beyond_its_timeout_gets_an_error_and_writes_once(
    shared, log, topic, identity, kind
):
    """A stopped process (SIGSTOP): its transaction expires completely, and readers continue."""
    log.create_topic(topic)
    with subprocess.Popen(
        [sys.executable, "-c", _PAUSED, shared.address, kind, topic, identity],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "written\n"
            pause_process(process.pid)
            eventually(lambda: log.describe_transaction(identity).state == "aborted")
            assert found(log, topic) == []
            process.send_signal(signal.SIGCONT)
            process.stdin.write("\n")
            process.stdin.flush()
            assert "it was not renewed within its timeout of 1000 ms" in process.stdout.readline()
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert log.read(topic, isolation="read_committed")["value"].to_pylist() == [b"once"]


def test_an_operator_can_abort_an_open_transaction(log, topic, producer, identity):
    log.create_topic(topic)
    producer.begin_transaction()
    producer.append(topic, values("0")).result(20)
    assert log.abort_transaction(identity).state == "aborted"
    with pytest.raises(TransactionAborted, match="operator"):
        producer.commit_transaction()
    with producer.transaction():
        producer.append(topic, values("1"))
    assert found(log, topic) == [1]


def test_operators_see_an_open_transaction(log, topic, producer, identity):
    log.create_topic(topic, partitions=2)
    producer.begin_transaction()
    producer.append(topic, values("0"), 1).result(20)
    listed = {each.transactional_id: each for each in log.transactions()}
    assert listed[identity].state == "open"
    (part,) = log.describe_transaction(identity).partitions
    assert (part.topic, part.partition, part.first_offset) == (topic, 1, 0)
    producer.commit_transaction()
    assert log.describe_transaction(identity).state == "committed"
    with pytest.raises(UnknownTransaction):
        log.describe_transaction(f"{identity}-not")
    with pytest.raises(InvalidTransaction):
        log.abort_transaction(identity)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"transactional_id": ""}, "transactional_id"),
        ({"transactional_id": "x" * 256}, "transactional_id"),
        ({"transactional_id": 7}, "transactional_id"),
        ({"transactional_id": "x", "transaction_timeout_ms": 0}, "transaction_timeout_ms"),
        ({"transactional_id": "x", "transaction_timeout_ms": 1 << 40}, "transaction_timeout_ms"),
        ({"transactional_id": "x", "linger_ms": -1}, "linger_ms"),
        ({"transactional_id": "x", "isolation": "read_atomic"}, "isolation"),
    ],
)
def test_an_invalid_setting_is_refused_without_fencing(log, settings, named):
    with pytest.raises(InvalidOption, match=named):
        log.producer(**settings)
