"""Positions of consumers, groups and resets where only the table of a lake has the records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import isolog
from isolog import aio
from tests.lake.local_lake import LocalLake

pytestmark = pytest.mark.slow  # each test uses a broker

STARTS = [30, 40]


def moment(second: int) -> datetime:
    return datetime(2024, 5, 1, 0, 0, second, tzinfo=UTC)


@pytest.fixture
def older(log: isolog.Log, topic: str, tmp_path: Path) -> Iterator[str]:
    """A topic with 40 records in each of two partitions, one per second. The log has 10 of them."""
    log.create_topic(topic, partitions=2)
    with log.producer() as producer:
        for number in range(2):
            for second in range(40):
                producer.send(topic, str(second), partition=number, timestamp=moment(second))
    LocalLake(log, [topic], tmp_path).run()
    log.trim(topic, dict(enumerate(STARTS)))
    yield topic
    log.delete_topic(topic)


def values(consumer: isolog.Consumer) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {0: [], 1: []}
    for record in consumer.records(until="latest"):
        assert record.value is not None
        assert record.offset == int(record.value)
        found[record.partition].append(record.offset)
    return found


def both(start: int) -> dict[int, list[int]]:
    return {0: list(range(start, 40)), 1: list(range(start, 40))}


@pytest.mark.parametrize(("place", "first"), [("earliest", 0), (moment(7), 7), (moment(35), 35)])
def test_seek_moves_to_records_that_only_the_table_has(
    log: isolog.Log, older: str, place: Any, first: int
) -> None:
    with log.consumer(older, start="latest") as consumer:
        consumer.seek(place)
        # No record of partition 1 is in the log.
        assert values(consumer) == both(first)
        consumer.seek({(older, 0): moment(5), (older, 1): 38})
        assert values(consumer) == {0: list(range(5, 40)), 1: [38, 39]}


def test_seek_stays_in_the_log_without_lakes(log: isolog.Log, older: str) -> None:
    with log.consumer(older, lake="never") as consumer:
        consumer.seek("earliest")
        assert values(consumer) == {0: list(range(30, 40)), 1: []}
        consumer.seek(moment(7))
        assert values(consumer) == {0: list(range(30, 40)), 1: []}


@pytest.mark.parametrize(
    ("start", "first"), [("earliest", 0), (moment(7), 7), (3, 3), ("latest", 40)]
)
def test_a_new_group_starts_in_the_table(
    log: isolog.Log, older: str, start: Any, first: int
) -> None:
    with log.consumer(older, group="g", start=start) as consumer:
        assert values(consumer) == both(first)
    log.delete_consumer("g")


def test_a_group_continues_in_the_table(log: isolog.Log, older: str) -> None:
    with log.consumer(older, group="g", partitions=None) as consumer:
        for record in consumer.records(until="latest"):
            if record.offset == 20:
                break
        consumer.commit()
        stored = consumer.position()
    with log.consumer(older, group="g") as consumer:
        found = values(consumer)
    for number in range(2):
        assert found[number] == list(range(stored[older, number], 40))
    log.delete_consumer("g")


def test_a_member_seeks_in_the_table(log: isolog.Log, older: str) -> None:
    with log.consumer(older, group="g", start="latest") as consumer:
        consumer.seek("earliest")
        assert values(consumer) == both(0)
    log.delete_consumer("g")


def test_a_partition_that_is_newer_than_the_name_starts_in_the_table(
    log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    log.create_topic(topic)
    with log.consumer(topic, name="early") as consumer:
        consumer.commit()
    with log.consumer(topic, group="early-group") as consumer:
        assert list(consumer.records(until="latest")) == []
        consumer.commit()
    log.alter_topic(topic, partitions=2)
    with log.producer() as producer:
        for number in range(10):
            producer.send(topic, str(number), partition=1)
    LocalLake(log, [topic], tmp_path).run()
    log.trim(topic, {1: 10})
    for options in ({"name": "early"}, {"group": "early-group"}):
        with log.consumer(topic, **options) as consumer:
            assert values(consumer) == {0: [], 1: list(range(10))}
    log.delete_topic(topic)


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("earliest", [0, 0]),
        (moment(7), [7, 7]),
        (moment(35), [35, 35]),
        (5, [5, 5]),
        ({0: 12}, [12, 40]),
        ("latest", [40, 40]),
        (99, [40, 40]),
    ],
)
def test_a_reset_moves_to_records_that_only_the_table_has(
    log: isolog.Log, older: str, to: Any, expected: list[int]
) -> None:
    with log.consumer(older, name="n", start="latest") as consumer:
        consumer.commit()
    log.reset_consumer("n", to)
    with log.consumer(older, name="n") as consumer:
        assert [consumer.position()[older, number] for number in range(2)] == expected
        assert values(consumer) == {n: list(range(expected[n], 40)) for n in range(2)}
    log.delete_consumer("n")


@pytest.mark.parametrize("isolation", ["read_committed", "read_atomic"])
def test_a_first_start_at_a_time_and_a_seek_under_each_level(
    log: isolog.Log, older: str, isolation: str
) -> None:
    with log.consumer(older, name="n", start=moment(9), isolation=isolation) as consumer:
        assert values(consumer) == both(9)
        consumer.seek("earliest")
        assert values(consumer) == both(0)
        consumer.commit()
    with log.consumer(older, name="n", isolation=isolation) as consumer:
        assert values(consumer) == both(40)
    log.delete_consumer("n")


def test_an_asynchronous_consumer_reads_and_seeks_in_the_table(shared: Any, older: str) -> None:
    async def read() -> list[list[int]]:
        found = []
        async with aio.connect(shared.address) as log, log.consumer(older) as consumer:
            for place in (None, moment(7), {(older, 1): 39}):
                if place is not None:
                    await consumer.seek(place)
                found.append(
                    sorted([record.offset async for record in consumer.records(until="latest")])
                )
            await consumer.seek("earliest")
            found.append(sorted(each.offset for each in await consumer.poll(5.0)))
        return found

    everything, some, last, polled = asyncio.run(read())
    assert everything == sorted([*range(40), *range(40)])
    assert some == sorted([*range(7, 40), *range(7, 40)])
    assert last == [39]
    assert polled[0] == 0
