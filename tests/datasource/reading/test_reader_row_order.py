"""A task returns the same rows in the same order each time, for any timing of its leaders."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from isolog.testing import LocalCluster
from spark_stream.client.reading import loop as feed
from spark_stream.datasource.options import source_options
from spark_stream.datasource.reading import reader
from spark_stream.datasource.reading.reader import RangeReader
from spark_stream.datasource.spark.types import to_spark
from spark_stream.datasource.values.offsets import Range
from tests.client.reading.leaders import Leaders, small_budget
from tests.datasource.sources import Query, batch_read
from tests.examples import examples
from tests.support import NUMBERS, numbers

EARLIER = {
    "test_a_replayed_micro_batch_has_the_tasks_of_its_first_attempt",
}


@pytest.fixture(autouse=True)
def few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    small_budget(monkeypatch)


def read(leaders: Leaders, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Read a task of all partitions."""
    topic = SimpleNamespace(id="id", name="t", schema=NUMBERS, schema_version=0)
    topics = SimpleNamespace(known=lambda name: topic, router=leaders)
    here = SimpleNamespace(topics=topics, tables=None)
    monkeypatch.setattr(reader, "session", lambda place: here)
    options = source_options({"path": "x", "subscribe": "t"})
    task = tuple(Range("t", "id", n, 0, rows) for n, rows in enumerate(leaders.rows))
    with leaders:
        found = RangeReader(options, to_spark(NUMBERS)).read(task)
        return [number for batch in found for number in batch.column("n").to_pylist()]


def in_order(leaders: Leaders) -> list[int]:
    return [1000 * n + row for n, rows in enumerate(leaders.rows) for row in range(rows)]


def held_at_most(leaders: Leaders) -> int:
    """The bound: of three calls, and that of the first range."""
    budget = feed.TOGETHER
    calls = budget.total // budget.call + 1
    return budget.total + budget.call + calls * leaders.frame_max


@pytest.mark.rule(
    "the order of a task's rows, and the limit of rows of later ranges",
    "client/reading/core.py",
    "client/reading/loop.py",
    "datasource/reading/reader.py",
)
def test_task_returns_its_ranges_in_order_for_any_timing_of_leaders(monkeypatch):
    for seed in range(examples(1000)):
        chance = random.Random(seed)
        rows = [chance.randint(1, 16) for _ in range(chance.randint(2, 9))]
        count = chance.randint(1, 6)
        ranks = {chr(ord("a") + n): chance.randint(0, 2) for n in range(count)}
        leaders = Leaders(
            seed,
            rows,
            leaders=count,
            rank=ranks.__getitem__,
            failures=chance.choice([0.0, 0.0, 0.3]),
        )
        assert read(leaders, monkeypatch) == in_order(leaders), seed
        assert leaders.held_max <= held_at_most(leaders), seed
        assert not leaders.overdrawn, seed


def test_other_leaders_are_read_ahead_up_to_the_bound_while_the_first_one_is_slow(monkeypatch):
    slow_first = {"a": 1, "b": 0, "c": 0}
    leaders = Leaders(7, [30] * 6, rank=slow_first.__getitem__, awaited_calls=3)
    assert read(leaders, monkeypatch) == in_order(leaders)
    ahead = leaders.sent[: leaders.sent.index("a")]
    assert set(ahead) == {"b", "c"}
    call = feed.TOGETHER.call
    assert 2 * call <= leaders.frame_max * len(ahead)
    assert leaders.held_max <= held_at_most(leaders)


def test_calls_above_the_limit_are_sent_later(monkeypatch):
    slow_first = dict.fromkeys("bcdefghi", 0) | {"a": 1}
    leaders = Leaders(7, [30] * 9, leaders=9, rank=slow_first.__getitem__, awaited_calls=3)
    assert read(leaders, monkeypatch) == in_order(leaders)
    assert set(leaders.sent[: leaders.sent.index("a")]) == {"b", "c"}
    assert leaders.held_max <= held_at_most(leaders)


def test_a_call_ends_its_ranges_one_by_one_although_the_last_one_has_no_credit(monkeypatch):
    """The call cannot end before its last range is taken, and that waits for the ranges before."""
    leaders = Leaders(7, [3, 100, 3, 100], leaders=1)
    assert read(leaders, monkeypatch) == in_order(leaders)
    assert leaders.calls == [4]


def planned(query: Query, end: Any) -> list[Any]:
    return [part.value for part in query.reader.partitions(query.at, end)]


def test_a_replayed_micro_batch_has_the_tasks_of_its_first_attempt(shared, log, topic):
    """Other topics, new partitions and the order of names in the checkpoint do not matter."""
    names = [f"{topic}-{n}" for n in (2, 10, 1)]
    for name in names:
        log.create_topic(name, partitions=3, schema=NUMBERS)
    queries = [
        Query(shared.address, None, subscribePattern=f"{topic}-.*", **splitting)
        for splitting in ({}, {"minPartitions": 10}, {"maxRecordsPerPartition": 4})
    ]
    with log.producer() as producer:
        for name in names:
            for partition in (2, 0, 1):
                producer.append(name, numbers(100 * partition, 7), partition=partition)
    ends = [query.planned() for query in queries]
    first = [planned(*each) for each in zip(queries, ends, strict=True)]
    assert [len(tasks) for tasks in first] == [1, 10, 18]
    log.create_topic(f"{topic}-0", schema=NUMBERS)
    log.alter_topic(names[0], partitions=5)
    with log.producer() as producer:
        for name in [*names, f"{topic}-0"]:
            producer.append(name, numbers(500, 50), partition=0)
    for query, end, tasks in zip(queries, ends, first, strict=True):
        query.at = turned_round(query.at)
        query.start()
        assert planned(query, turned_round(end)) == tasks


def turned_round(value: Any) -> Any:
    """The same JSON with the names of all objects in reverse."""
    if not isinstance(value, dict):
        return value
    return {name: turned_round(each) for name, each in reversed(value.items())}


@pytest.mark.full  # the tests above have leaders without brokers
def test_order_is_the_same_in_thirty_reads_and_after_a_failover():
    with LocalCluster(3) as cluster, cluster.connect() as log:
        ids = ["1", "2", "3"]
        log.create_topic("t", schema=NUMBERS, assignment=[ids[n:] + ids[:n] for n in (0, 1, 2)] * 6)
        with log.producer(isolation="read_committed") as producer:  # replicated before the reads
            for first in range(0, 1800, 50):
                producer.append("t", numbers(first, 50), partition=first // 100)

        def orders(**options: str) -> set[tuple[int, ...]]:
            address = cluster.broker(2).address
            return {
                tuple(batch_read(address, "t", isolation="read_committed", **options))
                for _ in range(30)
            }

        expected = tuple(range(1800))
        assert orders() == {expected}
        assert orders(mappedReads="false") == {expected}
        assert orders(filter="n >= 250") == {expected[250:]}
        cluster.kill(1)
        assert orders() == {expected}
