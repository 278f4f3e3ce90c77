"""Ranges that are read together: each is delivered up to its first error."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pyarrow as pa
import pytest

from isolog.errors import SchemaMismatch
from spark_stream.client.reading.columns import View
from spark_stream.client.reading.dispatch import Dispatcher
from spark_stream.client.reading.fetching import Fetched, Source
from spark_stream.client.reading.loop import WantedRange
from spark_stream.client.reading.ranges import read_range, read_together
from spark_stream.consistency.isolation import Isolation
from tests.client.reading.leaders import Leaders, small_budget
from tests.support import eventually

NARROW = pa.schema([("n", pa.int32()), ("pad", pa.binary())])
WIDE = pa.schema([("n", pa.int64()), ("pad", pa.binary())])
CHUNK_ROWS = 4


def chunk(n: int) -> pa.Table:
    """Rows that are large enough for a separate chunk."""
    return pa.table({"n": [n] * CHUNK_ROWS, "pad": [bytes(600_000)] * CHUNK_ROWS}, schema=WIDE)


def offsets(ranges: Iterator[Iterator[Fetched]]) -> list[list[int]]:
    """Return the offsets of the records of each range."""
    return [[n for fetched in each for n in fetched.offsets().tolist()] for each in ranges]


@pytest.fixture
def wanted(log, topic) -> list[WantedRange]:
    """Two partitions. The second chunk of the first one does not fit the view."""
    log.create_topic(topic, partitions=2, schema=NARROW)
    before = log._topics.describe(topic)
    log.alter_topic(topic, schema=WIDE)
    with log.producer() as producer:
        for partition in range(2):
            for n in (1, 1 << 40 if partition == 0 else 2, 3):
                producer.append(topic, chunk(n), partition=partition).result()
    view = View.of(topic, before.schema)
    return [
        WantedRange(
            Source(
                log._topics.router,
                view,
                before.id,
                partition,
                Isolation.READ_UNCOMMITTED,
                maps=False,
            ),
            0,
            3 * CHUNK_ROWS,
        )
        for partition in range(2)
    ]


def test_a_range_ends_at_an_invalid_chunk_and_the_others_are_read_completely(wanted):
    assert offsets(read_together(wanted)) == [[*range(CHUNK_ROWS)], [*range(3 * CHUNK_ROWS)]]


def test_leaving_a_range_early_returns_its_credit(monkeypatch):
    small_budget(monkeypatch)
    with Leaders(7, [1, 40, 100], leaders=1) as leaders:
        ranges = read_together(leaders.wanted())
        first = next(ranges)
        eventually(lambda: leaders.is_stuck)
        deque(first, maxlen=0)  # the end of the range is queued after some of the second one
        next(next(ranges))
        assert offsets(ranges) == [[*range(100)]]
        assert [each.held for each in leaders.streams] == [0]


def test_a_single_read_of_such_a_range_raises_the_error(wanted):
    with pytest.raises(SchemaMismatch):
        list(read_range(*wanted[0][:3]))


def test_a_defect_of_the_whole_read_ends_it(wanted, monkeypatch):
    def fail(self, asks):
        raise RuntimeError("a defect")

    monkeypatch.setattr(Dispatcher, "send", fail)
    assert offsets(read_together(wanted)) == [[], []]
