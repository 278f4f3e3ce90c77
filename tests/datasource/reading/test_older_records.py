"""Queries over a topic whose first two thirds are only in the table of a lake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import isolog
from isolog.errors import DataLoss
from tests.datasource.sources import Query, batch_read
from tests.lake.local_lake import LocalLake
from tests.support import NUMBERS, numbers

STARTS = {0: 240, 1: 241, 2: 200}


class LakeTopic:
    """A topic of three partitions with transactions, of which some are aborted, and its lake."""

    def __init__(self, log: isolog.Log, address: str, name: str, root: Path) -> None:
        self.log, self.address, self.name = log, address, name
        log.create_topic(name, partitions=3, schema=NUMBERS)
        lake = LocalLake(log, [name], root)
        with log.producer(transactional_id=f"{name}-writer") as producer:
            for number in range(12):
                producer.begin_transaction()
                for partition in range(3):
                    block = numbers(10_000 * partition + 30 * number, 30)
                    producer.append(name, block, partition=partition)
                producer.flush()
                if number % 4 == 2:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
                lake.run()  # so the lake records a cut after each transaction

    def trim(self) -> None:
        self.log.trim(self.name, STARTS)

    def batch(self, **options: Any) -> list[int]:
        return batch_read(self.address, self.name, **options)

    def batches(self, at: Any = None, **options: Any) -> list[list[int]]:
        """Return the micro-batches of a query that starts again after each of them."""
        query = Query(self.address, self.name, at, **options)
        found = []
        while True:
            end = query.planned()
            if end == query.at:
                return found
            found.append(sorted(query.read(end)))
            query = Query(self.address, self.name, end, **options)


@pytest.fixture
def topic_of(log: isolog.Log, shared: Any, topic: str, tmp_path: Path) -> LakeTopic:
    return LakeTopic(log, shared.address, topic, tmp_path)


COMMITTED = {"isolation": "read_committed"}
OPTIONS = [
    {},
    {"filter": "n > 50 and n < 20100"},
    {"minPartitions": 7},
    {"isolation": "read_atomic"},
]


@pytest.mark.quick("{'filter': 'n > 50 and n < 20100'}", "{'isolation': 'read_atomic'}")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_batch_query_returns_the_same_rows_in_the_same_order(
    topic_of: LakeTopic, options: dict[str, Any]
) -> None:
    options = COMMITTED | options
    name = topic_of.name
    times = topic_of.log.read(name, metadata=True).column("_timestamp").to_pylist()
    moment = int(sorted(times)[len(times) // 4].timestamp() * 1000)
    ranges: list[dict[str, Any]] = [
        {},
        {"startingOffsets": f'{{"{name}":{{"0":7,"1":-2,"2":300}}}}'},
        {"endingOffsets": f'{{"{name}":{{"0":90,"1":-1,"2":60}}}}'},
        {"startingTimestamp": moment},
    ]
    before = [topic_of.batch(**options, **each) for each in ranges]
    topic_of.trim()
    assert [topic_of.batch(**options, **each) for each in ranges] == before
    assert len(before[0]) == (810 if "filter" not in options else len(before[0]))


def test_uncommitted_records_are_returned_only_from_the_log(topic_of: LakeTopic) -> None:
    assert len(topic_of.batch()) == 1080
    topic_of.trim()
    assert len(topic_of.batch()) == 810 + 30 + 30 + 40


@pytest.mark.quick("{}-limit1", "{'filter': 'n > 50 and n < 20100'}-limit2")
@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": 100}, {"minOffsetsPerTrigger": 20}])
@pytest.mark.parametrize("options", [{}, {"filter": "n > 50 and n < 20100"}], ids=str)
def test_a_stream_has_the_same_batches_as_before_the_trim(
    topic_of: LakeTopic, options: dict[str, Any], limit: dict[str, Any]
) -> None:
    given = COMMITTED | options | limit
    before = topic_of.batches(startingOffsets="earliest", **given)
    topic_of.trim()
    assert topic_of.batches(startingOffsets="earliest", **given) == before
    assert len(before) >= (10 if "maxOffsetsPerTrigger" in limit else 1)


def test_a_checkpoint_that_points_into_the_table_continues_there(topic_of: LakeTopic) -> None:
    options = {**COMMITTED, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 90}
    query = Query(topic_of.address, topic_of.name, **options)
    first = [query.batch(), query.batch()]
    expected = topic_of.batches(query.at, **options)
    topic_of.trim()
    assert topic_of.batches(query.at, **options) == expected
    rows = [n for batch in [*first, *expected] for n in batch]
    assert sorted(rows) == sorted(topic_of.batch(**COMMITTED))


@pytest.mark.full  # the test below has a limit of offsets
def test_a_stream_with_a_limit_of_bytes_reads_each_row_once(topic_of: LakeTopic) -> None:
    topic_of.trim()
    found = topic_of.batches(startingOffsets="earliest", maxBytesPerTrigger=2_000, **COMMITTED)
    assert sorted(n for each in found for n in each) == sorted(topic_of.batch(**COMMITTED))
    assert len(found) > 4


def test_an_atomic_stream_with_a_limit_divides_no_transaction(topic_of: LakeTopic) -> None:
    topic_of.trim()
    found = topic_of.batches(
        startingOffsets="earliest", maxOffsetsPerTrigger=70, isolation="read_atomic"
    )
    for batch in found:
        parts = [{n - 10_000 * p for n in batch if n // 10_000 == p} for p in range(3)]
        assert parts[0] == parts[1] == parts[2]
    assert sorted(n for each in found for n in each) == sorted(topic_of.batch(**COMMITTED))
    assert len(found) > 4


def test_an_atomic_batch_that_ends_below_the_log_start_divides_no_transaction(
    topic_of: LakeTopic,
) -> None:
    topic_of.trim()
    name = topic_of.name
    ends = f'{{"{name}":{{"0":100,"1":110,"2":130}}}}'
    found = topic_of.batch(isolation="read_atomic", endingOffsets=ends)
    parts = [{n - 10_000 * p for n in found if n // 10_000 == p} for p in range(3)]
    assert parts[0] == parts[1] == parts[2]
    table = topic_of.log.read(name, isolation="read_atomic", end={0: 100, 1: 110, 2: 130})
    assert sorted(table.column("n").to_pylist()) == sorted(found)


def test_removed_records_are_lost_without_the_lake(topic_of: LakeTopic) -> None:
    options = {**COMMITTED, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 90}
    query = Query(topic_of.address, topic_of.name, **options)
    query.batch()
    topic_of.trim()
    left = topic_of.batch(lake="never", **COMMITTED)
    assert len(left) == 90 + 89 + 120
    at = query.at
    query = Query(topic_of.address, topic_of.name, at, lake="never", **options)
    with pytest.raises(DataLoss, match="removed by retention"):
        query.batch()


def test_a_query_of_only_the_table_ends_where_the_table_ends(topic_of: LakeTopic) -> None:
    expected = topic_of.batch(**COMMITTED)
    with topic_of.log.producer() as producer:
        producer.append(topic_of.name, numbers(5_000, 10), partition=0)
    assert topic_of.batch(lake="only") == expected
    found = topic_of.batches(startingOffsets="earliest", lake="only", maxOffsetsPerTrigger=100)
    assert sorted(n for each in found for n in each) == sorted(expected)
    assert len(found) == 11
