"""Calls of operators: move replicas to other brokers, and leaderships to preferred leaders.

A call only puts the move's target on record (``election.begin_move``). The new replicas catch up,
leaders add them to the ISR, and the controller finishes the move (``electing.finish_moves``). So a
move goes on whatever becomes of the broker that handled the call.

To decommission a broker is to mark its registration as *leaving*. From then on it gets no new
replicas, and the controller moves its replicas away. When it has none, and no files of deleted
topics, its registration is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from spark_stream.cluster.brokers import BROKERS, BrokerState, decode, encode
from spark_stream.cluster.partitions import PartitionId, StoredPartition, put_of
from spark_stream.consistency.control import assignment, election
from spark_stream.consistency.control.assignment import Load, Misassigned, Racks
from spark_stream.consistency.control.election import Unchanged
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.ids import BrokerId
from spark_stream.errors import UnknownBroker
from spark_stream.scripts.left_overs import brokers_of, left_overs
from spark_stream.scripts.steps import DeleteRecord, Get, PutMany, PutRecord, Refresh, Script

_TRIES: Final = 10


def change_records(
    partitions: Sequence[PartitionId],
    find: Callable[[PartitionId], StoredPartition | None],
    change: Callable[[PartitionId, PartitionRecord], election.Outcome],
) -> Script[dict[PartitionId, election.Outcome]]:
    """Change the records of these partitions, each by itself, and return the outcomes.

    ``find`` looks a record up in this broker's view. A change that loses against another change is
    tried again on the new record.
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
        UnknownBroker: there is no broker of this id.
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
    """Begin to move a leaving broker's replicas; return whether some have nowhere to go.

    A replica that no other broker can take stays where it is until there is such a broker.
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
    """Remove the registration of a decommissioned broker; return False if that has to wait.

    A broker that ``lives`` first removes its files of deleted topics: nobody waits for these once
    the broker is not registered (``left_overs``).
    """
    record = yield from Get(BROKERS + broker)
    if record is None or decode(broker, record.value).state is not BrokerState.LEAVING:
        return False
    if lives and any(broker in brokers_of(each) for each in (yield from left_overs())):
        return False
    done = yield from DeleteRecord(record.key, record.version)
    yield Refresh()
    return done
