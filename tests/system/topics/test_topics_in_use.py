"""Topics deleted, recreated, rolled and cut by retention under reads and writes."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

import isolog
from isolog.errors import IsologError, OffsetEvicted, TopicExists, UnknownTopic
from tests.support import (
    NUMBERS,
    BrokerProcess,
    Fetching,
    act,
    eventually,
    fetched,
    numbers,
    range_of,
    values,
)

SMALL = {"segment.bytes": 65_536}


def test_readers_of_a_deleted_topic_fail_immediately(log, channel, topic):
    """Waiting readers, with and without a timeout, fail too."""
    log.create_topic(topic, schema=NUMBERS)
    asked = [
        range_of(topic, start=0, wait_ms=30_000),
        range_of(topic, start=0, follow=True),
        range_of(topic, start=0, follow=True, topic_id=log.describe(topic).id),
    ]
    readers = [Fetching(channel, each) for each in asked]
    begun = time.monotonic()
    log.delete_topic(topic)
    for reader in readers:
        with pytest.raises(UnknownTopic, match=topic):
            next(reader)
    assert time.monotonic() - begun < 20  # less than their waits of 30 s and without end


def test_consumer_of_a_deleted_topic_raises_unknown_topic(log, topic):
    log.create_topic(topic)
    with log.producer() as producer, log.consumer(topic) as consumer:
        producer.send(topic, b"a").result(20)
        records = consumer.records()
        next(records)
        log.delete_topic(topic)
        with pytest.raises(UnknownTopic, match=topic):
            next(records)


def test_consumer_does_not_continue_in_a_recreated_topic(log, topic):
    """Its offsets belong to the old topic, which has another id."""
    log.create_topic(topic)
    with log.producer() as producer, log.consumer(topic) as consumer:
        producer.append(topic, values("old 0", "old 1")).result(20)
        records = consumer.records()
        assert next(records).value == b"old 0"
        log.delete_topic(topic)
        log.create_topic(topic)
        with log.producer() as fresh:
            fresh.append(topic, values("new 0", "new 1", "new 2")).result(20)
        seen = []
        with pytest.raises(UnknownTopic, match=topic):
            seen.extend(iter(records))
        assert [record.value for record in seen] in ([], [b"old 1"])
        with pytest.raises(UnknownTopic, match="created again"):
            list(consumer.records(until="latest"))


def test_producer_continues_in_a_recreated_topic_after_one_error(log, topic):
    first = log.create_topic(topic, schema=NUMBERS)
    producer = log.producer()
    producer.append(topic, numbers(0, 3)).result(20)
    log.delete_topic(topic)
    assert isinstance(producer.append(topic, numbers(3, 3)).exception(20), UnknownTopic)
    second = log.create_topic(topic, partitions=2, schema=NUMBERS)
    assert second.id != first.id
    outcomes = [producer.append(topic, numbers(n, 1), 1).exception(20) for n in range(3)]
    assert outcomes[1:] == [None, None]
    assert outcomes[0] is None or isinstance(outcomes[0], UnknownTopic)
    producer.close()
    assert log.read(topic)["n"].to_pylist()[-2:] == [1, 2]


def test_producer_detects_a_topic_recreated_by_another_client(shared, log, topic):
    """Its cached schema and number of partitions belong to the old topic."""
    log.create_topic(topic, partitions=3, schema=NUMBERS)
    producer = log.producer()
    producer.append(topic, numbers(0, 1), 2).result(20)
    with shared.connect() as other:
        other.delete_topic(topic)
        other.create_topic(topic, partitions=1)
    first = producer.append(topic, numbers(1, 1), 2).exception(20)
    assert isinstance(first, UnknownTopic)
    assert producer.send(topic, b"now a default-schema topic").result(20).partition == 0
    producer.close()


def test_files_of_a_deleted_topic_are_removed_and_closed(shared, log, topic):
    log.create_topic(topic, partitions=3, schema=NUMBERS)
    with log.producer() as producer:
        for partition in range(3):
            producer.append(topic, numbers(0, 1000), partition=partition)
    folder = shared.directory / "topics" / topic
    assert len(list(folder.rglob("*.arrow"))) == 3
    log.delete_topic(topic)
    assert not folder.exists()
    held = [each.path for each in psutil.Process(shared.pid).open_files()]
    assert [path for path in held if f"/{topic}/" in path] == []


def test_delete_under_reads_and_writes_raises_only_typed_errors(shared, log, topic):
    names = [f"{topic}-{number}" for number in range(3)]
    stop = threading.Event()
    wrong: list[BaseException] = []

    def busy(step) -> None:
        while not stop.is_set():
            try:
                step()
            except IsologError as error:
                if not isinstance(error, UnknownTopic | TopicExists):
                    wrong.append(error)
            except BaseException as error:
                wrong.append(error)

    def write(name: str, producer: isolog.Producer) -> None:
        error = producer.append(name, numbers(0, 10)).exception(20)
        if error is not None:
            raise error

    with log.producer() as producer:
        steps = [lambda name=name: log.create_topic(name, 2, schema=NUMBERS) for name in names]
        steps += [lambda name=name: log.delete_topic(name) for name in names]
        steps += [lambda name=name: write(name, producer) for name in names]
        steps += [lambda name=name: log.read(name) for name in names]
        with ThreadPoolExecutor(len(steps)) as pool:
            for step in steps:
                pool.submit(busy, step)
            try:
                threading.Event().wait(2.0)  # of concurrent calls
            finally:
                stop.set()
        with contextlib.suppress(UnknownTopic):
            producer.flush()
    assert wrong == []
    # A new client, because the other may have cached the id of a deleted topic.
    with shared.connect() as later:
        for name in names:
            if name not in later.topics():
                later.create_topic(name, schema=NUMBERS)
            with later.producer() as fresh:
                fresh.append(name, numbers(0, 5)).result(20)


@pytest.mark.full  # one process: tests/storage/log/test_log.py
def test_reads_miss_no_record_while_segments_roll(channel, log, topic):
    """Readers take no lock, so a segment may be closed and the next created during a read."""
    log.create_topic(topic, schema=NUMBERS, config=SMALL | {"segment.entries": 16})
    total, each = 30_000, 20
    failures: list[BaseException] = []

    def read_all(chunk: dict) -> None:
        position, expected = 0, 0
        try:
            while position < total:
                batches, end = fetched(channel, topic, start=position, wait_ms=1000, **chunk)
                for batch, facts in batches:
                    assert facts["base"] == expected
                    found = batch.column("n").to_numpy()
                    assert (found == range(expected, expected + len(found))).all()
                    expected += len(found)
                position = end["next"]
                assert position == expected
        except BaseException as error:
            failures.append(error)

    readers = [
        threading.Thread(target=read_all, args=(chunk,))
        for chunk in ({}, {"max_records": 100}, {"max_bytes": 3000}, {"columns": ["n"]})
    ]
    for reader in readers:
        reader.start()
    with log.producer() as producer:
        for first in range(0, total, each):
            producer.append(topic, numbers(first, each), partition=0)
    for reader in readers:
        reader.join(60)
    assert failures == []


def test_reader_gets_no_wrong_byte_while_retention_removes_files(broker: BrokerProcess):
    """It reads its open files, or gets the log start offset. Mapped files are never truncated."""
    with broker.connect() as log, broker.channel() as channel:
        config = SMALL | {"retention.bytes": 1}
        log.create_topic("t", schema=NUMBERS, config=config)
        with log.producer() as producer:
            for first in range(0, 200_000, 5000):
                producer.append("t", numbers(first, 5000), partition=0)
        # The reader is slow, and the transport applies backpressure.
        rows, evicted = 0, None
        try:
            reader = Fetching(channel, range_of("t", start=0, follow=True))
            while rows < 200_000:
                batch, _ = next(reader)
                found = batch.column("n").to_pylist()
                assert found == list(range(rows, rows + len(found)))
                rows += len(found)
                if rows < 50_000:
                    threading.Event().wait(0.2)
        except OffsetEvicted as error:
            evicted = error
        if evicted is not None:
            assert evicted.details["log_start_offset"] > rows
        else:
            reader.cancel()
        start = eventually(lambda: log.describe("t").partitions[0].log_start_offset)
        assert log.read("t")["n"].to_pylist() == list(range(start, 200_000))
    assert "Traceback" not in broker.log_text()


def test_retention_by_age_closes_and_removes_an_idle_segment(broker: BrokerProcess):
    with broker.connect() as log:
        log.create_topic("t", config={"retention.ms": 300})
        with log.producer() as producer:
            producer.append("t", values("a", "b"), partition=0).result(20)
        eventually(lambda: log.describe("t").partitions[0].log_start_offset == 2)
        assert log.read("t").num_rows == 0
        with pytest.raises(OffsetEvicted, match="log starts at 2"):
            log.read("t", start=0)
        with log.producer() as producer:
            assert producer.send("t", b"c").result(20).offset == 2
    broker.kill()
    broker.restart()
    with broker.connect() as log:
        described = log.describe("t").partitions[0]
        assert described.log_end_offset == 3
        assert described.log_start_offset in (2, 3)


def test_all_of_many_waiting_fetches_are_answered(log, channel, topic):
    log.create_topic(topic, schema=NUMBERS)
    with ThreadPoolExecutor(60) as pool:
        waiting = [
            pool.submit(fetched, channel, topic, start=0, wait_ms=30_000, isolation=isolation)
            for isolation in ["read_uncommitted", "read_committed"] * 30
        ]
        with log.producer() as producer:
            producer.append(topic, numbers(0, 5), partition=0).result(20)
        for each in waiting:
            batches, end = each.result(20)
            assert end["next"] == 5
            assert sum(batch.num_rows for batch, _ in batches) == 5


def test_failed_topic_creation_leaks_no_file(broker: BrokerProcess):
    with broker.connect() as log, broker.channel() as channel:
        process = psutil.Process(broker.pid)
        log.topics()
        before = process.num_fds()
        blocked = broker.directory / "topics"
        blocked.write_text("in the way")
        for number in range(5):
            with pytest.raises(IsologError):  # a plain call: the client would retry
                act(channel, "create-topic", topic=f"t{number}", partitions=20)
        blocked.unlink()
        assert log.topics() == []
        with broker.connect() as patient:
            patient.create_topic("t0", partitions=2)
            patient.delete_topic("t0")
        eventually(lambda: process.num_fds() <= before + 2)
