"""Electing leaders and finishing moves, by the controller and by a broker that starts.

Every decision is a compare-and-set on a partition's record (``consistency.control.election``). So
two brokers that decide at the same time do no harm, and a decision based on an old view changes
nothing: the loser looks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from spark_stream.cluster.partitions import StoredPartition, put_of
from spark_stream.consistency.control import election
from spark_stream.consistency.control.election import Alive, LogEnd, Obstacle, Unchanged
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.errors import IsologError
from spark_stream.scripts.steps import ForceReplica, PutMany, ReadLogEnd, Refresh, Script, together

_LOST: Final = (Obstacle.NOBODY_IN_SYNC,)


class Placed(Struct, frozen=True):
    """A partition of an existing topic; ``unclean``: any replica may be elected."""

    at: Joined
    stored: StoredPartition
    unclean: bool = False


class Changed(Struct, frozen=True):
    """A partition's record was changed, from ``before`` to ``after``.

    ``risky``: the leader was not in sync, or has lost what it had; records may be lost.
    """

    at: Joined
    before: PartitionRecord
    after: PartitionRecord
    risky: bool = False


def needs_leader(record: PartitionRecord, alive: Alive) -> bool:
    """Return whether a controller has to find a leader: there is none, or it is not alive."""
    leader = None if record.leader is None else record.member(record.leader)
    return leader is None or alive.get(leader.broker) != leader.generation


def is_moving(record: PartitionRecord) -> bool:
    """Return whether a move of the partition is under way."""
    return bool(record.adding or record.removing)


def attend(partitions: Iterable[Placed], alive: Alive, registered: Alive) -> Script[list[Changed]]:
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
    """Finish the moves that can be finished. This waits for disks: let no election wait for it."""
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
    """Return the moves that may end, after the replicas that stay have forced what they have.

    From then on, a replica that stays also forces all that it reports to the leader. So when the
    record says that the move is over, all that is committed is on that replica's disk.
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
    """Let a starting broker lead again what it led before, in a new epoch if necessary.

    If it alone was in sync, it leads the partition whatever its log has lost: nobody has more.
    ``earlier``: the broker did not start but left this generation, with all that it had in it.
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
