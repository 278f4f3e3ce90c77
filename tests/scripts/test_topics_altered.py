"""Topics altered step by step: a script that stops leaves the old state or the new."""

from __future__ import annotations

from contextlib import suppress

import pytest
from msgspec.structs import replace

from isolog.errors import InvalidTopic, LeaderUnavailable
from spark_stream.cluster.partitions import PartitionId, Partitions
from spark_stream.cluster.topics import Topics
from spark_stream.scripts.topics import alter_topic, delete_topic
from tests.scripts.on_store import Driven, OnStore
from tests.scripts.topic_stories import (
    ASSIGNMENT,
    B2,
    B3,
    MADE,
    STEPS,
    added,
    announced,
    creation,
    everybody_looks,
    folders,
    grow,
    is_whole,
    on_third,
    placed,
    sweep,
)
from tests.simulation.store import MemoryRecords, MemoryStore


def growing(on: OnStore, partitions: int, steps: int) -> Driven:
    """A script that gives the topic, made just now, more partitions, after so many steps."""
    on.run(creation(MADE))
    late = on.start(alter_topic("flights", grow(partitions), on_third))
    for _ in range(steps):
        late.advance()
    return late


def test_a_topic_gets_more_partitions(on):
    on.run(creation(MADE))
    altered = on.run(alter_topic("flights", grow(6), on_third))
    assert altered == replace(MADE, partitions=6)
    assert Topics(on.store).get("flights") == altered
    records = Partitions(on.store).of_topic(MADE.id)
    assert [each.record for each in records] == placed(*ASSIGNMENT, (B3,), (B3,))
    assert on.folders == {*folders(MADE), ("b3", "id1")}
    assert announced(on.store) == []


def test_changed_settings_keep_the_records_of_partitions(on):
    on.run(creation(MADE))
    before = Partitions(on.store).of_topic(MADE.id)
    on.run(alter_topic("flights", lambda old: replace(old, config={"segment.ms": "7"}), added))
    assert Topics(on.store).get("flights").config == {"segment.ms": "7"}
    assert Partitions(on.store).of_topic(MADE.id) == before


def test_a_concurrently_changed_topic_is_not_overwritten(on):
    on.run(creation(MADE))
    late = on.start(alter_topic("flights", grow(9), added))
    late.advance()  # it has read
    config = {"segment.ms": "7"}
    altered = on.run(alter_topic("flights", lambda old: replace(old, config=config), added))
    with pytest.raises(InvalidTopic, match="was changed concurrently"):
        late.end()
    assert Topics(on.store).all() == [altered]
    assert on.folders == folders(MADE)


@pytest.mark.parametrize("steps", range(1, 20))
def test_one_of_two_concurrent_additions_of_partitions_succeeds(on, other, steps):
    """The first one pauses after any step. The partitions are where one of the two placed them."""
    late = growing(on, 6, steps)
    six = Topics(on.store).get("flights").partitions == 6
    for ask in (lambda: other.run(alter_topic("flights", grow(8), added)), late.end):
        with suppress(InvalidTopic):
            ask()
    (topic,) = Topics(on.store).all()
    if six:
        wanted = [(B3,), (B3,), *ASSIGNMENT[2:]]
    else:
        wanted = {6: [(B3,), (B3,)], 8: ASSIGNMENT}[topic.partitions]
    records = Partitions(on.store).of_topic(MADE.id)[: topic.partitions]
    assert [each.record for each in records] == placed(*ASSIGNMENT, *wanted)
    for number in range(topic.partitions):
        found = Partitions(on.store).get(PartitionId(topic.id, number))
        assert found is not None
        assert {(str(each), topic.id) for each in found.record.replicas} <= on.folders


@pytest.mark.rule("concurrent additions of partitions to a topic", "scripts/topics.py")
@pytest.mark.parametrize("steps", range(20))
def test_interleaved_additions_of_partitions_overwrite_no_record(steps):
    """Once the topic has a partition, the partition's record is its leader's."""
    for others_steps in range(20):
        first = OnStore(MemoryStore(MemoryRecords()))
        second = first.other(B2)
        first.run(creation(MADE))
        early = first.start(alter_topic("flights", grow(6), on_third))
        late = second.start(alter_topic("flights", grow(6), added))
        turns = [(early, steps), (late, others_steps), (early, 20), (late, 20)]
        refused = 0
        for driven, most in turns:
            before = Topics(first.store).all()[0].partitions
            records = Partitions(first.store).of_topic(MADE.id)
            try:
                while most and driven.advance():
                    most -= 1
            except InvalidTopic:
                refused += 1
            if before == 6:
                assert Partitions(first.store).of_topic(MADE.id) == records
        assert Topics(first.store).all() == [replace(MADE, partitions=6 if refused < 2 else 4)]


@pytest.mark.parametrize("steps", range(1, 20))
def test_a_topic_deleted_during_an_alteration_leaves_no_part(on, other, steps):
    late = growing(on, 9, steps)
    other.run(delete_topic("flights"))
    with suppress(InvalidTopic):
        late.end()
    third = on.other(B3)
    for each in (on, other, third, on, other, third):
        sweep(each)
    assert (Topics(on.store).all(), on.folders, announced(on.store)) == ([], set(), [])
    assert is_whole(on)


@pytest.mark.parametrize("steps", STEPS)
def test_an_alteration_that_stops_after_any_step_leaves_the_old_or_the_new(on, steps):
    on.run(creation(MADE))
    ended = not on.stops_after(alter_topic("flights", grow(6), on_third), steps)
    everybody_looks(on)
    (topic,) = Topics(on.store).all()
    assert topic.partitions in ((6,) if ended else (4, 6))
    for number in range(topic.partitions):
        found = Partitions(on.store).get(PartitionId(topic.id, number))
        assert found is not None
        assert {(str(each), topic.id) for each in found.record.replicas} <= on.folders
    on.run(delete_topic("flights"))
    everybody_looks(on)
    assert (on.folders, announced(on.store)) == (set(), [])
    assert is_whole(on)


def test_an_abandoned_alteration_can_be_repeated(on):
    """Its left-overs of new partitions are overwritten."""
    on.run(creation(MADE))
    given_up = on.start(alter_topic("flights", grow(6), on_third))
    while len(Partitions(on.store).of_topic(MADE.id)) == 4:
        given_up.advance()
    on.run(alter_topic("flights", grow(6), added))
    records = Partitions(on.store).of_topic(MADE.id)
    assert [each.record for each in records] == placed(*ASSIGNMENT, *ASSIGNMENT[:2])


def test_an_alteration_by_a_broker_that_is_down_changes_nothing(on):
    on.run(creation(MADE))
    on.down = {B3}
    with pytest.raises(LeaderUnavailable, match="b3 is down"):
        on.run(alter_topic("flights", grow(6), on_third))
    assert Topics(on.store).all() == [MADE]
    assert is_whole(on)
