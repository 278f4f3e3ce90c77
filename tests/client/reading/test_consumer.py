"""Consumers: records and batches, positions, seeks, and a prompt end."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
import time
import weakref
from datetime import datetime

import pyarrow as pa
import pytest

import isolog
from isolog.errors import (
    InvalidOption,
    InvalidRequest,
    OffsetOutOfRange,
    SchemaMismatch,
    UnknownTopic,
)
from spark_stream.client.reading import consumer as consumer_module
from spark_stream.client.reading.loop import Fetcher
from tests.client.proxy import Proxy
from tests.support import NUMBERS, eventually, numbers, values


def fill(log, topic: str, count: int, partitions: int = 1) -> None:
    log.create_topic(topic, partitions=partitions)
    with log.producer() as producer:
        for number in range(partitions):
            producer.append(topic, values(*[f"{number}-{n}" for n in range(count)]), number)


def test_until_latest_ends_at_the_bound(log, topic):
    fill(log, topic, 10, partitions=3)
    with log.consumer(topic) as consumer:
        found = list(consumer.records(until="latest"))
    assert len(found) == 30
    for number in range(3):
        mine = [record for record in found if record.partition == number]
        assert [record.offset for record in mine] == list(range(10))
        assert [record.value for record in mine] == [f"{number}-{n}".encode() for n in range(10)]


def test_until_latest_of_an_empty_topic_ends_immediately(log, topic):
    log.create_topic(topic, partitions=2)
    with log.consumer(topic) as consumer:
        assert list(consumer.records(until="latest")) == []
        assert list(consumer.batches(until="latest")) == []


def test_records_and_batches_wait_for_more(log, topic):
    log.create_topic(topic)
    with log.producer() as producer, log.consumer(topic) as consumer:
        records = consumer.records()
        for number in range(5):
            producer.send(topic, str(number))
            assert next(records).value == str(number).encode()
        records.close()
        batches = consumer.batches()
        producer.send(topic, b"5").result(20)
        assert next(batches)["value"].to_pylist() == [b"5"]


def test_a_new_record_is_delivered_without_delay(log, topic):
    """A long poll is answered by the append, not by its timeout."""
    log.create_topic(topic)
    with log.producer() as producer, log.consumer(topic) as consumer:
        records = consumer.records()
        producer.send(topic, b"first")
        next(records)
        waits = []
        for _ in range(5):
            sent = threading.Timer(0.1, lambda: producer.send(topic, b"late"))
            sent.start()
            begun = time.monotonic()
            next(records)
            waits.append(time.monotonic() - begun)
        assert min(waits) < 1.0  # a long poll lasts two seconds


def test_a_consumer_reads_several_topics(log, topic):
    fill(log, f"{topic}-a", 3)
    fill(log, f"{topic}-b", 4, partitions=2)
    with log.consumer([f"{topic}-a", f"{topic}-b"]) as consumer:
        found = list(consumer.records(until="latest"))
        assert len(found) == 11
        assert consumer.position() == {
            (f"{topic}-a", 0): 3,
            (f"{topic}-b", 0): 4,
            (f"{topic}-b", 1): 4,
        }


def test_the_position_moves_with_delivered_records(log, topic):
    fill(log, topic, 10)
    with log.consumer(topic) as consumer:
        assert consumer.position() == {(topic, 0): 0}
        records = consumer.records()
        for number in range(4):
            assert next(records).offset == number
            assert consumer.position() == {(topic, 0): number + 1}
        records.close()
        assert [record.offset for record in consumer.records(until="latest")] == list(range(4, 10))


def test_seek_goes_back_and_forth_between_and_within_iterations(log, topic):
    fill(log, topic, 10, partitions=2)
    with log.consumer(topic) as consumer:
        assert len(list(consumer.records(until="latest"))) == 20
        consumer.seek({(topic, 0): 7})
        assert consumer.position() == {(topic, 0): 7, (topic, 1): 10}
        found = list(consumer.records(until="latest"))
        assert [(record.partition, record.offset) for record in found] == [(0, 7), (0, 8), (0, 9)]
        consumer.seek({(topic, 0): 0, (topic, 1): 10})
        seen = []
        for record in consumer.records(until="latest"):
            seen.append(record.offset)
            if len(seen) == 5:
                consumer.seek({(topic, 0): 8})
        assert seen == [0, 1, 2, 3, 4, 8, 9]


def test_a_seek_within_a_batch_returns_its_later_rows(log, topic):
    log.create_topic(topic, schema=NUMBERS)
    with log.producer() as producer:
        producer.append(topic, numbers(0, 10))
    with log.consumer(topic, metadata=True) as consumer:
        seen = []
        for batch in consumer.batches(until="latest"):
            seen.append(batch["_offset"].to_pylist())
            if len(seen) < 3:
                consumer.seek({(topic, 0): 10 - 3 * len(seen)})
        assert seen == [list(range(10)), [7, 8, 9], [4, 5, 6, 7, 8, 9]]


@pytest.mark.parametrize("isolation", ["read_committed", "read_atomic"])
def test_seek_accepts_earliest_and_latest(log, topic, isolation):
    fill(log, topic, 3)
    with log.consumer(topic, isolation=isolation) as consumer:
        consumer.seek("latest")
        assert consumer.position() == {(topic, 0): 3}
        assert list(consumer.records(until="latest")) == []
        consumer.seek("earliest")
        assert consumer.position() == {(topic, 0): 0}
        assert len(list(consumer.records(until="latest"))) == 3
        with pytest.raises(InvalidOption, match="a position is 'earliest', 'latest', 'committed'"):
            consumer.seek("first")


@pytest.mark.parametrize("wrong", [-1, 1 << 63, "0", None])
def test_an_invalid_seek_is_refused_and_changes_nothing(log, topic, wrong):
    fill(log, topic, 3)
    with log.consumer(topic) as consumer:
        with pytest.raises(InvalidOption):
            consumer.seek({(topic, 0): wrong})
        with pytest.raises(InvalidOption, match="not a"):
            consumer.seek({(topic, 0): 1, (topic, 1): 0})
        with pytest.raises(InvalidOption, match="a position is"):
            consumer.seek(3)
        assert consumer.position() == {(topic, 0): 0}
        assert len(list(consumer.records(until="latest"))) == 3


def test_a_seek_above_the_log_end_fails_the_next_read(log, topic):
    fill(log, topic, 3)
    with log.consumer(topic) as consumer:
        consumer.seek({(topic, 0): 4})
        with pytest.raises(OffsetOutOfRange, match=r"4.*3"):
            next(consumer.records())
        with pytest.raises(OffsetOutOfRange):
            list(consumer.records(until="latest"))


@pytest.mark.parametrize(
    ("start", "first"),
    [("earliest", 0), ("latest", 10), (4, 4), ({0: 6}, 6), ({}, 0), (datetime(1970, 1, 2), 0)],
)
def test_a_consumer_begins_at_its_start(log, topic, start, first):
    fill(log, topic, 10)
    with log.consumer(topic, start=start) as consumer:
        assert consumer.position() == {(topic, 0): first}
        found = [record.offset for record in consumer.records(until="latest")]
        assert found == list(range(first, 10))


def test_batches_have_the_columns_of_the_topic(log, topic):
    log.create_topic(topic, schema=NUMBERS)
    with log.producer() as producer:
        producer.append(topic, numbers(0, 3))
    with log.consumer(topic) as consumer:
        assert next(consumer.batches()).to_pydict() == {"n": [0, 1, 2]}
    with log.consumer(topic, columns=["_offset"]) as consumer:
        assert next(consumer.batches()).to_pydict() == {"_offset": [0, 1, 2]}
    with log.consumer(topic, metadata=True) as consumer:
        assert next(consumer.batches()).schema.names[1:] == [
            "_topic",
            "_partition",
            "_offset",
            "_timestamp",
        ]


def test_records_need_a_default_schema_topic(log, topic):
    log.create_topic(topic, schema=NUMBERS)
    with log.consumer(topic) as consumer, pytest.raises(SchemaMismatch, match=topic):
        next(consumer.records())


def test_invalid_arguments_are_refused(log, topic):
    with pytest.raises(UnknownTopic, match=topic):
        log.consumer(topic)
    with pytest.raises(InvalidOption, match="at least one topic"):
        log.consumer([])
    fill(log, topic, 1)
    with pytest.raises(InvalidOption, match="isolation"):
        log.consumer(topic, isolation="snapshot")
    with log.consumer(topic) as consumer, pytest.raises(InvalidOption, match="'latest'"):
        next(consumer.records(until="earliest"))


def test_large_partitions_are_read_completely_and_in_order(log, topic):
    log.create_topic(topic, partitions=2, schema=NUMBERS)
    with log.producer() as producer:
        for first in range(0, 1_000_000, 50_000):
            producer.append(topic, numbers(first, 50_000))
    with log.consumer(topic, metadata=True) as consumer:
        table = pa.Table.from_batches(consumer.batches(until="latest"))
    assert table.num_rows == 1_000_000
    for number in range(2):
        mine = table.filter(pa.compute.equal(table["_partition"], number))
        assert mine["_offset"].to_pylist() == list(range(500_000))


def test_close_ends_a_waiting_iteration_promptly(log, topic):
    log.create_topic(topic, partitions=4)
    consumer = log.consumer(topic)
    ended = threading.Event()

    def consume() -> None:
        for _ in consumer.records():
            pass
        ended.set()

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    eventually(lambda: consumer._fetcher)
    begun = time.monotonic()
    consumer.close()
    assert ended.wait(10)
    assert time.monotonic() - begun < 10
    with pytest.raises(InvalidRequest, match="closed"):
        list(consumer.records())


@pytest.mark.parametrize("act", ["close", "seek"])
def test_a_close_or_seek_during_the_start_of_fetches_takes_effect(log, topic, monkeypatch, act):
    """It happens when the fetches have begun and the consumer has no reference to them yet."""
    fill(log, topic, 5)
    consumer = log.consumer(topic)
    begun: list[Fetcher] = []

    class MeanwhileAsked(Fetcher):
        def __init__(self, *args, **options) -> None:
            super().__init__(*args, **options)
            begun.append(self)
            if len(begun) == 1:
                asked = consumer.close if act == "close" else lambda: consumer.seek({(topic, 0): 3})
                other = threading.Thread(target=asked)
                other.start()
                other.join()

    monkeypatch.setattr(consumer_module, "Fetcher", MeanwhileAsked)
    found: list[int] = []

    def consume() -> None:
        found.extend(record.offset for record in consumer.records())

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    try:
        if act == "seek":
            eventually(lambda: found == [3, 4])
            consumer.close()
        thread.join(10)
        assert not thread.is_alive()
        assert found == ([] if act == "close" else [3, 4])
    finally:
        for fetcher in begun:
            fetcher.stop()


def test_closing_the_log_ends_its_consumers(shared, topic):
    with shared.connect() as log:
        log.create_topic(topic)
        consumer = log.consumer(topic)
        failures = []

        def consume() -> None:
            try:
                list(consumer.records())
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=consume, daemon=True)
        thread.start()
        eventually(lambda: consumer._fetcher)
    thread.join(10)
    assert not thread.is_alive()


ENDS = """
import sys
import isolog
log = isolog.connect(sys.argv[1])
consumer = log.consumer(sys.argv[2])
records = consumer.records()
next(records)
producer = log.producer(linger_ms=10)
producer.send(sys.argv[2], b"more").result(20)
next(records)
print("read", flush=True)
"""


def test_a_program_with_an_open_consumer_ends_immediately(shared, log, topic):
    fill(log, topic, 1)
    begun = time.monotonic()
    ran = subprocess.run(
        [sys.executable, "-c", ENDS, shared.address, topic],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "read\n"), ran.stderr
    assert ran.stderr == ""
    assert time.monotonic() - begun < 20


def test_a_consumer_of_many_partitions_has_no_thread(log, topic):
    fill(log, topic, 3, partitions=20)
    before = {thread for thread in threading.enumerate() if thread.name != "isolog-calls"}
    with log.consumer(topic) as consumer:
        assert len(list(itertools.islice(consumer.records(), 60))) == 60
        found = eventually(lambda: consumer.poll() == [] and set(threading.enumerate()))
        assert {each.name for each in found - before} <= {"isolog-calls"}


def test_a_collected_consumer_cancels_its_fetches(log, topic):
    fill(log, topic, 3, partitions=3)
    consumer = log.consumer(topic)
    assert sum(len(consumer.poll(60)) for _ in range(3)) == 9
    assert consumer.poll() == []
    fetcher = weakref.ref(consumer._fetcher)
    calls = consumer._fetcher._calls
    streams = eventually(lambda: [call.stream for call in calls.values()])
    del consumer
    gc.collect()
    assert fetcher() is None
    # A stream whose fetch was answered needs no cancellation.
    assert all(stream.has_ended or stream._is_done for stream in streams)


def test_a_consumer_reconnects_after_a_lost_connection(shared, log, topic):
    """Also if its broker is reached at another address than it announces."""
    fill(log, topic, 3, partitions=3)
    with (
        Proxy(shared.address) as proxy,
        isolog.connect(proxy.address) as far,
        far.consumer(topic) as consumer,
        log.producer() as producer,
    ):
        records = consumer.records()
        assert len(list(itertools.islice(records, 9))) == 9
        proxy.cut()  # while it waits
        for number in range(3):
            producer.append(topic, values(b"x", b"y", b"z"), number).result(60)
        assert {next(records).value for _ in range(9)} == {b"x", b"y", b"z"}
        records.close()
        link = far._connection.link()
        proxy.cut()  # only the next poll detects it
        eventually(lambda: link.present() is None)
        producer.append(topic, values(b"a"), 0).result(60)
        assert [record.value for record in consumer.poll(60)] == [b"a"]


def test_prefetching_between_two_polls_is_bounded(log, topic):
    """Of 40 MB two fetches have arrived before the poll."""
    log.create_topic(topic)
    with log.producer() as producer:
        for _ in range(10):
            producer.append(topic, values(*[bytes(100_000)] * 40))
    with log.consumer(topic) as consumer:
        assert len(consumer.poll(60, 1)) == 1
        fetcher = consumer._fetcher
        eventually(
            lambda: not fetcher._calls
        )  # the answer has arrived, and there is no further fetch
        assert 0 < fetcher._queue.qsize() <= 8
        assert len(list(consumer.batches(until="latest"))) > 0


def test_a_consumer_keeps_up_with_a_producer(log, topic):
    log.create_topic(topic, partitions=2)
    with log.producer() as producer, log.consumer(topic) as consumer:

        def produce() -> None:
            for number in range(2000):
                producer.send(topic, str(number), partition=number % 2)

        thread = threading.Thread(target=produce)
        thread.start()
        found = {0: [], 1: []}
        for record in consumer.records():
            found[record.partition].append(int(record.value))
            if sum(map(len, found.values())) == 2000:
                break
        thread.join()
    assert found == {0: list(range(0, 2000, 2)), 1: list(range(1, 2000, 2))}
