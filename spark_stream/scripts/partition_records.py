"""Changes of partitions' records: elections, moves of replicas, and log starts.

Every decision is a compare-and-set on a partition's record (``consistency.control.election``). So
two brokers that decide at the same time do no harm, and a decision based on an old view changes
nothing: the loser looks again.

**Elections** are the controller's, or those of a broker that starts.

**Moves.** An operator's call only puts the move's target on record (``election.begin_move``). The
new replicas catch up, leaders add them to the ISR, and the controller finishes the move. So a move
continues even if the broker that handled the call dies. To decommission a broker is to mark its
registration as *leaving*. From then on it gets no new replicas, and the controller moves its
replicas away. When it has none, and no files of deleted topics, its registration is removed.

**Log starts.** A trim moves the log start of a partition, and no reader gets a record below it
again. The new log start is on the partition's record, not in a log. So it holds at every replica,
at one that is down, and at every later leader. Each replica hides the records as soon as it sees
the record, and housekeeping removes the segments that have no other records. A log start is at most
the last stable offset. The leader of the record's epoch reports that offset, and the
compare-and-set on the record rests on the same epoch. Source: Kafka's DeleteRecords (KIP-107).
There each replica stores its log start, and a follower gets it with its next fetch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from spark_stream.cluster.brokers import BROKERS, BrokerState, decode, encode
from spark_stream.cluster.partitions import PartitionId, StoredPartition, put_of
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.control import assignment, election
from spark_stream.consistency.control.assignment import Load, Misassigned, Racks
from spark_stream.consistency.control.election import Alive, LogEnd, Obstacle, Unchanged
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, Offset
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.errors import IsologError, LeaderUnavailable, OffsetOutOfRange, UnknownBroker
from spark_stream.scripts.steps import (
    DeleteRecord,
    Describe,
    Described,
    ForceReplica,
    Get,
    Pause,
    PutMany,
    PutRecord,
    ReadLogEnd,
    Refresh,
    Script,
    together,
)
from spark_stream.scripts.topics import announced_brokers, left_overs

_LOST: Final = (Obstacle.NOBODY_IN_SYNC,)
_LOOKS: Final = 200
_PAUSE_S: Final = 0.05


class Placed(Struct, frozen=True):
    """A partition of an existing topic. ``unclean``: any replica may be elected."""

    at: Joined
    stored: StoredPartition
    unclean: bool = False


class Changed(Struct, frozen=True):
    """A change of a partition's record, from ``before`` to ``after``.

    ``risky``: the leader was not in sync, or has lost entries, so records may be lost.
    """

    at: Joined
    before: PartitionRecord
    after: PartitionRecord
    risky: bool = False


def needs_leader(record: PartitionRecord, alive: Alive) -> bool:
    """Return whether the partition needs a leader: it has none, or its leader is not alive."""
    leader = None if record.leader is None else record.member(record.leader)
    return leader is None or alive.get(leader.broker) != leader.generation


def is_moving(record: PartitionRecord) -> bool:
    """Return whether a move of the partition is under way."""
    return bool(record.adding or record.removing)


def elect_leaders(
    partitions: Iterable[Placed], alive: Alive, registered: Alive
) -> Script[list[Changed]]:
    """Elect leaders for partitions without a live one."""
    changes: list[Changed] = []
    versions: dict[Joined, StoredPartition] = {}
    for each in partitions:
        record = each.stored.record
        outcome = election.elect(record, alive)
        risky = False
        if isinstance(outcome, Unchanged) and outcome.why in _LOST:
            outcome = yield from _elect_longest(each, alive, registered)
            risky = True
        if not isinstance(outcome, Unchanged):
            changes.append(Changed(each.at, record, outcome, risky))
            versions[each.at] = each.stored
    return (yield from _put_all(changes, versions))


def finish_moves(partitions: Iterable[Placed], alive: Alive) -> Script[list[Changed]]:
    """Finish the moves that can be finished. This waits for disks, so it delays no election."""
    moved: list[Changed] = []
    versions: dict[Joined, StoredPartition] = {}
    for each in partitions:
        record = each.stored.record
        outcome = election.finish_move(record, alive)
        if not isinstance(outcome, Unchanged):
            moved.append(Changed(each.at, record, outcome))
            versions[each.at] = each.stored
    return (yield from _put_all((yield from _forced_where_it_stays(moved)), versions))


def _forced_where_it_stays(moved: Sequence[Changed]) -> Script[list[Changed]]:
    """Return the moves that may end, after fsyncs at the replicas that stay.

    After that, a replica that stays also forces its entries before it reports them to the leader.
    So when the record says that the move has ended, all committed entries are on that replica's
    disk.
    """
    asked = [(each, broker) for each in moved for broker in each.after.replicas]
    answers = yield from together(ForceReplica(broker, each.at) for each, broker in asked)
    failed = {
        each.at
        for (each, _), answer in zip(asked, answers, strict=True)
        if isinstance(answer, IsologError)
    }
    return [each for each in moved if each.at not in failed]


def resume(
    partitions: Iterable[Placed],
    me: Member,
    log_end: Callable[[Joined], LogEnd | None],
    earlier: Member | None = None,
) -> Script[list[Changed]]:
    """Make a starting broker lead again what it led before, in a new epoch if necessary.

    If it alone was in sync, it leads the partition even if its log has lost entries: no other
    replica has more. ``earlier``: the broker did not start but left this generation, with all its
    entries.
    """
    changes: list[Changed] = []
    versions: dict[Joined, StoredPartition] = {}
    for each in partitions:
        end = log_end(each.at)
        if end is not None:
            outcome, risky = _resumed(each.stored.record, me, end, earlier)
            if not isinstance(outcome, Unchanged):
                changes.append(Changed(each.at, each.stored.record, outcome, risky))
                versions[each.at] = each.stored
    return (yield from _put_all(changes, versions))


def _resumed(
    record: PartitionRecord, me: Member, end: LogEnd, earlier: Member | None
) -> tuple[election.Outcome, bool]:
    """Return the record in which this broker leads again, and whether its log may lack entries."""
    alone = [member.broker for member in record.isr] == [me.broker]
    outcome = election.resume(record, me)
    if earlier is not None and isinstance(outcome, Unchanged):
        outcome = election.renew(record, earlier, me)
    if isinstance(outcome, Unchanged) and alone:
        outcome = election.elect(record, {me.broker: me.generation})
    risky = isinstance(outcome, Unchanged) and outcome.why is Obstacle.NOBODY_IN_SYNC
    if risky:
        mine = {me.broker: me.generation}
        outcome = election.elect_longest(record, {me.broker: end}, mine)
    found = record if isinstance(outcome, Unchanged) else outcome
    lifted = election.lift_epoch(found, me, end.last_epoch)
    return (outcome if isinstance(lifted, Unchanged) else lifted), risky


def _elect_longest(partition: Placed, alive: Alive, registered: Alive) -> Script[election.Outcome]:
    record = partition.stored.record
    if not partition.unclean and election.awaited(record, registered):
        return Unchanged(Obstacle.AWAITED, record)
    brokers = [each for each in record.replicas if each in alive]
    answers = yield from together(ReadLogEnd(broker, partition.at) for broker in brokers)
    candidates: Mapping[BrokerId, LogEnd] = {
        broker: answer
        for broker, answer in zip(brokers, answers, strict=True)
        if isinstance(answer, LogEnd)
    }
    return election.elect_longest(record, candidates, registered, unclean=partition.unclean)


def _put_all(
    changes: list[Changed], versions: Mapping[Joined, StoredPartition]
) -> Script[list[Changed]]:
    """Write the changes, and return those that succeeded."""
    if not changes:
        return []
    written = yield from PutMany(
        [put_of(versions[each.at].id, each.after, versions[each.at].version) for each in changes]
    )
    yield Refresh()
    return [each for each, version in zip(changes, written, strict=True) if version is not None]


_TRIES: Final = 10


def change_records(
    partitions: Sequence[PartitionId],
    find: Callable[[PartitionId], StoredPartition | None],
    change: Callable[[PartitionId, PartitionRecord], election.Outcome],
) -> Script[dict[PartitionId, election.Outcome]]:
    """Change the records of these partitions, each by itself, and return the outcomes.

    ``find`` looks a record up in this broker's view. A change that loses against another change is
    retried on the new record.
    """
    outcomes: dict[PartitionId, election.Outcome] = {}
    left = list(partitions)
    for _ in range(_TRIES):
        puts = []
        for each in left:
            stored = find(each)
            if stored is None:
                continue
            outcome = change(each, stored.record)
            outcomes[each] = outcome
            if not isinstance(outcome, Unchanged):
                puts.append((each, put_of(each, outcome, stored.version)))
        if not puts:
            return outcomes
        versions = yield from PutMany([asked for _, asked in puts])
        yield Refresh()
        left = [each for (each, _), version in zip(puts, versions, strict=True) if version is None]
        if not left:
            break
    return outcomes


def mark_broker(broker: BrokerId, state: BrokerState) -> Script[None]:
    """Decommission a broker, or cancel that.

    Raises:
        UnknownBroker: No broker has this id.
    """
    while True:
        record = yield from Get(BROKERS + broker)
        if record is None:
            raise UnknownBroker(f"there is no broker {broker!r}", broker=broker)
        known = decode(broker, record.value)
        if known.state is state:
            return
        value = encode(known) | {"state": state.value}
        if (yield from PutRecord(record.key, value, record.version)):
            break
    yield Refresh()


def target_without(
    record: PartitionRecord, leaving: BrokerId, racks: Racks, load: Load
) -> Sequence[BrokerId] | Misassigned:
    """Return the replicas that a partition should have without a leaving broker."""
    return assignment.replace_broker(election.staying(record), leaving, racks, load)


def move_away(
    stored: Mapping[PartitionId, StoredPartition],
    leaving: BrokerId,
    racks: Racks,
    load: Load,
) -> Script[bool]:
    """Begin to move a leaving broker's replicas. Return whether some replica cannot move.

    A replica that no other broker can take stays in place until there is such a broker.
    """
    puts = []
    stuck = False
    for each, found in stored.items():
        if leaving not in election.staying(found.record):
            continue
        target = target_without(found.record, leaving, racks, load)
        if isinstance(target, Misassigned):
            stuck = True
            continue
        outcome = election.begin_move(found.record, target)
        if not isinstance(outcome, Unchanged):
            puts.append(put_of(each, outcome, found.version))
    if puts:
        yield from PutMany(puts)
        yield Refresh()
    return stuck


def remove_broker(broker: BrokerId, *, lives: bool) -> Script[bool]:
    """Remove the registration of a decommissioned broker. Return False if that has to wait.

    A broker that ``lives`` first removes its files of deleted topics: no other broker waits for
    these once it is not registered (``scripts.topics``).
    """
    record = yield from Get(BROKERS + broker)
    if record is None or decode(broker, record.value).state is not BrokerState.LEAVING:
        return False
    if lives and any(broker in announced_brokers(each) for each in (yield from left_overs())):
        return False
    done = yield from DeleteRecord(record.key, record.version)
    yield Refresh()
    return done


def trim(
    topic: Topic,
    before: Mapping[int, int],
    find: Callable[[PartitionId], StoredPartition | None],
    *,
    dry_run: bool = False,
) -> Script[dict[int, int]]:
    """Trim each partition below its offset, and return the resulting log starts.

    ``find`` looks a record up in this broker's view. A log start never moves back: a partition that
    starts above its offset stays as it is. ``dry_run``: only check the offsets, and return the
    present log starts.

    Raises:
        OffsetOutOfRange: An offset is above the last stable offset. No partition was trimmed.
        LeaderUnavailable, NotLeader: A partition has no leader that can confirm the offset, or it
            has not applied its new log start yet.
    """
    wanted = {PartitionId(topic.id, number): Offset(at) for number, at in before.items()}
    left = wanted
    yield Refresh()
    for _ in range(_TRIES):
        seen = yield from _described(topic, left)
        for each, at in left.items():
            _check_stable(topic, each.number, at, seen[each])
        if dry_run:
            return _log_starts(seen)

        def change(each: PartitionId, record: PartitionRecord, /) -> election.Outcome:
            return election.trim(record, seen[each].leader_epoch, wanted[each])  # noqa: B023

        outcomes = yield from change_records(list(left), find, change)
        left = {
            each: at
            for each, at in left.items()
            if isinstance(outcome := outcomes.get(each), Unchanged)
            and outcome.why is Obstacle.ANOTHER_EPOCH
        }
        if not left:
            return (yield from _applied(topic, wanted))
        yield Pause(_PAUSE_S)
        yield Refresh()
    raise _not_confirmed(topic, next(iter(left)).number)


def _described(
    topic: Topic, partitions: Mapping[PartitionId, Offset]
) -> Script[dict[PartitionId, Described]]:
    steps = [Describe(Joined(topic.name, topic.id, each.number)) for each in partitions]
    found: dict[PartitionId, Described] = {}
    for each, answer in zip(partitions, (yield from together(steps)), strict=True):
        if isinstance(answer, IsologError):
            raise answer
        found[each] = answer
    return found


def _check_stable(topic: Topic, number: int, at: Offset, seen: Described) -> None:
    if at <= seen.bounds.last_stable_offset:
        return
    if not seen.hw_known:
        raise _not_confirmed(topic, number)
    stable = int(seen.bounds.last_stable_offset)
    raise OffsetOutOfRange(
        f"{topic.name}/{number}: a trim to offset {at} is above the last stable offset {stable}",
        hint="Trim at most to the last stable offset: later records are not replicated yet, or"
        " belong to an open transaction.",
        topic=topic.name,
        partition=number,
        asked=int(at),
        last_stable_offset=stable,
    )


def _applied(topic: Topic, wanted: Mapping[PartitionId, Offset]) -> Script[dict[int, int]]:
    """Wait until the leaders have applied the log starts on record."""
    for _ in range(_LOOKS):
        seen = yield from _described(topic, wanted)
        behind = [each for each, at in wanted.items() if seen[each].bounds.log_start_offset < at]
        if not behind:
            break
        yield Pause(_PAUSE_S)
        yield Refresh()
    else:
        raise _not_confirmed(topic, behind[0].number)
    return _log_starts(seen)


def _log_starts(seen: Mapping[PartitionId, Described]) -> dict[int, int]:
    return {each.number: int(found.bounds.log_start_offset) for each, found in seen.items()}


def _not_confirmed(topic: Topic, number: int) -> LeaderUnavailable:
    return LeaderUnavailable(
        f"{topic.name}/{number}: its leader has not confirmed the new log start yet",
        topic=topic.name,
        partition=number,
    )
