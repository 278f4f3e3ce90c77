"""Topics made, altered and deleted step by step: a script that stops leaves the old or the new."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_stream.cluster.store import MetadataStore
from spark_stream.cluster.topics import REMOVED, Topic, Topics
from spark_stream.errors import InvalidTopic, TopicExists, UnknownTopic
from spark_stream.scripts.steps import Delete, Put
from spark_stream.scripts.topics import (
    alter_topic,
    create_topic,
    delete_topic,
    left_overs,
    remove_left_over,
)
from spark_stream.testing.simulation.store import MemoryRecords, MemoryStore
from tests.scripts.on_store import OnStore

MADE = Topic("flights", "id1", pa.schema([("id", pa.int64())]), 4, {"segment.ms": "1000"}, "b1")
LATER = replace(MADE, id="id2", partitions=1)
STEPS = range(12)  # more than any script here takes


@pytest.fixture
def store() -> Iterator[MetadataStore]:
    found = MemoryStore(MemoryRecords())
    yield found
    found.close()


@pytest.fixture
def on(store) -> OnStore:
    return OnStore(store)


def files(*topics: Topic) -> set[tuple[str, int]]:
    return {(topic.id, number) for topic in topics for number in range(topic.partitions)}


def restart(on: OnStore) -> None:
    """What a broker does with what it finds: it removes files that have no topic."""
    for record in on.run(left_overs()):
        on.run(remove_left_over(record))


def test_a_topic_is_found_as_it_was_made(on):
    on.run(create_topic(MADE))
    found = Topics(on.store).get("flights")
    assert found == MADE
    assert (on.files, on.served) == (files(MADE), {"flights": MADE})
    assert on.store.list(REMOVED) == []


def test_a_second_topic_of_a_name_is_refused_and_the_first_stays(on):
    on.run(create_topic(MADE))
    with pytest.raises(TopicExists, match="'flights' already") as caught:
        on.run(create_topic(LATER))
    assert caught.value.details == {"topic": "flights"}
    assert (Topics(on.store).all(), on.files) == ([MADE], files(MADE))


@pytest.mark.parametrize("steps", range(4))
def test_of_two_that_make_a_topic_at_once_one_does(on, steps):
    """The first stands before any of its steps up to the write of the record."""
    late = on.start(create_topic(MADE))
    for _ in range(steps):
        late.advance()
    on.run(create_topic(LATER))
    with pytest.raises(TopicExists):
        late.end()
    assert Topics(on.store).all() == [LATER]
    assert on.files == files(LATER)
    assert on.store.list(REMOVED) == []


@pytest.mark.parametrize("partitions", [1, 1_000])
def test_a_creation_changes_the_store_as_often_however_many_partitions_there_are(on, partitions):
    on.run(create_topic(replace(MADE, partitions=partitions)))
    assert len([step for step in on.steps if isinstance(step, Put | Delete)]) == 3


@pytest.mark.parametrize("steps", STEPS)
def test_a_creation_that_stops_after_any_step_leaves_a_topic_or_nothing(store, steps):
    on = OnStore(store)
    on.stops_after(create_topic(MADE), steps)
    restart(on)
    there = Topics(store).all()
    assert there in ([], [MADE])
    assert on.files == files(*there)
    assert store.list(REMOVED) == []
    if not there:
        on.run(create_topic(LATER))


def test_a_deleted_topic_is_gone_and_its_name_is_free(on):
    on.run(create_topic(MADE))
    on.run(delete_topic("flights"))
    assert (Topics(on.store).all(), on.files, on.served) == ([], set(), {})
    on.run(create_topic(LATER))
    assert (Topics(on.store).all(), on.files) == ([LATER], files(LATER))


@pytest.mark.parametrize("steps", STEPS)
def test_a_deletion_that_stops_after_any_step_leaves_a_topic_or_nothing(on, steps):
    on.run(create_topic(MADE))
    ended = not on.stops_after(delete_topic("flights"), steps)
    restart(on)
    there = Topics(on.store).all()
    assert there in ([], [MADE])
    assert not (ended and there)
    assert on.files == files(*there)
    assert on.store.list(REMOVED) == []


def test_the_scripts_that_stop_stop_before_their_ends(on):
    """So the tests above stop them after each of their steps."""
    assert not OnStore(on.store).stops_after(create_topic(MADE), STEPS[-1])
    on.run(create_topic(replace(LATER, name="t", id="id3")))
    assert not on.stops_after(delete_topic("t"), STEPS[-1])


@pytest.mark.parametrize("steps", STEPS)
def test_what_is_left_of_a_deleted_topic_goes_and_a_later_topic_of_its_name_stays(on, steps):
    on.run(create_topic(MADE))
    on.stops_after(delete_topic("flights"), steps)
    if Topics(on.store).all():
        return  # it was not deleted yet
    on.run(create_topic(LATER))
    restart(on)
    assert Topics(on.store).all() == [LATER]
    assert on.files == files(LATER)
    assert on.store.list(REMOVED) == []


@pytest.mark.parametrize("delete", [delete_topic, lambda name: alter_topic(name, lambda old: old)])
@pytest.mark.parametrize("name", ["flights", "", "a/b", "\0", "../x"])
def test_a_topic_that_is_not_there_is_unknown_by_name(on, delete, name):
    on.run(create_topic(replace(MADE, name="flight")))
    with pytest.raises(UnknownTopic) as caught:
        on.run(delete(name))
    assert caught.value.details == {"topic": name}


# -- alterations ----------------------------------------------------------------------------------


def grow(partitions: int) -> Callable[[Topic], Topic]:
    return lambda old: replace(old, partitions=partitions)


def test_a_topic_is_altered(on):
    on.run(create_topic(MADE))
    altered = on.run(alter_topic("flights", grow(6)))
    assert altered == replace(MADE, partitions=6)
    assert Topics(on.store).get("flights") == altered
    assert (on.files, on.served) == (files(altered), {"flights": altered})


def test_a_topic_that_somebody_else_changed_meanwhile_is_not_overwritten(on):
    on.run(create_topic(MADE))
    late = on.start(alter_topic("flights", grow(9)))
    late.advance()  # it has read
    altered = on.run(alter_topic("flights", lambda old: replace(old, config={"segment.ms": "7"})))
    with pytest.raises(InvalidTopic, match="by somebody else"):
        late.end()
    assert Topics(on.store).all() == [altered]
    assert on.files == files(MADE)


def test_a_topic_that_was_deleted_meanwhile_is_not_altered(on):
    on.run(create_topic(MADE))
    late = on.start(alter_topic("flights", grow(9)))
    late.advance()  # it has read
    on.run(delete_topic("flights"))
    with pytest.raises(InvalidTopic, match="by somebody else"):
        late.end()
    assert (Topics(on.store).all(), on.files) == ([], set())
