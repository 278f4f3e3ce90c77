"""``read``: a range of a topic as a table, under an isolation level."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from functools import partial

import pyarrow as pa
import pytest

import isolog
from isolog.errors import (
    InvalidOption,
    OffsetEvicted,
    OffsetOutOfRange,
    SchemaMismatch,
    UnknownPartition,
    UnknownTopic,
)
from spark_stream.client.reading import ranges
from spark_stream.client.reading.loop import Fetcher
from spark_stream.schema.schemas import TIMESTAMP_TYPE
from tests.support import NUMBERS, eventually, numbers, values

LEVELS = ["read_uncommitted", "read_replicated", "read_committed", "read_atomic"]
START = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def two(log, topic):
    """A typed topic: 0 to 9 in partition 0, 100 to 104 in partition 1."""
    log.create_topic(topic, partitions=2, schema=NUMBERS)
    with log.producer() as producer:
        producer.append(topic, numbers(0, 10), partition=0)
        producer.append(topic, numbers(100, 5), partition=1)
    return topic


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("earliest", "latest", [*range(10), *range(100, 105)]),
        ("latest", "latest", []),
        ("earliest", "earliest", []),
        ("latest", "earliest", []),
        (3, "latest", [*range(3, 10), 103, 104]),
        (0, 2, [0, 1, 100, 101]),
        (4, 4, []),
        (4, 2, []),
        (0, 10**12, [*range(10), *range(100, 105)]),
        ({0: 8}, "latest", [8, 9, *range(100, 105)]),
        ({0: 8, 1: -1}, "latest", [8, 9]),
        ({0: -2, 1: 4}, {0: 1}, [0, 104]),
        ("earliest", {1: 0}, list(range(10))),
        (5, {0: 6}, [5]),
        (datetime(1990, 1, 1), "latest", [*range(10), *range(100, 105)]),
        (datetime(2990, 1, 1), "latest", []),
        ("earliest", datetime(2990, 1, 1), [*range(10), *range(100, 105)]),
        ("earliest", datetime(1990, 1, 1, tzinfo=UTC), []),
    ],
)
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_range_has_its_records_at_every_isolation_level(
    log, two, start, end, expected, isolation
):
    found = log.read(two, start=start, end=end, isolation=isolation)
    assert found["n"].to_pylist() == expected
    assert found.schema == NUMBERS


@pytest.mark.parametrize("isolation", LEVELS)
def test_all_levels_read_all_records_of_a_single_replica(log, two, isolation):
    assert log.read(two, isolation=isolation).num_rows == 15


@pytest.mark.quick("read_uncommitted-read_committed")
@pytest.mark.parametrize(
    ("producer_level", "consumer_level"),
    list(itertools.product(["read_uncommitted", "read_committed"], repeat=2)),
)
def test_every_reader_sees_acknowledged_records_without_followers(
    log, topic, producer_level, consumer_level
):
    """Without followers an acknowledged record is COMMITTED for all levels."""
    log.create_topic(topic)
    with (
        log.producer(isolation=producer_level) as producer,
        log.consumer(topic, isolation=consumer_level) as consumer,
    ):
        records = consumer.records()
        for number in range(20):
            written = producer.send(topic, str(number)).result(20)
            assert written.offset == number
            record = next(records)
            assert (record.offset, record.value) == (number, str(number).encode())
            bounds = log.describe(topic).partitions[0]
            assert bounds.last_stable_offset == bounds.high_watermark == number + 1
            assert log.read(topic, isolation=consumer_level).num_rows == number + 1


@pytest.mark.parametrize(
    "place", ["first", "", 1.5, -3, {0: -3}, {5: 0}, {"0": 1}, None, True, 1 << 63]
)
def test_an_invalid_place_is_refused(log, two, place):
    with pytest.raises(InvalidOption):
        log.read(two, start=place)
    with pytest.raises(InvalidOption):
        log.read(two, end=place)


def test_an_unknown_level_is_refused_with_the_valid_ones(log, two):
    with pytest.raises(InvalidOption, match=r"read_uncommitted \| read_replicated"):
        log.read(two, isolation="dirty")


@pytest.mark.parametrize("end", ["latest", 10**6, 10**7])
def test_a_start_above_the_log_end_names_both_numbers(log, two, end):
    with pytest.raises(OffsetOutOfRange, match=r"1000000.*\b5\b") as caught:
        log.read(two, start={0: 0, 1: 10**6}, end=end)
    assert caught.value.details["log_end_offset"] == 5
    assert not caught.value.retriable


def test_a_start_at_the_log_end_is_an_empty_read(log, two):
    assert log.read(two, start={0: 10, 1: 5}).num_rows == 0


def test_read_below_the_log_start_fails_with_the_first_remaining_offset(log, topic):
    config = {"segment.bytes": 65536, "retention.bytes": 1}
    log.create_topic(topic, config=config)
    with log.producer() as producer:
        for _ in range(10):
            producer.append(topic, values(b"x" * 20_000, b"y"))
            producer.flush()
    start = eventually(lambda: log.describe(topic).partitions[0].log_start_offset)
    with pytest.raises(OffsetEvicted, match=rf"offset 0 .* {start}") as caught:
        log.read(topic, start=0)
    assert caught.value.details["log_start_offset"] == start
    with pytest.raises(OffsetEvicted):
        next(log.consumer(topic, start=0).batches())
    table = log.read(topic)
    assert table["offset"].to_pylist() == list(range(start, 20))
    assert log.read(topic, start=start).equals(table)


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("start", ["earliest", 0])
def test_retention_during_a_read_fails_only_a_read_from_an_offset(
    log, topic, monkeypatch, start, partitions
):
    """A read from the earliest returns the remaining records. One from an offset fails."""
    log.create_topic(topic, partitions, config={"segment.bytes": 65536})
    with log.producer() as producer:
        for _ in range(10):
            producer.append(topic, values(b"x" * 20_000, b"y"), partition=0)
            producer.flush()

    def evict_first(read, *given, **named):
        if log.describe(topic).partitions[0].log_start_offset == 0:
            log.alter_topic(topic, config={"retention.bytes": 1})
            eventually(lambda: log.describe(topic).partitions[0].log_start_offset)
        return read(*given, **named)

    for each in (ranges.read_range, ranges.read_together):
        monkeypatch.setattr(ranges, each.__name__, partial(evict_first, each))
    if start == 0:
        with pytest.raises(OffsetEvicted):
            log.read(topic, start=start)
    else:
        found = log.read(topic, start=start)["offset"].to_pylist()
        left = log.describe(topic).partitions[0].log_start_offset
        assert 0 < left < 20
        assert found == list(range(left, 20))


@pytest.mark.parametrize(("small", "calls"), [(1_000, 1), (1, 2), (0, 22)])
def test_small_ranges_share_a_call(log, topic, monkeypatch, small, calls):
    """20 partitions have a row each, 19 are empty, and one has three rows."""
    log.create_topic(topic, 40, schema=NUMBERS)
    with log.producer() as producer:
        for partition in range(0, 40, 2):
            producer.append(topic, numbers(partition, 1), partition=partition)
        producer.append(topic, numbers(100, 3), partition=3)
    expected = [*range(0, 3, 2), 100, 101, 102, *range(4, 40, 2)]
    assert log.read(topic)["n"].to_pylist() == expected  # this connects and finds the leaders
    opened = []

    def count(reader, sendings, shared):
        opened.append(sendings)
        start(reader, sendings, shared)

    start = Fetcher.open
    monkeypatch.setattr(Fetcher, "open", count)
    monkeypatch.setattr(ranges, "SMALL_RANGE", small)
    assert log.read(topic)["n"].to_pylist() == expected
    assert len(opened) == calls


def test_columns_are_chosen_and_ordered_by_the_caller(log, topic):
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64())])
    log.create_topic(topic, schema=schema)
    with log.producer() as producer:
        producer.append(topic, pa.record_batch({"a": [1], "b": ["x"], "c": [0.5]}))
    assert log.read(topic, columns=["c", "a"]).to_pylist() == [{"c": 0.5, "a": 1}]
    found = log.read(topic, columns=["_offset", "b", "_partition", "_topic"])
    assert found.to_pylist() == [{"_offset": 0, "b": "x", "_partition": 0, "_topic": topic}]
    for metadata_only in (["_offset"], ["_topic", "_partition"], ["_timestamp"]):
        assert log.read(topic, columns=metadata_only).num_rows == 1
    for name in ("d", "A", "_Offset", "offset", ""):
        with pytest.raises(SchemaMismatch, match="a, b, c"):
            log.read(topic, columns=[name])
    with pytest.raises(SchemaMismatch, match="'d'"):
        log.consumer(topic, columns=["a", "d"])


def test_a_read_without_columns_has_the_number_of_rows(log, two):
    found = log.read(two, columns=[])
    assert (found.num_columns, found.num_rows) == (0, 15)


def test_a_duplicate_column_is_refused(log, two):
    with pytest.raises(isolog.errors.IsologError, match="duplicate column"):
        log.read(two, columns=["n", "n"])


def test_metadata_columns_have_the_place_of_each_row(log, two):
    before = datetime.now(UTC) - timedelta(minutes=5)
    found = log.read(two, metadata=True)
    assert found.schema.names == ["n", "_topic", "_partition", "_offset", "_timestamp"]
    assert found.schema.field("_timestamp").type == TIMESTAMP_TYPE
    rows = found.to_pylist()
    for row in rows:
        assert row["_topic"] == two
        assert row["n"] == row["_offset"] + 100 * row["_partition"]
        assert before < row["_timestamp"] <= datetime.now(UTC)
    tail = log.read(two, start={0: 7, 1: 5}, metadata=True)
    assert tail["_offset"].to_pylist() == [7, 8, 9]


def test_a_default_schema_topic_shows_kafkas_columns(log, topic):
    log.create_topic(topic, partitions=2)
    moment = datetime(1969, 7, 20, 20, 17, 40, tzinfo=UTC)
    with log.producer() as producer:
        producer.send(topic, b"v", key=b"k", partition=1, timestamp=moment, headers=[("a", b"b")])
    expected = {
        "key": b"k",
        "value": b"v",
        "topic": topic,
        "partition": 1,
        "offset": 0,
        "timestamp": moment,
        "timestampType": 0,
    }
    assert log.read(topic).to_pylist() == [expected]
    with_headers = expected | {"headers": [{"key": "a", "value": b"b"}]}
    assert log.read(topic, headers=True).to_pylist() == [with_headers]
    assert log.read(topic, columns=["offset", "value"]).to_pylist() == [
        {"offset": 0, "value": b"v"}
    ]


def test_read_of_several_topics_returns_a_dict_of_tables(log, topic):
    for number in range(3):
        log.create_topic(f"{topic}-{number}", schema=NUMBERS)
    with log.producer() as producer:
        for number in range(3):
            producer.append(f"{topic}-{number}", numbers(number, 1))
    names = [f"{topic}-{number}" for number in range(3)]
    found = log.read(names)
    assert list(found) == names
    assert [found[name]["n"].to_pylist() for name in names] == [[0], [1], [2]]
    assert set(log.read(names[:1])) == {names[0]}
    with pytest.raises(UnknownTopic, match="nowhere"):
        log.read([*names, "nowhere"])


@pytest.mark.parametrize("isolation", LEVELS)
def test_read_returns_only_the_chosen_partitions(log, two, isolation):
    read = log.read(two, start={1: 1}, end={1: 3}, isolation=isolation, partitions=[1])
    assert read["n"].to_pylist() == [101, 102]
    with pytest.raises(UnknownPartition, match="0 to 1, not 7"):
        log.read(two, partitions=[7])


def test_read_ends_at_the_bound_at_the_time_of_the_call(log, topic):
    """Records that are written during a read are not in its result."""
    log.create_topic(topic, schema=NUMBERS)
    with log.producer() as producer:
        producer.append(topic, numbers(0, 1000))
        producer.flush()
        for _ in range(50):
            end = log.describe(topic).partitions[0].log_end_offset
            future = producer.append(topic, numbers(0, 1000))
            rows = log.read(topic).num_rows
            assert rows in (end, end + 1000)
            future.result(20)


def test_timestamps_find_the_first_record_at_or_after_them(log, topic):
    """Timestamps may decrease. The first match by offset counts, as in Kafka."""
    log.create_topic(topic)
    seconds = [10, 20, 15, 30, 5, 40, -86_400, 50]
    with log.producer() as producer:
        for second in seconds:
            producer.send(topic, str(second), timestamp=START + timedelta(seconds=second))
            producer.flush()
        moments = [START + timedelta(seconds=second) for second in seconds]
        batch = pa.record_batch(
            {"value": [b"x"] * len(seconds), "timestamp": pa.array(moments, TIMESTAMP_TYPE)}
        )
        producer.append(topic, batch)
    doubled = seconds * 2
    for second in range(-3, 60):
        at = START + timedelta(seconds=second)
        found = log.read(topic, start=at)["offset"].to_pylist()
        first = next((n for n, each in enumerate(doubled) if each >= second), len(doubled))
        assert found == list(range(first, len(doubled))), second
        assert log.read(topic, end=at)["offset"].to_pylist() == list(range(first))


_GROUPING = """
import sys
import pyarrow as pa
import isolog

address, *topics = sys.argv[1:]
with isolog.connect(address) as log:
    for topic in topics:
        tables = [log.read(topic)]
        with log.consumer(topic) as consumer:
            tables += [pa.table(batch) for batch in consumer.batches(until="latest")]
        for table in tables:
            table.group_by("name").aggregate([("at", "max"), ("n", "sum")])
"""


def test_arrow_groups_fetched_batches_without_alignment_errors(log, shared, topic):
    """Few records are sent over the connection, and many are mapped.

    It runs in a separate process: Arrow reads the variable once, and then refuses unaligned
    buffers.
    """
    for name, rows in (topic, 3), (f"{topic}-many", 50_000):
        log.create_topic(name, schema="name string, at timestamp, n bigint, small tinyint")
        with log.producer() as producer:
            producer.append(
                name,
                pa.table(
                    {
                        "name": [f"name {number % 7}" for number in range(rows)],
                        "at": pa.array(range(rows), TIMESTAMP_TYPE),
                        "n": range(rows),
                        "small": pa.repeat(pa.scalar(1, pa.int8()), rows),
                    }
                ),
            )
    done = subprocess.run(
        [sys.executable, "-c", _GROUPING, shared.address, topic, f"{topic}-many"],
        env=os.environ | {"ACERO_ALIGNMENT_HANDLING": "error"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
