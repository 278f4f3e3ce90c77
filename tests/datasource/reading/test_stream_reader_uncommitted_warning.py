"""A reader under the default level gets one warning about records that are not committed."""

from __future__ import annotations

import json
import logging

import pytest

import isolog
from tests.datasource.sources import Query, batch_read
from tests.support import NUMBERS, numbers

SAID = "isolation=read_committed"


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture):
    """Return the number of warnings since the last call. Each is one line."""
    caplog.set_level(logging.WARNING)

    def look() -> int:
        found = [each for each in caplog.records if SAID in each.getMessage()]
        assert all("\n" not in each.getMessage() for each in found)
        assert all(each.levelno == logging.WARNING for each in found)
        caplog.clear()
        return len(found)

    return look


@pytest.fixture
def mixed(log: isolog.Log, topic: str) -> str:
    """0 to 9 outside any transaction, 10 to 19 committed, 20 to 29 aborted, 30 to 39 committed."""
    log.create_topic(topic, partitions=2, schema=NUMBERS, config={"segment.entries": 16})
    with log.producer() as producer:
        producer.append(topic, numbers(0, 10), partition=0)
    with log.producer(transactional_id=topic) as producer:
        for first in (10, 20, 30):
            producer.begin_transaction()
            for number in range(first, first + 10):
                producer.append(topic, numbers(number, 1), partition=0)
            if first == 20:
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    return topic


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 40, 1), (0, 20, 0), (0, 21, 1), (19, 20, 0), (29, 40, 1), (29, 30, 1), (30, 40, 0)],
)
def test_batch_read_warns_of_aborted_records_in_its_range(
    shared, mixed, told, start, end, expected
):
    given = {
        "startingOffsets": json.dumps({mixed: {"0": start}}),
        "endingOffsets": json.dumps({mixed: {"0": end}}),
    }
    assert batch_read(shared.address, mixed, **given) == list(range(start, end))
    assert told() == expected
    for isolation in ("read_committed", "read_atomic"):
        batch_read(shared.address, mixed, isolation=isolation, **given)
    assert told() == 0


def test_query_warns_once_of_aborted_records(shared, log, mixed, told):
    query = Query(shared.address, mixed, maxOffsetsPerTrigger=10)
    seen = []
    for _ in range(4):
        assert query.batch()
        seen.append(told())
    assert seen == [0, 0, 1, 0]
    with log.producer(transactional_id=mixed) as producer:
        producer.begin_transaction()
        producer.append(mixed, numbers(100, 5), partition=1).result()
        assert query.batch() == list(range(100, 105))
        assert told() == 0, "once for a run of the query"
        query.start()
        producer.append(mixed, numbers(105, 5), partition=1).result()
        assert query.batch() == list(range(105, 110))
        assert told() == 1
        producer.commit_transaction()


def test_query_warns_of_open_but_not_of_committed_transactions(shared, log, topic, told):
    log.create_topic(topic, schema=NUMBERS)
    with log.producer(transactional_id=topic) as producer:
        producer.begin_transaction()
        producer.append(topic, numbers(0, 5)).result()
        assert batch_read(shared.address, topic) == [0, 1, 2, 3, 4]
        assert told() == 1
        producer.commit_transaction()
    assert batch_read(shared.address, topic) == [0, 1, 2, 3, 4]
    assert told() == 0
