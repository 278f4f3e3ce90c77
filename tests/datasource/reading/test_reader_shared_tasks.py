"""A task of many ranges: read in one call, with the errors of single ranges."""

from __future__ import annotations

import itertools
import logging
import time

import pyarrow as pa
import pytest

from isolog.errors import BrokerUnavailable, DataLoss
from spark_stream.client.connecting.link import BrokerLink
from spark_stream.client.reading import dispatch as ways
from spark_stream.client.reading import loop as fetcher
from spark_stream.datasource.reading import reader as reading
from spark_stream.datasource.values import limits as tasks
from tests.datasource.sources import Query
from tests.support import NUMBERS, numbers

PARTITIONS = 8
MANY = 300_000  # rows that make a separate chunk


@pytest.fixture
def query(shared, log, topic) -> Query:
    """A query whose next micro-batch has ten records of each partition."""
    log.create_topic(topic, partitions=PARTITIONS, schema=NUMBERS)
    found = Query(shared.address, topic)
    with log.producer() as producer:
        for partition in range(PARTITIONS):
            producer.append(topic, numbers(100 * partition, 10), partition=partition)
    return found


def of(partitions) -> list[int]:
    return [100 * partition + n for partition in partitions for n in range(10)]


def test_ranges_of_one_leader_take_one_call_and_one_batch(query, monkeypatch):
    def never(*asked, **options):
        raise AssertionError(f"a range was read by itself: {asked}")

    monkeypatch.setattr(reading, "read_range", never)
    end = query.planned()
    (task,) = query.reader.partitions(query.at, end)
    assert len(task.value) == PARTITIONS
    (batch,) = query.reader.read(task)
    assert batch.column("n").to_pylist() == of(range(PARTITIONS))


def test_there_is_one_call_for_any_timing_of_leader_look_ups(query, monkeypatch):
    """Another thread finds the leaders while this one may still check other partitions."""
    call_elsewhere, opened, calls = ways.call_elsewhere, fetcher.Fetcher.open, []

    def at_once(key, call):
        call_elsewhere(key, call)
        time.sleep(0.2)

    def counted(self, group, shared):
        calls.append(len(group))
        opened(self, group, shared)

    monkeypatch.setattr(ways, "call_elsewhere", at_once)
    monkeypatch.setattr(fetcher.Fetcher, "open", counted)
    assert query.batch() == of(range(PARTITIONS))
    assert calls == [PARTITIONS]


def test_ranges_are_read_one_by_one_if_the_common_call_fails(query, monkeypatch):
    monkeypatch.setattr(reading, "read_together", lambda wanted: (iter(()) for _ in wanted))
    assert query.batch() == of(range(PARTITIONS))


def test_ranges_continue_one_by_one_after_a_broken_call(query, monkeypatch):
    read_together = reading.read_together

    def broken(wanted):
        for count, each in enumerate(read_together(wanted)):
            yield each if count < 5 else iter(())

    monkeypatch.setattr(reading, "read_together", broken)
    assert query.batch() == of(range(PARTITIONS))


def test_task_waits_for_a_dead_broker(query, broker, monkeypatch):
    connect = BrokerLink.connect
    failures = iter([BrokerUnavailable("gone")])

    def sometimes(self, *asked):
        for error in failures:
            raise error
        return connect(self, *asked)

    end = query.planned()
    parts = query.reader.partitions(query.at, end)
    monkeypatch.setattr(BrokerLink, "connect", sometimes)
    found = [n.as_py() for task in parts for b in query.reader.read(task) for n in b["n"]]
    assert found == of(range(PARTITIONS))


def test_a_chunk_that_cannot_be_decoded_is_read_again_with_its_range(
    shared, log, topic, monkeypatch
):
    monkeypatch.setattr(tasks, "SHARED_RECORDS", 6 * MANY)
    log.create_topic(topic, partitions=2, schema=NUMBERS)
    query = Query(shared.address, topic)
    with log.producer() as producer:
        for first in range(0, 6 * MANY, MANY):
            producer.append(topic, numbers(first, MANY), partition=first // MANY % 2).result()
    decoded_rows, calls = fetcher.decoded_rows, itertools.count()

    def decoded(*asked):
        if next(calls) == 1:
            raise pa.ArrowMemoryError("malloc of size 2400000 failed")
        return decoded_rows(*asked)

    monkeypatch.setattr(fetcher, "decoded_rows", decoded)
    firsts = (0, 2, 4, 1, 3, 5)
    assert query.batch() == [n for first in firsts for n in range(first * MANY, (first + 1) * MANY)]


@pytest.mark.parametrize("fail", [True, False])
def test_lost_records_of_a_range_are_reported(shared, log, query, topic, caplog, fail):
    other = f"{topic}-other"
    log.create_topic(other, schema=NUMBERS)
    query = Query(shared.address, f"{topic},{other}", failOnDataLoss=fail)
    with log.producer() as producer:
        producer.append(other, numbers(0, 10), partition=0)
    end = query.planned()
    parts = query.reader.partitions(query.at, end)
    log.delete_topic(other)
    with caplog.at_level(logging.WARNING):
        if fail:
            with pytest.raises(DataLoss, match=f"{other}/0: offsets 0 to 9 are lost: their topic"):
                [list(query.reader.read(task)) for task in parts]
            return
        found = [n.as_py() for task in parts for b in query.reader.read(task) for n in b["n"]]
    assert found == of(range(PARTITIONS))
    assert f"{other}/0: offsets 0 to 9 are lost: their topic" in caplog.text
