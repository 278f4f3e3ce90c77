"""A schema altered over three replicas: under load, before a failover, with a follower down."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

import isolog
from isolog.errors import IsologError
from isolog.testing import LocalCluster
from spark_stream.consistency.entries import Kind
from tests.support import eventually
from tests.system.replication.clusters import (
    WAIT_S,
    await_equal_copies,
    await_in_sync,
    entries,
    folders,
    partition,
    with_retries,
)

pytestmark = pytest.mark.chaos

SCHEMAS = (
    pa.schema([pa.field("n", pa.int32(), nullable=False)]),
    pa.schema([pa.field("n", pa.int64(), nullable=False), ("name", pa.string())]),
    pa.schema([("n", pa.int64()), ("name", pa.string()), ("y", pa.float64())]),
)


def records(version: int, first: int, rows: int = 10) -> pa.RecordBatch:
    numbers = range(first, first + rows)
    values = {
        "n": list(numbers),
        "name": [str(n) for n in numbers],
        "y": [float(n) for n in numbers],
    }
    schema = SCHEMAS[version]
    columns = [pa.array(values[each.name], each.type) for each in schema]
    return pa.record_batch(columns, schema=schema)


def append(log: isolog.Log, topic: str, batch: pa.RecordBatch) -> None:
    with log.producer(isolation="read_committed") as producer:
        producer.append(topic, batch).result(WAIT_S)


def numbers_of(log: isolog.Log, topic: str) -> list[int]:
    return with_retries(lambda: log.read(topic, isolation="read_committed")).column("n").to_pylist()


def versions(cluster: LocalCluster, topic: str) -> list[int]:
    """Return the schema versions of a replica's batches, in order."""
    rows = entries(next(iter(folders(cluster, topic).values())))
    return rows["schema"][rows["kind"] == Kind.DATA].tolist()


def test_replicas_are_equal_over_alterations_under_produce_and_consume(
    cluster: LocalCluster, log: isolog.Log, topic: str
) -> None:
    log.create_topic(topic, replication_factor=3, schema=SCHEMAS[0])
    failures: list[Exception] = []
    seen: list[int] = []
    whole = 10 * 150

    def consume() -> None:
        try:
            with cluster.connect() as mine, mine.consumer(topic, start="earliest") as consumer:
                for batch in consumer.batches():
                    seen.extend(batch.column("n").to_pylist())
                    if len(seen) >= whole:
                        return
        except Exception as error:
            failures.append(error)

    reader = threading.Thread(target=consume)
    reader.start()
    with cluster.connect() as other, log.producer() as producer:
        for n in range(150):
            if n in (50, 100):
                other.alter_topic(topic, schema=SCHEMAS[n // 50])
            # Every seventh batch has the newest schema, so that this producer fetches it.
            sent = producer.append(topic, records(n // 50 if n % 7 == 0 else 0, 10 * n))
            if n == 0:
                sent.result(WAIT_S)
        producer.flush()
    reader.join(WAIT_S)
    assert not failures
    assert seen == list(range(whole))
    await_in_sync(log, topic)
    await_equal_copies(cluster, topic)
    assert numbers_of(log, topic) == list(range(whole))
    found = versions(cluster, topic)  # batches queued at an alteration have the later schema
    assert (found[0], found[-1]) == (0, 2)


def test_new_leader_after_an_alteration_accepts_both_schemas(
    cluster: LocalCluster, log: isolog.Log, topic: str
) -> None:
    log.create_topic(topic, replication_factor=3, schema=SCHEMAS[0])
    append(log, topic, records(0, 0))
    await_in_sync(log, topic)
    with log.producer(isolation="read_committed") as old:
        old.append(topic, records(0, 10)).result(WAIT_S)
        log.alter_topic(topic, schema=SCHEMAS[1])
        append(log, topic, records(1, 20))
        cluster.kill(int(partition(log, topic).leader))
        append(log, topic, records(1, 30))
        old.append(topic, records(0, 40)).result(WAIT_S)
    assert numbers_of(log, topic) == list(range(50))
    for broker in cluster.brokers.values():
        if not broker.alive:
            cluster.restart(broker.number)
    await_in_sync(log, topic)
    await_equal_copies(cluster, topic)
    found = log.read(topic)
    assert found.schema == SCHEMAS[1]
    assert found.column("name").null_count == 30


def test_follower_down_during_alterations_gets_the_same_entries(
    cluster: LocalCluster, log: isolog.Log, topic: str
) -> None:
    log.create_topic(topic, replication_factor=3, schema=SCHEMAS[0])
    append(log, topic, records(0, 0))
    await_in_sync(log, topic)
    leader = int(partition(log, topic).leader)
    away = next(number for number in cluster.brokers if number != leader)
    cluster.kill(away)
    for version in (1, 2):
        log.alter_topic(topic, schema=SCHEMAS[version])
        append(log, topic, records(version, 20 * version - 10))
        append(log, topic, records(version, 20 * version))
    cluster.restart(away)
    await_in_sync(log, topic)
    await_equal_copies(cluster, topic)
    assert versions(cluster, topic) == [0, 1, 1, 2, 2]
    log.move_replicas(topic, {0: [str(away)]})
    eventually(lambda: partition(log, topic).replicas == (str(away),), WAIT_S)
    assert numbers_of(log, topic) == list(range(50))
    with pytest.raises(IsologError, match="'name'"):
        log.alter_topic(topic, schema=SCHEMAS[0])
