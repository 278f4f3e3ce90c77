"""Histories of a partition, made by its leader's own rules: entries, and the tables they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from msgspec.structs import replace

from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.entries import ENTRY, Entry, Kind, Table
from spark_stream.consistency.ids import (
    NO_TRANSACTION,
    BrokerId,
    EntryIndex,
    Generation,
    LeaderEpoch,
    Offset,
)
from spark_stream.consistency.partition.effects import Effects
from spark_stream.consistency.partition.producers import Accepted, Stamp
from spark_stream.consistency.partition.replica import Replica, ReplicaLookups
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.consistency.replication.epochs import EpochStarts
from spark_stream.consistency.replication.follower import LeaderAnswer

START = Boundary(EntryIndex(0), Offset(0))
AGE = 1_000_000_000_000


def table_of(entries: Sequence[Entry]) -> Table:
    """The entries as a log keeps them."""
    packed = b"".join(entry.packed(0, 1 if entry.count else 0) + b"\0\0\0\0" for entry in entries)
    return np.frombuffer(packed, ENTRY)


def replica_of(
    entries: Sequence[Entry], now: int, followers: int = 0, to_come: Sequence[Entry] = ()
) -> Replica:
    """A replica that opens a log of these entries. ``to_come`` are applied later."""
    whole = [*entries, *to_come]
    lookups = ReplicaLookups(lambda entry: end_of(whole[:entry]))
    tables = [table_of(entries)]
    return Replica(tables, START, end_of(entries), now, AGE, followers, lookups=lookups)


def end_of(entries: Sequence[Entry]) -> Boundary:
    return Boundary(EntryIndex(len(entries)), Offset(sum(entry.count for entry in entries)))


ME, FOLLOWER = (Member(BrokerId(broker), Generation("1")) for broker in "ab")


@dataclass
class Leader:
    """A leader with the entries of its log, and with one follower or none. Numbers rise."""

    followers: int = 0
    entries: list[Entry] = field(default_factory=list)
    now: int = 0

    def __post_init__(self) -> None:
        lookups = ReplicaLookups(
            lambda entry: end_of(self.entries[:entry]), lambda _: ME.generation
        )
        self.replica = Replica([], START, START, 0, AGE, self.followers, lookups=lookups)
        self.ended: set[int] = set()
        self._version = 0
        self._session = -1
        self._begin(LeaderEpoch(0), 0)

    def _begin(self, epoch: LeaderEpoch, replicated: int) -> None:
        """It leads in this epoch. Its follower has so many entries."""
        members = (ME, FOLLOWER)[: 1 + self.followers]
        brokers = tuple(each.broker for each in members)
        self._version += 1
        record = PartitionRecord(brokers, ME.broker, epoch, members)
        self.replica.lead_replicas(ME, record, self._version, self.now)
        if self.followers:
            has = EpochStarts.derived([table_of(self.entries[:replicated])])
            history = has.history(EntryIndex(0), EntryIndex(replicated))
            agreed, _ = self.replica.follower_started(FOLLOWER, epoch, history, self.now)
            assert isinstance(agreed, LeaderAnswer)
            self._session = agreed.session

    def replicate(self, entries: int) -> Effects:
        """The follower reports that it has this number of entries."""
        return self.replica.follower_acked(self._session, EntryIndex(entries), self.now)

    def entry(self, kind: Kind, count: int, stamp: Stamp) -> Entry:
        """The next entry of the log."""
        self.now += 1
        end = self.replica.bounds_state.log_end
        entry = Entry(
            entry_index=end.entry,
            base_offset=end.offset,
            timestamp=self.now,
            appended=self.now,
            count=count,
            leader_epoch=self.replica.leader_epoch,
            data_crc=0,
            kind=kind,
            producer_id=stamp.producer_id,
            producer_epoch=stamp.epoch,
            base_sequence=stamp.sequence,
            transaction=stamp.transaction,
        )
        self.entries.append(entry)
        return entry

    def append(self, count: int, stamp: Stamp | None = None) -> Effects | None:
        """None: the leader does not take it."""
        if stamp is not None and not isinstance(self.replica.judge(stamp, count), Accepted):
            return None
        return self.replica.apply(self.entry(Kind.DATA, count, stamp or Stamp(-1, -1, -1)))

    def join(self, transaction: int, producer_id: int) -> None:
        joins = self.replica.joins
        assert joins.confirm(joins.open(transaction, producer_id))

    def end(self, transaction: int, *, committed: bool) -> Effects:
        """Seals and marks all parts of the transaction."""
        self.replica.joins.seal(transaction)
        self.ended.add(transaction)
        entries = []
        at = self.replica.bounds_state.log_end.entry
        for producer_id, part in self.replica.undecided.parts(transaction):
            kind = Kind.COMMIT if committed else Kind.ABORT
            stamp = Stamp(producer_id, part.epoch, -1, transaction)
            marker = replace(self.entry(kind, 0, stamp), entry_index=at + len(entries))
            self.entries[-1] = marker
            entries.append(marker)
        return self.replica.apply(*entries)

    def next_stamp(self, producer_id: int, transaction: int = NO_TRANSACTION) -> Stamp:
        """The stamp under which the leader would take the producer's next batch."""
        known = self.replica.producers.get(producer_id)
        if known is None:
            return Stamp(producer_id, 0, 0, transaction)
        goes_on = not known.ended and (
            known.transaction == transaction if known.open else transaction == NO_TRANSACTION
        )
        if goes_on:
            return Stamp(producer_id, known.epoch, known.last_sequence + 1, transaction)
        return Stamp(producer_id, known.epoch + 1, 0, transaction)

    def lead(self) -> None:
        replicated = self.replica.bounds_state.high_watermark.entry
        self._begin(LeaderEpoch(self.replica.leader_epoch + 1), replicated)

    def do(self, step: tuple[str, int, int, int]) -> None:
        """One step of a history. One that is not possible now does nothing."""
        what, producer_id, transaction, count = step
        if what == "append":
            self.append(count)
        elif what == "stamped":
            self.append(count, self.next_stamp(producer_id))
        elif what == "in transaction":
            known = self.replica.producers.get(producer_id)
            if known is not None and known.open and known.transaction != transaction:
                transaction = known.transaction
            if transaction in self.ended:
                return  # numbers do not come again
            self.join(transaction, producer_id)
            self.append(count, self.next_stamp(producer_id, transaction))
        elif what in ("commit", "abort"):
            self.end(transaction, committed=what == "commit")
        elif what == "replicate":
            high = self.replica.bounds_state.high_watermark.entry
            self.replicate(min(len(self.entries), high + count))
        else:
            self.lead()


KINDS = ("append", "stamped", "in transaction", "in transaction", "commit", "abort", "lead")
STEPS = st.lists(
    st.tuples(
        st.sampled_from([*KINDS, "replicate"]),
        st.integers(1, 3),
        st.integers(10, 13),
        st.integers(1, 4),
    ),
    max_size=40,
)


def history(steps: list[tuple[str, int, int, int]], followers: int = 0) -> Leader:
    """The leader after these steps."""
    leader = Leader(followers)
    for step in steps:
        leader.do(step)
    return leader
