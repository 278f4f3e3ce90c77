"""The isolation levels of producers and consumers, on a partition with followers."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import pytest

import isolog
from isolog.errors import (
    IsologError,
    NotEnoughReplicas,
    TransactionAborted,
    UnknownOutcome,
)
from isolog.testing import LocalCluster
from tests.support import NUMBERS, eventually, numbers
from tests.system.replication.clusters import (
    LEVELS,
    WAIT_S,
    append_replicated,
    await_equal_copies,
    await_in_sync,
    partition,
    read,
    visible_counts,
    with_retries,
)

pytestmark = pytest.mark.chaos

# A stalled follower stays in the ISR during the test.
PATIENT = {"replica.lag.time.max.ms": 600_000}


@contextlib.contextmanager
def stalled(cluster: LocalCluster, log: isolog.Log, topic: str) -> Iterator[int]:
    """Partition a follower of partition 0 from its leader. Yield its number."""
    found = partition(log, topic)
    leader = int(found.leader)
    follower = next(int(each) for each in found.replicas if int(each) != leader)
    cluster.cut(leader, follower)
    try:
        yield follower
    finally:
        cluster.heal(leader, follower)


def create_filled(log: isolog.Log, topic: str, **config: object) -> None:
    log.create_topic(topic, 1, 3, schema=NUMBERS, config=PATIENT | config)
    append_replicated(log, topic, 0, 5)
    await_in_sync(log, topic)


def test_read_committed_acknowledgement_waits_for_the_high_watermark(cluster, log, topic):
    create_filled(log, topic)
    producer = log.producer(isolation="read_committed", timeout_ms=60_000)
    with stalled(cluster, log, topic):
        waits = producer.append(topic, numbers(5, 3), 0)
        eventually(lambda: partition(log, topic).log_end_offset == 8)
        with log.producer() as other:
            assert other.append(topic, numbers(8, 2), 0).result(WAIT_S).offset == 8
        assert not waits.done()
        assert partition(log, topic).high_watermark == 5
    assert waits.result(WAIT_S).offset == 5
    assert (partition(log, topic).high_watermark or 0) >= 8
    producer.close()


def test_timeout_is_an_unknown_outcome_with_its_offsets(cluster, log, topic):
    create_filled(log, topic)
    with stalled(cluster, log, topic):
        with log.producer(isolation="read_committed", timeout_ms=500) as producer:
            error = producer.append(topic, numbers(5, 3), 0).exception(WAIT_S)
        assert isinstance(error, UnknownOutcome), error
        assert (error.offset, error.details["count"]) == (5, 3)
        assert error.kept == 0  # no record of it is acknowledged
        assert "5" in str(error)
        assert visible_counts(log, topic) == {
            "read_uncommitted": 8,
            "read_replicated": 5,
            "read_committed": 5,
        }
    await_in_sync(log, topic)
    assert read(log, topic) == list(range(8))  # the records are stored


def test_record_that_followers_may_lack_is_never_acknowledged(cluster, log, topic):
    """The leader answers before its followers leave the ISR. Then its kill loses the record."""
    log.create_topic(topic, 1, 3, config=PATIENT)
    with (
        log.producer(isolation="read_committed", timeout_ms=3000) as producer,
        log.producer(transactional_id=topic, timeout_ms=3000) as owner,
    ):
        assert producer.send(topic, b"0").result(WAIT_S).offset == 0
        await_in_sync(log, topic)
        cluster.cut_off(leader := cluster.leader(topic))
        owner.begin_transaction()
        for future in [writer.send(topic, b"1") for writer in (producer, owner)]:
            assert isinstance(future.exception(WAIT_S), UnknownOutcome)
        cluster.kill(leader)
        with pytest.raises(TransactionAborted):
            owner.commit_transaction()
        found = with_retries(lambda: log.read(topic, isolation="read_committed"))
    assert found["value"].to_pylist() == [b"0"]


PAIRS = list(itertools.product(("read_uncommitted", "read_committed"), repeat=2))


@pytest.mark.parametrize(("producing", "consuming"), PAIRS)
def test_each_pair_of_producer_and_consumer_levels_has_its_visibility(
    cluster, log, topic, producing, consuming
):
    """With a lagging follower, the levels decide the acknowledgement and the visibility."""
    create_filled(log, topic)
    producer = log.producer(isolation=producing, timeout_ms=60_000)
    with stalled(cluster, log, topic):
        sent = producer.append(topic, numbers(5, 1), 0)
        eventually(lambda: partition(log, topic).log_end_offset == 6)
        if producing == "read_uncommitted":
            assert sent.result(WAIT_S).offset == 5
        assert (len(read(log, topic, consuming)) == 6) == (consuming == "read_uncommitted")
        assert sent.done() == (producing == "read_uncommitted")
    assert sent.result(WAIT_S).offset == 5
    eventually(lambda: read(log, topic, consuming) == list(range(6)))
    producer.close()


def test_each_isolation_level_reads_up_to_its_bound(cluster, log, topic):
    create_filled(log, topic)
    owner = log.producer(transactional_id=topic)
    owner.begin_transaction()
    owner.append(topic, numbers(5, 2), 0).result(WAIT_S)
    append_replicated(log, topic, 7, 1)
    with stalled(cluster, log, topic):
        with log.producer() as producer:
            producer.append(topic, numbers(8, 3), 0).result(WAIT_S)
        expected = {"read_uncommitted": 11, "read_replicated": 8, "read_committed": 5}
        assert visible_counts(log, topic) == expected
        assert log.read(topic, isolation="read_atomic").num_rows == 5
        for level, end in expected.items():
            with log.consumer(topic, isolation=level, start="latest") as consumer:
                assert consumer.position() == {(topic, 0): end}
    await_in_sync(log, topic)
    owner.commit_transaction()
    owner.close()
    assert [len(read(log, topic, level)) for level in LEVELS] == [11, 11, 11]


def test_commit_returns_after_its_markers_are_replicated(cluster, log, topic):
    create_filled(log, topic)
    owner = log.producer(transactional_id=topic, timeout_ms=60_000)
    with owner.transaction():
        owner.append(topic, numbers(5, 2), 0)
    assert read(log, topic) == list(range(7))
    await_equal_copies(cluster, topic)
    owner.close()


def test_start_above_the_high_watermark_waits_and_returns_no_record(cluster, log, topic):
    create_filled(log, topic)
    with stalled(cluster, log, topic):
        with log.producer() as producer:
            producer.append(topic, numbers(5, 5), 0).result(WAIT_S)
        with log.consumer(topic, isolation="read_replicated", start={0: 7}) as consumer:
            assert list(consumer.batches(until="latest")) == []
            assert consumer.position() == {(topic, 0): 7}
    await_in_sync(log, topic)
    with log.consumer(topic, isolation="read_replicated", start={0: 7}) as consumer:
        rows = [n for b in consumer.batches(until="latest") for n in b.column("n").to_pylist()]
    assert rows == [7, 8, 9]


def test_high_watermark_of_readers_never_decreases_over_a_failover(cluster, log, topic):
    create_filled(log, topic)
    with stalled(cluster, log, topic) as follower:
        with log.producer() as producer:
            producer.append(topic, numbers(5, 5), 0).result(WAIT_S)
        bound = partition(log, topic).high_watermark
        assert bound == 5
        leader = cluster.leader(topic)
        cluster.kill(leader)
        bounds = []
        with cluster.connect() as other:
            for _ in range(20):
                read_ = other.read(topic, isolation="read_replicated")
                bounds.append(read_.num_rows)
    assert min(bounds) >= bound
    assert bounds == sorted(bounds)
    assert partition(log, topic).leader not in (None, str(leader))
    assert follower in (1, 2, 3)


@pytest.mark.full  # without processes: tests/consistency/partition/test_replica_roles.py
def test_replicated_writes_are_refused_below_min_insync_replicas(cluster, log, topic):
    create_filled(log, topic, **{"min.insync.replicas": 3, "replica.lag.time.max.ms": 500})
    leader = int(partition(log, topic).leader)
    lost = next(each for each in (1, 2, 3) if each != leader)
    cluster.pause(lost)
    eventually(lambda: len(partition(log, topic).isr) == 2)
    with log.producer(isolation="read_committed", timeout_ms=1000) as producer:
        error = producer.append(topic, numbers(5, 1), 0).exception(WAIT_S)
    assert isinstance(error, NotEnoughReplicas), error
    owner = log.producer(transactional_id=topic, timeout_ms=1000)
    owner.begin_transaction()
    with pytest.raises(IsologError):
        owner.append(topic, numbers(5, 1), 0).result(WAIT_S)
    with log.producer() as producer:
        assert producer.append(topic, numbers(5, 1), 0).result(WAIT_S).offset == 5
    assert partition(log, topic).high_watermark == 5  # it does not advance below the minimum
    cluster.resume(lost)
    await_in_sync(log, topic)
    append_replicated(log, topic, 6, 1)
    assert read(log, topic) == list(range(7))
    with_retries(owner.abort_transaction)
    owner.close()
