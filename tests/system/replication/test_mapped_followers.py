"""Mapped reads of a follower's files, for readers on its machine.

All brokers of the tests are on one machine. A leader with ``mapped_reads = false`` stands for one
on another machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

import isolog
from isolog.testing import LocalCluster
from tests.near_reads import unmapped, watch_mapped
from tests.support import native
from tests.system.replication.clusters import CONF, await_in_sync, folders

pytestmark = pytest.mark.chaos

ROWS = pa.schema([("n", pa.int64()), ("filler", pa.binary())])
WIDER = pa.schema([("n", pa.int64()), ("filler", pa.binary()), ("more", pa.string())])


def rows(first: int, count: int, size: int = 100) -> pa.RecordBatch:
    filler = pa.array([os.urandom(size) for _ in range(count)], pa.binary())
    return pa.record_batch([pa.array(range(first, first + count), pa.int64()), filler], ROWS)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two brokers. Only the files of the second one may be mapped."""
    with LocalCluster(2, conf=CONF | {"mapped_reads": False}) as found:
        found.restart(2, {"mapped_reads": True})
        yield found


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return watch_mapped(monkeypatch)


def create_led_by_first(
    cluster: LocalCluster, log: isolog.Log, topic: str, **config: object
) -> None:
    """Create a topic led by broker 1. Only the files of its follower may be mapped."""
    log.create_topic(
        topic,
        schema=ROWS,
        assignment=[[cluster.broker(1).id, cluster.broker(2).id]],
        config=config,
    )
    assert cluster.leader(topic) == 1


def write(log: isolog.Log, topic: str, first: int, batches: int, count: int = 500) -> None:
    with log.producer() as producer:
        for n in range(batches):
            producer.append(topic, rows(first + n * count, count), partition=0).result()


@pytest.mark.full  # tests/client/reading/test_fetching_mapping.py
@pytest.mark.quick("zstd")
@native  # it maps files
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_mapped_reads_of_a_follower_return_the_records_of_the_leader(
    cluster, log, topic, mapped, compression
):
    create_led_by_first(
        cluster, log, topic, **{"compression": compression, "segment.bytes": "1048576"}
    )
    write(log, topic, 0, 20)
    with log.producer(transactional_id=topic) as producer:
        for ends in ("abort", "commit", "abort"):
            producer.begin_transaction()
            producer.append(topic, rows(-1, 4_000), partition=0)
            producer.flush()
            getattr(producer, f"{ends}_transaction")()
    write(log, topic, 10_000, 40)
    log.alter_topic(topic, schema=WIDER)
    write(log, topic, 30_000, 20)
    await_in_sync(log, topic, 2)
    for isolation in ("read_committed", "read_replicated", "read_uncommitted"):
        for how in (
            {},
            {"columns": ["n"]},
            {"columns": ["_timestamp", "more", "_offset", "n"]},
            {"start": 777, "end": 33_333},
        ):
            read = partial(log.read, topic, isolation=isolation, **how)
            found = read()
            assert found.equals(unmapped(read))
            assert found.num_rows > 20_000
    follower = folders(cluster, topic)[2]
    assert len(set(mapped)) > 1
    assert all(Path(path).parent == follower for path in mapped)


def test_silent_follower_is_not_mapped(cluster, log, topic, mapped):
    create_led_by_first(cluster, log, topic)
    write(log, topic, 0, 20)
    await_in_sync(log, topic, 2)
    cluster.pause(2)
    try:
        for _ in range(3):
            found = log.read(topic, isolation="read_uncommitted")
            assert found.column("n").to_pylist() == list(range(10_000))
    finally:
        cluster.resume(2)
    assert mapped == []


@native  # it maps files
def test_records_missing_at_the_follower_are_read_at_the_leader(cluster, log, topic, mapped):
    """The follower is partitioned, but in the ISR. A read_uncommitted read misses no record."""
    create_led_by_first(cluster, log, topic)
    write(log, topic, 0, 20)
    await_in_sync(log, topic, 2)
    cluster.cut(1, 2)
    try:
        with log.producer(isolation="read_uncommitted") as producer:
            for n in range(10_000, 20_000, 500):
                producer.append(topic, rows(n, 500), partition=0).result()
        for _ in range(2):
            found = log.read(topic, isolation="read_uncommitted")
            assert found.column("n").to_pylist() == list(range(20_000))
    finally:
        cluster.heal()
    await_in_sync(log, topic, 2)
    mapped.clear()
    assert log.read(topic).num_rows == 20_000
    assert mapped
