"""Every change of a partition's record, as a function from the record to the next one.

Each change is one compare-and-set on the record as it was read. A change that is not allowed gives
:class:`Unchanged`, with the obstacle. Two brokers that decide at the same time do no harm: one
compare-and-set wins, and the other broker reads the record again.

| change | requested by | leader | epoch | in-sync replicas |
|---|---|---|---|---|
| ``create`` | the partition's creator | the first that is alive | 0 | all that are alive |
| ``elect`` | the controller | the first live member | + 1 | the live members |
| ``elect_longest`` | the controller | the longest log | + 1 | the new leader |
| ``resume`` | the leader, after a start | the same | + 1 | the same |
| ``resign`` | the leader | the next live member | + 1 | the live members without it |
| ``prefer`` | an operator, the leader | the first of the replicas | + 1 | the same |
| ``lift_epoch`` | the leader, whose log has a later epoch | the same | after its log's | the same |
| ``propose_isr`` | the leader of this epoch | the same | the same | what the leader found |
| ``leave_isr`` | a follower | the same | the same | without it |
| ``begin_move`` | an operator | the same | the same | the same |
| ``finish_move`` | the controller | the same if it stays | else + 1 | those that stay |
| ``cancel_move`` | the controller | the same if it stays | else + 1 | those that stay |

A *live member* is a member of the ISR whose broker is alive in the member's own generation.

**Invariants**, which every change keeps:

* a record has at least one in-sync replica, each is one of its replicas, and its leader is one.
* an epoch has one leader, and one process that leads: each new leader gets a new epoch.
* a new leader was a live member, so it has all that is committed. The exception is
  ``elect_longest``, which may lose committed records and is logged as an error.
* only the leader of the present epoch adds a member. Others can only remove members. Until the
  leader reads that change, its high watermark waits for one member too many.

Source: Kafka's controller (leader election, KIP-455 for moves), KIP-966, and Raft's comparison of
logs for ``elect_longest``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, EntryIndex, Generation, LeaderEpoch, Offset
from spark_stream.structs import Positional

Alive = Mapping[BrokerId, Generation]
"""The live brokers, each with the generation that it registered."""

FIRST_EPOCH: Final = LeaderEpoch(0)


class Obstacle(StrEnum):
    """The reason why a record is not changed."""

    LED = "its leader is alive"
    NOT_THE_LEADER = "the leader is another broker, epoch or generation"
    LEADS = "a leader must resign before it leaves"
    NOT_A_MEMBER = "the broker is not an in-sync replica in this generation"
    ONLY_MEMBER = "no other in-sync replica is alive"
    NOBODY_ALIVE = "no replica is alive"
    NOBODY_IN_SYNC = "no in-sync replica is alive in its generation"
    AWAITED = "an in-sync replica may still come back with all its records"
    ELECTABLE = "an in-sync replica is alive, so no loss is necessary"
    NOT_IN_SYNC = "a replica that stays is not in sync yet"
    NOT_PREFERRED = "the preferred leader is not an in-sync replica that is alive"
    NOT_REPLICAS = "the members are not among the replicas, or one is named twice"
    NOT_MOVING = "no move is in progress"
    ANOTHER_EPOCH = "another leader epoch has begun"
    SAME = "no change"


class Unchanged(Struct, frozen=True):
    """The change is not allowed, or would change nothing. ``record`` is as it was."""

    why: Obstacle
    record: PartitionRecord


Outcome = PartitionRecord | Unchanged


class LogEnd(Positional):
    """A live replica's report of its log: its generation, last epoch (-1: no entry) and end.

    ``entries`` is the index after the last entry.
    """

    generation: Generation
    last_epoch: int
    entries: EntryIndex


# -- leader and members of a record ---------------------------------------------------------------


def leads(record: PartitionRecord, me: Member) -> bool:
    """Return whether this broker is the leader, in the generation in which it was in sync."""
    return record.leader == me.broker and record.member(me.broker) == me


def live_members(record: PartitionRecord, alive: Alive) -> tuple[Member, ...]:
    """Return the in-sync replicas that are alive in their generation, in the replicas' order."""
    members = (record.member(broker) for broker in record.replicas)
    return tuple(each for each in members if each and alive.get(each.broker) == each.generation)


def awaited(record: PartitionRecord, registered: Alive) -> tuple[Member, ...]:
    """Return the in-sync replicas that are alive or may come back in their generation.

    ``registered``: the generation in which each broker registered last, including dead brokers.
    """
    return live_members(record, registered)


def staying(record: PartitionRecord) -> tuple[BrokerId, ...]:
    """Return the replicas without those that a move removes."""
    return tuple(broker for broker in record.replicas if broker not in record.removing)


# -- leaders --------------------------------------------------------------------------------------


def create(replicas: Sequence[BrokerId], alive: Alive) -> PartitionRecord | None:
    """Return the first record of a partition, or None if no replica is alive.

    All logs are empty, so all replicas that are alive are in sync.
    """
    members = tuple(Member(each, alive[each]) for each in replicas if each in alive)
    if not members:
        return None
    return PartitionRecord(tuple(replicas), members[0].broker, FIRST_EPOCH, members)


def elect(record: PartitionRecord, alive: Alive) -> Outcome:
    """Make the first live member the leader, if the present leader is not alive."""
    members = live_members(record, alive)
    if any(each.broker == record.leader for each in members):
        return Unchanged(Obstacle.LED, record)
    if not members:
        return Unchanged(Obstacle.NOBODY_IN_SYNC, record)
    return _led_by(record, members[0].broker, members)


def elect_longest(
    record: PartitionRecord,
    candidates: Mapping[BrokerId, LogEnd],
    registered: Alive,
    *,
    unclean: bool = False,
) -> Outcome:
    """Make the replica with the longest log the leader, if no live member is left.

    The longer of two logs is the one with the higher last epoch, then the one with more entries.
    Candidates are the live brokers of the ISR, once no member can come back in its generation. With
    ``unclean``, every live replica is a candidate immediately. Either way, committed records may be
    lost.
    """
    alive = {broker: each.generation for broker, each in candidates.items()}
    if live_members(record, alive):
        return Unchanged(Obstacle.ELECTABLE, record)
    if not unclean and awaited(record, registered):
        return Unchanged(Obstacle.AWAITED, record)
    eligible = [
        broker
        for broker in record.replicas
        if broker in candidates and (unclean or record.member(broker))
    ]
    if not eligible:
        return Unchanged(Obstacle.NOBODY_ALIVE, record)
    longest = max(
        eligible, key=lambda each: (candidates[each].last_epoch, candidates[each].entries)
    )
    found = candidates[longest]
    epoch = LeaderEpoch(max(record.leader_epoch, found.last_epoch) + 1)
    members = (Member(longest, found.generation),)
    return replace(record, leader=longest, leader_epoch=epoch, isr=members)


def resume(record: PartitionRecord, me: Member) -> Outcome:
    """Continue the leadership of a restarted leader with complete logs, in a new epoch.

    So requests of its earlier process that are still in flight have an old epoch. A partition
    without followers has no such requests, and keeps its epoch.
    """
    if not leads(record, me):
        return Unchanged(Obstacle.NOT_THE_LEADER, record)
    if record.replicas == (me.broker,):
        return Unchanged(Obstacle.SAME, record)
    return _led_by(record, me.broker, record.isr)


def renew(record: PartitionRecord, earlier: Member, me: Member) -> Outcome:
    """Give the only in-sync replica its new generation. It has all that the earlier one had."""
    if earlier.broker != me.broker or record.isr != (earlier,):
        return Unchanged(Obstacle.NOT_A_MEMBER, record)
    return _led_by(record, me.broker, (me,))


def lift_epoch(record: PartitionRecord, me: Member, last_epoch: int) -> Outcome:
    """Raise the epoch above the last one in the leader's log: the store is an older copy.

    Epochs never fall along a log, so an append in the epoch on record would be invalid.
    """
    if not leads(record, me):
        return Unchanged(Obstacle.NOT_THE_LEADER, record)
    if record.leader_epoch >= last_epoch:
        return Unchanged(Obstacle.SAME, record)
    return replace(record, leader_epoch=LeaderEpoch(last_epoch + 1))


def resign(
    record: PartitionRecord, me: Member, alive: Alive, heirs: Collection[BrokerId] | None = None
) -> Outcome:
    """Give the leadership to another member, and remove the leader from the ISR.

    The leader resigns if its disk failed, or if it shuts down. It stops appending first, and waits
    for the others to catch up if it can: entries that they lack are truncated.

    Args:
        record: The partition's record.
        me: The leader.
        alive: The live brokers.
        heirs: The candidates, by default all live members of the ISR.
    """
    if not leads(record, me):
        return Unchanged(Obstacle.NOT_THE_LEADER, record)
    others = tuple(each for each in live_members(record, alive) if each != me)
    able = [each.broker for each in others if heirs is None or each.broker in heirs]
    if not able:
        return Unchanged(Obstacle.ONLY_MEMBER, record)
    return _led_by(record, able[0], others)


def prefer(record: PartitionRecord, alive: Alive) -> Outcome:
    """Make the preferred leader (the first of the replicas) the leader, if it is a live member."""
    preferred = record.replicas[0]
    if record.leader == preferred:
        return Unchanged(Obstacle.SAME, record)
    if all(each.broker != preferred for each in live_members(record, alive)):
        return Unchanged(Obstacle.NOT_PREFERRED, record)
    return _led_by(record, preferred, record.isr)


def _led_by(record: PartitionRecord, leader: BrokerId, isr: tuple[Member, ...]) -> PartitionRecord:
    epoch = LeaderEpoch(record.leader_epoch + 1)
    return replace(record, leader=leader, leader_epoch=epoch, isr=isr)


# -- in-sync replicas -----------------------------------------------------------------------------


def propose_isr(
    record: PartitionRecord, me: Member, epoch: LeaderEpoch, members: Iterable[Member]
) -> Outcome:
    """Set the in-sync replicas that the leader of this epoch found. They include the leader."""
    if not leads(record, me) or record.leader_epoch != epoch:
        return Unchanged(Obstacle.NOT_THE_LEADER, record)
    named = tuple(members)
    proposed = {each.broker: each for each in named}
    isr = tuple(proposed[broker] for broker in record.replicas if broker in proposed)
    if me not in isr or len(isr) != len(named):
        return Unchanged(Obstacle.NOT_REPLICAS, record)
    if set(isr) == set(record.isr):
        return Unchanged(Obstacle.SAME, record)
    return replace(record, isr=isr)


def leave_isr(record: PartitionRecord, me: Member) -> Outcome:
    """Remove a follower whose copy may be incomplete from the ISR, unless it is the only member."""
    if record.member(me.broker) != me:
        return Unchanged(Obstacle.NOT_A_MEMBER, record)
    if record.leader == me.broker:
        return Unchanged(Obstacle.LEADS, record)
    others = tuple(each for each in record.isr if each != me)
    if not others:
        return Unchanged(Obstacle.ONLY_MEMBER, record)
    return replace(record, isr=others)


# -- the log start --------------------------------------------------------------------------------


def trim(record: PartitionRecord, epoch: LeaderEpoch, before: Offset) -> Outcome:
    """Move the log start up to ``before``, at most the last stable offset in this epoch.

    After an unclean election the log may end below an offset that was stable in an earlier epoch.
    """
    if record.leader_epoch != epoch:
        return Unchanged(Obstacle.ANOTHER_EPOCH, record)
    if before <= record.trimmed:
        return Unchanged(Obstacle.SAME, record)
    return replace(record, trimmed=before)


# -- moves ----------------------------------------------------------------------------------------


def begin_move(record: PartitionRecord, target: Sequence[BrokerId]) -> Outcome:
    """Begin to move the partition to these brokers, the first of them its preferred leader.

    Until they are in sync, the other replicas stay, after them in the list. This replaces a move
    in progress: brokers that the earlier move added, and that are not in ``target``, are removed
    whether this move is finished or cancelled.
    """
    goes = tuple(
        broker
        for broker in record.replicas
        if broker not in target and (broker not in record.adding or record.member(broker))
    )
    comes = tuple(
        broker for broker in target if broker not in record.replicas or broker in record.adding
    )
    brought = tuple(broker for broker in goes if broker in record.adding)
    moving = replace(record, replicas=(*target, *goes), adding=(*comes, *brought), removing=goes)
    return Unchanged(Obstacle.SAME, record) if moving == record else moving


def finish_move(record: PartitionRecord, alive: Alive) -> Outcome:
    """Remove the other replicas once every replica of the target is in sync."""
    if not (record.adding or record.removing):
        return Unchanged(Obstacle.NOT_MOVING, record)
    stay = staying(record)
    if not set(stay) <= {each.broker for each in live_members(record, alive)}:
        return Unchanged(Obstacle.NOT_IN_SYNC, record)
    return _narrowed(record, stay, alive)


def cancel_move(record: PartitionRecord, alive: Alive) -> Outcome:
    """Remove the brokers that the move added, and those added by a move that it replaced.

    The earlier preferred leader is not restored.
    """
    if not (record.adding or record.removing):
        return Unchanged(Obstacle.NOT_MOVING, record)
    stay = tuple(broker for broker in record.replicas if broker not in record.adding)
    return _narrowed(record, stay, alive)


def _narrowed(record: PartitionRecord, stay: tuple[BrokerId, ...], alive: Alive) -> Outcome:
    """Return the record with these replicas only, and another leader if its leader is removed."""
    isr = tuple(each for each in record.isr if each.broker in stay)
    if not isr:
        return Unchanged(Obstacle.NOT_IN_SYNC, record)
    narrowed = replace(record, replicas=stay, isr=isr, adding=(), removing=())
    if record.leader in stay:
        return narrowed
    heirs = live_members(narrowed, alive)
    if not heirs:
        return Unchanged(Obstacle.NOT_IN_SYNC, record)
    return _led_by(narrowed, heirs[0].broker, isr)
