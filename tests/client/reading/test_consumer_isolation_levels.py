"""The four isolation levels of a reader with open, aborted and committed transactions."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import pyarrow.compute as pc
import pytest

import isolog
from isolog.errors import OffsetOutOfRange
from spark_stream.client.writing.transactional import TransactionalProducer
from tests.support import NUMBERS, eventually, numbers, values

LEVELS = ("read_uncommitted", "read_replicated", "read_committed", "read_atomic")


@pytest.fixture
def producer(log: isolog.Log) -> Iterator[TransactionalProducer]:
    with log.producer(transactional_id=f"loader-{uuid.uuid4()}") as found:
        yield found


def offsets(log: isolog.Log, topic: str) -> dict[str, list[int]]:
    """The records at each level, which are the same for a read and a consumer."""
    seen = {}
    for level in LEVELS:
        table = log.read(topic, isolation=level)
        with log.consumer(topic, isolation=level) as consumer:
            records = [record.offset for record in consumer.records(until="latest")]
        assert table["offset"].to_pylist() == records, level
        seen[level] = records
    return seen


def test_each_level_returns_its_records_during_and_after_a_transaction(log, topic, producer):
    log.create_topic(topic)
    with log.producer() as plain:
        plain.append(topic, values("0")).result(20)
        producer.begin_transaction()
        producer.append(topic, values("1", "2")).result(20)
        plain.append(topic, values("3")).result(20)
        opened = offsets(log, topic)
        producer.abort_transaction()
        aborted = offsets(log, topic)
        with producer.transaction():
            producer.append(topic, values("4"))
            plain.append(topic, values("5")).result(20)
            producer.append(topic, values("6"))
        committed = offsets(log, topic)
    everything = [0, 1, 2, 3]
    assert opened == {
        "read_uncommitted": everything,
        "read_replicated": everything,
        "read_committed": [0],
        "read_atomic": [0],
    }
    assert aborted == {
        "read_uncommitted": everything,
        "read_replicated": everything,
        "read_committed": [0, 3],
        "read_atomic": [0, 3],
    }
    everything = list(range(7))
    assert committed == {
        "read_uncommitted": everything,
        "read_replicated": everything,
        "read_committed": [0, 3, 4, 5, 6],
        "read_atomic": [0, 3, 4, 5, 6],
    }


def take(records: Iterator[isolog.Record], into: list[int]) -> None:
    into.append(int(next(records).value))


def test_a_running_consumer_reads_a_transaction_after_its_commit(log, topic, producer):
    log.create_topic(topic)
    for level in ("read_committed", "read_atomic"):
        with log.consumer(topic, isolation=level, start="latest") as consumer:
            records = consumer.records()
            first: list[int] = []
            thread = threading.Thread(target=take, args=(records, first))
            producer.begin_transaction()
            producer.append(topic, values("0")).result(20)
            thread.start()
            producer.abort_transaction()
            with producer.transaction():
                producer.append(topic, values("1", "2")).result(20)
                assert not first
            thread.join(20)
            assert first == [1]
            assert int(next(records).value) == 2


def test_rows_between_aborted_batches_have_their_offsets(log, topic, producer):
    """With many aborted batches in between the columns, records and metadata agree."""
    log.create_topic(topic, schema=NUMBERS)
    for n in range(40):
        producer.begin_transaction()
        producer.append(topic, numbers(10 * n, 10), 0).result(20)
        if n % 3 == 1:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    expected = [n for n in range(400) if n // 10 % 3 != 1]
    for level in ("read_committed", "read_atomic"):
        table = log.read(topic, isolation=level, metadata=True)
        assert table["_offset"].to_pylist() == table["n"].to_pylist() == expected
        part = log.read(topic, isolation=level, metadata=True, start=15, end=47)
        inside = [n for n in expected if 15 <= n < 47]
        if level == "read_committed":
            assert part["_offset"].to_pylist() == inside
    with log.consumer(topic, isolation="read_committed", metadata=True) as consumer:
        found = [n for batch in consumer.batches(until="latest") for n in batch["n"].to_pylist()]
        assert found == expected
        assert consumer.position() == {(topic, 0): 400}


def test_a_range_without_visible_records_ends_immediately(log, topic, producer):
    log.create_topic(topic)
    for _ in range(5):
        producer.begin_transaction()
        producer.append(topic, values("0", "1")).result(20)
        producer.abort_transaction()
    for level in ("read_committed", "read_atomic"):
        assert log.read(topic, isolation=level).num_rows == 0
        with log.consumer(topic, isolation=level) as consumer:
            assert list(consumer.records(until="latest")) == []
            assert consumer.position() == {(topic, 0): 10}


def test_latest_is_the_bound_of_the_level(log, topic, producer):
    log.create_topic(topic)
    with log.producer() as plain:
        plain.append(topic, values("0")).result(20)
        with producer.transaction():
            producer.append(topic, values("1")).result(20)
            for level in LEVELS:
                expected = 2 if level in ("read_uncommitted", "read_replicated") else 1
                with log.consumer(topic, isolation=level, start="latest") as consumer:
                    assert consumer.position() == {(topic, 0): expected}


# -- read_atomic ----------------------------------------------------------------------------------


def test_read_atomic_never_returns_a_partial_transaction(log, topic):
    """While transactions over two topics and three partitions commit continuously."""
    names = [topic, f"{topic}-other"]
    log.create_topic(names[0], partitions=2)
    log.create_topic(names[1])
    stop = threading.Event()
    begun = threading.Event()

    def write(which: int) -> None:
        with log.producer(transactional_id=f"{topic}-{which}") as producer:
            turn = 0
            while not stop.is_set():
                turn += 1
                producer.begin_transaction()
                for name, partition in ((names[0], 0), (names[1], 0), (names[0], 1)):
                    producer.append(name, values(f"{which}-{turn}"), partition)
                if turn % 4 == 0:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
                begun.set()

    writers = [threading.Thread(target=write, args=(which,)) for which in range(2)]
    for writer in writers:
        writer.start()
    begun.wait(20)
    try:
        for _ in range(15):
            tables = log.read(names, isolation="read_atomic")
            one = tables[names[0]]
            parts = [
                one.filter(pc.equal(one["partition"], 0))["value"].to_pylist(),
                one.filter(pc.equal(one["partition"], 1))["value"].to_pylist(),
                tables[names[1]]["value"].to_pylist(),
            ]
            assert sorted(parts[0]) == sorted(parts[1]) == sorted(parts[2])
    finally:
        stop.set()
        for writer in writers:
            writer.join(30)
    last = log.read(names, isolation="read_atomic")
    assert last[names[0]].num_rows == 2 * last[names[1]].num_rows > 0


def test_read_atomic_consumer_moves_from_cut_to_cut(log, topic):
    """At each cut it has seen every transaction completely or not at all."""
    log.create_topic(topic, partitions=3)
    stop = threading.Event()

    def write() -> None:
        with log.producer(transactional_id=topic) as producer:
            turn = 0
            while not stop.is_set():
                with producer.transaction():
                    for partition in range(3):
                        producer.append(topic, values(str(turn)), partition)
                turn += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with log.consumer(topic, isolation="read_atomic") as consumer:
            for _ in range(10):
                eventually(lambda: list(consumer.records(until="latest")))
                at = consumer.position()
                assert len(set(at.values())) == 1
            seen: dict[int, int] = {}
            for record in consumer.records():
                seen[int(record.value)] = seen.get(int(record.value), 0) + 1
                if len(seen) > 20 and set(seen.values()) == {3}:
                    break
    finally:
        stop.set()
        writer.join(30)


def test_an_explicit_end_lowers_the_cut(log, topic, producer):
    log.create_topic(topic, partitions=2)
    with log.producer() as plain:
        plain.append(topic, values("0"), 0).result(20)
    with producer.transaction():
        for partition in range(2):
            producer.append(topic, values("1", "2"), partition)
    assert log.read(topic, isolation="read_atomic").num_rows == 5
    # 2 in partition 0 is inside the transaction, which is excluded in both partitions.
    assert log.read(topic, isolation="read_atomic", end={0: 2})["value"].to_pylist() == [b"0"]
    assert log.read(topic, isolation="read_atomic", end={0: 3}).num_rows == 5
    assert log.read(topic, isolation="read_committed", end={0: 2}).num_rows == 4


def test_an_open_transaction_in_another_topic_holds_back_no_records(log, topic, producer):
    other = f"{topic}-other"
    for name in (topic, other):
        log.create_topic(name)
        with log.producer() as plain:
            plain.append(name, values("0"))
    with producer.transaction():
        producer.append(other, values("1")).result(20)
        with log.producer() as plain:
            plain.append(topic, values("1"))
        assert log.read(topic, isolation="read_atomic").num_rows == 2
        tables = log.read([topic, other], isolation="read_atomic")
        assert (tables[topic].num_rows, tables[other].num_rows) == (2, 1)


def test_a_start_above_the_log_end_is_refused_under_every_level(log, topic):
    log.create_topic(topic)
    for level in LEVELS:
        with pytest.raises(OffsetOutOfRange):
            log.read(topic, isolation=level, start=10)
        with (
            log.consumer(topic, isolation=level, start=10) as consumer,
            pytest.raises(OffsetOutOfRange),
        ):
            next(consumer.records(until="latest"))
