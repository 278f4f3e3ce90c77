"""Answers to appends while earlier batches wait for followers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from isolog.errors import RecordTooLarge
from isolog.testing import LocalCluster
from tests.broker.stamped import Appender
from tests.support import NUMBERS, Channel
from tests.system.replication.clusters import WAIT_S, append_replicated, await_in_sync

pytestmark = pytest.mark.chaos
TEXT = pa.schema([pa.field("text", pa.string())])


@contextmanager
def paused_followers(cluster: LocalCluster, leader: int) -> Iterator[None]:
    """Pause the leader's followers in the block."""
    followers = sorted({1, 2, 3} - {leader})
    for each in followers:
        cluster.pause(each)
    yield
    for each in followers:
        cluster.resume(each)


def test_refusal_does_not_overtake_a_batch_that_waits_for_followers(cluster, log, topic):
    """A client expects the answers of a partition in the order of its batches."""
    log.create_topic(topic, 2, 3, schema=NUMBERS)
    append_replicated(log, topic, 0, 1)
    await_in_sync(log, topic)
    leader = cluster.leader(topic)
    with Channel(cluster.brokers[leader].address) as channel:
        stream = Appender(channel, topic, isolation="read_committed")
        with paused_followers(cluster, leader):
            stream.send(0)
            stream.send(0, leader_epoch=99)
            stream.send(77)
            refused = stream.ack()
            # By then the leader has validated the other two.
            assert refused["error"]["code"] == "UNKNOWN_PARTITION"
        first, second = stream.ack(), stream.ack()
    assert (first["number"], first["offset"]) == (0, 1)
    assert (second["number"], second["error"]["code"]) == (1, "UNKNOWN_LEADER_EPOCH")


def test_bad_record_behind_a_waiting_batch_is_reported_to_the_producer(cluster, log, topic):
    log.create_topic(topic, 1, 3, schema=TEXT, config={"max.record.bytes": 1024})
    with log.producer(isolation="read_committed", timeout_ms=60_000) as producer:
        producer.append(topic, texts("small"), 0).result(WAIT_S)
        await_in_sync(log, topic)
        with paused_followers(cluster, cluster.leader(topic)):
            good = producer.append(topic, texts("small"), 0)
            bad = producer.append(topic, texts("x" * 2000), 0)
            after = producer.append(topic, texts("small"), 0)
        assert good.result(WAIT_S).offset == 1
        with pytest.raises(RecordTooLarge):
            bad.result(WAIT_S)
        assert after.result(WAIT_S).offset == 2


def texts(*values: str) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values)], schema=TEXT)
