"""Transactions over partitions of three leaders are atomic when any broker dies."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable

import pytest

import isolog
from isolog.errors import IsologError
from tests.support import NUMBERS, eventually, numbers
from tests.system.replication.clusters import (
    WAIT_S,
    append_replicated,
    await_equal_copies,
    await_in_sync,
    read,
    restore,
    with_retries,
)

pytestmark = pytest.mark.chaos

LED_BY_EACH = [["1", "2", "3"], ["2", "3", "1"], ["3", "1", "2"]]


def create_spread(log: isolog.Log, topic: str) -> None:
    """Create a topic of three partitions, each led by another broker."""
    log.create_topic(topic, schema=NUMBERS, assignment=LED_BY_EACH)
    await_in_sync(log, topic)


def put_everywhere(producer: isolog.TransactionalProducer, topic: str, value: int) -> None:
    for number in range(3):
        producer.append(topic, numbers(value, 1), number)


@pytest.mark.parametrize(
    ("killed", "ending"),
    [
        (1, "commit"),
        (2, "abort"),
        *(
            pytest.param(killed, ending, marks=pytest.mark.full)
            for killed, ending in ((2, "commit"), (3, "commit"), (1, "abort"), (3, "abort"))
        ),
    ],
)
def test_transaction_is_atomic_over_the_kill_of_a_broker(cluster, topic, killed, ending):
    with cluster.connect(timeout=60) as log:
        create_spread(log, topic)
        producer = log.producer(transactional_id=topic, timeout_ms=60_000)
        producer.begin_transaction()
        put_everywhere(producer, topic, 1)
        producer.flush()
        cluster.kill(killed)
        put_everywhere(producer, topic, 2)
        if ending == "commit":
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        expected = [1, 2] * 3 if ending == "commit" else []
        assert read(log, topic, "read_committed") == expected
        assert read(log, topic, "read_atomic") == expected
        restore(cluster)
        await_in_sync(log, topic)
        with producer.transaction():
            put_everywhere(producer, topic, 3)
        producer.close()
        assert sorted(read(log, topic)) == sorted([*expected, 3, 3, 3])
        for number in range(3):
            await_equal_copies(cluster, topic, number)


def test_coordinator_killed_before_the_end_of_a_commit_is_replaced(cluster, topic):
    """Two leaders cannot reach each other, so the appends of each wait for the other.

    The third one, the coordinator, reaches both. It is killed after its decision, while it waits
    for the replication of the markers. After the partition heals, the others finish the commit.
    """
    with cluster.connect(timeout=60) as log:
        create_spread(log, topic)
        with _connect_to(cluster, 2) as second:
            producer = second.producer(transactional_id=topic, timeout_ms=5_000)
            producer.begin_transaction()
            put_everywhere(producer, topic, 1)
            producer.flush()
            cluster.cut(1, 3)
            commit = threading.Thread(target=_ignoring_errors(producer.commit_transaction))
            commit.start()
            eventually(lambda: log.describe_transaction(topic).state == "committing")
            cluster.kill(2)
            cluster.heal()
            commit.join()
            eventually(
                lambda: with_retries(lambda: log.describe_transaction(topic)).state == "committed",
                WAIT_S,
            )
            assert with_retries(lambda: read(log, topic, "read_committed")) == [1, 1, 1]
            _ignoring_errors(producer.close)()
        restore(cluster)
        await_in_sync(log, topic)


def test_new_owner_fences_the_old_one_over_a_failover(cluster, topic):
    with cluster.connect(timeout=60) as log:
        create_spread(log, topic)
        old = log.producer(transactional_id=topic)
        old.begin_transaction()
        put_everywhere(old, topic, 1)
        old.flush()
        cluster.kill(2)
        new = log.producer(transactional_id=topic)
        with pytest.raises(IsologError) as caught:
            old.commit_transaction()
        assert not caught.value.retriable
        with new.transaction():
            put_everywhere(new, topic, 2)
        assert read(log, topic) == [2, 2, 2]
        new.close()
        _ignoring_errors(old.close)()


@pytest.mark.rule(
    "no `read_atomic` read has a part of a transaction: it stops at an atomic cut",
    "consistency/partition/atomic_cuts.py",
    "scripts/readers.py",
)
def test_atomic_read_over_three_leaders_never_splits_a_transaction(cluster, topic):
    """Transactions over all partitions continue while a leader is killed and restarted."""
    with cluster.connect(timeout=60) as log, cluster.connect(timeout=60) as reader:
        create_spread(log, topic)
        producer = log.producer(transactional_id=topic, timeout_ms=60_000)
        stop, failures = threading.Event(), []
        committed = itertools.count()
        done = [0]

        def write() -> None:
            try:
                while not stop.is_set():
                    value = next(committed)
                    with producer.transaction():
                        put_everywhere(producer, topic, value)
                    done[0] = value + 1
            except BaseException as error:
                failures.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            sizes = []
            for round_ in range(3):
                for _ in range(4):
                    found = read(reader, topic, "read_atomic")
                    size = len(found) // 3
                    assert found == list(range(size)) * 3
                    sizes.append(size)
                if round_ == 0:
                    cluster.kill(2)
                else:
                    restore(cluster)
                before = done[0]
                eventually(lambda before=before: done[0] > before + 3 or failures, WAIT_S)
            assert sizes == sorted(sizes)
        finally:
            stop.set()
            writer.join()
        assert failures == []
        producer.close()
        await_in_sync(log, topic)
        assert read(log, topic) == list(range(done[0])) * 3


def test_named_consumer_continues_after_the_kill_of_a_broker(cluster, topic):
    with cluster.connect(timeout=60) as log:
        create_spread(log, topic)
        for number in range(3):
            append_replicated(log, topic, 0, 10, number)
        with log.consumer(topic, name=topic, isolation="read_committed") as consumer:
            assert sum(each.num_rows for each in consumer.batches(until="latest")) == 30
            consumer.commit()
        cluster.kill(1)
        append_replicated(log, topic, 10, 1, 0)
        with log.consumer(topic, name=topic, isolation="read_committed") as consumer:
            found = [n for b in consumer.batches(until="latest") for n in b["n"].to_pylist()]
        assert found == [10]


def _connect_to(cluster, number: int) -> isolog.Log:
    """Return a client with this broker as its bootstrap."""
    return isolog.connect(cluster.broker(number).address, timeout=10)


def _ignoring_errors(call: Callable[[], object]) -> Callable[[], None]:
    def called() -> None:
        with contextlib.suppress(IsologError):
            call()

    return called
