"""The message about a loss: topic, partition, range and cause, when planned and when read."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import isolog
from isolog.errors import DataLoss
from tests.datasource.sources import Query
from tests.support import NUMBERS, eventually, numbers

EARLIER = {
    "test_message_names_records_removed_before_the_plan",
}

SMALL = {"segment.bytes": 65536, "retention.bytes": 65536}


def fill(log: isolog.Log, topic: str, first: int, count: int, partition: int = 0) -> None:
    with log.producer() as producer:
        producer.append(topic, numbers(first, count), partition=partition)


def told(query: Query, step: Any, caplog: pytest.LogCaptureFixture, fail: bool) -> str:
    """The loss that the step reports, as an error or as a warning."""
    with caplog.at_level(logging.WARNING):
        if fail:
            with pytest.raises(DataLoss) as caught:
                step()
            return str(caught.value.message)
        step()
    warnings = [
        each.message for each in caplog.records if "failOnDataLoss is false" in each.message
    ]
    assert len(warnings) == 1
    return warnings[0].partition("; continuing with the remaining records")[0]


@pytest.fixture(params=[True, False], ids=["fails", "goes on"])
def fail(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def query(shared: Any, log: isolog.Log, topic: str, fail: bool) -> Query:
    """A query that has read 10 records of each of two partitions."""
    log.create_topic(topic, partitions=2, schema=NUMBERS, config=SMALL)
    for partition in range(2):
        fill(log, topic, 0, 10, partition)
    found = Query(shared.address, topic, failOnDataLoss=fail)
    assert len(found.batch()) == 20
    return found


def overflow(log: isolog.Log, topic: str) -> None:
    """Writes to partition 0 until retention has removed its first records."""
    for first in range(10, 60_010, 6_000):
        fill(log, topic, first, 6_000)
    eventually(lambda: start(log, topic) > 10, 60)


def start(log: isolog.Log, topic: str) -> int:
    return log.describe(topic).partitions[0].log_start_offset


def test_message_names_records_removed_before_the_plan(log, topic, query, caplog, fail):
    overflow(log, topic)
    said = told(query, query.batch, caplog, fail)
    first = int(said.rsplit(" ", 1)[1])
    assert said == (
        f"{topic}/0: offsets 10 to {first - 1} were removed by retention; the log now starts at"
        f" {first}"
    )
    assert 10 < first <= start(log, topic)


@pytest.mark.parametrize("limit", [{"maxOffsetsPerTrigger": 100}, {"maxBytesPerTrigger": 4096}])
def test_query_with_limits_continues_at_the_log_start(shared, log, topic, limit):
    """Evicted records take no share of a limit, or many micro-batches would be empty."""
    log.create_topic(topic, partitions=2, schema=NUMBERS, config=SMALL)
    query = Query(shared.address, topic, failOnDataLoss=False, **limit)
    fill(log, topic, 0, 10, 0)
    assert len(query.batch()) == 10
    overflow(log, topic)
    found = query.batch()
    assert found
    assert len(found) <= 6_000
    assert found[0] >= 10
    assert len(query.batch()) > 0


def test_message_names_records_removed_before_the_read(log, topic, query, caplog, fail):
    fill(log, topic, 10, 6_000)
    partitions = query.reader.partitions(query.at, query.planned())
    overflow(log, topic)
    said = told(query, lambda: [list(query.reader.read(each)) for each in partitions], caplog, fail)
    assert said.startswith(f"{topic}/0: offsets 10 to 6009 were removed by retention; the log")


def test_message_names_a_deleted_topic(log, topic, query, caplog, fail):
    log.delete_topic(topic)
    assert told(query, query.planned, caplog, fail) == (
        f"topic {topic!r} was deleted; its records from offset 10 of {topic}/0, offset 10 of"
        f" {topic}/1 on are lost"
    )


@pytest.mark.rule("the reaction of a query to lost records", "datasource/reading/losses.py")
def test_topic_that_was_created_again(log, topic, query, caplog, fail):
    before = log.describe(topic).id
    log.delete_topic(topic)
    now = log.create_topic(topic, schema=NUMBERS).id
    assert told(query, query.planned, caplog, fail) == (
        f"topic {topic!r} was deleted and created again: its id was {before}, now it is {now};"
        f" its records from offset 10 of {topic}/0, offset 10 of {topic}/1 on are lost"
    )


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("planned", [False, True])
def test_a_topic_deleted_before_its_range_is_read_is_reported(
    shared, log, topic, query, caplog, fail, anew, planned
):
    """A restarted query plans the batch again after the deletion, or its tasks read it then."""
    fill(log, topic, 10, 5)
    before, end = log.describe(topic).id, query.planned()
    if planned:
        partitions = query.reader.partitions(query.at, end)
    log.delete_topic(topic)
    now = log.create_topic(topic, partitions=2, schema=NUMBERS).id if anew else None
    if not planned:
        query = Query(shared.address, None, query.at, subscribePattern=topic, failOnDataLoss=fail)

    def step() -> None:
        found = partitions if planned else query.reader.partitions(query.at, end)
        for each in found:
            list(query.reader.read(each))

    wanted = f"{topic}/0: offsets 10 to 14 are lost: their topic was deleted"
    wanted += f" and created again: its id was {before}, now it is {now}" if anew else ""
    assert told(query, step, caplog, fail) == wanted


@pytest.mark.parametrize("fail", [True, False])
def test_message_names_only_some_of_many_partitions(shared, log, topic, caplog, fail):
    log.create_topic(topic, partitions=12, schema=NUMBERS)
    query = Query(shared.address, topic, failOnDataLoss=fail)
    query.planned()
    log.delete_topic(topic)
    said = told(query, query.planned, caplog, fail)
    assert said.endswith(f"offset 0 of {topic}/7, 4 partitions more on are lost")
