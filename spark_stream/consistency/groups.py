"""Consumer groups: which member reads which partition, and which position it may store.

A group is one record, so each of these functions is one compare-and-set of its caller.

Invariants:

* A partition is assigned to one member at a time, and each time under a higher group epoch.
* A partition is taken from a member that is alive only after the member has released it. A member
  that left, or whose session is over, loses all at once.
* A position is stored only for the member to whom its partition is assigned since no later epoch
  than the member knows; within one assignment it moves back only after the member's seek.

How a partition moves from member A to member B, while all others are read on: :func:`target` gives
it to B; :func:`answer` tells A to release it; A stores its position and releases it
(:func:`release`); :func:`settle` assigns it to B.
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

    ``turn``: that of the member's last position here; see :class:`Owner`.
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
    """One consumer of a group. ``session_ms``: without a heartbeat for so long it is removed.

    ``topics``: those that it can read. ``principal``: who it is; empty if callers are not known.
    """

    id: Name
    topics: tuple[Name, ...]
    session_ms: int
    isolation: Isolation
    principal: str = ""
    assigned: tuple[Assigned, ...] = ()


class Group(Positional):
    """A group. Its ``epoch`` rises with each change of its members and of what they read.

    ``first_counts``: how many partitions each topic had, by its id, when the group first read it.
    Partitions that came later are read from their first record on.
    """

    epoch: OffsetField = 0
    members: tuple[GroupMember, ...] = ()
    first_counts: Mapping[str, int] = field(default_factory=dict)

    def member(self, member_id: str) -> GroupMember | None:
        """Return the member of this id, or None."""
        return next((each for each in self.members if each.id == member_id), None)

    @property
    def isolation(self) -> Isolation | None:
        """The level that all members read under; None if they differ, or there is none."""
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
"""The topics that the members of a group read, by name; those that do not exist are missing."""


# -- members --------------------------------------------------------------------------------------


def join(group: Group, member: GroupMember) -> Group:
    """Add a member, or change which topics a present member reads.

    Topics that a present member adds were found by its pattern: they are read from the first record
    on.
    """
    before = group.member(member.id)
    if before is None:
        members = sorted((*group.members, member), key=lambda each: each.id)
        return replace(group, epoch=group.epoch + 1, members=tuple(members))
    if before.topics == member.topics:
        return group
    return _changed(group, replace(before, topics=member.topics))


def remove(group: Group, member_id: str) -> Group:
    """Remove a member, with all that is assigned to it."""
    if group.member(member_id) is None:
        return group
    rest = tuple(each for each in group.members if each.id != member_id)
    return replace(group, epoch=group.epoch + 1, members=rest)


def release(group: Group, member_id: str, released: Iterable[Assigned]) -> Group:
    """Take from a member what it gives up; a release from an earlier assignment does nothing."""
    member = group.member(member_id)
    gone = {(*each.place, each.epoch) for each in released}
    if member is None or not gone:
        return group
    kept = tuple(each for each in member.assigned if (*each.place, each.epoch) not in gone)
    if len(kept) == len(member.assigned):
        return group
    return _changed(group, replace(member, assigned=kept))


def note_topics(group: Group, topics: Topics, found_later: Collection[str] = ()) -> Group:
    """Note how many partitions new topics have; ``found_later``: read all of them from the first.

    Both are names.
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


# -- who reads what -------------------------------------------------------------------------------


def settle(group: Group, topics: Topics) -> Group:
    """Assign all partitions that are free, each to the member that is to have it."""
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
    """All that is assigned to a member since the ``epoch``, and the part that it must release.

    The member reads all partitions that are assigned and not revoked.
    """

    epoch: OffsetField
    assigned: tuple[Assigned, ...]
    revoked: tuple[Assigned, ...]


def answer(group: Group, topics: Topics, member_id: str) -> MemberAnswer | None:
    """Return what to tell a member; None if it is none."""
    member = group.member(member_id)
    if member is None:
        return None
    wanted = target(group, topics)[member_id]
    revoked = tuple(each for each in member.assigned if each.place not in wanted)
    return MemberAnswer(epoch=group.epoch, assigned=member.assigned, revoked=revoked)


def target(group: Group, topics: Topics) -> dict[str, set[Place]]:
    """Return which partitions each member is to have, by its id.

    Each partition that some member can read is in one set. No other distribution is more even, and
    partitions stay where they are as far as that allows: those that are free move first.
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
        """Leave partitions where they are; return those that no member has."""
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
        """Return a chain of moves that makes the loads more even, its last move first; or none.

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
        """Move a partition: a free one if there is any, of the topic that is least even."""

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
    """Return the moves of a chain, the last one first: so each member has what it passes on."""
    steps = []
    while before[last] != last:
        steps.append((before[last], last))
        last = before[last]
    return steps


# -- positions ------------------------------------------------------------------------------------


class Owner(NamedTuple):
    """A member as one who stores positions: what it knows by then.

    ``epoch``: the latest group epoch of which it was told. ``turn``: how often it has moved by a
    seek. So a call that arrives late is recognised: its partition is assigned since a later epoch,
    or its turn is over, or its position is below the one that is stored.
    """

    member: str
    epoch: int
    turn: int

    def __str__(self) -> str:
        """Return the text that stands where a named consumer's instance does."""
        return f"{self.member}@{self.epoch}.{self.turn}"

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """Return the owner of a text; None if it is that of a named consumer."""
        member, _, numbers = text.rpartition("@")
        epoch, dot, turn = numbers.partition(".")
        if not (member and dot and epoch.isdecimal() and turn.isdecimal()):
            return None
        return cls(member, int(epoch), int(turn))


def may_store(group: Group, owner: Owner, positions: Iterable[PositionOf]) -> bool:
    """Return whether all these partitions are assigned to the owner, as far as it knows."""
    member = group.member(owner.member)
    if member is None:
        return False
    mine = {each.place for each in member.assigned if each.epoch <= owner.epoch}
    return all((each.topic_id, each.partition) in mine for each in positions)


def store(
    group: Group, owner: Owner, positions: Iterable[PositionOf], known: Iterable[PositionOf]
) -> tuple[Group, list[PositionOf]]:
    """Return the group, and the positions that are new; late ones are left out.

    ``known``: the stored ones. Call :func:`may_store` before.
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
