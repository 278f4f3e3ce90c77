"""Single calls with invalid or unusual arguments."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

import isolog
from isolog.errors import InvalidRequest, UnknownPartition, UnknownTopic
from spark_stream.wire.limits import CONTROL_BYTES_MAX
from spark_stream.wire.messages import ACT
from tests.broker.stamped import Appender
from tests.support import (
    CALL_S,
    NUMBERS,
    Fetching,
    act,
    fetched,
    listed,
    numbers,
    range_of,
    typed_errors,
)


@pytest.fixture
def hundred(log: isolog.Log, topic: str) -> str:
    """The numbers 0 to 99 in ten batches of partition 0. Partition 1 is empty."""
    log.create_topic(topic, partitions=2, schema=NUMBERS)
    with log.producer() as producer:
        for start in range(0, 100, 10):
            producer.append(topic, numbers(start, 10), partition=0)
    return topic


@pytest.mark.parametrize("field", ["at", "timestamp", "partitions"])
@pytest.mark.parametrize("value", [10**30, -(10**30), 2**63, -(2**63) - 1, 1.5, True, "0", [2**40]])
def test_invalid_arguments_of_list_offsets_are_refused(channel, hundred, field, value):
    with pytest.raises(InvalidRequest):
        listed(channel, hundred, **{field: value})


@pytest.mark.parametrize("timestamp", [2**63 - 1, -(2**63)])
def test_extreme_timestamps_have_the_first_and_last_offset(channel, hundred, timestamp):
    found = listed(channel, hundred, timestamp=timestamp, partitions=[0])
    assert found.offsets == {0: 100 if timestamp > 0 else 0}


def test_only_the_requested_partitions_are_listed(channel, hundred):
    assert listed(channel, hundred, partitions=[]).offsets == {}
    assert listed(channel, hundred, partitions=[1, 1]).offsets == {1: 0}
    with pytest.raises(UnknownPartition):
        listed(channel, hundred, partitions=[0, 2])


NEARLY_RIGHT = [
    {"start": -3},
    {"start": 2**63},
    {"end": -1},
    {"max_records": 0},
    {"max_bytes": -1},
    {"wait_ms": 60_001},
    {"isolation": "serializable"},
    {"isolation": 1},
    {"columns": "n"},
    {"columns": [""]},
    {"columns": ["n", "n"]},
    {"columns": [None]},
    {"follow": "yes"},
    {"partition": 1.0},
    {"partition": True},
    {"topic": None},
    {"more": 1},
]


@pytest.mark.parametrize("fields", NEARLY_RIGHT, ids=str)
def test_fetch_with_a_wrong_field_is_refused(channel, hundred, fields):
    asked = {"topic": hundred, "partition": 0} | fields
    with pytest.raises(InvalidRequest):
        list(Fetching(channel, asked))


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"{", b'{"topic":"t"} x', b"\xff", b"[" * 99_999]
)
def test_body_that_is_no_json_object_is_refused(channel, body):
    with pytest.raises(InvalidRequest):
        list(Fetching(channel, body=body))
    for name in (b"describe-topic", b"create-topic", b"delete-topic", b"list-offsets"):
        with pytest.raises(InvalidRequest), typed_errors():
            channel.call(ACT, name, body, CALL_S)


def test_body_above_the_limit_is_refused(channel, hundred):
    padded = (
        json.dumps({"ranges": [{"topic": hundred, "partition": 0}]}).encode()
        + b" " * CONTROL_BYTES_MAX
    )
    with pytest.raises(InvalidRequest):
        list(Fetching(channel, body=padded))


def test_last_of_duplicate_fields_counts(channel, hundred):
    one = json.dumps({"topic": hundred, "partition": 0}).encode()[:-1] + b', "partition": 1}'
    ((batch, facts),) = Fetching(channel, body=b'{"ranges": [' + one + b"]}")
    assert (batch.num_rows, facts["next"]) == (0, 0)


def test_producer_has_two_isolation_levels(channel, hundred):
    for isolation in ("read_uncommitted", "read_committed"):
        stream = Appender(channel, hundred, isolation=isolation)
        assert stream.append(1, numbers(0, 1))["count"] == 1
    for isolation in ("read_replicated", "read_atomic"):
        with pytest.raises(InvalidRequest):
            Appender(channel, hundred, isolation=isolation).append(1, numbers(0, 1))


def test_append_with_another_topic_id_is_refused(channel, hundred):
    topic_id = act(channel, "describe-topic", topic=hundred)["id"]
    assert Appender(channel, hundred, topic_id=topic_id).append(1, numbers(0, 1))["offset"] == 0
    with pytest.raises(UnknownTopic):
        Appender(channel, hundred, topic_id="another").append(1, numbers(0, 1))


def test_empty_batch_is_acknowledged_and_not_stored(channel, hundred):
    reply = Appender(channel, hundred).append(0, numbers(0, 0))
    assert (reply["offset"], reply["count"]) == (100, 0)
    _, end = fetched(channel, hundred, start=100)
    assert end["next"] == 100


def test_append_accepts_schema_metadata(channel, hundred):
    batch = numbers(0, 3).replace_schema_metadata({"pandas": "{}"})
    assert Appender(channel, hundred, schema=batch.schema).append(1, batch)["count"] == 3


def test_following_fetch_ends_at_its_limit(channel, hundred):
    for limit in ({"end": 55}, {"max_records": 55}):
        batches, end = fetched(channel, hundred, start=0, follow=True, **limit)
        assert sum(batch.num_rows for batch, _ in batches) == 55
        assert end["next"] == 55


def test_following_fetch_waits_for_a_future_end(channel, log, hundred):
    reader = Fetching(channel, range_of(hundred, start=95, end=105, follow=True))
    with log.producer() as producer:
        producer.append(hundred, numbers(100, 50), partition=0).result(20)
    rows = [n for batch, _ in reader for n in batch["n"].to_pylist()]
    assert rows == list(range(95, 105))


def test_end_at_or_below_the_start_is_an_empty_range(channel, hundred):
    for end_at in (0, 10, 50):
        batches, end = fetched(channel, hundred, start=50, end=end_at, wait_ms=10_000)
        assert (batches, end["next"]) == ([], 50)


def test_fetch_starts_at_named_offsets(channel, hundred):
    _, end = fetched(channel, hundred, start=-1)
    assert end["next"] == 100
    batches, _ = fetched(channel, hundred, start=-2, max_records=1)
    assert batches[0][1]["base"] == 0
    batches, _ = fetched(channel, hundred, max_records=1)
    assert batches[0][1]["base"] == 0


def test_max_records_is_exact_from_any_start(channel, hundred):
    for start in (0, 3, 10, 37, 99):
        for limit in (1, 2, 9, 10, 11, 35, 1000):
            batches, end = fetched(channel, hundred, start=start, max_records=limit)
            expected = list(range(start, min(100, start + limit)))
            assert [n for batch, _ in batches for n in batch["n"].to_pylist()] == expected
            assert end["next"] == start + len(expected)
            assert [facts["base"] for _, facts in batches][:1] == [start]


def test_higher_max_bytes_never_returns_fewer_records(channel, hundred):
    counts = []
    for limit in (1, 100, 300, 1000, 3000, 10_000, 10**9):
        batches, end = fetched(channel, hundred, max_bytes=limit)
        counts.append(end["next"])
        assert sum(batch.num_rows for batch, _ in batches) == end["next"]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 100)


def test_projection_is_applied_at_the_leader(channel, log, topic):
    schema = pa.schema([("small", pa.int64()), ("large", pa.binary())])
    log.create_topic(topic, schema=schema)
    with log.producer() as producer:
        rows = {"small": [1] * 100, "large": [b"x" * 10_000] * 100}
        producer.append(topic, pa.record_batch(rows, schema=schema))
    ((batch, _),), _ = fetched(channel, topic, columns=["small"])
    assert (batch.schema.names, batch.num_rows) == (["small"], 100)
    assert pa.ipc.get_record_batch_size(batch) < 5000
