"""Consumer groups: partitions are spread evenly, stay where they are, and have one reader each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from spark_stream.consistency import groups
from spark_stream.consistency.groups import (
    Assigned,
    Group,
    GroupMember,
    KnownTopic,
    Owner,
    Place,
    Topics,
)
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.transactions.transactions import PositionOf
from tests.examples import examples

NAMES = ("a", "b", "c")
RULE = pytest.mark.rule(
    "the assignment of partitions to members of a group", "consistency/groups.py"
)


def member(name: str, topics: Iterable[str] = ("a",)) -> GroupMember:
    return GroupMember(name, tuple(sorted(topics)), 45_000, Isolation.READ_UNCOMMITTED)


def group_of(*members: GroupMember) -> Group:
    return Group(1, tuple(sorted(members, key=lambda each: each.id)))


def counts(group: Group) -> list[int]:
    return [len(each.assigned) for each in group.members]


def places(group: Group, name: str) -> set[Place]:
    found = group.member(name)
    assert found is not None
    return {each.place for each in found.assigned}


def release_all(group: Group, topics: Topics) -> Group:
    """Every member releases its revoked partitions immediately, until there are none."""
    while True:
        before = group
        for each in before.members:
            told = groups.answer(group, topics, each.id)
            assert told is not None
            group = groups.release(group, each.id, told.revoked)
        group = groups.settle(group, topics)
        if group == before:
            return group


# -- targets ---------------------------------------------------------------------------------------

topics_given = st.dictionaries(
    st.sampled_from(NAMES), st.integers(0, 6).map(lambda count: KnownTopic("", count)), max_size=3
).map(lambda found: {name: KnownTopic(f"{name}-id", at.partitions) for name, at in found.items()})


@st.composite
def groups_given(draw: st.DrawFn) -> tuple[Group, Topics]:
    """Any members with any partitions, some of deleted topics or topics that they cannot read."""
    topics = draw(topics_given)
    names = [f"m{number}" for number in range(draw(st.integers(1, 5)))]
    members = {
        name: member(name, draw(st.sets(st.sampled_from(NAMES), min_size=1))) for name in names
    }
    ids = [(name, f"{name}-id") for name in NAMES] + [("a", "a-before")]
    for (topic, topic_id), number in product(ids, range(6)):
        owner = draw(st.sampled_from([None, None, *names]))
        if owner is not None:
            more = Assigned(topic, topic_id, number, 1)
            members[owner] = replace(members[owner], assigned=(*members[owner].assigned, more))
    return group_of(*members.values()), topics


def least_squares(group: Group, topics: Topics) -> int:
    """The most even distribution, by trying all of them. Partitions of a topic are alike."""
    best = {(0,) * len(group.members)}
    for name, topic in topics.items():
        readers = [number for number, each in enumerate(group.members) if name in each.topics]
        for _ in range(topic.partitions if readers else 0):
            best = {
                (*loads[:reader], loads[reader] + 1, *loads[reader + 1 :])
                for loads in best
                for reader in readers
            }
    return min(sum(each * each for each in loads) for loads in best)


@RULE
@settings(max_examples=examples(1000), deadline=None)
@given(groups_given())
def test_every_partition_has_one_reader_and_no_distribution_is_more_even(given_: Any):
    group, topics = given_
    wanted = groups.target(group, topics)
    found = Counter(place for each in wanted.values() for place in each)
    read = {name for each in group.members for name in each.topics}
    there = {
        (topic.id, number)
        for name, topic in topics.items()
        if name in read
        for number in range(topic.partitions)
    }
    assert set(found) == there
    assert set(found.values()) <= {1}
    for each in group.members:
        assert {topic_id for topic_id, _ in wanted[each.id]} <= {
            topics[name].id for name in each.topics if name in topics
        }
    squares = sum(len(each) ** 2 for each in wanted.values())
    assert squares == least_squares(group, topics)


@settings(max_examples=examples(1000), deadline=None)
@given(st.integers(1, 6), st.integers(0, 30), st.data())
def test_members_that_read_the_same_move_as_few_partitions_as_can_be(
    members: int, partitions: int, data: st.DataObject
):
    topics = {"a": KnownTopic("a-id", partitions)}
    names = [f"m{number}" for number in range(members)]
    holders = [data.draw(st.sampled_from([None, *names])) for _ in range(partitions)]
    group = group_of(
        *(
            replace(
                member(name),
                assigned=tuple(
                    Assigned("a", "a-id", number, 1)
                    for number, holder in enumerate(holders)
                    if holder == name
                ),
            )
            for name in names
        )
    )
    wanted = groups.target(group, topics)
    moved = sum(len(places(group, name) - wanted[name]) for name in names)
    # The fullest members may keep one more, as many of them as there are left over.
    least, over = divmod(partitions, members)
    loads = sorted(counts(group), reverse=True)
    must = sum(max(0, load - least - (number < over)) for number, load in enumerate(loads))
    assert moved == must


def test_partitions_of_each_topic_are_spread():
    topics = {name: KnownTopic(name, 4) for name in NAMES}
    group = groups.settle(group_of(member("x", NAMES), member("y", NAMES)), topics)
    for each in group.members:
        assert Counter(at.topic for at in each.assigned) == dict.fromkeys(NAMES, 2)


def test_a_chain_of_moves_evens_loads_that_no_single_move_can():
    """The first can read only the second's partitions, and the third only others that the second
    can read."""
    topics = {"a": KnownTopic("a", 3), "b": KnownTopic("b", 2)}
    first = replace(
        member("1", "a"), assigned=tuple(Assigned("a", "a", number, 1) for number in range(3))
    )
    second = replace(
        member("2", "ab"), assigned=tuple(Assigned("b", "b", number, 1) for number in range(2))
    )
    wanted = groups.target(group_of(first, second, member("3", "b")), topics)
    assert sorted(len(each) for each in wanted.values()) == [1, 2, 2]


# -- one thing after another -----------------------------------------------------------------------


def test_a_member_that_joins_gets_partitions_only_once_they_are_released():
    topics = {"a": KnownTopic("a", 4)}
    group = groups.settle(group_of(member("1")), topics)
    group = groups.settle(groups.join(group, member("2")), topics)
    assert counts(group) == [4, 0]
    told = groups.answer(group, topics, "1")
    assert told is not None
    assert [each.partition for each in told.revoked] == [2, 3]
    group = groups.settle(groups.release(group, "1", told.revoked[:1]), topics)
    assert counts(group) == [3, 1]
    assert groups.release(group, "1", told.revoked[:1]) == group  # the call comes twice


def test_a_release_of_an_earlier_assignment_does_nothing():
    topics = {"a": KnownTopic("a", 1)}
    group = groups.settle(group_of(member("1")), topics)
    (first,) = group.members[0].assigned
    again = groups.settle(groups.release(group, "1", [first]), topics)
    (second,) = again.members[0].assigned
    assert second.epoch > first.epoch
    assert groups.release(again, "1", [first]) == again


def test_a_removed_member_loses_all_its_partitions():
    topics = {"a": KnownTopic("a", 3)}
    group = groups.settle(group_of(member("1"), member("2")), topics)
    group = groups.settle(groups.remove(group, "1"), topics)
    assert counts(group) == [3]
    assert groups.remove(group, "1") == group
    assert groups.answer(group, topics, "1") is None


def test_a_recreated_topic_is_another_topic():
    before, after = ({"a": KnownTopic(topic_id, 1)} for topic_id in ("old", "new"))
    group = groups.settle(group_of(member("1")), before)
    told = groups.answer(groups.settle(group, after), after, "1")
    assert told is not None
    assert [each.topic_id for each in told.assigned] == ["old", "new"]
    assert [each.topic_id for each in told.revoked] == ["old"]


def test_partitions_added_later_are_read_from_their_first_record():
    group = groups.note_topics(Group(), {"a": KnownTopic("a", 2)})
    group = groups.note_topics(
        group, {"a": KnownTopic("a", 5), "b": KnownTopic("b", 3)}, found_later=["b"]
    )
    assert group.first_counts == {"a": 2, "b": 0}
    assert groups.note_topics(group, {"a": KnownTopic("a", 5)}) is group


class GroupMachine(RuleBasedStateMachine):
    """A group under any sequence of events. No partition has two assignments of one epoch."""

    @initialize()
    def begin(self) -> None:
        self.group = Group()
        self.topics: dict[str, KnownTopic] = {}
        self.epochs: dict[Place, int] = {}
        self.ids = 0

    def change(self, after: Group) -> None:
        before, self.group = self.group, groups.settle(after, self.topics)
        assert self.group.epoch >= before.epoch
        old = {(*at.place, at.epoch) for each in before.members for at in each.assigned}
        for each in self.group.members:
            for at in each.assigned:
                if (*at.place, at.epoch) not in old:
                    assert at.epoch > self.epochs.get(at.place, 0)
                    self.epochs[at.place] = at.epoch

    @rule(topics=st.sets(st.sampled_from(NAMES), min_size=1))
    def join(self, topics: set[str]) -> None:
        self.ids += 1
        self.change(groups.join(self.group, member(f"m{self.ids}", topics)))

    @precondition(lambda self: self.group.members)
    @rule(data=st.data(), topics=st.sets(st.sampled_from(NAMES), min_size=1))
    def read_others(self, data: st.DataObject, topics: set[str]) -> None:
        one = data.draw(st.sampled_from(self.group.members))
        self.change(groups.join(self.group, member(one.id, topics)))

    @precondition(lambda self: self.group.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.change(groups.remove(self.group, data.draw(st.sampled_from(self.group.members)).id))

    @precondition(lambda self: self.group.members)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.group.members))
        told = groups.answer(self.group, self.topics, one.id)
        assert told is not None
        some = told.revoked[: data.draw(st.integers(0, 3))]
        self.change(groups.release(self.group, one.id, some))

    @rule(name=st.sampled_from(NAMES), more=st.integers(1, 3))
    def grow(self, name: str, more: int) -> None:
        found = self.topics.get(name, KnownTopic(f"{name}-{self.group.epoch}", 0))
        self.topics[name] = found._replace(partitions=found.partitions + more)
        self.change(self.group)

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        self.topics.pop(name, None)
        self.change(self.group)

    @invariant()
    def check_partitions_have_one_reader(self) -> None:
        found = Counter(at.place for each in self.group.members for at in each.assigned)
        assert set(found.values()) <= {1}

    @invariant()
    def check_it_comes_to_rest(self) -> None:
        """Once all have answered, the assignment is the target, and stays so."""
        rest = release_all(self.group, self.topics)
        wanted = groups.target(rest, self.topics)
        for each in rest.members:
            assert {at.place for at in each.assigned} == wanted[each.id]
        assert groups.settle(rest, self.topics) == rest


TestGroups = GroupMachine.TestCase
TestGroups.settings = settings(max_examples=examples(150), stateful_step_count=20, deadline=None)
TestGroups = RULE(TestGroups)


# -- positions -------------------------------------------------------------------------------------


def position(offset: int, number: int = 0) -> PositionOf:
    return PositionOf("g", "a", "a", number, offset)


def assigned_twice() -> tuple[Group, int, int]:
    """A group whose partition its member has had before, and both epochs."""
    topics = {"a": KnownTopic("a", 1)}
    first = groups.settle(group_of(member("1")), topics)
    other = groups.release(first, "1", first.members[0].assigned)
    second = groups.settle(other, topics)
    return second, first.epoch, second.epoch


@pytest.mark.rule("the positions that a group's member may store", "consistency/groups.py")
def test_a_position_needs_the_present_assignment():
    group, early, now = assigned_twice()
    assert groups.may_store(group, Owner("1", now, 0), [position(5)])
    assert not groups.may_store(group, Owner("1", early, 0), [position(5)])
    assert not groups.may_store(group, Owner("1", now, 0), [position(5), position(5, 1)])
    assert not groups.may_store(group, Owner("2", now, 0), [])


def test_a_lower_position_is_stored_only_after_a_seek():
    group, _, now = assigned_twice()
    owner = Owner("1", now, 0)
    known = [position(7)]
    assert groups.store(group, owner, [position(6)], known) == (group, [])
    assert groups.store(group, owner, [position(8)], known) == (group, [position(8)])
    sought, new = groups.store(group, owner._replace(turn=2), [position(3)], known)
    assert new == [position(3)]
    assert groups.store(sought, owner, [position(9)], new) == (sought, [])
    assert groups.store(sought, owner._replace(turn=2), [position(4)], new)[1] == [position(4)]


@given(st.text(min_size=1, max_size=40), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_an_owner_is_parsed_from_its_text(name: str, epoch: int, turn: int):
    owner = Owner(name, epoch, turn)
    assert Owner.parse(str(owner)) == owner


@pytest.mark.parametrize("text", ["0f3a", "@1.2", "a@1", "a@b.c", "a@1."])
def test_a_named_consumers_text_is_no_owner(text: str):
    assert Owner.parse(text) is None
