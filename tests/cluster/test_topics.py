"""Topics as records: how they are written and looked up, and which names they may have."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolog.errors import InvalidTopic, UnknownTopic
from spark_stream.cluster.stores.store import MetadataStore, StoreRecord
from spark_stream.cluster.topics import (
    PARTITIONS_MAX,
    TOPICS,
    Topic,
    Topics,
    check_name,
    check_partitions,
    decode,
    encode,
)
from spark_stream.schema.schemas import DEFAULT_SCHEMA

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("when", pa.timestamp("us", "Europe/Zurich")),
        pa.field("tags", pa.map_(pa.string(), pa.list_(pa.decimal128(10, 2)))),
    ],
    metadata={"owner": "me"},
)


def topic(name: str = "flights", **changes) -> Topic:
    facts = {"id": "id1", "schema": SCHEMA, "partitions": 4, "config": {"segment.ms": "1000"}}
    return Topic(name=name, **(facts | changes))


def write(store: MetadataStore, made: Topic) -> Topic:
    """Puts the topic's record into the store."""
    assert store.put(TOPICS + made.name, encode(made), 0)
    return made


@pytest.fixture
def topics(store) -> Topics:
    return Topics(store)


def test_a_topic_is_read_as_it_was_written(store, topics):
    made = write(store, topic())
    found = topics.get("flights")
    assert found == made
    assert found.schema.equals(SCHEMA, check_metadata=True)


def test_the_default_schema_survives(store, topics):
    write(store, topic(schema=DEFAULT_SCHEMA))
    assert topics.get("flights").schema.equals(DEFAULT_SCHEMA)


def test_topics_are_listed_by_name(store, topics):
    for name in ("b", "a-2", "a.1", "B"):
        write(store, topic(name))
    assert [each.name for each in topics.all()] == ["B", "a-2", "a.1", "b"]


@pytest.mark.parametrize("name", ["flights", "", "a/b", "\0", "../x"])
def test_a_missing_topic_is_unknown_by_name(store, topics, name):
    write(store, topic("flight"))
    with pytest.raises(UnknownTopic) as caught:
        topics.get(name)
    assert caught.value.details == {"topic": name}


@pytest.mark.parametrize("partitions", [0, -1, PARTITIONS_MAX + 1])
def test_a_number_of_partitions_out_of_range_is_refused(partitions):
    with pytest.raises(InvalidTopic, match=f"1 to {PARTITIONS_MAX} partitions, not {partitions}"):
        check_partitions(topic(partitions=partitions))


@pytest.mark.parametrize("partitions", [1, PARTITIONS_MAX])
def test_a_number_of_partitions_in_range_is_accepted(partitions):
    check_partitions(topic(partitions=partitions))


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "0", "-", "_", "a.", "a..b", "x" * 200])
def test_valid_names_are_accepted(store, topics, name):
    assert check_name(name) == name
    assert write(store, topic(name)) == topics.get(name)


BAD = ["", ".", "..", ".hidden", "a/b", "a\\b", "a b", "a\n", "ä", "a\0", "x" * 201, None, 7, b"a"]


@pytest.mark.rule("valid topic names and numbers of partitions", "cluster/topics.py")
@pytest.mark.parametrize("name", BAD, ids=lambda name: ascii(name)[:20])
def test_an_invalid_name_is_refused(name):
    with pytest.raises(InvalidTopic, match="is not a topic name"):
        check_name(name)


@given(st.text(max_size=10))
def test_an_accepted_name_is_one_plain_folder_name(name):
    try:
        check_name(name)
    except InvalidTopic:
        return
    assert name
    assert "/" not in name
    assert "\0" not in name
    assert not name.startswith(".")
    assert name.isascii()


# -- the codec -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["topics/flights", "removed/id1"])
def test_the_codec_keeps_a_topic(key):
    made = topic(replication_factor=3)
    found = decode(StoreRecord(key, json.loads(json.dumps(encode(made))), 1))
    assert found == made
    assert found.schema.equals(SCHEMA, check_metadata=True)


def test_a_topic_keeps_all_its_schemas():
    first = pa.schema([("a", pa.int32())])
    second = pa.schema([("a", pa.int64()), ("b", pa.string())])
    altered = Topic("t", "id", second, 1, {}, earlier=(first,))
    assert decode(StoreRecord("topics/t", encode(altered), 2)) == altered
