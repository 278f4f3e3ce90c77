"""Topics made and deleted step by step: a script that stops leaves the old state or the new."""

from __future__ import annotations

from contextlib import suppress

import pytest
from msgspec.structs import replace

from isolog.errors import InvalidTopic, LeaderUnavailable, TopicExists, UnknownTopic
from spark_stream.cluster.partitions import Partitions
from spark_stream.cluster.topics import Topics
from spark_stream.scripts.steps import (
    DeleteRecord,
    MakeFolder,
    PutMany,
    PutRecord,
    ReadBounds,
    Together,
)
from spark_stream.scripts.topics import (
    alter_topic,
    create_topic,
    delete_topic,
    left_overs,
    remove_left_over,
)
from tests.scripts.on_store import OnStore
from tests.scripts.topic_stories import (
    ASSIGNMENT,
    B1,
    B2,
    B3,
    LATER,
    MADE,
    STEPS,
    added,
    announced,
    creation,
    everybody_looks,
    folders,
    grow,
    is_whole,
    placed,
    put_anew,
    sweep,
)

# -- creation -------------------------------------------------------------------------------------


def test_a_topic_is_found_as_it_was_made(on):
    on.run(creation(MADE))
    assert Topics(on.store).get("flights") == MADE
    records = Partitions(on.store).of_topic(MADE.id)
    assert [each.record for each in records] == placed(*ASSIGNMENT)
    assert on.folders == {("b1", "id1"), ("b2", "id1")}
    assert announced(on.store) == []


def test_a_second_topic_of_a_name_is_refused_and_the_first_stays(on):
    on.run(creation(MADE))
    with pytest.raises(TopicExists, match="'flights' exists already") as caught:
        on.run(creation(LATER))
    assert caught.value.details == {"topic": "flights"}
    assert (Topics(on.store).all(), announced(on.store)) == ([MADE], [])
    assert is_whole(on)


@pytest.mark.parametrize("steps", range(5))
def test_one_of_two_concurrent_creations_succeeds(on, other, steps):
    """The first one pauses before any of its steps, up to the write of the record."""
    late = on.start(creation(MADE))
    for _ in range(steps):
        late.advance()
    other.run(creation(LATER, B2))
    with pytest.raises(TopicExists):
        late.end()
    sweep(other)
    assert (Topics(on.store).all(), announced(on.store)) == ([LATER], [])
    assert is_whole(on)


@pytest.mark.parametrize("partitions", [1, 1_000])
def test_the_writes_of_a_creation_do_not_grow_with_partitions(on, partitions):
    on.run(creation(replace(MADE, partitions=partitions)))
    changes = [each for each in on.steps if isinstance(each, PutRecord | PutMany | DeleteRecord)]
    together = [each for each in on.steps if isinstance(each, Together)]
    assert (len(changes), len(together)) == (4, 2)


def test_each_broker_makes_one_folder_before_the_topic_exists(on):
    on.run(creation(MADE))
    first = next(each for each in on.steps if isinstance(each, Together))
    assert first.steps == tuple(MakeFolder(each, "flights", "id1") for each in (B1, B2))
    kinds = [type(each) for each in on.steps]
    assert kinds.index(Together) < kinds.index(PutMany) < len(kinds) - kinds[::-1].index(PutRecord)


def test_a_creation_fails_if_a_broker_cannot_be_reached(on):
    on.down = {B2}
    with pytest.raises(LeaderUnavailable, match="b2 is down"):
        on.run(creation(MADE))
    assert Topics(on.store).all() == []
    on.down = set()
    everybody_looks(on)
    assert (on.folders, announced(on.store)) == (set(), [])
    assert is_whole(on)


def test_a_creation_waits_for_leaders_that_do_not_serve_yet(on):
    """It asks a leader again only until that leader has answered."""
    asked = on.start(creation(MADE))
    real, left = on.carry_out, [3]

    def not_yet(step):
        found = real(step)
        if isinstance(step, Together) and isinstance(step.steps[0], ReadBounds) and left[0]:
            left[0] -= 1
            assert found == [None] * len(step.steps)
            return [LeaderUnavailable("not yet"), *found[1:]]
        return found

    on.carry_out = not_yet
    asked.end()
    assert on.paused_s == pytest.approx(3 * 0.05)
    questions = [each.steps for each in on.steps if isinstance(each, Together)][1:]
    # a partition that has answered gets no further step
    assert [len(each) for each in questions] == [4, 1, 1, 1]


def test_a_creation_gives_up_waiting_for_leaders(on):
    real = on.carry_out

    def never(step):
        found = real(step)
        if isinstance(step, Together) and isinstance(step.steps[0], ReadBounds):
            return [LeaderUnavailable("not yet")] * len(step.steps)
        return found

    on.carry_out = never
    on.run(creation(MADE))
    assert on.paused_s == pytest.approx(5.0)
    assert is_whole(on)


@pytest.mark.parametrize("first", [B1, B2])
@pytest.mark.parametrize("steps", STEPS)
def test_a_creation_that_stops_after_any_step_leaves_a_topic_or_none(on, steps, first):
    on.stops_after(creation(MADE), steps)
    everybody_looks(on, first)
    assert Topics(on.store).all() in ([], [MADE])
    assert is_whole(on)
    assert announced(on.store) == []
    if not Topics(on.store).all():
        on.run(creation(LATER))
        assert is_whole(on)


@pytest.mark.parametrize("looks", range(1, 4))
@pytest.mark.parametrize("steps", STEPS)
def test_a_stalled_maker_makes_a_topic_or_none(on, other, steps, looks):
    """Other brokers presumed it dead and removed its parts. Then it continues."""
    late = on.start(creation(MADE))
    for _ in range(steps):
        if not late.advance():
            break
    for _ in range(looks):
        sweep(other, B1)
    with suppress(InvalidTopic):
        late.end()
    for each in (on, other, on, other):
        sweep(each)
    assert Topics(on.store).all() in ([], [MADE])
    assert is_whole(on)
    assert announced(on.store) == []


@pytest.mark.parametrize("maker", [B1, B3])
@pytest.mark.parametrize("more", [1, 2, 3])
@pytest.mark.parametrize("looks", [1, 2, 4])
@pytest.mark.parametrize("steps", range(15))
def test_a_stalled_maker_that_dies_leaves_a_topic_or_none(on, steps, looks, more, maker):
    """Others removed its parts. It continues for some steps, and never sees the removal.

    ``maker``: it gets replicas, or none.
    """
    late = on.other(maker).start(creation(MADE, maker))
    for _ in range(steps):
        if not late.advance():
            break
    others = [on.other(each) for each in (B1, B2, B3) if each != maker]
    for _ in range(looks):
        for each in others:
            sweep(each, maker)
    for _ in range(more):
        if not late.advance():
            break
    for each in others * 2:  # it is dead
        sweep(each, maker)
    for topic in Topics(on.store).all():
        assert folders(topic) <= on.folders, "a topic without folders"
    sweep(on.other(maker), starts=True)
    for each in others * 2:
        sweep(each)
    assert Topics(on.store).all() in ([], [MADE])
    assert is_whole(on)
    assert announced(on.store) == []


def test_a_topic_of_a_live_maker_is_not_removed(on, other):
    late = on.start(creation(MADE))
    while late.advance():
        sweep(other)
        sweep(on)
    assert Topics(on.store).all() == [MADE]
    assert is_whole(on)


def test_a_creation_writes_only_the_planned_records(on):
    on.run(create_topic(LATER, placed((B2,)), B1))
    assert on.folders == {("b2", "id2")}


# -- deletion -------------------------------------------------------------------------------------


def test_the_name_of_a_deleted_topic_is_free(on, other):
    on.run(creation(MADE))
    on.run(delete_topic("flights"))
    assert Topics(on.store).all() == []
    for each in (on, other):
        sweep(each)
    assert (on.folders, announced(on.store)) == (set(), [])
    on.run(creation(LATER))
    assert Topics(on.store).all() == [LATER]
    assert is_whole(on)


def test_a_deletion_of_an_earlier_topic_leaves_the_present_one(on, other):
    """A broker that hung may carry out a request that its client has repeated elsewhere."""
    on.run(creation(MADE))
    on.run(delete_topic("flights", MADE.id))
    for each in (on, other):
        sweep(each)
    on.run(creation(LATER))
    with pytest.raises(UnknownTopic, match="deleted and created again"):
        on.run(delete_topic("flights", MADE.id))
    assert Topics(on.store).all() == [LATER]
    on.run(delete_topic("flights", LATER.id))
    assert Topics(on.store).all() == []


def test_a_broker_without_replicas_deletes_a_topic(on, other):
    on.run(creation(MADE))
    third = on.other(B3)
    third.run(delete_topic("flights"))
    assert on.folders == folders(MADE)  # it cannot remove files of others
    for each in (on, third, other):
        sweep(each)
    assert (on.folders, announced(on.store)) == (set(), [])
    assert is_whole(on)


def test_a_start_removes_folders_of_topics_deleted_in_the_meantime(on):
    on.run(creation(MADE))
    on.run(delete_topic("flights"))
    for _ in range(3):
        sweep(on)
    assert on.folders == {("b2", "id1")}
    assert announced(on.store) == ["id1"]
    sweep(on.other(B2), starts=True)
    assert (on.folders, announced(on.store)) == (set(), [])
    assert is_whole(on)


@pytest.mark.rule("the end of a topic's deletion", "scripts/topics.py")
@pytest.mark.parametrize("first", [B1, B2])
@pytest.mark.parametrize("steps", STEPS)
def test_a_deletion_that_stops_after_any_step_leaves_a_topic_or_none(on, steps, first):
    on.run(creation(MADE))
    ended = not on.stops_after(delete_topic("flights"), steps)
    everybody_looks(on, first)
    assert Topics(on.store).all() in ([], [MADE])
    assert not (ended and Topics(on.store).all())
    assert is_whole(on)
    if Topics(on.store).all():
        on.run(delete_topic("flights"))
        everybody_looks(on)
    assert (on.folders, announced(on.store)) == (set(), [])


@pytest.mark.parametrize("steps", STEPS)
def test_two_concurrent_deletions_leave_no_part(on, other, steps):
    on.run(creation(MADE))
    late = on.start(delete_topic("flights"))
    for _ in range(steps):
        late.advance()
    for delete in (lambda: other.run(delete_topic("flights")), late.end):
        with suppress(UnknownTopic):
            delete()
    for each in (on, other, on, other):
        sweep(each)
    assert (Topics(on.store).all(), on.folders, announced(on.store)) == ([], set(), [])
    assert is_whole(on)


def test_the_scripts_that_stop_stop_before_their_ends(on):
    """So the tests above stop them after each of their steps."""
    assert not OnStore(on.store).stops_after(creation(MADE), STEPS[-1])
    on.run(creation(replace(LATER, name="t", id="id3")))
    assert not on.stops_after(alter_topic("t", grow(3), added), STEPS[-1])
    assert not on.stops_after(delete_topic("t"), STEPS[-1])


@pytest.mark.parametrize("steps", STEPS)
def test_records_changed_by_leaders_during_a_deletion_are_removed(on, other, steps):
    """A leader proposes in-sync replicas until it sees that the topic was deleted."""
    on.run(creation(MADE))
    on.run(delete_topic("flights"))
    sweep(other)
    for record in on.run(left_overs()):
        last = on.start(remove_left_over(record, B1, ()))
        for _ in range(steps):
            last.advance()
        put_anew(on.store, MADE)
        last.end()
    sweep(on)
    assert is_whole(on)
    assert announced(on.store) == []


@pytest.mark.parametrize("steps", STEPS)
def test_left_overs_are_removed_and_a_later_topic_of_the_name_stays(on, steps):
    on.run(creation(MADE))
    on.stops_after(delete_topic("flights"), steps)
    if Topics(on.store).all():
        return  # it was not deleted yet
    on.run(creation(LATER))
    everybody_looks(on)
    assert (Topics(on.store).all(), announced(on.store)) == ([LATER], [])
    assert is_whole(on)


@pytest.mark.parametrize(
    "delete", [delete_topic, lambda name: alter_topic(name, lambda old: old, added)]
)
@pytest.mark.parametrize("name", ["flights", "", "a/b", "\0", "../x"])
def test_a_missing_topic_is_unknown_by_name(on, delete, name):
    on.run(creation(replace(MADE, name="flight")))
    with pytest.raises(UnknownTopic) as caught:
        on.run(delete(name))
    assert caught.value.details == {"topic": name}
