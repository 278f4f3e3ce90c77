"""Topics that are deleted while a query is stopped, or while a micro-batch reads them."""

from __future__ import annotations

import logging

import pytest

import isolog
from isolog.errors import DataLoss, UnknownTopic
from spark_stream.datasource.options import source_options
from spark_stream.datasource.reading.planning import Planner
from spark_stream.wire.limits import FETCH_BYTES_DEFAULT
from tests.datasource.sources import Query
from tests.support import NUMBERS, numbers


def fill(log: isolog.Log, topic: str, first: int, count: int) -> None:
    with log.producer() as producer:
        producer.append(topic, numbers(first, count))


@pytest.fixture
def pair(log: isolog.Log, topic: str) -> tuple[str, str]:
    """Two topics. The first is the one to delete."""
    other = f"{topic}-other"
    for name, first in ((topic, 0), (other, 100)):
        log.create_topic(name, schema=NUMBERS)
        fill(log, name, first, 10)
    return topic, other


def test_a_topic_deleted_while_the_query_was_stopped_is_reported_once(shared, log, pair, caplog):
    gone, other = pair
    query = Query(shared.address, ",".join(pair), failOnDataLoss=False)
    assert sorted(query.batch()) == [*range(10), *range(100, 110)]  # each topic is looked up alone
    log.delete_topic(gone)
    fill(log, other, 110, 5)
    query.start()
    with caplog.at_level(logging.WARNING):
        assert query.batch() == list(range(110, 115))
        assert query.batch() == []
    told = [each.message for each in caplog.records if f"{gone!r} was deleted" in each.message]
    assert len(told) == 1, "once for a run of the query"
    log.create_topic(gone, schema=NUMBERS)
    fill(log, gone, 1000, 3)
    assert query.batch() == [1000, 1001, 1002]
    query.start()
    assert query.batch() == []


def test_deleted_topic_fails_a_query_with_fail_on_data_loss(shared, log, pair):
    query = Query(shared.address, ",".join(pair))
    query.batch()
    log.delete_topic(pair[0])
    with pytest.raises(UnknownTopic, match=pair[0]):
        query.start()


def test_columns_are_those_of_the_remaining_topics(shared, log, pair, topic):
    log.delete_topic(topic)
    given = {"bootstrap": shared.address, "subscribe": ",".join(pair), "failOnDataLoss": "false"}
    assert Planner(source_options(given)).shown() == NUMBERS
    log.delete_topic(pair[1])
    with pytest.raises(UnknownTopic, match=r"\.schema\("):
        Planner(source_options(given)).shown()


def test_query_waits_after_its_only_topic_was_deleted(shared, log, topic):
    """Its columns are those of ``.schema(...)``, because no topic is left."""
    log.create_topic(topic, schema=NUMBERS)
    fill(log, topic, 0, 3)
    query = Query(shared.address, topic, failOnDataLoss=False)
    assert query.batch() == [0, 1, 2]
    log.delete_topic(topic)
    query.start()
    assert query.batch() == []
    log.create_topic(topic, schema=NUMBERS)
    fill(log, topic, 5, 3)
    assert query.batch() == [5, 6, 7]


def test_new_query_on_a_missing_topic_is_refused_without_fail_on_data_loss_too(shared, log, pair):
    with pytest.raises(UnknownTopic, match="no-such"):
        Query(shared.address, f"{pair[0]},no-such", failOnDataLoss=False)


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_atomic"])
def test_a_topic_deleted_between_planning_and_reading_is_a_loss(
    shared, log, pair, caplog, fail, anew, isolation
):
    query = Query(shared.address, ",".join(pair), failOnDataLoss=fail, isolation=isolation)
    end = query.planned()
    partitions = query.reader.partitions(query.at, end)
    log.delete_topic(pair[0])
    if anew:
        log.create_topic(pair[0], schema=NUMBERS)
        fill(log, pair[0], 50, 20)
    with caplog.at_level(logging.WARNING):
        if fail:
            with pytest.raises(DataLoss, match="0 to 9 are lost: their topic"):
                [list(query.reader.read(each)) for each in partitions]
            return
        read = [sum(batch.num_rows for batch in query.reader.read(each)) for each in partitions]
    assert sum(read) == 10
    assert "offsets 0 to 9 are lost: their topic" in caplog.text


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_deleted_while_a_task_reads_it_is_a_loss(shared, log, topic, caplog, fail):
    log.create_topic(topic, schema=NUMBERS)
    count = FETCH_BYTES_DEFAULT // 8 // 4
    for first in range(0, 7 * count, count):
        fill(log, topic, first, count)
    query = Query(shared.address, topic, failOnDataLoss=fail)
    (partition,) = query.reader.partitions(query.at, query.planned())
    batches = query.reader.read(partition)
    seen = next(batches).num_rows
    log.delete_topic(topic)
    with caplog.at_level(logging.WARNING):
        if fail:
            with pytest.raises(DataLoss, match="are lost: their topic"):
                list(batches)
            return
        seen += sum(batch.num_rows for batch in batches)
    assert 0 < seen < 7 * count
    assert f"offsets {seen} to {7 * count - 1} are lost: their topic" in caplog.text
