"""Fetches with a filter: the records, and the next offset."""

from __future__ import annotations

import pytest

import isolog
from isolog.errors import InvalidFilter
from tests.support import NUMBERS, Channel, Fetching, fetched, numbers, range_of


@pytest.fixture
def thousands(log: isolog.Log, topic: str) -> str:
    """The numbers 0 to 19,999 in twenty batches of one partition."""
    log.create_topic(topic, schema=NUMBERS)
    with log.producer() as producer:
        for start in range(0, 20_000, 1000):
            producer.append(topic, numbers(start, 1000), partition=0)
    return topic


def test_only_matching_records_are_sent_and_next_offset_is_after_all_scanned_ones(
    channel: Channel, thousands: str
) -> None:
    batches, end = fetched(
        channel, thousands, filter="n in (5, 6, 12345)", columns=["n", "_offset"]
    )
    rows = [row for batch, _ in batches for row in batch.to_pylist()]
    assert rows == [{"n": n, "_offset": n} for n in (5, 6, 12345)]
    for batch, facts in batches:
        assert facts["base"] == batch.column("_offset")[0].as_py()
        assert "spans" not in facts
        assert facts["next"] > batch.column("_offset")[-1].as_py()
    assert end["next"] == 20_000


def test_answer_without_matches_has_the_offset_after_the_scan(
    channel: Channel, thousands: str
) -> None:
    batches, end = fetched(channel, thousands, filter="n < 0", start=100, max_bytes=10)
    assert (batches, end["next"]) == ([], 20_000), "batches that cannot match are not read"


def test_limits_apply_to_matching_records_and_to_bytes_read(
    channel: Channel, thousands: str
) -> None:
    batches, end = fetched(channel, thousands, filter="n >= 1500", max_records=3)
    assert [n for batch, _ in batches for n in batch.column("n").to_pylist()] == [1500, 1501, 1502]
    assert end["next"] == 1503
    _, end = fetched(channel, thousands, filter="n >= 1500", end=1501)
    assert end["next"] == 1501
    position = answers = 0
    found = []
    while position < 20_000:
        batches, end = fetched(
            channel, thousands, filter="n != 7", start=position, max_bytes=20_000, columns=["n"]
        )
        found += [n for batch, _ in batches for n in batch.column("n").to_pylist()]
        position, answers = end["next"], answers + 1
    assert found == [n for n in range(20_000) if n != 7]
    assert answers > 5


def test_column_used_only_by_the_filter_is_not_sent(channel: Channel, thousands: str) -> None:
    batches, _ = fetched(channel, thousands, filter="n = 77 or n = 78", columns=["_offset"])
    assert [batch.to_pydict() for batch, _ in batches] == [{"_offset": [77, 78]}]
    batches, _ = fetched(channel, thousands, filter="n = 77 or n = 78", columns=[])
    assert [(batch.num_rows, batch.num_columns) for batch, _ in batches] == [(2, 0)]


@pytest.mark.parametrize("text", ["m = 1", "n = 'x'", "n =", "n + 1 = 2", "n = 1; drop table n"])
def test_bad_filter_is_refused_before_any_read(channel: Channel, thousands: str, text: str) -> None:
    with pytest.raises(InvalidFilter):
        fetched(channel, thousands, filter=text)


def test_following_fetch_sends_new_matching_records(
    channel: Channel, log: isolog.Log, thousands: str
) -> None:
    asked = range_of(thousands, start=20_000, filter="n >= 30000", follow=True)
    reader = Fetching(channel, asked)
    with log.producer() as producer:
        producer.append(thousands, numbers(20_000, 100), partition=0)
        producer.append(thousands, numbers(29_990, 20), partition=0)
    batch, facts = next(reader)
    assert batch.column("n").to_pylist() == list(range(30_000, 30_010))
    assert facts["next"] == 20_120
    reader.cancel()
