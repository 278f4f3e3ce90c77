"""Limits of a micro-batch over a real log: records, bytes, and a minimum with a delay."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import isolog
from isolog.errors import InvalidOption
from spark_stream.datasource.options import source_options
from spark_stream.datasource.spark.releases import ReadAllAvailable
from spark_stream.datasource.values.limits import BatchLimiter, Limits
from spark_stream.datasource.values.offsets import TopicOffsets
from tests.datasource import sources
from tests.datasource.sources import Query
from tests.examples import examples
from tests.support import NUMBERS, numbers

EARLIER = {
    "test_a_record_larger_than_the_limit_is_taken_alone",
    "test_available_now_ends_at_the_first_bounds_and_ignores_new_partitions",
    "test_plans_follow_each_other_whatever_ranges_spark_reads",
}

BIG = pa.schema([("n", pa.int64()), ("filler", pa.binary())])


def fill(log: isolog.Log, topic: str, first: int, count: int, partition: int = 0) -> None:
    with log.producer() as producer:
        producer.append(topic, numbers(first, count), partition=partition)


def fill_sized(log: isolog.Log, topic: str, first: int, sizes: list[int], partition: int) -> None:
    """Append a record of each size, each in a separate batch."""
    with log.producer() as producer:
        for number, size in enumerate(sizes, first):
            batch = pa.record_batch([[number], [bytes(size)]], schema=BIG)
            # Without a flush it might be stored with the next, as one batch.
            producer.append(topic, batch, partition=partition).result()


def batches_of(query: Query) -> list[list[int]]:
    """Read all micro-batches."""
    found = []
    while batch := query.batch():
        found.append(batch)
    return found


def test_byte_limit_counts_stored_bytes_of_whole_records(shared, log, topic):
    log.create_topic(topic, schema=NUMBERS)
    fill(log, topic, 0, 1000)
    batches = batches_of(Query(shared.address, topic, maxBytesPerTrigger=2_000))
    assert [number for batch in batches for number in batch] == list(range(1000))
    # 8,000 bytes of numbers and a few bytes of Arrow.
    assert {len(batch) for batch in batches[:-1]} <= set(range(200, 251))


def test_a_record_larger_than_the_limit_is_taken_alone(shared, log, topic):
    log.create_topic(topic, partitions=2, schema=BIG)
    fill_sized(log, topic, 0, [10, 50_000, 10, 10], partition=0)
    fill_sized(log, topic, 4, [10, 10, 60_000, 10], partition=1)
    batches = batches_of(Query(shared.address, topic, maxBytesPerTrigger=4_000))
    assert sorted(number for batch in batches for number in batch) == list(range(8))
    assert [1] in batches
    assert [6] in batches


SIZES = st.lists(st.sampled_from([1, 100, 3_000, 20_000]), max_size=6)


@pytest.mark.rule("the limits of a micro-batch", "datasource/values/limits.py")
@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    parts=st.lists(SIZES, min_size=1, max_size=3),
    most=st.integers(500, 30_000),
    records=st.integers(1, 5),
)
def test_limits_by_records_and_bytes_hold_together(shared, log, topic_names, parts, most, records):
    topic = next(topic_names)
    log.create_topic(topic, partitions=len(parts), schema=BIG)
    sizes, first = {}, 0
    for partition, part in enumerate(parts):
        fill_sized(log, topic, first, part, partition)
        sizes |= {first + at: size for at, size in enumerate(part)}
        first += len(part)
    query = Query(shared.address, topic, maxBytesPerTrigger=most, maxOffsetsPerTrigger=records)
    batches = batches_of(query)
    assert sorted(number for batch in batches for number in batch) == list(range(first))
    for batch in batches:
        assert len(batch) <= records
        assert len(batch) == 1 or sum(sizes[number] for number in batch) <= most


@pytest.fixture
def topic_names(topic):
    return (f"{topic}-{number}" for number in range(10_000))


def test_read_all_available_means_no_limit(shared, log, topic):
    log.create_topic(topic, schema=NUMBERS)
    fill(log, topic, 0, 100)
    query = Query(shared.address, topic, maxBytesPerTrigger=8, minOffsetsPerTrigger=1000)
    end = query.reader.latestOffset(query.at, ReadAllAvailable())
    assert query.read(end) == list(range(100))


def test_available_now_ends_at_the_first_bounds_and_ignores_new_partitions(shared, log, topic):
    log.create_topic(topic, schema=NUMBERS)
    fill(log, topic, 0, 100)
    query = Query(shared.address, topic, maxOffsetsPerTrigger=40)
    query.reader.prepareForTriggerAvailableNow()
    found = query.batch()
    log.alter_topic(topic, partitions=2)
    fill(log, topic, 100, 50, partition=1)
    fill(log, topic, 150, 10)
    for batch in batches_of(query):
        found += batch
    assert found == list(range(100))
    query.start()
    assert sorted(number for batch in batches_of(query) for number in batch) == list(
        range(100, 160)
    )


def test_available_now_plans_no_empty_batches_while_others_write(shared, log, topic):
    log.create_topic(topic, schema=NUMBERS)
    fill(log, topic, 0, 100)
    query = Query(shared.address, topic)
    query.reader.prepareForTriggerAvailableNow()
    fill(log, topic, 100, 50)
    assert query.batch() == list(range(100))
    fill(log, topic, 150, 50)
    assert query.planned() == query.at


def test_records_that_are_not_visible_yet_make_no_empty_batch(shared, log, topic):
    log.create_topic(topic, schema=NUMBERS)
    fill(log, topic, 0, 100)
    query = Query(shared.address, topic, isolation="read_committed")
    assert query.batch() == list(range(100))
    with log.producer(transactional_id=topic) as producer, producer.transaction():
        for first in (100, 150):
            producer.append(topic, numbers(first, 50))
            producer.flush()
            assert query.planned() == query.at
    assert query.batch() == list(range(100, 200))


class Moments:
    """A clock that moves only when the test sets it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def at(*offsets: int) -> dict[str, TopicOffsets]:
    return {"t": TopicOffsets("id", dict(enumerate(offsets)), {})}


def test_minimum_is_awaited_from_the_first_pending_record():
    clock = Moments()
    pace = BatchLimiter(Limits(min_offsets=10, max_delay_s=60), measure=None, monotonic=clock)
    assert not pace.awaits_more(at(5, 5), at(5, 5))  # no record is pending
    clock.now += 1000
    assert pace.awaits_more(at(5, 5), at(8, 5))
    clock.now += 59
    assert pace.awaits_more(at(5, 5), at(8, 6))
    assert not pace.awaits_more(at(5, 5), at(8, 12))  # as many as wanted
    assert pace.awaits_more(at(8, 12), at(9, 12))  # the time restarts
    clock.now += 59
    assert pace.awaits_more(at(8, 12), at(9, 12))
    clock.now += 1
    assert not pace.awaits_more(at(8, 12), at(9, 12))  # waited long enough
    assert pace.awaits_more(at(9, 12), at(9, 13))


def test_query_reads_no_record_below_the_minimum(shared, log, topic):
    log.create_topic(topic, partitions=2, schema=NUMBERS)
    query = Query(shared.address, topic, minOffsetsPerTrigger=10, maxOffsetsPerTrigger=12)
    assert query.planned() == query.at
    fill(log, topic, 0, 9)
    assert query.planned() == query.at
    fill(log, topic, 9, 5, partition=1)
    assert len(query.batch()) == 12
    assert query.planned() == query.at
    query.start()  # again, from its checkpoint
    if sources.IS_ASSISTED:
        assert query.planned() == query.at
        query.reader.prepareForTriggerAvailableNow()
    # Otherwise the trigger is unknown, and the first plan of a run has no minimum.
    assert len(query.batch()) == 2


def test_plans_follow_each_other_whatever_ranges_spark_reads(shared, log, topic):
    log.create_topic(topic, schema=NUMBERS)
    fill(log, topic, 0, 100)
    query = Query(shared.address, topic, maxOffsetsPerTrigger=10)
    start = query.at
    query.at = first = query.planned()  # Spark plans no tasks for .where("false")
    assert query.batch() == list(range(10, 20))
    query.reader.partitions(start, first)  # Spark reads an earlier range again
    assert query.batch() == list(range(20, 30))
    query.start()  # again, from its checkpoint
    assert query.batch() == list(range(30, 40))


def test_a_trigger_looks_at_the_log_once(shared, log, topic, monkeypatch):
    names = [f"{topic}-{number}" for number in range(3)]
    for name in names:
        log.create_topic(name, partitions=4, schema=NUMBERS)
    query = Query(shared.address, ",".join(names))
    for name in names:
        fill(log, name, 0, 5)
    calls = []
    topics = query.reader._planner.topics
    look_up = topics.look_up
    monkeypatch.setattr(
        type(topics), "look_up", lambda self, *a, **k: calls.append(a) or look_up(*a, **k)
    )
    end = query.planned()
    assert query.reader.partitions(query.at, end)
    assert query.reader.reportLatestOffset() == end
    assert len(calls) == 1


BAD = [
    ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger takes a whole number from 1 on, not '0'"),
    ({"maxOffsetsPerTrigger": str(2**63)}, "maxOffsetsPerTrigger takes a whole number from 1"),
    ({"minOffsetsPerTrigger": "many"}, "minOffsetsPerTrigger takes a whole number from 1 on"),
    (
        {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
        "minOffsetsPerTrigger (5) is greater than maxOffsetsPerTrigger (4)",
    ),
    (
        {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "15"},
        "maxTriggerDelay takes a time with its unit, such as 500ms, 30s, 15m, 2h or 1d, not '15'",
    ),
    ({"maxTriggerDelay": "15m"}, "maxTriggerDelay needs minOffsetsPerTrigger"),
    ({"minPartitions": "-1"}, "minPartitions takes a whole number from 1 on, not '-1'"),
    ({"maxRecordsPerPartition": "0.5"}, "maxRecordsPerPartition takes a whole number from 1 on"),
    ({"minPartitions": "1" + "0" * 20}, "a whole number from 1 to 9223372036854775807, not '1000"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[" ".join(each) for each, _ in BAD])
def test_a_bad_limit_is_refused_by_name(options, message):
    with pytest.raises(InvalidOption, match=re.escape(message)):
        source_options({"path": "/data", "subscribe": "t", **options}, streaming=True)


@pytest.mark.parametrize("name", ["maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"])
def test_limits_are_for_streams(name):
    with pytest.raises(InvalidOption, match=f"{name} is not for a batch query"):
        source_options({"path": "/data", "subscribe": "t", name: "5"}, streaming=False)


def test_times_take_a_unit():
    given = {"path": "/data", "subscribe": "t", "minOffsetsPerTrigger": "5"}
    found = [
        source_options({**given, "maxTriggerDelay": text}, streaming=True).limits.max_delay_s
        for text in ("250ms", "3 s", "2M", "2min", "1h", "1d")
    ]
    assert found == [0.25, 3, 120, 120, 3600, 86400]


@pytest.mark.parametrize("name", sorted({*Limits.__struct_fields__} - {"max_delay_s"}))
def test_each_limit_alone_is_passed_to_spark(name: str) -> None:
    assert Limits(**{name: 1}).any
    assert not Limits(max_delay_s=1.0).any
