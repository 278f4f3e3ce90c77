"""Every change of a partition's record, as a function from the record to its next.

Each change is carried out by one compare-and-set on the record as it was when it was read; a change
that is not allowed is :class:`Unchanged`, with the obstacle. Two that decide at once do no harm:
one compare-and-set wins, and the other looks at the record again.

| change | who asks | leader | epoch | in-sync replicas |
|---|---|---|---|---|
| ``create`` | who makes the partition | the first that is alive | 0 | all that are alive |
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

* a record has at least one in-sync replica, each is one of its replicas, and its leader is one;
* an epoch has one leader, and one process that leads: whoever becomes the leader has a new epoch;
* whoever becomes the leader was a live member, so it has all that is committed. The exception is
  ``elect_longest``, where that may be lost, and which is told loudly;
* only the leader of the present epoch adds a member. Anybody else takes members away at most, which
  leaves the leader waiting for one too many until it hears of it.

Source: Kafka's controller (leader election, KIP-455 for moves) and KIP-966; Raft's comparison of
logs for ``elect_longest``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, EntryIndex, Generation, LeaderEpoch
from spark_stream.structs import Positional

Alive = Mapping[BrokerId, Generation]
"""The brokers that are alive, each in the generation that it registered."""

FIRST_EPOCH: Final = LeaderEpoch(0)


class Obstacle(StrEnum):
    """Why a record stays as it is."""

    LED = "its leader is alive"
    NOT_THE_LEADER = "another broker leads it, or the same in another epoch or generation"
    LEADS = "a leader resigns; it does not leave"
    NOT_A_MEMBER = "the broker is not an in-sync replica in this generation"
    ONLY_MEMBER = "no other in-sync replica is alive"
    NOBODY_ALIVE = "no replica is alive"
    NOBODY_IN_SYNC = "no in-sync replica is alive in its generation"
    AWAITED = "an in-sync replica may still come back with all its records"
    ELECTABLE = "an in-sync replica is alive: nothing need be lost"
    NOT_IN_SYNC = "not every replica that stays is in sync yet"
    NOT_PREFERRED = "the preferred leader is not an in-sync replica that is alive"
    NOT_REPLICAS = "the members are not among the replicas, or one is named twice"
    NOT_MOVING = "it is not being moved"
    SAME = "nothing would change"


class Unchanged(Struct, frozen=True):
    """The change is not allowed, or would change nothing; ``record`` is as it was."""

    why: Obstacle
    record: PartitionRecord


Outcome = PartitionRecord | Unchanged


class LogEnd(Positional):
    """What a live replica says of its log: its generation, its last epoch (-1: no entry), its end.

    ``entries`` is the index after the last entry.
    """

    generation: Generation
    last_epoch: int
    entries: EntryIndex


# -- what a record says ---------------------------------------------------------------------------


def leads(record: PartitionRecord, me: Member) -> bool:
    """Whether this broker is the leader, in the generation in which it was in sync."""
    return record.leader == me.broker and record.member(me.broker) == me


def live_members(record: PartitionRecord, alive: Alive) -> tuple[Member, ...]:
    """The in-sync replicas that are alive in their generation, in the order of the replicas."""
    members = (record.member(broker) for broker in record.replicas)
    return tuple(each for each in members if each and alive.get(each.broker) == each.generation)


def awaited(record: PartitionRecord, registered: Alive) -> tuple[Member, ...]:
    """The in-sync replicas that are alive or may come back in their generation.

    ``registered``: the generation in which each broker registered last, dead brokers too.
    """
    return live_members(record, registered)


def staying(record: PartitionRecord) -> tuple[BrokerId, ...]:
    """The replicas without those that a move takes away."""
    return tuple(broker for broker in record.replicas if broker not in record.removing)


# -- leaders --------------------------------------------------------------------------------------


def create(replicas: Sequence[BrokerId], alive: Alive) -> PartitionRecord | None:
    """The first record of a partition; None: no replica is alive.

    All logs are empty, so all that are alive are in sync.
    """
    members = tuple(Member(each, alive[each]) for each in replicas if each in alive)
    if not members:
        return None
    return PartitionRecord(tuple(replicas), members[0].broker, FIRST_EPOCH, members)


def elect(record: PartitionRecord, alive: Alive) -> Outcome:
    """The leader is not alive: the first live member leads."""
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
    """No live member is left: of those that are alive, the one with the longest log leads.

    Of two logs the one with the higher last epoch is the longer, then the one with more entries.
    Only brokers of the ISR are taken, and only once none can come back in its generation. With
    ``unclean`` any replica is taken, at once. Committed records may be lost both times.
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
    """The leader's broker has started again, and vouches for its logs: it leads on, in a new epoch.

    What its earlier process has sent, and is still on its way, is of an epoch that is over. A
    partition without followers has nothing on its way, and goes on in its epoch.
    """
    if not leads(record, me):
        return Unchanged(Obstacle.NOT_THE_LEADER, record)
    if record.replicas == (me.broker,):
        return Unchanged(Obstacle.SAME, record)
    return _led_by(record, me.broker, record.isr)


def renew(record: PartitionRecord, earlier: Member, me: Member) -> Outcome:
    """The only in-sync replica has another generation, and all that it had in the earlier one."""
    if earlier.broker != me.broker or record.isr != (earlier,):
        return Unchanged(Obstacle.NOT_A_MEMBER, record)
    return _led_by(record, me.broker, (me,))


def lift_epoch(record: PartitionRecord, me: Member, last_epoch: int) -> Outcome:
    """The leader's log has entries of a later epoch: the store is an older copy.

    Epochs never fall along a log, so nothing can be appended in the epoch on record.
    """
    if not leads(record, me):
        return Unchanged(Obstacle.NOT_THE_LEADER, record)
    if record.leader_epoch >= last_epoch:
        return Unchanged(Obstacle.SAME, record)
    return replace(record, leader_epoch=LeaderEpoch(last_epoch + 1))


def resign(
    record: PartitionRecord, me: Member, alive: Alive, heirs: Collection[BrokerId] | None = None
) -> Outcome:
    """Let the leader give up (its disk failed, it shuts down) and leave the ISR.

    It stops appending first, and lets the others catch up if it can: what they do not have is cut.

    Args:
        record: The partition's record.
        me: The leader.
        alive: The brokers that are alive.
        heirs: Who may lead; None: every live member of the ISR.
    """
    if not leads(record, me):
        return Unchanged(Obstacle.NOT_THE_LEADER, record)
    others = tuple(each for each in live_members(record, alive) if each != me)
    able = [each.broker for each in others if heirs is None or each.broker in heirs]
    if not able:
        return Unchanged(Obstacle.ONLY_MEMBER, record)
    return _led_by(record, able[0], others)


def prefer(record: PartitionRecord, alive: Alive) -> Outcome:
    """The preferred leader, which is the first of the replicas, leads if it is a live member."""
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
    """The leader of this epoch says who is in sync; itself always is."""
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
    """A follower that cannot vouch for its copy any more leaves, unless it is the only member."""
    if record.member(me.broker) != me:
        return Unchanged(Obstacle.NOT_A_MEMBER, record)
    if record.leader == me.broker:
        return Unchanged(Obstacle.LEADS, record)
    others = tuple(each for each in record.isr if each != me)
    if not others:
        return Unchanged(Obstacle.ONLY_MEMBER, record)
    return replace(record, isr=others)


# -- moves ----------------------------------------------------------------------------------------


def begin_move(record: PartitionRecord, target: Sequence[BrokerId]) -> Outcome:
    """The partition is to be on these brokers, the first of them its preferred leader.

    Until they are in sync the others stay, behind them. A move that is under way is replaced: those
    that it has brought go, whether this one is finished or cancelled.
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
    """Every replica of the target is in sync: the others go."""
    if not (record.adding or record.removing):
        return Unchanged(Obstacle.NOT_MOVING, record)
    stay = staying(record)
    if not set(stay) <= {each.broker for each in live_members(record, alive)}:
        return Unchanged(Obstacle.NOT_IN_SYNC, record)
    return _narrowed(record, stay, alive)


def cancel_move(record: PartitionRecord, alive: Alive) -> Outcome:
    """The brokers that the move brought, and those that it replaced, go again.

    Who was the preferred leader is not restored.
    """
    if not (record.adding or record.removing):
        return Unchanged(Obstacle.NOT_MOVING, record)
    stay = tuple(broker for broker in record.replicas if broker not in record.adding)
    return _narrowed(record, stay, alive)


def _narrowed(record: PartitionRecord, stay: tuple[BrokerId, ...], alive: Alive) -> Outcome:
    """The record with these of its replicas only; a leader that goes hands over."""
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
