"""A trim through the client: offsets, moments, partitions, and readers below the log start."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from isolog import aio
from isolog.errors import (
    OffsetEvicted,
    OffsetOutOfRange,
    UnknownPartition,
    UnknownTopic,
)
from tests.support import NUMBERS, numbers


@pytest.fixture
def filled(log, topic):
    log.create_topic(topic, partitions=2, schema=NUMBERS)
    with log.producer() as producer:
        for partition in (0, 1):
            producer.append(topic, numbers(10 * partition, 10), partition=partition)
    return topic


def test_readers_below_the_log_start_get_the_first_remaining_offset(log, filled):
    assert log.trim(filled, {0: 7}) == {0: 7}
    with pytest.raises(OffsetEvicted) as caught:
        log.read(filled, start={0: 6}, partitions=[0])
    assert caught.value.details["log_start_offset"] == 7
    assert log.read(filled).column("n").to_pylist() == [7, 8, 9, *range(10, 20)]


def test_a_running_reader_below_a_trim_gets_the_first_remaining_offset(log, filled):
    with log.consumer(filled, partitions=[0], start={0: 3}) as consumer:
        log.trim(filled, 8, partitions=[0])
        with pytest.raises(OffsetEvicted) as caught:
            next(consumer.batches(timeout=10))
    assert caught.value.details["log_start_offset"] == 8


def test_a_moment_trims_the_records_before_it(log, filled):
    now = datetime.now(UTC)
    assert log.trim(filled, now - timedelta(days=1)) == {0: 0, 1: 0}
    assert log.trim(filled, now + timedelta(days=1), partitions=[1]) == {1: 10}
    assert log.read(filled).column("n").to_pylist() == list(range(10))


def test_a_moment_after_a_trim_is_looked_up_above_the_log_start(log, filled):
    log.trim(filled, 4)
    found = log.read(filled, start=datetime(2000, 1, 1, tzinfo=UTC), partitions=[0])
    assert found.column("n").to_pylist() == [4, 5, 6, 7, 8, 9]


def test_records_of_an_open_transaction_are_not_trimmed(log, filled):
    with log.producer(transactional_id="open") as producer, producer.transaction():
        producer.append(filled, numbers(100, 5), partition=0).result()
        with pytest.raises(OffsetOutOfRange, match="above the last stable offset 10"):
            log.trim(filled, {0: 11, 1: 5})
        assert log.trim(filled, "latest") == {0: 10, 1: 10}
    assert log.read(filled).column("n").to_pylist() == [100, 101, 102, 103, 104]


def test_a_trim_names_partitions_and_topics_that_exist(log, filled):
    for call in (
        lambda: log.trim(filled, 1, partitions=[2]),
        lambda: log.trim(filled, 1, partitions=[-1]),
    ):
        with pytest.raises(UnknownPartition):
            call()
    with pytest.raises(UnknownTopic):
        log.trim("nowhere", 1)
    plan = log.plan_trim(filled, 3)
    assert (plan.log_starts, plan.before, plan.records) == ({0: 0, 1: 0}, {0: 3, 1: 3}, 6)
    assert log.read(filled).num_rows == 20


def test_plan_trim_raises_the_errors_of_trim_and_trims_nothing(log, filled):
    for place in (11, {0: 3, 1: 11}):
        with pytest.raises(OffsetOutOfRange, match="above the last stable offset 10"):
            log.plan_trim(filled, place)
    assert log.read(filled).num_rows == 20


def test_a_trim_plan_does_not_trim_a_recreated_topic(log, filled):
    plan = log.plan_trim(filled, 3)
    log.delete_topic(filled)
    log.create_topic(filled, partitions=2, schema=NUMBERS)
    with log.producer() as producer:
        producer.append(filled, numbers(0, 10), partition=0)
    with pytest.raises(UnknownTopic):
        log.trim(filled, plan)
    assert log.read(filled).num_rows == 10


def test_asyncio_trims(shared, log, filled):
    async def trimmed() -> dict[int, int]:
        async with aio.connect(shared.address) as opened:
            return await opened.trim(filled, await opened.plan_trim(filled, 2))

    assert asyncio.run(trimmed()) == {0: 2, 1: 2}
