"""``poll``: the available records, or none after a timeout."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial

import pytest

from isolog.errors import (
    InvalidOption,
    InvalidRequest,
    ReentrantCall,
    SchemaMismatch,
    Unsupported,
)
from tests.support import NUMBERS, eventually, values

LEVELS = ["read_uncommitted", "read_replicated", "read_committed", "read_atomic"]


def fill(log, topic: str, count: int, partitions: int = 1) -> None:
    log.create_topic(topic, partitions=partitions)
    with log.producer(isolation="read_committed") as producer:
        for number in range(partitions):
            producer.append(topic, values(*[f"{number}-{n}" for n in range(count)]), number)


@pytest.mark.quick("read_committed")
@pytest.mark.parametrize("isolation", LEVELS)
def test_polls_return_each_record_once(log, topic, isolation):
    fill(log, topic, 10, partitions=2)
    with log.consumer(topic, isolation=isolation) as consumer:
        found = []
        while records := consumer.poll(2, max_records=4):
            assert len(records) <= 4
            assert len({record.partition for record in records}) == 1
            found += records
            last = records[-1]
            assert consumer.position()[topic, last.partition] == last.offset + 1
        places = [(record.partition, record.offset) for record in found]
        assert sorted(places) == [(number, n) for number in range(2) for n in range(10)]
        assert consumer.position() == {(topic, 0): 10, (topic, 1): 10}
        assert consumer.poll() == []


@pytest.mark.quick("read_atomic")
@pytest.mark.parametrize("isolation", LEVELS)
def test_a_poll_waits_up_to_its_timeout(log, topic, isolation):
    log.create_topic(topic)
    with log.consumer(topic, isolation=isolation) as consumer:
        began = time.monotonic()
        assert consumer.poll(0.5) == []
        assert time.monotonic() - began >= 0.5
        with log.producer(isolation="read_committed") as producer:
            sent = threading.Timer(0.1, lambda: producer.send(topic, b"x"))
            sent.start()
            (record,) = consumer.poll(60)
            sent.join()
        assert record.value == b"x"
        assert time.monotonic() - began < 60


def test_a_poll_that_interrupts_its_own_reader_is_refused(log, topic):
    """As in a signal handler. A poll without a timeout waits for no other thread."""
    fill(log, topic, 10)
    with log.consumer(topic) as consumer:
        assert len(consumer.poll(60)) == 10
        with consumer._fetcher._lock, pytest.raises(ReentrantCall):
            consumer.poll(0)
        assert consumer.poll(0) == []


def test_polls_without_a_timeout_return_prefetched_records(log, topic):
    """All of them share one fetcher."""
    fill(log, topic, 3)
    with log.consumer(topic) as consumer:
        assert [record.offset for record in eventually(consumer.poll)] == [0, 1, 2]
        fetcher = consumer._fetcher
        assert consumer.poll() == []
        assert consumer._fetcher is fetcher


def test_a_poll_continues_after_a_seek_or_an_iteration(log, topic):
    fill(log, topic, 10)
    with log.consumer(topic) as consumer:
        assert [record.offset for record in consumer.poll(60, 3)] == [0, 1, 2]
        records = consumer.records()
        assert [next(records).offset for _ in range(2)] == [3, 4]
        records.close()
        assert [record.offset for record in consumer.poll(60, 2)] == [5, 6]
        consumer.seek({(topic, 0): 1})
        assert [record.offset for record in consumer.poll(60, 2)] == [1, 2]
        assert len(list(consumer.records(until="latest"))) == 7
        assert consumer.poll() == []


def test_a_poll_without_matches_moves_the_position(log, topic):
    fill(log, topic, 10)
    with log.consumer(topic, filter="value = X'00'") as consumer:
        assert eventually(lambda: not consumer.poll() and consumer.position() == {(topic, 0): 10})


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"timeout": -1}, InvalidOption, "timeout takes"),
        ({"timeout": "5"}, InvalidOption, "timeout takes"),
        ({"timeout": True}, InvalidOption, "timeout takes"),
        ({"timeout": float("nan")}, InvalidOption, "timeout takes"),
        ({"max_records": 0}, InvalidOption, "max_records is at least 1"),
        ({"max_records": "5"}, InvalidOption, "max_records is at least 1"),
    ],
)
def test_invalid_arguments_of_poll_are_refused(log, topic, settings, error, message):
    fill(log, topic, 1)
    with log.consumer(topic) as consumer:
        with pytest.raises(error, match=message):
            consumer.poll(**settings)
        assert len(consumer.poll(60, max_records=1 << 70)) == 1  # no record was lost


def test_typed_topics_and_closed_consumers_are_refused(log, topic):
    log.create_topic(topic, schema=NUMBERS)
    with log.consumer(topic) as consumer, pytest.raises(SchemaMismatch, match="typed"):
        consumer.poll()
    with pytest.raises(InvalidRequest, match="closed"):
        consumer.poll()
    for read in (consumer.records, consumer.batches):
        with pytest.raises(InvalidRequest, match="closed"):
            next(read())
    for act in (consumer.commit, partial(consumer.seek, "earliest")):
        with pytest.raises(InvalidRequest, match="closed"):
            act()


def test_async_use_of_a_consumer_fails_with_the_remedy(log, topic):
    log.create_topic(topic)

    async def enter() -> None:
        async with log.consumer(topic):
            pass

    async def iterate() -> None:
        async for _ in log.consumer(topic):
            pass

    for use in enter, iterate:
        with pytest.raises(Unsupported) as refused:
            asyncio.run(use())
        assert "aio.connect" in (refused.value.hint or "")
