"""Readers in a rack read at the follower in it, and fall back to the leader.

The racks are only names, because all brokers are on one machine. The bytes sent by each broker are
counted at the client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import isolog
from isolog.testing import LocalCluster
from tests.near_reads import eventually_near, watch_mapped, watch_sent
from tests.support import NUMBERS, native, numbers
from tests.system.replication.clusters import CONF, append_replicated, await_in_sync, folders

pytestmark = pytest.mark.chaos

RACKS = ["a", "b", "c"]
LAG_MS = 1_000


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalCluster]:
    """Three brokers in three racks, without mapped reads."""
    with LocalCluster(3, conf=CONF | {"mapped_reads": False}, racks=RACKS) as found:
        yield found


@pytest.fixture
def near(cluster: LocalCluster) -> Iterator[isolog.Log]:
    """A client in the rack of the second broker."""
    with cluster.connect(rack="b") as found:
        yield found


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The bytes sent by each broker to readers of this process."""
    return watch_sent(monkeypatch)


@pytest.fixture
def led_by_the_first(cluster: LocalCluster, log: isolog.Log, topic: str) -> str:
    """A topic led by broker 1, in rack a."""
    config = {"replica.lag.time.max.ms": LAG_MS}
    log.create_topic(topic, schema=NUMBERS, assignment=[["1", "2", "3"]], config=config)
    assert cluster.leader(topic) == 1
    await_in_sync(log, topic)
    return topic


@pytest.mark.parametrize("isolation", ["read_replicated", "read_committed", "read_atomic"])
def test_read_gets_no_byte_from_the_leader(log, near, led_by_the_first, sent, isolation):
    append_replicated(log, led_by_the_first, 0, 1_000)
    with log.producer(transactional_id=led_by_the_first) as producer:
        for first, ends in ((1_000, "commit"), (2_000, "abort")):
            producer.begin_transaction()
            producer.append(led_by_the_first, numbers(first, 1_000), partition=0)
            producer.flush()
            getattr(producer, f"{ends}_transaction")()
    expected = list(range(3_000 if isolation == "read_replicated" else 2_000))
    eventually_near(near, led_by_the_first, isolation, expected, sent)


def test_read_uncommitted_reads_at_the_leader(log, near, led_by_the_first, sent):
    append_replicated(log, led_by_the_first, 0, 1_000)
    assert near.read(led_by_the_first, isolation="read_uncommitted").num_rows == 1_000
    assert set(sent) == {"1"}


def test_client_without_a_rack_with_a_replica_reads_at_the_leader(
    cluster, log, led_by_the_first, sent
):
    append_replicated(log, led_by_the_first, 0, 1_000)
    with cluster.connect(rack="elsewhere") as other:
        for each in (log, other):
            assert each.read(led_by_the_first, isolation="read_replicated").num_rows == 1_000
    assert set(sent) == {"1"}


def test_consumer_of_a_killed_follower_continues_at_the_leader(
    cluster, log, near, led_by_the_first, sent
):
    topic = led_by_the_first
    with near.consumer(topic, isolation="read_replicated") as consumer:
        got = batches_of(consumer)
        for first in range(0, 5_000, 1_000):
            append_replicated(log, topic, first, 1_000)
            assert take(got, 1_000) == list(range(first, first + 1_000))
        assert sent["2"] > 5_000 * 8 > sent["1"]
        cluster.kill(2)
        append_replicated(log, topic, 5_000, 1_000)
        assert take(got, 1_000) == list(range(5_000, 6_000))


@pytest.mark.full  # tests/datasource/reading/test_reader_near.py is quicker
def test_partitioned_follower_does_not_block_its_readers(cluster, log, near, led_by_the_first):
    """It leaves the ISR after the first write, and then answers no reader."""
    topic = led_by_the_first
    append_replicated(log, topic, 0, 1_000)
    with near.consumer(topic, isolation="read_committed") as consumer:
        got = batches_of(consumer)
        assert take(got, 1_000) == list(range(1_000))
        cluster.cut(1, 2)
        append_replicated(log, topic, 1_000, 1_000)
        assert take(got, 1_000) == list(range(1_000, 2_000))
    assert near.read(topic, isolation="read_committed").num_rows == 2_000


@native  # it maps files
def test_reader_maps_the_files_of_the_follower_in_its_rack(
    cluster, log, led_by_the_first, sent, monkeypatch
):
    topic = led_by_the_first
    cluster.restart(2, {"mapped_reads": True})
    mapped = watch_mapped(monkeypatch)
    try:
        for first in range(0, 100_000, 20_000):
            append_replicated(log, topic, first, 20_000)
        await_in_sync(log, topic)
        with cluster.connect(rack="b") as near:
            eventually_near(near, topic, "read_replicated", list(range(100_000)), sent)
        assert {Path(each).parent for each in mapped} == {folders(cluster, topic)[2]}
    finally:
        cluster.restart(2, {"mapped_reads": False})


def batches_of(consumer: isolog.Consumer) -> Iterator[list[int]]:
    for batch in consumer.batches(timeout=30):
        yield batch.column("n").to_pylist()


def take(got: Iterator[list[int]], count: int) -> list[int]:
    """Return at least ``count`` further records, in whole batches."""
    found: list[int] = []
    while len(found) < count:
        found += next(got)
    return found
