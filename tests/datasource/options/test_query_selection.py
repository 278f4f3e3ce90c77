"""The topics and partitions that a query reads, and changes of them."""

from __future__ import annotations

import json
import logging

import pytest

import isolog
from isolog.errors import DataLoss, InvalidOption, SchemaMismatch, UnknownTopic
from spark_stream.datasource.options import source_options
from spark_stream.datasource.options.query import Selection
from spark_stream.datasource.reading.planning import Planner
from tests.datasource.sources import Query, batch_read
from tests.support import NUMBERS, eventually, numbers

EARLIER = {
    "test_pattern_selects_new_topics_while_the_query_runs_and_after_a_restart",
    "test_limit_holds_for_a_topic_created_after_a_restart_without_topics",
    "test_topic_found_late_begins_at_its_log_start",
}


def made(log: isolog.Log, topic: str, first: int, count: int, partitions: int = 1) -> str:
    """A topic with ``count`` numbers in each partition, on from ``first``."""
    log.create_topic(topic, partitions=partitions, schema=NUMBERS)
    for partition in range(partitions):
        fill(log, topic, first + count * partition, count, partition)
    return topic


def fill(log: isolog.Log, topic: str, first: int, count: int, partition: int = 0) -> None:
    with log.producer() as producer:
        producer.append(topic, numbers(first, count), partition=partition)


# -- by pattern -----------------------------------------------------------------------------------


def test_a_pattern_has_to_match_the_whole_name_of_a_topic():
    chosen = Selection(pattern="a|b-.")
    assert chosen.of(["a", "ab", "xa", "b-1", "b-12", "x-b-1"]) == ("a", "b-1")


def test_pattern_selects_new_topics_while_the_query_runs_and_after_a_restart(shared, log, topic):
    made(log, f"{topic}-a", 0, 5)
    made(log, f"x-{topic}-a", 1000, 5)  # the pattern matches a part of the name only
    query = Query(shared.address, None, subscribePattern=f"{topic}-.*")
    assert query.batch() == list(range(5))
    made(log, f"{topic}-b", 5, 5)
    fill(log, f"{topic}-a", 10, 2)
    assert sorted(query.batch()) == list(range(5, 12))
    made(log, f"{topic}-c", 12, 3)
    query.start()
    assert query.batch() == [12, 13, 14]
    assert query.batch() == []


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed", "read_atomic"])
def test_a_stream_may_wait_for_the_first_topic_that_matches(shared, log, topic, isolation):
    query = Query(shared.address, None, subscribePattern=f"{topic}.*", isolation=isolation)
    assert (query.at, query.batch()) == ({}, [])
    made(log, topic, 0, 3)
    assert query.batch() == [0, 1, 2]


def test_topic_created_later_is_read_from_its_first_record_despite_latest(shared, log, topic):
    made(log, f"{topic}-a", 0, 5)
    options = {"subscribePattern": f"{topic}-.*", "startingOffsets": "latest"}
    query = Query(shared.address, None, **options)
    assert query.batch() == []
    made(log, f"{topic}-b", 5, 3)
    fill(log, f"{topic}-a", 8, 1)
    assert sorted(query.batch()) == [5, 6, 7, 8]


def test_limit_holds_for_a_topic_created_after_a_restart_without_topics(shared, log, topic):
    """The offset of a query without topics is empty, but it is the start of a micro-batch."""
    options = {"subscribePattern": f"{topic}-.*", "startingOffsets": "latest"}
    query = Query(shared.address, None, maxOffsetsPerTrigger=2, **options)
    assert query.batch() == []
    made(log, f"{topic}-a", 0, 3)
    query.start()
    assert [query.batch(), query.batch()] == [[0, 1], [2]]


def test_topic_found_late_begins_at_its_log_start(shared, log, topic):
    """The topic is new to the query, so this is no loss. Limits count the remaining records."""
    query = Query(shared.address, None, subscribePattern=f"{topic}.*", maxOffsetsPerTrigger=10)
    assert query.batch() == []
    config = {"segment.bytes": 65536, "retention.bytes": 65536}
    log.create_topic(topic, schema=NUMBERS, config=config)
    for first in range(0, 60_000, 6_000):
        fill(log, topic, first, 6_000)
    first = eventually(lambda: log.describe(topic).partitions[0].log_start_offset, 60)
    while log.describe(topic).partitions[0].log_start_offset != first:
        first = log.describe(topic).partitions[0].log_start_offset
    found = query.batch()
    assert 0 < len(found) <= 10
    assert found[0] >= first


def test_without_a_match_the_columns_are_unknown(shared, log, topic):
    options = {"bootstrap": shared.address, "subscribePattern": f"{topic}.+"}
    with pytest.raises(UnknownTopic, match="no topic matches subscribePattern") as caught:
        Planner(source_options(options)).shown()
    assert ".schema(" in str(caught.value.hint)
    with pytest.raises(UnknownTopic, match="there are no records to read"):
        batch_read(shared.address, None, subscribePattern=f"{topic}.+")


def test_topics_of_a_pattern_with_different_columns_are_refused(shared, log, topic):
    made(log, f"{topic}-a", 0, 1)
    log.create_topic(f"{topic}-b")
    options = {"bootstrap": shared.address, "subscribePattern": f"{topic}-."}
    with pytest.raises(SchemaMismatch, match=f"{topic}-a' and '{topic}-b' have different columns"):
        Planner(source_options(options)).shown()


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_of_a_pattern_that_was_read_and_deleted_is_a_loss(shared, log, topic, caplog, fail):
    for number, name in enumerate((f"{topic}-a", f"{topic}-b")):
        made(log, name, number * 10, 3)
    query = Query(shared.address, None, subscribePattern=f"{topic}-.", failOnDataLoss=fail)
    query.batch()
    log.delete_topic(f"{topic}-b")
    query.start()
    if fail:
        with pytest.raises(DataLoss, match=f"topic '{topic}-b' was deleted"):
            query.batch()
        return
    fill(log, f"{topic}-a", 3, 1)
    with caplog.at_level(logging.WARNING):
        assert query.batch() == [3]
    assert f"topic '{topic}-b' was deleted" in caplog.text
    made(log, f"{topic}-b", 20, 2)
    assert query.batch() == [20, 21]


def test_start_with_a_missing_topic_of_the_pattern_is_refused(shared, log, topic):
    made(log, f"{topic}-a", 0, 3)
    starting = f'{{"{topic}-b": {{"0": 1}}}}'
    with pytest.raises(UnknownTopic, match=f"startingOffsets: there is no topic '{topic}-b'"):
        Query(shared.address, None, subscribePattern=f"{topic}-.", startingOffsets=starting)


def test_a_batch_reads_the_topics_that_match_the_pattern(shared, log, topic):
    for number, name in enumerate("abc"):
        made(log, f"{topic}-{name}", number * 10, 2)
    pattern = f"{topic}-[ac]"
    assert sorted(batch_read(shared.address, None, subscribePattern=pattern)) == [0, 1, 20, 21]


# -- by partition ---------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed", "read_atomic"])
def test_only_assigned_partitions_are_read_after_partitions_are_added(
    shared, log, topic, isolation
):
    made(log, topic, 0, 5, partitions=3)
    assign = f'{{"{topic}": [0, 2]}}'
    query = Query(shared.address, None, assign=assign, isolation=isolation)
    assert sorted(query.batch()) == [*range(5), *range(10, 15)]
    assert list(query.at[topic]["partitions"]) == ["0", "2"]
    log.alter_topic(topic, partitions=5)
    for partition in range(5):
        fill(log, topic, 100 + partition, 1, partition)
    assert sorted(query.batch()) == [100, 102]
    query.start()
    assert query.batch() == []
    read = batch_read(shared.address, None, assign=assign, isolation=isolation)
    assert sorted(read) == [*range(5), *range(10, 15), 100, 102]


def test_assigned_partitions_in_micro_batches_that_end_at_cuts(shared, log, topic):
    log.create_topic(topic, partitions=3, schema=NUMBERS)
    with log.producer(transactional_id=topic) as producer:
        for first in range(0, 40, 10):
            with producer.transaction():
                for partition in range(3):
                    batch = numbers(first + 100 * partition, 4)
                    producer.append(topic, batch, partition=partition)
    options = {"isolation": "read_atomic", "maxOffsetsPerTrigger": 8}
    query = Query(shared.address, None, assign=f'{{"{topic}": [0, 2]}}', **options)
    seen: list[int] = []
    for _ in range(10):
        batch = query.batch()
        assert {n % 100 for n in batch if n < 100} == {n % 100 for n in batch if n >= 200}
        seen += batch
    of_one = [first + n for first in range(0, 40, 10) for n in range(4)]
    assert sorted(seen) == sorted([*of_one, *(200 + n for n in of_one)])


def test_missing_partition_is_refused_with_the_existing_numbers(shared, log, topic):
    made(log, topic, 0, 1, partitions=2)
    for refused in (Query, batch_read):
        with pytest.raises(InvalidOption, match="partitions 0 to 1, not 2"):
            refused(shared.address, None, assign=f'{{"{topic}": [0, 2]}}')


# -- another selection over the same checkpoint ---------------------------------------------------


@pytest.mark.rule("the topics and partitions of a query", "datasource/options/query.py")
def test_unselected_topic_is_dropped_with_one_warning(shared, log, topic, caplog):
    for number, name in enumerate("ab"):
        made(log, f"{topic}-{name}", number * 10, 3)
    query = Query(shared.address, f"{topic}-a,{topic}-b")
    query.batch()
    for number, name in enumerate("ab"):
        fill(log, f"{topic}-{name}", 3 + number * 10, 1)
    other = Query(shared.address, f"{topic}-a", at=query.at)
    with caplog.at_level(logging.WARNING):
        assert other.batch() == [3]
        assert other.batch() == []
    told = [each.message for each in caplog.records if "no longer selects" in each.message]
    assert told == [
        f"topic '{topic}-b' is in the checkpoint, and subscribe no longer selects it: its further"
        " records are not read. If it is selected again later, it is read from its earliest record"
    ]
    again = Query(shared.address, None, at=other.at, subscribePattern=f"{topic}-.*")
    assert again.batch() == [10, 11, 12, 13]


def test_a_checkpoint_of_other_topics_only_is_refused(shared, log, topic, caplog):
    for number, name in enumerate("ab"):
        made(log, f"{topic}-{name}", number * 10, 3)
    query = Query(shared.address, f"{topic}-a")
    start = query.at
    query.batch()
    for selected in (
        {"subscribe": f"{topic}-b"},
        {"subscribePattern": f"{topic}-b+"},
        {"assign": json.dumps({f"{topic}-b": [0]})},
    ):
        other = Query(shared.address, None, at=query.at, **selected)
        with pytest.raises(InvalidOption, match=f"checkpoint is of '{topic}-a'") as raised:
            other.batch()
        assert raised.value.details["option"] == next(iter(selected))
        assert "checkpointLocation" in raised.value.hint
    replayed = Query(shared.address, f"{topic}-b", at=start)
    with pytest.raises(InvalidOption, match="the checkpoint is of"):
        replayed.read(query.at)
    lenient = Query(shared.address, f"{topic}-b", at=query.at, failOnDataLoss=False)
    with caplog.at_level(logging.WARNING):
        assert lenient.batch() == [10, 11, 12]
    assert f"topic '{topic}-a' is in the checkpoint, and subscribe no longer" in caplog.text


def test_checkpoint_without_topics_fits_any_query(shared, log, topic):
    """A query by pattern may have waited for its first topic."""
    made(log, topic, 0, 3)
    assert Query(shared.address, topic, at={}).batch() == [0, 1, 2]


def test_partitions_that_are_no_longer_assigned_are_named(shared, log, topic, caplog):
    made(log, topic, 0, 2, partitions=3)
    query = Query(shared.address, topic)
    query.batch()
    for partition in range(3):
        fill(log, topic, 10 + partition, 1, partition)
    other = Query(shared.address, None, at=query.at, assign=f'{{"{topic}": [1]}}')
    with caplog.at_level(logging.WARNING):
        assert other.batch() == [11]
    assert f"{topic}/0, 2 is in the checkpoint, and assign no longer selects it" in caplog.text


def test_a_micro_batch_that_was_planned_is_read_as_it_was_planned(shared, log, topic):
    """Its sink may have written it already: a replay has to have the same rows."""
    for number, name in enumerate("ab"):
        made(log, f"{topic}-{name}", number * 10, 3)
    query = Query(shared.address, f"{topic}-a,{topic}-b")
    start, end = query.at, query.planned()
    other = Query(shared.address, f"{topic}-a", at=start)
    assert sorted(other.read(end)) == [0, 1, 2, 10, 11, 12]
    fill(log, f"{topic}-b", 13, 1)
    assert other.batch() == []
