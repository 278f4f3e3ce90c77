"""Producers, consumers, reads and transactions during the failover of a leader."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

import isolog
from isolog.errors import (
    BrokerUnavailable,
    IsologError,
    LeaderUnavailable,
    RequestTimeout,
)
from tests.brokers import await_heir, brokers_on
from tests.support import NUMBERS, BrokerProcess, eventually, numbers

pytestmark = pytest.mark.slow  # every test here starts two brokers

Pair = list[BrokerProcess]


@pytest.fixture
def pair(tmp_path) -> Iterator[Pair]:
    """A leads ``t`` and B leads ``b``, without followers."""
    with brokers_on(tmp_path, t="a", b="b") as found:
        yield found


@pytest.fixture
def replicated(tmp_path) -> Iterator[Pair]:
    """A leads ``t``, with B as its follower, and B leads ``b``."""
    with brokers_on(tmp_path, t="ab", b="b") as found:
        yield found


def numbers_of(log: isolog.Log, topic: str, partition: int = 0, **options) -> list[int]:
    table = log.read(topic, metadata=True, **options)
    chosen = table.filter(table.column("_partition").combine_chunks().to_numpy() == partition)
    return chosen.column("n").to_pylist()


# -- routing of calls ------------------------------------------------------------------------------


@pytest.mark.quick("1")
@pytest.mark.parametrize("asked", [0, 1])
def test_client_of_either_broker_uses_topics_of_both(pair, asked):
    with pair[asked].connect() as log:
        with log.producer() as producer:
            for topic in ("t", "b"):
                producer.append(topic, numbers(0, 5), 0)
                producer.append(topic, numbers(5, 5), 1)
        for topic in ("t", "b"):
            assert numbers_of(log, topic, 1) == [5, 6, 7, 8, 9]
            assert log.describe(topic).partitions[0].log_end_offset == 5
            log.alter_topic(topic, partitions=3)
            assert len(log.describe(topic).partitions) == 3
            with log.consumer(topic, start="latest") as consumer:
                assert consumer.position() == {(topic, 0): 5, (topic, 1): 5, (topic, 2): 0}
        with log.consumer(["t", "b"]) as consumer:
            rows = sum(batch.num_rows for batch in consumer.batches(until="latest"))
        assert rows == 20
        log.delete_topic("t")
        assert log.topics() == ["b"]


def test_transactions_may_write_topics_of_both_brokers(pair):
    for number, asked in enumerate(pair):
        with asked.connect() as log:
            producer = log.producer(transactional_id=f"p{number}")
            with producer.transaction():
                producer.append("t", numbers(0, 3), 0)
                producer.append("b", numbers(0, 3), 0)
            producer.begin_transaction()
            producer.append("t", numbers(10, 3), 0)
            producer.append("b", numbers(10, 3), 0)
            producer.flush()
            producer.abort_transaction()
            producer.close()
            for topic in ("t", "b"):
                found = numbers_of(log, topic, isolation="read_committed")
                assert found == [0, 1, 2] * (number + 1)
            both = log.read(["t", "b"], isolation="read_atomic")
            assert both["t"].num_rows == both["b"].num_rows == 3 * (number + 1)


def test_control_calls_fail_over_to_a_discovered_broker(pair):
    """The bootstrap has one address. The client got the other from the cluster."""
    first, second = pair
    with first.connect(timeout=20) as log:
        assert log.topics() == ["b", "t"]
        first.kill()
        assert log.topics() == ["b", "t"]
        assert log.status().pid == second.pid
        with log.producer() as producer:
            producer.append("b", numbers(0, 3), 0)
        assert numbers_of(log, "b") == [0, 1, 2]


def test_control_calls_fail_over_from_a_stopped_broker(pair):
    """They do so before the timeout of the call, which is 60 s here."""
    first, second = pair
    with first.connect(timeout=60) as log:
        assert log.topics() == ["b", "t"]
        first.pause()
        try:
            begun = time.monotonic()
            assert log.status().pid == second.pid
            assert time.monotonic() - begun < 30
            for _ in range(10):  # without further calls to the stopped broker
                assert log.topics() == ["b", "t"]
            assert time.monotonic() - begun < 30
        finally:
            first.resume()


def test_lost_leader_raises_by_the_timeout(pair):
    first, second = pair
    with second.connect(timeout=1.0) as log:
        with log.producer() as producer:
            producer.append("t", numbers(0, 3), 0)
        first.kill()
        begun = time.monotonic()
        with pytest.raises((BrokerUnavailable, LeaderUnavailable, RequestTimeout)):
            log.read("t")
        assert isinstance(log.describe("t").partitions[0].error, LeaderUnavailable)
        with log.producer(timeout_ms=1000) as producer:
            error = producer.append("t", numbers(3, 3), 0).exception(10)
            assert isinstance(error, BrokerUnavailable | LeaderUnavailable), error
        assert time.monotonic() - begun < 30


# -- failovers -------------------------------------------------------------------------------------


def test_producer_survives_a_failover_without_gap_or_duplicate(replicated):
    first, second = replicated
    with second.connect(timeout=30) as log:
        producer = log.producer(isolation="read_committed")
        sent = 0
        futures = []
        stop = threading.Event()

        def write() -> None:
            nonlocal sent
            while not stop.is_set():
                futures.append(producer.append("t", numbers(3 * sent, 3), 0))
                sent += 1
                time.sleep(0.002)

        writer = threading.Thread(target=write)
        writer.start()
        eventually(lambda: sum(each.done() for each in futures) > 20)
        first.kill()
        await_heir("t", second)
        before = len(futures)
        eventually(lambda: sum(each.done() for each in futures) > before)
        stop.set()
        writer.join()
        producer.close()
        assert [each.result(0).offset for each in futures] == list(range(0, 3 * sent, 3))
        assert numbers_of(log, "t") == list(range(3 * sent))


def test_consumer_survives_a_failover_without_gap_or_duplicate(replicated):
    first, second = replicated
    with second.connect(timeout=30) as log, log.consumer("t") as consumer:
        with log.producer(isolation="read_committed") as producer:
            producer.append("t", numbers(0, 50), 0)
        found: list[int] = []
        batches = consumer.batches()
        while len(found) < 50:
            found += next(batches).column("n").to_pylist()
        first.kill()
        await_heir("t", second)
        with log.producer(isolation="read_committed") as producer:
            producer.append("t", numbers(50, 50), 0)
        while len(found) < 100:
            found += next(batches).column("n").to_pylist()
        assert found == list(range(100))
        assert consumer.position()["t", 0] == 100


def test_open_transaction_survives_the_failover_of_a_leader(replicated):
    first, second = replicated
    with second.connect(timeout=30) as log:
        producer = log.producer(transactional_id="p")
        producer.begin_transaction()
        producer.append("t", numbers(0, 3), 0).result(20)
        producer.append("b", numbers(0, 3), 0).result(20)
        first.kill()
        await_heir("t", second)
        producer.append("t", numbers(3, 3), 0)
        producer.commit_transaction()
        producer.close()
        for topic, count in (("t", 6), ("b", 3)):
            assert numbers_of(log, topic, isolation="read_committed") == list(range(count))


# -- lost leaders ----------------------------------------------------------------------------------


@pytest.mark.quick("1")
@pytest.mark.parametrize("rows", [1, 1_000_000])
def test_lost_leader_does_not_block_topics_of_another(pair, rows):
    """With batches of 8 MB the write itself blocks, but not in the thread of the caller."""
    first, second = pair
    with second.connect(timeout=8) as log:
        producer = log.producer(timeout_ms=120_000, buffer_bytes=1 << 30)
        for topic in ("t", "b"):
            producer.append(topic, numbers(0, 1), 0).result(20)
        first.pause()
        try:
            stuck = [producer.append("t", numbers(0, rows), 0) for _ in range(4)]
            for number in range(10):
                producer.append("b", numbers(number, 1), 0).result(60)
            assert not any(each.done() for each in stuck)
        finally:
            first.resume()
        assert all(each.result(60) for each in stuck)
        producer.close()


@pytest.mark.full  # test_lost_leader_raises_by_the_timeout has calls
def test_read_of_a_topic_without_leader_raises_at_its_timeout(pair):
    first, second = pair
    with second.connect(timeout=2) as log:
        first.kill()
        with pytest.raises(IsologError) as caught:
            log.read("t")
        assert caught.value.retriable
        log.create_topic("fresh", replication_factor=1, schema=NUMBERS)
        assert log.read("fresh").num_rows == 0


@pytest.mark.rule("the failover from a silent broker", "client/connecting/link.py")
def test_client_leaves_a_silent_leader_after_the_next_election(replicated):
    """The leader is stopped, so its open connections would give no answer until the timeout."""
    first, second = replicated
    with second.connect(timeout=60) as log, log.consumer("t") as consumer:
        producer = log.producer(isolation="read_committed", timeout_ms=60_000)
        producer.append("t", numbers(0, 10), 0).result(20)
        batches = consumer.batches()
        found = next(batches).column("n").to_pylist()
        first.pause()
        begun = time.monotonic()
        sent = [producer.append("t", numbers(10 * n, 10), 0) for n in range(1, 4)]
        await_heir("t", second)
        assert [each.result(30).offset for each in sent] == [10, 20, 30]
        while len(found) < 40:
            found += next(batches).column("n").to_pylist()
        assert found == list(range(40))
        assert time.monotonic() - begun < 30
        producer.close()
