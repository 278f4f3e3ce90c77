"""Fetches by protocol calls: visible records, limits, and the next offset."""

from __future__ import annotations

import threading
import time
from typing import Any

import pyarrow as pa
import pytest

import isolog
from isolog.errors import (
    BrokerStopping,
    OffsetEvicted,
    OffsetOutOfRange,
    SchemaMismatch,
    UnknownTopic,
)
from spark_stream.transport.streams import ConnectionLost
from tests.support import (
    NUMBERS,
    BrokerProcess,
    Channel,
    Fetching,
    eventually,
    fetched,
    listed,
    numbers,
    range_of,
)

LEVELS = ["read_uncommitted", "read_replicated", "read_committed", "read_atomic"]


@pytest.fixture
def thousand(log: isolog.Log, topic: str) -> str:
    """The numbers 0 to 999 in ten batches of one partition."""
    log.create_topic(topic, schema=NUMBERS)
    with log.producer() as producer:
        for start in range(0, 1000, 100):
            producer.append(topic, numbers(start, 100), partition=0)
    return topic


def column(batches: list[tuple[pa.RecordBatch, dict[str, Any]]]) -> list[int]:
    return [value for batch, _ in batches for value in batch.column("n").to_pylist()]


@pytest.mark.parametrize("isolation", LEVELS)
def test_range_without_visible_records_returns_the_next_offset_immediately(
    channel: Channel, thousand: str, isolation: str
) -> None:
    batches, end = fetched(channel, thousand, start=1000, isolation=isolation)
    assert batches == []
    assert end["next"] == 1000
    assert end["bounds"] == {
        "log_start_offset": 0,
        "last_stable_offset": 1000,
        "high_watermark": 1000,
        "log_end_offset": 1000,
    }


def test_every_batch_has_its_base_offset(channel: Channel, thousand: str) -> None:
    batches, end = fetched(channel, thousand, start=150, end=950)
    at = 150
    for batch, facts in batches:
        after = at + batch.num_rows
        assert facts == {"kind": "rows", "base": at, "next": after, "lineage": [[0, after]]}
        assert batch.column("n").to_pylist() == list(range(at, at + batch.num_rows))
        at = facts["next"]
    assert at == end["next"] == 950


@pytest.mark.parametrize("limit", [{"max_records": 7}, {"max_bytes": 500}, {"max_bytes": 1}])
def test_limits_hold_and_the_next_fetch_continues_without_a_gap(
    channel: Channel, thousand: str, limit: dict[str, int]
) -> None:
    seen: list[int] = []
    position = 0
    while position < 1000:
        batches, end = fetched(channel, thousand, start=position, **limit)
        got = column(batches)
        assert 1 <= len(got) <= limit.get("max_records", 100)
        assert end["next"] == position + len(got)
        seen += got
        position = end["next"]
    assert seen == list(range(1000))


def test_small_adjacent_batches_are_sent_together(
    channel: Channel, log: isolog.Log, topic: str
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    with log.producer() as producer:
        for number in range(1000):
            producer.append(topic, numbers(number, 1), partition=0)
    batches, _ = fetched(channel, topic)
    assert len(batches) == 1
    assert column(batches) == list(range(1000))


def test_projection_may_include_columns_computed_by_the_leader(
    channel: Channel, thousand: str
) -> None:
    batches, _ = fetched(channel, thousand, start=98, end=103, columns=["_offset", "n"])
    assert [name for batch, _ in batches for name in batch.schema.names] == ["_offset", "n"]
    assert [row for batch, _ in batches for row in batch.column("_offset").to_pylist()] == [
        *range(98, 103)
    ]
    batches, _ = fetched(channel, thousand, columns=["_timestamp"])
    moments = batches[0][0].column("_timestamp")
    assert moments.type == pa.timestamp("us", "UTC")
    assert moments.null_count == 0
    assert sum(batch.num_rows for batch, _ in fetched(channel, thousand, columns=[])[0]) == 1000


def test_start_above_the_log_end_reports_both_offsets(channel: Channel, thousand: str) -> None:
    with pytest.raises(OffsetOutOfRange) as caught:
        fetched(channel, thousand, start=1001)
    error = caught.value
    assert "1001" in error.message
    assert error.details["log_end_offset"] == 1000


def test_fetch_with_another_topic_id_is_refused(channel: Channel, thousand: str) -> None:
    with pytest.raises(UnknownTopic):
        fetched(channel, thousand, topic_id="of-an-earlier-one")


def test_error_names_an_unknown_column(channel: Channel, thousand: str) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        fetched(channel, thousand, columns=["m"])
    assert caught.value.details["column"] == "m"


def test_long_poll_returns_with_a_new_record(channel: Channel, log: isolog.Log, topic: str) -> None:
    log.create_topic(topic, schema=NUMBERS)
    found: list[Any] = []
    poll = threading.Thread(
        target=lambda: found.append(fetched(channel, topic, start=0, wait_ms=15_000))
    )
    poll.start()
    with log.producer() as producer:
        producer.append(topic, numbers(7, 3), partition=0).result()
    poll.join(10)
    assert not poll.is_alive()
    batches, end = found[0]
    assert column(batches) == [7, 8, 9]
    assert end["next"] == 3


def test_long_poll_without_records_ends_after_its_wait(
    channel: Channel, log: isolog.Log, topic: str
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    started = time.monotonic()
    batches, end = fetched(channel, topic, start=0, wait_ms=300)
    assert batches == []
    assert end["next"] == 0
    assert time.monotonic() - started >= 0.3


def test_following_fetch_returns_record_after_record(
    channel: Channel, log: isolog.Log, topic: str
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    reader = Fetching(channel, range_of(topic, start=0, follow=True))
    with log.producer() as producer:
        for start in (0, 5, 10):
            producer.append(topic, numbers(start, 5), partition=0).result()
            batch, _ = next(reader)
            assert batch.column("n").to_pylist() == [*range(start, start + 5)]
    reader.cancel()


def test_following_fetch_with_a_wait_ends_after_it_despite_new_records(
    channel: Channel, log: isolog.Log, topic: str
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    found: list[Any] = []
    began = time.monotonic()
    tail = threading.Thread(
        target=lambda: found.append(fetched(channel, topic, start=0, follow=True, wait_ms=1_500))
    )
    tail.start()
    count = 0
    with log.producer() as producer:
        while tail.is_alive() and count < 100_000:
            producer.append(topic, numbers(5 * count, 5), partition=0).result()
            count += 1
    tail.join(20)
    assert not tail.is_alive()
    assert time.monotonic() - began >= 1.5
    batches, end = found[0]
    assert len(batches) > 1
    assert column(batches) == [*range(end["next"])]


def test_following_fetch_with_a_wait_ends_if_it_lags_or_has_no_visible_records(
    channel: Channel, thousand: str
) -> None:
    """Its reader receives the current bounds, and sends another request when it has room."""
    asked = {"start": 0, "follow": True, "wait_ms": 60_000}
    batches, end = fetched(channel, thousand, max_bytes=1, **asked)
    assert 0 < end["next"] < 1000
    assert column(batches) == [*range(end["next"])]
    batches, end = fetched(channel, thousand, filter="n < 0", **asked)
    assert (batches, end["next"]) == ([], 1000)


def test_following_fetch_ends_with_the_broker(broker: BrokerProcess) -> None:
    with broker.connect() as log, broker.channel() as channel:
        log.create_topic("t", schema=NUMBERS)
        reader = Fetching(channel, range_of("t", start=0, follow=True))
        stopper = threading.Thread(target=broker.terminate)
        stopper.start()
        with pytest.raises((ConnectionLost, BrokerStopping, StopIteration)):
            next(reader)
        stopper.join(20)
    assert not broker.alive


def test_latest_and_timestamps_resolve_at_every_isolation_level(
    channel: Channel, log: isolog.Log, topic: str
) -> None:
    log.create_topic(topic)
    with log.producer() as producer:
        for moment in (3_000, 1_000, 5_000, 4_000):
            producer.send(topic, b"x", timestamp=moment).result()
    for isolation in LEVELS:

        def at(isolation: str = isolation, **asked: int) -> int:
            found = listed(channel, topic, isolation=isolation, **asked)
            return found.offsets[0]

        assert at(at=-2) == 0
        assert at(at=-1) == 4
        assert [at(timestamp=ms * 1000) for ms in (0, 3_000, 3_001, 5_000, 5_001)] == [
            *(0, 0, 2, 2, 4)
        ]


def test_error_for_evicted_offsets_has_the_log_start(broker: BrokerProcess) -> None:
    with broker.connect() as log, broker.channel() as channel:
        log.create_topic(
            "t", schema=NUMBERS, config={"segment.bytes": 65536, "retention.bytes": 65536}
        )
        with log.producer() as producer:
            for start in range(0, 60_000, 6_000):
                producer.append("t", numbers(start, 6_000), partition=0).result(20)
        first = eventually(lambda: log.describe("t").partitions[0].log_start_offset)
        with pytest.raises(OffsetEvicted) as caught:
            fetched(channel, "t", start=first - 1)
        left = caught.value.details["log_start_offset"]
        batches, _ = fetched(channel, "t", start=left)
        assert column(batches) == list(range(left, 60_000))
