"""Consumer groups: the assignment of partitions to members, and the positions that they may store.

A group is one record, so each of these functions is one compare-and-set of its caller.

Invariants:

* A partition is assigned to one member at a time, and each time under a higher group epoch.
* A partition is taken from a live member only after the member has released it. A member that left,
  or whose session expired, loses all of its partitions together.
* A position is stored only for the member to whom its partition is assigned, if that assignment is
  no later than the epoch of the member's request. Within one assignment it moves back only after
  the member's seek.

A rebalance moves a partition from member A to member B while members read all others:
:func:`target` gives it to B. :func:`answer` revokes it from A. A stores its position and releases
it (:func:`release`). :func:`settle` assigns it to B. (Kafka: a cooperative rebalance.)
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import field
from msgspec.structs import replace

from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.transactions.transactions import PositionOf
from spark_stream.structs import (
    Name,
    OffsetField,
    PartitionField,
    Positional,
    Struct,
    learn_types,
)

Place = tuple[str, int]
"""Topic id and number of a partition."""


class Assigned(Positional):
    """A partition that a member reads, since this group epoch.

    ``turn``: the turn of the member's last position in the partition, see :class:`Owner`.
    """

    topic: Name
    topic_id: str
    partition: PartitionField
    epoch: OffsetField
    turn: OffsetField = 0

    @property
    def place(self) -> Place:
        """The partition, by its topic's id."""
        return self.topic_id, self.partition


class GroupMember(Positional):
    """One consumer of a group.

    ``session_ms``: without a heartbeat for this time it is removed. ``topics``: the topics that it
    can read. ``principal``: its principal, or empty at a broker without authentication.
    """

    id: Name
    topics: tuple[Name, ...]
    session_ms: int
    isolation: Isolation
    principal: str = ""
    assigned: tuple[Assigned, ...] = ()


class Group(Positional):
    """A group. Its ``epoch`` rises with each change of its members and of their assignments.

    ``first_counts``: the number of partitions of each topic, by its id, when the group first read
    it. Partitions that were added later are read from their first record on.
    """

    epoch: OffsetField = 0
    members: tuple[GroupMember, ...] = ()
    first_counts: Mapping[str, int] = field(default_factory=dict)

    def member(self, member_id: str) -> GroupMember | None:
        """Return the member of this id, or None."""
        return next((each for each in self.members if each.id == member_id), None)

    @property
    def isolation(self) -> Isolation | None:
        """The level that all members read under, or None if they differ, or there is none."""
        levels = {each.isolation for each in self.members}
        return levels.pop() if len(levels) == 1 else None

    def is_later(self, partition: Assigned) -> bool:
        """Return whether the partition was added after the group first read its topic."""
        return partition.partition >= self.first_counts.get(partition.topic_id, 0)


class KnownTopic(NamedTuple):
    """A topic as it is now."""

    id: str
    partitions: int


Topics = Mapping[str, KnownTopic]
"""The existing topics that the members of a group read, by name."""


# -- members --------------------------------------------------------------------------------------


def join(group: Group, member: GroupMember) -> Group:
    """Add a member, or change the topics of a present member.

    A present member adds topics that were created later and match its pattern. They are read from
    the first record on.
    """
    before = group.member(member.id)
    if before is None:
        members = sorted((*group.members, member), key=lambda each: each.id)
        return replace(group, epoch=group.epoch + 1, members=tuple(members))
    if before.topics == member.topics:
        return group
    return _changed(group, replace(before, topics=member.topics))


def remove(group: Group, member_id: str) -> Group:
    """Remove a member, and unassign its partitions."""
    if group.member(member_id) is None:
        return group
    rest = tuple(each for each in group.members if each.id != member_id)
    return replace(group, epoch=group.epoch + 1, members=rest)


def release(group: Group, member_id: str, released: Iterable[Assigned]) -> Group:
    """Unassign released partitions of a member. A release of an earlier assignment is a no-op."""
    member = group.member(member_id)
    gone = {(*each.place, each.epoch) for each in released}
    if member is None or not gone:
        return group
    kept = tuple(each for each in member.assigned if (*each.place, each.epoch) not in gone)
    if len(kept) == len(member.assigned):
        return group
    return _changed(group, replace(member, assigned=kept))


def note_topics(group: Group, topics: Topics, found_later: Collection[str] = ()) -> Group:
    """Record the number of partitions of new topics.

    ``found_later``: the names of topics that are read from their first record on.
    """
    new = {
        topic.id: 0 if name in found_later else topic.partitions
        for name, topic in topics.items()
        if topic.id not in group.first_counts
    }
    return replace(group, first_counts={**group.first_counts, **new}) if new else group


def _changed(group: Group, member: GroupMember) -> Group:
    members = tuple(member if each.id == member.id else each for each in group.members)
    return replace(group, epoch=group.epoch + 1, members=members)


# -- assignment -----------------------------------------------------------------------------------


def settle(group: Group, topics: Topics) -> Group:
    """Assign each free partition to the member that :func:`target` chooses."""
    taken = {each.place for member in group.members for each in member.assigned}
    names = {topic.id: name for name, topic in topics.items()}
    epoch = group.epoch + 1
    members = []
    wanted = target(group, topics)
    for member in group.members:
        free = sorted(wanted[member.id] - taken)
        new = [Assigned(names[topic_id], topic_id, number, epoch) for topic_id, number in free]
        members.append(replace(member, assigned=(*member.assigned, *new)) if new else member)
    if all(now is before for now, before in zip(members, group.members, strict=True)):
        return group
    return replace(group, epoch=epoch, members=tuple(members))


class MemberAnswer(Struct):
    """The partitions of a member since the ``epoch``, and those of them that it must release.

    The member reads all partitions that are assigned and not revoked.
    """

    epoch: OffsetField
    assigned: tuple[Assigned, ...]
    revoked: tuple[Assigned, ...]


def answer(group: Group, topics: Topics, member_id: str) -> MemberAnswer | None:
    """Return the assignment of a member, or None if the group has no such member."""
    member = group.member(member_id)
    if member is None:
        return None
    wanted = target(group, topics)[member_id]
    revoked = tuple(each for each in member.assigned if each.place not in wanted)
    return MemberAnswer(epoch=group.epoch, assigned=member.assigned, revoked=revoked)


def target(group: Group, topics: Topics) -> dict[str, set[Place]]:
    """Return the partitions that each member should have, by its id.

    Each partition that some member can read is in one set. No other distribution is more even, and
    partitions keep their members as far as that allows: free partitions move first.
    """
    loads = _Loads(group.members, topics)
    free = loads.keep_assigned()
    for name in sorted(topics, key=lambda name: (len(loads.readers[name]), name)):
        for number in range(topics[name].partitions):
            if loads.readers[name] and (name, number) in free:
                loads.give(name, number, loads.least(name))
    while path := loads.path():
        for one, other in path:
            loads.move(one, other, free)
    return {
        member: {(topics[name].id, number) for name, numbers in held.items() for number in numbers}
        for member, held in loads.of.items()
    }


class _Loads:
    """Partitions by member and topic name, while they are distributed."""

    def __init__(self, members: Sequence[GroupMember], topics: Topics) -> None:
        self._members = members
        self._topics = topics
        self.of: dict[str, dict[str, set[int]]] = {
            each.id: {name: set() for name in each.topics if name in topics} for each in members
        }
        self.readers: dict[str, list[str]] = defaultdict(list)
        """The ids of the members that can read a topic."""
        self._counts = dict.fromkeys(self.of, 0)
        for member, held in self.of.items():
            for name in held:
                self.readers[name].append(member)

    def keep_assigned(self) -> set[tuple[str, int]]:
        """Give members their assigned partitions. Return the free partitions."""
        free = {
            (name, number)
            for name, topic in self._topics.items()
            for number in range(topic.partitions)
        }
        for member in self._members:
            for each in member.assigned:
                place, topic = (each.topic, each.partition), self._topics.get(each.topic)
                is_there = topic is not None and topic.id == each.topic_id and place in free
                if is_there and each.topic in self.of[member.id]:
                    free.remove(place)
                    self.give(*place, member.id)
        return free

    def give(self, topic: str, number: int, member: str) -> None:
        self.of[member][topic].add(number)
        self._counts[member] += 1

    def least(self, topic: str) -> str:
        """Return the reader of the topic that has the fewest partitions, then of this topic."""
        return min(
            self.readers[topic],
            key=lambda each: (self._counts[each], len(self.of[each][topic]), each),
        )

    def path(self) -> list[tuple[str, str]]:
        """Return a chain of moves that makes the loads more even, from its end, or an empty list.

        Without such a chain no distribution is more even (Harvey et al., *Semi-matchings for
        bipartite graphs and load balancing*).
        """
        least = min(self._counts.values(), default=0)
        givers = [each for each, count in self._counts.items() if count >= least + 2]
        for giver in sorted(givers, key=lambda each: (-self._counts[each], each)):
            if found := self._path_from(giver):
                return found
        return []

    def _path_from(self, giver: str) -> list[tuple[str, str]]:
        """Return the shortest chain to a member with at least two partitions fewer."""
        before: dict[str, str] = {giver: giver}
        waiting = deque([giver])
        while waiting:
            one = waiting.popleft()
            given = [name for name, numbers in self.of[one].items() if numbers]
            reached = {other for name in given for other in self.readers[name]} - before.keys()
            for other in sorted(reached, key=lambda each: (self._counts[each], each)):
                before[other] = one
                if self._counts[other] <= self._counts[giver] - 2:
                    return list(_steps_to(other, before))
                waiting.append(other)
        return []

    def move(self, one: str, other: str, free: Collection[tuple[str, int]]) -> None:
        """Move a partition: a free one if there is any, of the least evenly spread topic."""

        def rank(place: tuple[str, int]) -> tuple[bool, int, str, int]:
            name, number = place
            more = len(self.of[one][name]) - len(self.of[other][name])
            return place in free, more, name, number

        places = (
            (name, number)
            for name, numbers in self.of[one].items()
            if name in self.of[other]
            for number in numbers
        )
        name, number = max(places, key=rank)
        self.of[one][name].remove(number)
        self._counts[one] -= 1
        self.give(name, number, other)


def _steps_to(last: str, before: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return a chain's moves from its end, so that each member has the partition it gives away."""
    steps = []
    while before[last] != last:
        steps.append((before[last], last))
        last = before[last]
    return steps


# -- positions ------------------------------------------------------------------------------------


class Owner(NamedTuple):
    """The state of a member when it stores positions.

    ``epoch``: the latest group epoch that it has received. ``turn``: its number of seeks. So a call
    that arrives late is detected: its partition is assigned since a later epoch, or the member has
    made another seek, or its position is below the stored one.
    """

    member: str
    epoch: int
    turn: int

    def __str__(self) -> str:
        """Return the text that takes the place of a named consumer's instance."""
        return f"{self.member}@{self.epoch}.{self.turn}"

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """Return the owner of a text, or None if it is that of a named consumer."""
        member, _, numbers = text.rpartition("@")
        epoch, dot, turn = numbers.partition(".")
        if not (member and dot and epoch.isdecimal() and turn.isdecimal()):
            return None
        return cls(member, int(epoch), int(turn))


def may_store(group: Group, owner: Owner, positions: Iterable[PositionOf]) -> bool:
    """Return whether all these partitions are assigned to the owner up to its epoch."""
    member = group.member(owner.member)
    if member is None:
        return False
    mine = {each.place for each in member.assigned if each.epoch <= owner.epoch}
    return all((each.topic_id, each.partition) in mine for each in positions)


def store(
    group: Group, owner: Owner, positions: Iterable[PositionOf], known: Iterable[PositionOf]
) -> tuple[Group, list[PositionOf]]:
    """Return the group, and the positions that are new. Late ones are left out.

    ``known``: the stored positions. Call :func:`may_store` before.
    """
    member = group.member(owner.member)
    assert member is not None
    turns = {each.place: each.turn for each in member.assigned}
    offsets = {(each.topic_id, each.partition): each.offset for each in known}
    new = []
    for each in positions:
        place = (each.topic_id, each.partition)
        if (owner.turn, each.offset) >= (turns[place], offsets.get(place, 0)):
            new.append(each)
            turns[place] = owner.turn
    if all(turns[each.place] == each.turn for each in member.assigned):
        return group, new
    assigned = tuple(replace(each, turn=turns[each.place]) for each in member.assigned)
    after = replace(member, assigned=assigned)
    members = tuple(after if each is member else each for each in group.members)
    return replace(group, members=members), new


learn_types(Group)
