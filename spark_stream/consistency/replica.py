"""The core of a replica: what it knows of its partition, and what follows from each event.

A replica's log is in files, its lock and its threads are in the broker; here is all the rest, and
nothing here waits. An event is a method: it changes what is known and returns effects, which are
for the caller to carry out. The same code runs at a leader, at a follower and in a simulation.

**One fold.** What is derived from a log (producers, open transactions, extents, epochs) comes from
:meth:`Replica.apply` entry by entry, at a leader and at a follower alike, and from the entries
tables at once when a log opens or was cut back. Both ways give the same.

**Order.** An entry is in the log before it is applied, and its derived state is complete before the
new bounds are published, by the assignment of ``bounds_state``; so whoever reads the bounds without
a lock never sees an end without the transaction that holds it back.

**Acknowledgements.** A batch outside a transaction that asks for ``read_uncommitted`` is answered
once it is appended. Every other one, and each batch of a transaction, is answered when its records
are below the high watermark: so a commit never takes a transaction whose tail a failover lost. A
batch that is there already is answered under the same rule as the first.

**Waiters** are numbers that the caller gives. They wait for one of three bounds to pass an offset;
whoever is satisfied is named in an effect, once, and forgotten.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from spark_stream.consistency import leader, producers
from spark_stream.consistency.entries import Entry, Kind, Table
from spark_stream.consistency.epochs import EpochStarts
from spark_stream.consistency.extents import Spans
from spark_stream.consistency.ids import (
    NO_PRODUCER,
    NO_TRANSACTION,
    LeaderEpoch,
    Offset,
)
from spark_stream.consistency.isolation import Bounds, Isolation
from spark_stream.consistency.joins import Joins
from spark_stream.consistency.leader import Boundary, LeaderState
from spark_stream.consistency.producers import (
    Accepted,
    Duplicate,
    Refused,
    Stamp,
    Wrong,
)
from spark_stream.consistency.undecided import Undecided
from spark_stream.consistency.waiting import Waiters


class Bound(Enum):
    """What a reader waits for: one of the offsets that bound what it sees."""

    LOG_END = "log end offset"
    HIGH_WATERMARK = "high watermark"
    LAST_STABLE = "last stable offset"


BOUND_OF: Final = {
    Isolation.READ_UNCOMMITTED: Bound.LOG_END,
    Isolation.READ_REPLICATED: Bound.HIGH_WATERMARK,
    Isolation.READ_COMMITTED: Bound.LAST_STABLE,
    Isolation.READ_ATOMIC: Bound.LAST_STABLE,  # its cut moves only when that does
}


@dataclass(frozen=True, slots=True)
class Wake:
    """These reads have something to see."""

    waiters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """These appends are as safe as they asked to be: acknowledge them."""

    tickets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Disown:
    """The records of these appends were cut off before they were acknowledged."""

    tickets: tuple[int, ...]


Effect = Wake | Answer | Disown
Effects = list[Effect]


def offset_of(bounds: Bounds, bound: Bound) -> Offset:
    """Where the bound is."""
    if bound is Bound.LOG_END:
        return bounds.log_end_offset
    if bound is Bound.HIGH_WATERMARK:
        return bounds.high_watermark
    return bounds.last_stable_offset


class Replica:
    """One replica of a partition. One caller at a time; ``bounds_state`` may be read by any."""

    def __init__(
        self,
        tables: Sequence[Table],
        log_start: Boundary,
        log_end: Boundary,
        now: int,
        producer_age: int,
        followers: int = 0,
    ) -> None:
        """``tables``: the log's entries. ``now`` and ``producer_age`` are in microseconds."""
        self._producer_age = producer_age
        self.joins = Joins()
        self._tickets = Waiters()
        self._waiters = {bound: Waiters() for bound in Bound}
        self._bound_of: dict[int, Bound] = {}
        state = leader.opened(LeaderEpoch(0), log_start, log_end, followers)
        self._derive(tables, state, now)

    def _derive(self, tables: Sequence[Table], state: LeaderState, now: int) -> None:
        """Derives everything anew from the entries that are there."""
        self.producers = producers.derived(tables, now, self._producer_age)
        self.spans = Spans.derived(tables)
        self.epochs = EpochStarts.derived(tables)
        self.undecided = Undecided.derived(tables, state.high_watermark.entry)
        self.bounds_state = leader.undecided_from(state, self.undecided.first())

    # -- what is known ----------------------------------------------------------------------------

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The epoch of the present leader."""
        return self.bounds_state.leader_epoch

    def judge(self, stamp: Stamp, records: int) -> Accepted | Duplicate | Refused:
        """What becomes of a stamped batch of which ``records`` are good, at the leader.

        In a transaction nothing is taken but under a confirmed join (``consistency.joins``).
        """
        key = (stamp.transaction, stamp.producer_id)
        if stamp.transaction != NO_TRANSACTION and key not in self.joins:
            return Refused(Wrong.ENDED, 0)
        return producers.judge(self.producers.get(stamp.producer_id), stamp, records)

    # -- events -----------------------------------------------------------------------------------

    def lead(self, epoch: LeaderEpoch) -> None:
        """A new leader's epoch begins. Promises of earlier epochs no longer hold."""
        self.joins.clear()
        self.bounds_state = replace(self.bounds_state, leader_epoch=epoch)

    def apply(self, *entries: Entry) -> Effects:
        """The entries are in the log, behind all others; they become visible together."""
        state = self.bounds_state
        for entry in entries:
            at = state.log_end
            if (entry.entry_index, entry.base_offset) != at:
                place = f"{entry.entry_index} (offset {entry.base_offset})"
                raise ValueError(f"the entry {place} does not follow the log end {at}")
            self.epochs.appended(LeaderEpoch(entry.leader_epoch), at)
            if entry.producer_id != NO_PRODUCER:
                self._fold(entry)
            state = leader.appended(state, entry.count)
        return self._publish(state)

    def _fold(self, entry: Entry) -> None:
        writer, transaction = entry.producer_id, entry.transaction
        self.producers[writer] = producers.folded(self.producers.get(writer), entry)
        if transaction == NO_TRANSACTION:
            return
        if entry.kind is Kind.DATA:
            first = Offset(entry.base_offset)
            self.undecided.began(transaction, writer, entry.producer_epoch, first)
            self.spans.appended(transaction, writer, first, first + entry.count - 1)
            return
        if entry.kind is Kind.ABORT:
            self.spans.aborted(transaction, writer)
        self.undecided.marked(transaction, writer, entry.entry_index)

    def use_up(self, stamp: Stamp, now: int) -> None:
        """A batch without a good record was refused; its sequence is not used again.

        No entry tells of it: it holds for this leader.
        """
        known = self.producers.get(stamp.producer_id)
        end = self.bounds_state.log_end.offset
        self.producers[stamp.producer_id] = producers.appended(known, stamp, end, 0, now)

    def replicate(self, upto: Boundary) -> Effects:
        """Every in-sync replica has the entries below ``upto``."""
        return self._publish(leader.replicated(self.bounds_state, upto))

    def acknowledge(
        self, ticket: int, stamp: Stamp | None, level: Isolation, last_offset: int
    ) -> bool:
        """Whether an append is answered at once; if not, an effect of a later event answers it."""
        outside = stamp is None or stamp.transaction == NO_TRANSACTION
        at_once = outside and level is Isolation.READ_UNCOMMITTED
        if at_once or last_offset < self.bounds_state.high_watermark.offset:
            return True
        self._tickets.add(ticket, last_offset)
        return False

    def give_up(self, ticket: int) -> None:
        """Nobody waits for this append's answer any more."""
        self._tickets.cancel(ticket)

    def wait(self, waiter: int, bound: Bound, offset: int) -> bool:
        """A read waits until the bound is above the offset; False: it is already."""
        if offset_of(self.bounds_state.bounds(), bound) > offset:
            return False
        self._waiters[bound].add(waiter, offset)
        self._bound_of[waiter] = bound
        return True

    def stop_waiting(self, waiter: int) -> None:
        """The read's time is over, or its caller is gone."""
        bound = self._bound_of.pop(waiter, None)
        if bound is not None:
            self._waiters[bound].cancel(waiter)

    def evict(self, log_start: Boundary) -> None:
        """Retention removed the entries below this place."""
        self.bounds_state = leader.evicted(self.bounds_state, log_start)
        self.spans.evicted(self.bounds_state.log_start.offset)

    def forget_producers(self, now: int) -> int | None:
        """Forgets the producers that have written nothing for too long.

        From when on that holds for the next one, if none writes meanwhile; None: for none.
        """
        times = {
            producer_id: expires
            for producer_id, state in self.producers.items()
            if (expires := producers.expires(state, self._producer_age)) is not None
        }
        old = [producer_id for producer_id, expires in times.items() if expires <= now]
        for producer_id in old:
            del self.producers[producer_id], times[producer_id]
        return min(times.values(), default=None)

    def truncate(self, tables: Sequence[Table], log_end: Boundary, now: int) -> Effects:
        """The log was cut back to ``log_end``; ``tables`` are what is left of it.

        What the entries that are gone had done to producers, transactions and epochs is undone.
        """
        self._derive(tables, leader.truncated(self.bounds_state, log_end), now)
        lost = self._tickets.beyond(log_end.offset)
        effects = self._publish(self.bounds_state)  # an open transaction may be gone as a whole
        return [Disown(tuple(lost)), *effects] if lost else effects

    # -- effects ----------------------------------------------------------------------------------

    def _publish(self, state: LeaderState) -> Effects:
        self.undecided.replicated(state.high_watermark.entry)
        self.bounds_state = leader.undecided_from(state, self.undecided.first())
        effects: Effects = []
        if self._tickets:
            answered = self._tickets.passed(state.high_watermark.offset)
            if answered:
                effects.append(Answer(tuple(answered)))
        if self._bound_of:
            bounds = self.bounds_state.bounds()
            woken = list(
                itertools.chain.from_iterable(
                    waiters.passed(offset_of(bounds, bound))
                    for bound, waiters in self._waiters.items()
                    if waiters
                )
            )
            for waiter in woken:
                del self._bound_of[waiter]
            if woken:
                effects.append(Wake(tuple(woken)))
        return effects
