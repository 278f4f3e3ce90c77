"""Trigger.AvailableNow with Spark's own wrapper for sources that lack it (4.0 and 4.1).

``spark.sql.streaming.triggerAvailableNowWrapper.enabled`` plans once, before Spark passes the
checkpoint's latest offset.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from isolog.errors import Unsupported
from tests.datasource.sources import Query
from tests.support import NUMBERS, numbers

ONE_RELEASE = True


def fill(log, topic, first, count):
    with log.producer() as producer:
        producer.append(topic, numbers(first, count))


def restarted(query: Query) -> Any:
    """Start the query again, as the wrapper does. Return the end that it has fixed."""
    checkpoint, query.at = query.at, None
    query.start()
    query.at = checkpoint
    target = json.loads(json.dumps(query.reader.latestOffset()))
    assert query.reader.partitions(checkpoint, checkpoint) == []
    return target


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_restarted_query_reads_all_new_records(shared, log, topic, start):
    log.create_topic(topic, schema=NUMBERS)
    query = Query(shared.address, topic, startingOffsets=start)
    query.read(restarted(query))  # the first run, whose latest offset is its start
    for first in range(0, 30, 10):
        fill(log, topic, first, 10)
        assert query.read(restarted(query)) == list(range(first, first + 10))
    assert query.read(restarted(query)) == []


@pytest.mark.parametrize("read", [10, 20])
def test_a_limit_is_refused_at_a_restart(shared, log, topic, read):
    log.create_topic(topic, schema=NUMBERS)
    fill(log, topic, 0, 100)
    query = Query(shared.address, topic, maxOffsetsPerTrigger=read)
    query.batch()
    again = Query(shared.address, topic, query.at, maxOffsetsPerTrigger=10)
    with pytest.raises(Unsupported, match=r"triggerAvailableNowWrapper.*limit"):
        restarted(again)


def test_an_end_below_the_checkpoint_is_refused(shared, log, topic):
    log.create_topic(topic, schema=NUMBERS)
    with log.producer(transactional_id=topic) as producer:
        producer.begin_transaction()
        producer.append(topic, numbers(0, 10))
        producer.flush()
        query = Query(shared.address, topic)
        assert len(query.batch()) == 10
        again = Query(shared.address, topic, query.at, isolation="read_committed")
        with pytest.raises(Unsupported, match=r"triggerAvailableNowWrapper"):
            restarted(again)
        producer.abort_transaction()
