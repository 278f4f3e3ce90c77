"""Starts and ends by time: formats, precedence, and times without a later record."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

import isolog
from isolog.errors import InvalidOption
from spark_stream.datasource.options import SourceOptions, source_options
from spark_stream.datasource.options.query import Bound
from spark_stream.datasource.options.values import Moment
from spark_stream.datasource.reading.bounds import ResolvedOffsets, resolve
from spark_stream.datasource.reading.planning import Planner
from spark_stream.datasource.reading.reader import IsologReader
from spark_stream.datasource.spark.types import to_spark
from spark_stream.wire.messages import EARLIEST, LATEST
from tests.datasource.sources import Query
from tests.support import NUMBERS, numbers

PLACE = {"path": "x", "subscribe": "a,b"}
NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp()) * 1000


def options(streaming: bool | None = False, **given: Any) -> SourceOptions:
    texts = {
        name: each if isinstance(each, str) else json.dumps(each) for name, each in given.items()
    }
    return source_options({**PLACE, **texts}, streaming=streaming)


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("0", 0),
        ("-1", -1000),
        (str(NOON_MS), NOON_MS * 1000),
        ("2024-02-29T12:00:00Z", NOON_MS * 1000),
        (" 2024-02-29T12:00:00 ", NOON_MS * 1000),
        ("2024-02-29 14:00+02:00", NOON_MS * 1000),
        ("2024-02-29T12:00:00.000001", NOON_MS * 1000 + 1),
        ("2024-02-29", (NOON_MS - 12 * 3_600_000) * 1000),
        ("1969-12-31T23:59:59.5Z", -500_000),
        ("0001-01-01", -62_135_596_800_000_000),
    ],
)
def test_a_moment_is_milliseconds_or_iso_8601_in_utc(text: str, microseconds: int) -> None:
    found = options(startingTimestamp=text)
    assert found.starting == Bound("startingTimestamp", Moment(microseconds))
    by_partition = options(startingOffsetsByTimestamp={"a": {"1": text.strip()}})
    assert by_partition.starting.place == {"a": {1: Moment(microseconds)}}


@pytest.mark.parametrize(
    "text", ["", "noon", "1.5", "2024-02-30", "12:00", "9" * 19, "1e3", "null", "\u0661"]
)
def test_invalid_moment_is_refused(text: str) -> None:
    for name in ("startingTimestamp", "endingTimestamp"):
        with pytest.raises(InvalidOption, match=f"{name} takes milliseconds since 1970"):
            options(**{name: text})


NO_MOMENTS = ("null", "1.5", "true", '"noon"', "9223372036854775807")


@pytest.mark.parametrize(
    "text",
    [
        *(f'{{"a": {{"0": {each}}}}}' for each in NO_MOMENTS),
        *("{}", "[]", "5", '{"a": {}}', '{"a": 5}', '{"a": {"-1": 5}}', '{"a": {"zero": 5}}'),
    ],
)
def test_invalid_moments_by_partition_are_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="startingOffsetsByTimestamp takes"):
        options(startingOffsetsByTimestamp=text)


def test_precedence_of_the_start_options() -> None:
    offsets, by_time, time = {"a": {"0": 1}}, {"a": {"0": 2000}}, "3"
    given: dict[str, Any] = {"startingOffsets": offsets}
    assert options(**given).starting == Bound("startingOffsets", {"a": {0: 1}})
    given["startingOffsetsByTimestamp"] = by_time
    found = options(**given).starting
    assert found == Bound("startingOffsetsByTimestamp", {"a": {0: Moment(2_000_000)}})
    given["startingTimestamp"] = time
    assert options(**given).starting == Bound("startingTimestamp", Moment(3000))
    ends = {"endingOffsets": offsets, "endingOffsetsByTimestamp": by_time}
    assert options(**ends).ending.option == "endingOffsetsByTimestamp"
    assert options(**ends, endingTimestamp=time).ending == Bound("endingTimestamp", Moment(3000))
    with pytest.raises(InvalidOption, match="startingOffsets takes"):  # it does not win, and is bad
        options(**{**given, "startingOffsets": "first"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"startingTimestamp": "2024-02-29", "endingTimestamp": "2024-02-28"},
            "endingTimestamp (2024-02-28T00:00:00+00:00) is before startingTimestamp"
            " (2024-02-29T00:00:00+00:00)",
        ),
        (
            {"startingOffsets": {"a": {"0": 5}}, "endingOffsets": {"a": {"0": 4, "1": 1}}},
            "a/0: endingOffsets (4) is before startingOffsets (5)",
        ),
        (
            {"startingTimestamp": "5", "endingOffsetsByTimestamp": {"b": {"1": 4}}},
            "b/1: endingOffsetsByTimestamp (1970-01-01T00:00:00.004000+00:00) is before",
        ),
    ],
)
def test_an_end_before_the_start_is_refused_by_the_options_alone(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidOption) as caught:
        options(**given)
    assert message in caught.value.message


def test_an_end_at_the_start_is_an_empty_read() -> None:
    assert options(startingTimestamp="5", endingTimestamp="5").ending.place == Moment(5000)


@pytest.mark.parametrize("name", ["endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"])
def test_a_stream_has_no_end(name: str) -> None:
    value = {"a": {"0": 5}} if "Offsets" in name else "5"
    with pytest.raises(InvalidOption, match=f"{name} is not for a streaming query"):
        options(streaming=True, **{name: value})


# -- against a log --------------------------------------------------------------------------------


@pytest.fixture
def timed(log: isolog.Log, topic: str) -> str:
    """Two partitions with records of the seconds -2, -1, 0, 1, 2 and of 10, 11 since 1970."""
    log.create_topic(topic, partitions=2)
    with log.producer() as producer:
        for partition, seconds in ((0, range(-2, 3)), (1, (10, 11))):
            for second in seconds:
                producer.send(topic, b"v", partition=partition, timestamp=second * 1000)
                producer.flush()
    return topic


def begin(shared: Any, topic: str, **given: Any) -> ResolvedOffsets:
    texts = {
        name: each if isinstance(each, str) else json.dumps(each) for name, each in given.items()
    }
    chosen = source_options({"bootstrap": shared.address, "subscribe": topic, **texts})
    return resolve(Planner.of(chosen), chosen.starting, EARLIEST)


def test_a_record_that_comes_while_a_start_is_looked_up_comes_after_it(
    log: isolog.Log, shared: Any, timed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    latest = Planner.latest

    def latest_and_one_more(planner: Planner) -> Any:
        found = latest(planner)
        with log.producer() as producer:
            producer.send(timed, b"v", partition=0, timestamp=3000)
            producer.flush()
        return found

    monkeypatch.setattr(Planner, "latest", latest_and_one_more)
    found = begin(shared, timed, startingTimestamp="2024-02-29")
    assert found.offsets[timed].offsets == {0: 5, 1: 2}


@pytest.mark.parametrize(
    ("moment", "offsets", "moving"),
    [
        ("-3000", {0: 0, 1: 0}, False),
        ("1969-12-31T23:59:59", {0: 1, 1: 0}, False),
        ("-500", {0: 2, 1: 0}, False),
        ("0", {0: 2, 1: 0}, False),
        ("3000", {0: 5, 1: 0}, True),
        ("1970-01-01T00:00:10.5", {0: 5, 1: 1}, True),
        ("2024-02-29", {0: 5, 1: 2}, True),
    ],
)
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed", "read_atomic"])
def test_a_start_is_the_first_record_at_or_after_the_time(
    shared, timed, isolation, moment, offsets, moving
):
    """Without such a record it is the bound, as "latest", and may move as that does."""
    found = begin(shared, timed, startingTimestamp=moment, isolation=isolation)
    assert found.offsets[timed].offsets == offsets
    assert found.moving == moving


def test_partitions_without_a_time_start_at_earliest(shared, timed):
    found = begin(shared, timed, startingOffsetsByTimestamp={timed: {"0": "1970-01-01"}})
    assert found.offsets[timed].offsets == {0: 2, 1: 0}
    with pytest.raises(InvalidOption, match="partitions 0 to 1, not 2"):
        begin(shared, timed, startingOffsetsByTimestamp={timed: {"2": 5}})


def test_latest_is_the_bound_of_the_isolation_level(shared, log, timed):
    """Readers of committed records do not get the record of an open transaction yet."""
    with log.producer(transactional_id=timed) as producer:
        producer.begin_transaction()
        producer.send(timed, b"open", partition=1, timestamp=20_000)
        producer.flush()
        given = {"startingTimestamp": "15000"}
        seen = begin(shared, timed, **given, isolation="read_committed")
        assert (seen.offsets[timed].offsets, seen.moving) == ({0: 5, 1: 2}, True)
        seen = begin(shared, timed, startingTimestamp="30000")
        assert seen.offsets[timed].offsets == {0: 5, 1: 3}
        producer.abort_transaction()


def ranges(shared: Any, topic: str, **given: Any) -> dict[int, tuple[int, int]]:
    """The ranges that a batch query would read."""
    texts = {
        name: each if isinstance(each, str) else json.dumps(each) for name, each in given.items()
    }
    place = {"bootstrap": shared.address, "subscribe": topic}
    planner = Planner.of(source_options(place))
    chosen = source_options({**place, **texts}, streaming=False)
    planned = IsologReader(chosen, to_spark(planner.shown())).partitions()
    return {at.partition: (at.start, at.end) for each in planned for at in each.value}


def test_an_end_by_time_is_exclusive(shared, timed):
    assert ranges(shared, timed, endingTimestamp="0") == {0: (0, 2)}
    assert ranges(shared, timed, endingTimestamp="10001") == {0: (0, 5), 1: (0, 1)}
    assert ranges(shared, timed, endingTimestamp="2024-01-01") == {0: (0, 5), 1: (0, 2)}
    by_partition = {timed: {"0": "1970-01-01T00:00:01Z"}}
    assert ranges(shared, timed, endingOffsetsByTimestamp=by_partition) == {0: (0, 3), 1: (0, 2)}
    both = {"startingTimestamp": "-1000", "endingTimestamp": "11000"}
    assert ranges(shared, timed, **both) == {0: (1, 5), 1: (0, 1)}


def test_an_end_that_lies_before_the_start_in_the_log_is_refused_with_the_numbers(shared, timed):
    with pytest.raises(InvalidOption) as caught:
        ranges(
            shared,
            timed,
            startingTimestamp="1970-01-01",
            endingOffsets={timed: {"0": 1}},
        )
    assert caught.value.message == (
        f"{timed}/0: the query would end (endingOffsets) at offset 1, before it starts"
        " (startingTimestamp), at offset 2"
    )


def test_start_after_all_records_reads_later_records(shared, log, topic):
    """It is pinned as "latest" is: records that arrive before the first batch ends are not lost."""
    log.create_topic(topic, schema=NUMBERS)
    with log.producer() as producer:
        producer.append(topic, numbers(0, 3))
        producer.flush()
        query = Query(shared.address, topic, startingTimestamp="2200-01-01")
        end = query.planned()
        assert end == query.at
        producer.append(topic, numbers(3, 3))
        producer.flush()
        assert query.read(end) == []
        assert query.batch() == [3, 4, 5]


def test_earliest_and_latest_are_the_log_start_and_the_bound() -> None:
    found = options()
    assert (found.starting.place, found.ending.place) == (EARLIEST, LATEST)
