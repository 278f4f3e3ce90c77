"""Several ranges in one fetch, compared with a fetch of each range."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import isolog
from isolog.errors import InvalidRequest, SchemaMismatch, UnknownTopic
from spark_stream.transport.client import ClientChannel
from spark_stream.wire.stream_messages import Fetch, FetchRange
from tests.support import NUMBERS, Channel, Fetching, fetched, numbers


@pytest.fixture(scope="module")
def topics(shared) -> list[str]:
    """Two topics of three partitions, with a batch in each and aborted records in some."""
    names = ["many-a", "many-b"]
    with shared.connect() as log:
        for name in names:
            log.create_topic(name, partitions=3, schema=NUMBERS)
            with log.producer() as producer:
                for partition in range(3):
                    producer.append(name, numbers(100 * partition, 7), partition=partition)
        with log.producer(transactional_id="many") as producer:
            producer.begin_transaction()
            producer.append("many-a", numbers(1000, 5), partition=1)
            producer.flush()
            producer.abort_transaction()
        with log.producer() as producer:
            producer.append("many-a", numbers(2000, 5), partition=1)
        log.create_topic("many-c", schema=pa.schema([("m", pa.string())]))
    return names


def one_by_one(
    channel: Channel, fetch: dict[str, Any], *, several: bool
) -> list[tuple[list[Any], Any]]:
    """Return the rows of each chunk with its facts, in the form of a fetch of several ranges.

    One of several ranges that reaches its end has no last message.
    """
    found, end = fetched(channel, **fetch)
    told = [(batch.to_pylist(), facts) for batch, facts in found]
    if several and told and told[-1][1]["next"] >= fetch["end"]:
        return told
    return [*told, ([], end)]


fetches = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["many-a", "many-b"]),
        "partition": st.integers(0, 2),
        "start": st.integers(-2, 7),
        "end": st.integers(0, 20),
        "isolation": st.sampled_from(["read_uncommitted", "read_committed"]),
    },
    optional={"max_records": st.integers(1, 5)},
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(fetches, min_size=1, max_size=6))
def test_each_range_has_the_answer_of_a_separate_fetch(shared, topics, asked):
    with shared.channel() as channel:
        found: list[list[tuple[list[Any], Any]]] = [[] for _ in asked]
        last = 0
        for batch, facts in Fetching(channel, *asked):
            number = facts.pop("range", 0)
            assert number >= last
            last = number
            found[number].append((batch.to_pylist(), facts))
        assert found == [one_by_one(channel, fetch, several=len(asked) > 1) for fetch in asked]


def test_error_in_one_range_ends_only_that_range(shared, topics):
    good = {"topic": "many-a", "partition": 0}
    asked = [
        good,
        {**good, "start": 99},
        {**good, "topic": "none"},
        {**good, "partition": 9},
        {**good, "topic_id": "old"},
        {**good, "leader_epoch": 77},
        {**good, "topic": "many-c", "columns": ["m"]},
        good,
    ]
    with shared.channel() as channel:
        found = list(Fetching(channel, *asked))
    rows = [(facts.get("range", 0), batch.num_rows) for batch, facts in found if batch.num_rows]
    assert rows == [(0, 7), (7, 7)]
    errors = {
        facts.get("range", 0): facts["error"]["code"] for _, facts in found if "error" in facts
    }
    assert errors == {
        1: "OFFSET_OUT_OF_RANGE",
        2: "UNKNOWN_TOPIC",
        3: "UNKNOWN_PARTITION",
        4: "UNKNOWN_TOPIC",
        5: "UNKNOWN_LEADER_EPOCH",
        6: "INVALID_REQUEST",
    }


@pytest.mark.parametrize(
    ("fetches", "error"),
    [
        ([], InvalidRequest),
        ([{"topic": "many-a", "partition": 0, "follow": True}] * 2, InvalidRequest),
        ([{"topic": "many-a", "partition": 0, "wait_ms": 1}] * 2, InvalidRequest),
        ([{"topic": "none", "partition": 0}], UnknownTopic),
        ([{"topic": "many-a", "partition": 0, "columns": ["x"]}], SchemaMismatch),
        ([{"topic": "many-a"}], InvalidRequest),
        (["many-a"], InvalidRequest),
    ],
)
def test_invalid_fetch_is_refused_as_a_whole(shared, topics, fetches, error):
    with shared.channel() as channel, pytest.raises(error):
        list(Fetching(channel, *fetches))


def test_topic_may_have_the_name_of_a_message_field(shared):
    with shared.connect() as log:
        log.create_topic("ranges", schema=NUMBERS)
        assert log.read("ranges").num_rows == 0
    assert isinstance(log, isolog.Log)


def test_whole_batches_are_sent_as_they_are_stored(shared, topics):
    channel = ClientChannel(shared.address, timeout_s=30)
    ranges = [
        FetchRange(topic="many-a", partition=0, columns=["n"]),
        FetchRange(topic="many-a", partition=1, start=3, end=6),
    ]
    stream = channel.open("fetch", b"", Fetch(ranges=ranges).to_bytes(), end=True, timeout_s=30)
    frames = []
    while (frame := stream.receive(30)) is not None:
        frames.append((bytes(frame.header), bytes(frame.body)))
    channel.close()
    (_, schema), *told = frames
    whole, end, part, *_ = told
    assert pa.ipc.read_schema(pa.py_buffer(schema)).names == ["n"]
    segments = [path.read_bytes() for path in shared.directory.rglob("*.arrow")]
    assert sum(whole[1] in segment for segment in segments) >= 1
    assert json.loads(end[0])["kind"] == "end"
    rows = pa.ipc.read_record_batch(pa.py_buffer(part[1]), pa.schema([("n", pa.int64())]))
    assert rows["n"].to_pylist() == [103, 104, 105]
