"""Topics as records: made, found, deleted; what is no topic is refused by name."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.cluster.store import Record
from spark_stream.cluster.topics import (
    PARTITIONS_MAX,
    Topic,
    Topics,
    check_name,
    decode,
    encode,
)
from spark_stream.errors import InvalidTopic, TopicExists, UnknownTopic
from spark_stream.testing.simulation.store import MemoryRecords, MemoryStore
from spark_stream.wire.schemas import DEFAULT_SCHEMA

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


@pytest.fixture
def topics(store) -> Topics:
    return Topics(store)


def test_a_topic_is_found_as_it_was_made(topics):
    made = topics.create(topic())
    found = topics.get("flights")
    assert found == made
    assert found.schema.equals(SCHEMA, check_metadata=True)


def test_the_default_schema_survives(topics):
    topics.create(topic(schema=DEFAULT_SCHEMA))
    assert topics.get("flights").schema.equals(DEFAULT_SCHEMA)


def test_topics_are_listed_by_name(topics):
    for name in ("b", "a-2", "a.1", "B"):
        topics.create(topic(name))
    assert [each.name for each in topics.all()] == ["B", "a-2", "a.1", "b"]


def test_a_second_topic_of_a_name_is_refused_and_the_first_stays(topics):
    topics.create(topic())
    with pytest.raises(TopicExists, match="'flights' already") as caught:
        topics.create(topic(id="id2", partitions=1))
    assert caught.value.details == {"topic": "flights"}
    assert topics.get("flights").id == "id1"


def test_a_deleted_topic_is_gone_and_its_name_is_free(topics):
    made = topics.create(topic())
    assert topics.delete("flights") == made
    assert topics.all() == []
    assert topics.create(topic(id="id2")).id == "id2"
    assert topics.get("flights").id == "id2"


@pytest.mark.parametrize("call", [Topics.get, Topics.delete])
@pytest.mark.parametrize("name", ["flights", "", "a/b", "\0", "../x"])
def test_a_topic_that_is_not_there_is_unknown_by_name(topics, call, name):
    topics.create(topic("flight"))
    with pytest.raises(UnknownTopic) as caught:
        call(topics, name)
    assert caught.value.details == {"topic": name}


def test_of_two_who_make_a_topic_one_does(another):
    one, two = Topics(another()), Topics(another())
    one.create(topic(id="one"))
    with pytest.raises(TopicExists):
        two.create(topic(id="two"))
    assert two.get("flights").id == "one"


@pytest.mark.parametrize("partitions", [0, -1, PARTITIONS_MAX + 1])
def test_a_number_of_partitions_out_of_range_is_refused(topics, partitions):
    with pytest.raises(InvalidTopic, match=f"1 to {PARTITIONS_MAX} partitions, not {partitions}"):
        topics.create(topic(partitions=partitions))
    assert topics.all() == []


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "0", "-", "_", "a.", "a..b", "x" * 200])
def test_good_names(topics, name):
    assert check_name(name) == name
    assert topics.create(topic(name)) == topics.get(name)


BAD = ["", ".", "..", ".hidden", "a/b", "a\\b", "a b", "a\n", "ä", "a\0", "x" * 201, None, 7, b"a"]


@pytest.mark.parametrize("name", BAD, ids=lambda name: ascii(name)[:20])
def test_a_bad_name_is_refused(topics, name):
    with pytest.raises(InvalidTopic, match="is not a topic name"):
        topics.create(topic(name))
    assert topics.all() == []


@given(st.text(max_size=10))
def test_a_name_that_is_taken_is_one_plain_folder_name(name):
    try:
        check_name(name)
    except InvalidTopic:
        return
    assert name
    assert "/" not in name
    assert "\0" not in name
    assert not name.startswith(".")
    assert name.isascii()


def test_a_topic_is_replaced_only_by_who_knows_it_as_it_is(topics):
    old = topics.create(topic())
    new = topic(partitions=6, config={"segment.ms": "2000"})
    assert topics.replace(old, new) == new
    assert topics.get("flights") == new
    with pytest.raises(InvalidTopic, match="by somebody else"):
        topics.replace(old, topic(partitions=9))
    with pytest.raises(InvalidTopic, match="1 to 10000"):
        topics.replace(new, topic(partitions=PARTITIONS_MAX + 1))
    assert topics.get("flights") == new
    topics.delete("flights")
    with pytest.raises(UnknownTopic, match="flights"):
        topics.replace(new, new)


# -- leaders --------------------------------------------------------------------------------------


def test_a_broker_finds_the_topics_that_it_leads(topics):
    for name, leader in (("a", "b1"), ("b", "b2"), ("c", "b1")):
        topics.create(topic(name, leader=leader))
    assert [each.name for each in topics.led_by("b1")] == ["a", "c"]
    assert topics.get("b").leader == "b2"
    assert topics.led_by("b3") == []


def earlier_release(store, name: str) -> None:
    """A record as a release wrote it that knew one broker only."""
    value = encode(topic(name))
    del value["name"], value["leader"]
    store.put(f"topics/{name}", value, 0)


def test_topics_of_an_earlier_release_have_no_leader_until_a_broker_adopts_them(store, topics):
    earlier_release(store, "old")
    topics.create(topic("new", id="id2", leader="b2"))
    assert topics.get("old") == topic("old")
    assert topics.get("old").leader == ""
    topics.adopt("b1")
    topics.adopt("b2")
    assert [each.name for each in topics.led_by("b1")] == ["old"]
    assert [each.name for each in topics.led_by("b2")] == ["new"]


def test_a_topic_of_a_thousand_partitions_is_made_by_one_change(store):
    """Versions count the changes of a store, so two that follow one another tell that none is
    between them."""
    before = store.put("before", {}, 0)
    Topics(store).create(topic(partitions=1_000))
    assert store.put("after", {}, 0) == before + 2


# -- deletion in steps ----------------------------------------------------------------------------


def test_a_deleted_topic_is_among_the_removed_until_it_is_forgotten(topics):
    made = topics.create(topic(leader="b1"))
    topics.delete("flights")
    assert topics.removed() == [made]
    topics.forget("id1")
    topics.forget("id1")
    assert topics.removed() == []


def test_each_removed_topic_of_one_name_is_known_by_its_id(topics):
    for topic_id in ("id1", "id2"):
        topics.create(topic(id=topic_id))
        topics.delete("flights")
    third = topics.create(topic(id="id3"))
    assert [each.id for each in topics.removed()] == ["id1", "id2"]
    topics.forget("id1")
    assert [each.id for each in topics.removed()] == ["id2"]
    assert topics.all() == [third]


class DyingStore(MemoryStore):
    """A store whose broker dies before a change of its choice."""

    changes_left = 10**9

    def _die_in_time(self) -> None:
        self.changes_left -= 1
        if self.changes_left < 0:
            raise Died

    def put(self, key, value, expected):
        self._die_in_time()
        return super().put(key, value, expected)

    def delete(self, key, expected):
        self._die_in_time()
        return super().delete(key, expected)


class Died(Exception):
    """The broker ended here."""


@pytest.mark.parametrize("changes", [0, 1, 2])
def test_a_deletion_that_broke_off_is_found_and_finished(changes):
    """Before its first change the topic is there; after it the topic is deleted in the end."""
    records = MemoryRecords()
    dying = DyingStore(records)
    made = Topics(dying).create(topic(leader="b1"))
    dying.changes_left = changes
    try:
        Topics(dying).delete("flights")
    except Died:
        assert changes < 2

    topics = Topics(MemoryStore(records))
    for removed in topics.removed():
        topics.finish_deletion(removed)
    if changes == 0:
        assert (topics.all(), topics.removed()) == ([made], [])
    else:
        assert (topics.all(), topics.removed()) == ([], [made])
        topics.create(topic(id="id2"))


def test_finishing_an_old_deletion_leaves_a_later_topic_of_the_name_alone(topics):
    old = topics.create(topic())
    topics.delete("flights")
    later = topics.create(topic(id="id2"))
    topics.finish_deletion(old)
    assert topics.all() == [later]


@pytest.mark.parametrize("key", ["topics/flights", "removed/id1"])
def test_the_codec_keeps_a_topic(key):
    made = topic(leader="b1")
    found = decode(Record(key, json.loads(json.dumps(encode(made))), 1))
    assert found == made
    assert found.schema.equals(SCHEMA, check_metadata=True)
