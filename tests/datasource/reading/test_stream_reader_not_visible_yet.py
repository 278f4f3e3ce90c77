"""A batch whose end is above the bound of the present level, and below the log's end.

It was planned under a level that returns more records. Its end is in Spark's checkpoint, so it
stays.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import isolog
from isolog.errors import NotVisibleYet
from spark_stream.client.writing.transactional import TransactionalProducer
from tests.datasource.sources import Query
from tests.support import NUMBERS, numbers

EARLIER = {
    "test_a_batch_of_an_aborted_transaction_alone_is_empty",
}


@pytest.fixture
def producer(log: isolog.Log, topic: str) -> Iterator[TransactionalProducer]:
    """Two partitions: 0 to 4 without a transaction, then 5 to 9 of an open one, and 20 to 22."""
    log.create_topic(topic, partitions=2, schema=NUMBERS)
    with log.producer() as plain:
        plain.append(topic, numbers(0, 5), partition=0)
        plain.append(topic, numbers(20, 3), partition=1)
    with log.producer(transactional_id=topic) as producer:
        producer.begin_transaction()
        producer.append(topic, numbers(5, 5), partition=0).result()
        yield producer


def planned_before(address: str, topic: str, **options: Any) -> tuple[Query, Any]:
    """A query that was restarted with these options, and the end that it had planned before."""
    first = Query(address, topic)
    end = first.planned()
    return Query(address, topic, at=first.at, **options), end


def read_beside(query: Query, end: Any) -> tuple[threading.Thread, list[Any]]:
    """Read the batch in a thread."""
    found: list[Any] = []

    def read() -> None:
        try:
            found.append(query.read(end))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    return thread, found


@pytest.mark.quick("read_committed-True")
@pytest.mark.parametrize(("isolation", "fail"), [("read_committed", True), ("read_atomic", False)])
def test_batch_names_the_blocking_transaction_and_skips_no_record(
    shared, topic, producer, isolation, fail
):
    given = {"isolation": isolation, "failOnDataLoss": fail, "brokerTimeout": "2s"}
    query, end = planned_before(shared.address, topic, **given)
    begin = query.at
    with pytest.raises(NotVisibleYet) as caught:
        query.read(end)
    assert caught.value.message == (
        f"{topic}/0: offsets 5 to 9 of this batch are in the log, but not visible yet:"
        " a transaction that began at offset 5 is still open"
    )
    assert "is lost" in caught.value.hint
    producer.commit_transaction()
    query = Query(shared.address, topic, at=begin, **{**given, "brokerTimeout": "30s"})
    assert sorted(query.read(end)) == [*range(10), 20, 21, 22]
    assert query.batch() == []


@pytest.mark.quick("commit-expected0-True", "abort-expected1-False")
@pytest.mark.rule(
    "planned records that are not visible yet",
    "datasource/reading/reader.py",
)
@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize(("ending", "expected"), [("commit", range(10)), ("abort", range(5))])
def test_a_batch_waits_for_the_end_of_the_transaction(
    shared, log, topic, producer, ending, expected, fail
):
    """If the records were aborted, read_committed does not return them, and that is no loss."""
    given = {"isolation": "read_committed", "failOnDataLoss": fail, "mappedReads": fail}
    query, end = planned_before(shared.address, topic, **given)
    reading, found = read_beside(query, end)
    with log.producer() as plain:  # the batch has begun to wait, or does not need to
        plain.append(topic, numbers(30, 2), partition=1).result()
    if ending == "commit":
        producer.commit_transaction()
    else:
        producer.abort_transaction()
    reading.join(30)
    assert [sorted(each) for each in found] == [[*expected, 20, 21, 22]]
    assert query.batch() == [30, 31]


def test_a_batch_of_an_aborted_transaction_alone_is_empty(shared, topic, producer):
    first = Query(shared.address, topic, startingOffsets=json.dumps({topic: {"0": 5, "1": 3}}))
    end = first.planned()
    producer.abort_transaction()
    query = Query(shared.address, topic, at=first.at, isolation="read_committed")
    assert query.read(end) == []
