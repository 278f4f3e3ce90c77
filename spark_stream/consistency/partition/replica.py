"""The core of a replica: the state of its partition, and the effects of each event.

A replica's log is in files, its lock and its threads are in the broker. All the rest is here, and
no method waits. An event is a method: it changes the state and returns effects, which the caller
carries out. The same code runs at a leader, at a follower and in a simulation.

**One fold.** The state that is derived from a log (producers, open transactions, extents, epochs)
comes from :meth:`Replica.apply` entry by entry, at a leader and at a follower alike. After a log
was opened or truncated, it is computed from the entries tables. Both ways give the same result.

**Order.** An entry is in the log before it is applied, and its derived state is complete before the
assignment of ``bounds_state`` publishes the new bounds. So a reader of the bounds without a lock
never sees an end without the transaction that holds it back.

**Acknowledgements.** A batch outside a transaction that requires only ``read_uncommitted`` is
acknowledged once it is appended. Every other one, and each batch of a transaction, is acknowledged
when its records are below the high watermark: so a commit never takes a transaction whose tail a
failover lost. The same rule holds for a duplicate of a batch.

**Roles.** A replica that was just opened has none. ``lead_replicas`` makes it the leader of an
epoch, ``follow`` a follower in one. Epochs never fall. A leader keeps its followers' progress
(``consistency.partition.progress``). A follower takes what its leader sends
(``consistency.replication.follower``) and adopts the leader's high watermark, up to its own log
end.

**The high watermark of a new leader** is a lower bound until all entries that it had at its
election are replicated: readers of earlier leaders may have seen more. Until then ``hw_known`` is
False, and calls do not return the high watermark and the last stable offset. Records below them are
readable.

**Waiters** are numbers that the caller chooses. They wait for one of three bounds to pass an
offset. A waiter whose bound has passed is named in one effect, and removed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.entries import Entry, Kind, Table
from spark_stream.consistency.ids import (
    NO_PRODUCER,
    NO_TRANSACTION,
    EntryIndex,
    LeaderEpoch,
    Offset,
)
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.partition import producers
from spark_stream.consistency.partition.atomic_cuts import Spans
from spark_stream.consistency.partition.effects import (
    Abandon,
    Answer,
    Disown,
    Effects,
    HighWatermarkMoved,
    ProposeIsr,
    WaitBound,
    Waiters,
    Wake,
    offset_of,
)
from spark_stream.consistency.partition.open_transactions import Joins, Undecided
from spark_stream.consistency.partition.producers import (
    Accepted,
    Duplicate,
    RefusalReason,
    RefusedBatch,
    Stamp,
)
from spark_stream.consistency.partition.progress import GenerationOf, IsrSettings, Progress
from spark_stream.consistency.replication import bounds as transitions
from spark_stream.consistency.replication.bounds import Boundary, BoundsState
from spark_stream.consistency.replication.epochs import EpochHistory, EpochStarts, agreement
from spark_stream.consistency.replication.follower import (
    Agreement,
    LeaderAnswer,
    Refusal,
    epoch_refusal,
)


def _no_boundary(entry: EntryIndex) -> Boundary:
    raise ValueError(f"no look-up of the place of entry {entry}")


class ReplicaLookups(Struct, frozen=True):
    """Functions that a replica calls. None of them blocks.

    ``boundary_of`` finds the place before an entry of its log, ``generation_of`` the generation in
    which a broker is registered and alive.
    """

    boundary_of: Callable[[EntryIndex], Boundary] = _no_boundary
    generation_of: GenerationOf = lambda _: None


_ALONE: Final = ReplicaLookups()

_FULL_US: Final = 1_000_000


class Replica:
    """One replica of a partition. One caller at a time. ``bounds_state`` may be read by any."""

    def __init__(
        self,
        tables: Sequence[Table],
        log_start: Boundary,
        log_end: Boundary,
        now: int,
        producer_expiry_us: int,
        followers: int = 0,
        lookups: ReplicaLookups = _ALONE,
    ) -> None:
        """``tables``: the log's entries. ``now`` is in microseconds.

        ``followers``: the number of other replicas. With one or more, no entry counts as replicated
        yet.
        """
        self._producer_expiry_us = producer_expiry_us
        self._lookups = lookups
        self._isr_settings = IsrSettings()
        self._session_numbers = itertools.count()
        self.progress: Progress | None = None
        self.joins = Joins()
        self._tickets = Waiters()
        self._waiters = {bound: Waiters() for bound in WaitBound}
        self._bound_of: dict[int, WaitBound] = {}
        self._full_until = 0  # before this time no other producers are evicted
        self.derived = 0
        """Counts opens and cuts of the log: a new number makes earlier bounds and cuts invalid."""
        state = transitions.opened(LeaderEpoch(0), log_start, log_end, followers)
        self._derive(tables, state, now)

    def _derive(self, tables: Sequence[Table], state: BoundsState, now: int) -> None:
        """Derive all state from the log's entries."""
        self.derived += 1
        self.producers = producers.derived(tables, now, self._producer_expiry_us)
        self.spans = Spans.derived(tables)
        self.epochs = EpochStarts.derived(tables)
        self.undecided = Undecided.derived(tables, state.high_watermark.entry)
        self.bounds_state = transitions.undecided_from(state, self.undecided.first())
        self._end_before = state.log_end  # the log's end before the last entries were applied

    # -- state ------------------------------------------------------------------------------------

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The epoch of the present leader."""
        return self.bounds_state.leader_epoch

    def judge(self, stamp: Stamp, records: int) -> Accepted | Duplicate | RefusedBatch:
        """Judge, at the leader, a stamped batch of which ``records`` are valid.

        In a transaction, a batch is taken only under a confirmed join
        (``consistency.partition.open_transactions``).
        """
        key = (stamp.transaction, stamp.producer_id)
        if stamp.transaction != NO_TRANSACTION and key not in self.joins:
            return RefusedBatch(RefusalReason.ENDED, 0)
        return producers.judge(self.producers.get(stamp.producer_id), stamp, records)

    @property
    def hw_known(self) -> bool:
        """Whether the high watermark is exact, and not just a lower bound of the partition's."""
        progress, high = self.progress, self.bounds_state.high_watermark.entry
        if progress is None:
            return self.bounds_state.followers == 0
        return high >= progress.inherited_end

    def is_settled(self, entry: EntryIndex) -> bool:
        """Return whether the ISR has all entries below ``entry``, and no surplus ones."""
        high = self.bounds_state.high_watermark.entry
        return high >= entry and (self.progress is None or self.progress.all_truncated)

    def sessions(self) -> Collection[int]:
        """Return the current sessions of followers."""
        return () if self.progress is None else self.progress.session_numbers

    def has_enough_replicas(self, stamp: Stamp | None, level: Isolation) -> bool:
        """Return whether there are enough in-sync replicas for this append, if it needs them."""
        progress = self.progress
        return progress is None or progress.enough or not _waits(stamp, level)

    def history(self) -> EpochHistory:
        """Return the log's epochs, for a comparison with another replica's."""
        state = self.bounds_state
        return self.epochs.history(state.log_start.entry, state.log_end.entry)

    # -- roles ------------------------------------------------------------------------------------

    def lead_replicas(self, me: Member, record: PartitionRecord, version: int, now: int) -> Effects:
        """Become the leader of the record's epoch. The store has the record at this version."""
        self._begin(record.leader_epoch)
        self.progress = Progress(
            me,
            record,
            version,
            self.bounds_state.log_end.entry,
            self._isr_settings,
            self._lookups.generation_of,
            now,
        )
        return self._settle(now)

    def follow(self, epoch: LeaderEpoch) -> Effects:
        """Become a follower in this epoch, of a leader that may not be elected yet.

        Waiting appends are abandoned. Waiting reads are woken, so that they find another leader.
        """
        self._begin(epoch)
        self.progress = None
        self.bounds_state = transitions.waiting_for(self.bounds_state, 1)
        abandoned = tuple(self._tickets.beyond(0))
        woken = tuple(self._bound_of)
        for waiter in woken:
            self.stop_waiting(waiter)
        effects: Effects = [Abandon(abandoned)] if abandoned else []
        return [*effects, Wake(woken)] if woken else effects

    def _begin(self, epoch: LeaderEpoch) -> None:
        if epoch < self.leader_epoch:
            raise ValueError(f"epoch {epoch} after {self.leader_epoch}: epochs never fall")
        self.joins.clear()
        self.bounds_state = replace(self.bounds_state, leader_epoch=epoch)

    # -- the leader's followers -------------------------------------------------------------------

    def follower_started(
        self, member: Member, epoch: int, history: EpochHistory, now: int
    ) -> tuple[LeaderAnswer | Refusal, Effects]:
        """Start a session of a follower of this epoch, given its log's epochs.

        From then on the follower is sent frames.
        """
        progress = self.progress
        wrong = epoch_refusal(self.leader_epoch, epoch)
        if wrong is not None:
            return wrong, []
        if progress is None:
            return Refusal.NOT_LEADING, []
        if member.broker not in progress.record.replicas or member.broker == progress.me.broker:
            return Refusal.NOT_A_REPLICA, []
        state, session = self.bounds_state, next(self._session_numbers)
        shared, start = agreement(history, self.history()), state.log_start.entry
        if shared is None and member in progress.maximal:
            # The follower has every committed entry, and only committed entries are evicted. So the
            # logs agree up to the later start. The follower must not be emptied: a crash before it
            # has fetched everything again would leave a member of the ISR with a part of its log.
            # A follower outside the maximal ISR is emptied: after its retention removed entries, an
            # unclean election may have replaced them, so nothing proves that the rest agrees.
            later = max(int(start), int(history.start))
            if later <= min(int(state.log_end.entry), int(history.end)):
                shared = EntryIndex(later)
        # Entry 0 of a log that was trimmed above its end has a later offset than 0.
        is_empty = int(history.end) == 0
        begin = state.log_start if shared is None or is_empty else None
        progress.on_started(session, member, EntryIndex(0) if shared is None else shared)
        first = state.log_start.entry if shared is None else shared
        agreed = Agreement(self.leader_epoch, first, state.high_watermark.entry, begin)
        return LeaderAnswer(session, agreed), self._settle(now)

    def follower_acked(self, session: int, entry: EntryIndex, now: int) -> Effects:
        """Record that the follower of this session has the entries below ``entry``."""
        progress = self.progress
        if progress is None:
            return []
        if entry > self.bounds_state.log_end.entry:
            raise ValueError(f"acknowledged past the log end: {entry}")
        if progress.on_reported(session, entry):
            return self._settle(now)
        return self._advance()

    def follower_refuses_writes(self, session: int, now: int) -> Effects:
        """Record that this session's follower cannot write, so that it leaves the ISR."""
        if self.progress is None:
            return []
        self.progress.refuses_writes(session)
        return self._settle(now)

    def follower_left(self, session: int, now: int) -> Effects:
        """End the session. Its reports still hold."""
        if self.progress is None:
            return []
        self.progress.on_left(session)
        return self._settle(now)

    def tick(self, now: int) -> Effects:
        """Check the ISR after some time, or after brokers joined or left."""
        if self.progress is None:
            return []
        self.progress.end_sessions_of_dead()
        return self._settle(now)

    def tick_due(self) -> int | None:
        """Return the time at which ``tick`` may have an effect without a report, or None."""
        progress = self.progress
        return None if progress is None else progress.due(self.bounds_state.log_end.entry)

    def isr_changed(self, record: PartitionRecord, version: int, now: int) -> Effects:
        """Adopt the record at this version, after a proposal or another broker's change.

        A record of another leader or epoch is for ``lead_replicas`` or ``follow``.
        """
        progress = self.progress
        if progress is None or not progress.on_changed(record, version):
            return []
        return self._settle(now)

    def isr_refused(
        self, proposed_at: int, record: PartitionRecord, version: int, now: int
    ) -> Effects:
        """Drop a finally refused proposal at version ``proposed_at``.

        The record was found to be this one instead.
        """
        if self.progress is None:
            return []
        self.progress.on_refused(proposed_at, record, version)
        return self._settle(now)

    def configure(self, settings: IsrSettings, now: int) -> Effects:
        """Adopt the topic's settings."""
        self._isr_settings = settings
        if self.progress is None:
            return []
        self.progress.configure(settings)
        return self._settle(now)

    def _settle(self, now: int) -> Effects:
        """Derive the high watermark and the ISR to propose."""
        effects = self._advance()
        progress, state = self.progress, self.bounds_state
        assert progress is not None
        if progress.proposed is None:
            isr = progress.propose(state.high_watermark.entry, state.log_end.entry, now)
            if isr is not None:
                effects.append(ProposeIsr(isr, progress.version))
        return [*effects, *self._advance()]

    def _advance(self) -> Effects:
        """Move the high watermark as far as the in-sync replicas allow."""
        progress, state = self.progress, self.bounds_state
        assert progress is not None
        if state.followers != progress.waits:
            self.bounds_state = state = transitions.waiting_for(state, progress.waits)
        upto = progress.replicated(state.log_end.entry)
        if upto <= state.high_watermark.entry:
            return []
        return self._publish(transitions.replicated(state, self._boundary(upto, state.log_end)))

    def _boundary(self, entry: EntryIndex, end: Boundary) -> Boundary:
        """Return the position before an entry of the log that ends at ``end``.

        Often it is the log's present or previous end, which needs no search.
        """
        for known in (end, self._end_before):
            if entry == known.entry:
                return known
        return self._lookups.boundary_of(entry)

    # -- the follower's log -----------------------------------------------------------------------

    def append_replicated(self, entries: Sequence[Entry], leader_hw: EntryIndex) -> Effects:
        """Apply the leader's entries, which were appended to the log before."""
        return self._publish(self._learned(self._folded(entries), leader_hw))

    def recall(self, committed: EntryIndex, epoch: LeaderEpoch) -> None:
        """Adopt the high watermark of an earlier process, if the log has the entry before it."""
        state = self.bounds_state
        there = state.log_start.entry < committed <= state.log_end.entry
        if there and self.epochs.epoch_of(committed - 1) == epoch:
            self._publish(self._learned(state, committed))

    def committed(self) -> tuple[EntryIndex, LeaderEpoch] | None:
        """Return the arguments for a later :meth:`recall`, or None without a committed entry."""
        entry = self.bounds_state.high_watermark.entry
        epoch = self.epochs.epoch_of(entry - 1)
        return None if epoch is None else (entry, epoch)

    def learn_high_watermark(self, leader_hw: EntryIndex) -> Effects:
        """Adopt the leader's high watermark, an entry that may not be in this log yet."""
        known = self._learned(self.bounds_state, leader_hw)
        return [] if known is self.bounds_state else self._publish(known)

    def _learned(self, state: BoundsState, leader_hw: EntryIndex) -> BoundsState:
        """Return the state of a follower with its leader's high watermark, or with its log end."""
        upto = min(leader_hw, state.log_end.entry)
        if upto <= state.high_watermark.entry:
            return state
        return transitions.replicated(state, self._boundary(upto, state.log_end))

    # -- events -----------------------------------------------------------------------------------

    def apply(self, *entries: Entry) -> Effects:
        """Make appended entries visible, all together."""
        return self._publish(self._folded(entries))

    def _folded(self, entries: Sequence[Entry]) -> BoundsState:
        """Return the bounds after the entries, and update everything else derived from them."""
        state = self.bounds_state
        self._end_before = state.log_end
        for entry in entries:
            at = state.log_end
            if (entry.entry_index, entry.base_offset) != at:
                place = f"{entry.entry_index} (offset {entry.base_offset})"
                raise ValueError(f"the entry {place} does not follow the log end {at}")
            self.epochs.on_appended(LeaderEpoch(entry.leader_epoch), at)
            if entry.producer_id != NO_PRODUCER:
                self._fold(entry)
            state = transitions.appended(state, entry.count)
        if self.progress is not None and entries:
            self.progress.on_appended(entries[0].entry_index, entries[0].appended)
        return state

    def make_room(self, producer_id: int, now: int) -> bool:
        """Evict producers if there is no room for this one. Return whether there is room."""
        if producer_id in self.producers or len(self.producers) < producers.PRODUCERS_MAX:
            return True
        if now < self._full_until:
            return False
        old = producers.surplus(self.producers, now, producers.PRODUCERS_MAX)
        for each in old:
            del self.producers[each]
        if not old:
            self._full_until = now + _FULL_US
        return bool(old)

    def _fold(self, entry: Entry) -> None:
        writer, transaction = entry.producer_id, entry.transaction
        self.make_room(writer, entry.appended)  # a follower has room for its leader's producers
        self.producers[writer] = producers.folded(self.producers.get(writer), entry)
        if transaction == NO_TRANSACTION:
            return
        if entry.kind is Kind.DATA:
            first = Offset(entry.base_offset)
            self.undecided.began(transaction, writer, entry.producer_epoch, first)
            self.spans.on_appended(transaction, writer, first, first + entry.count - 1)
            return
        if entry.kind is Kind.ABORT:
            self.spans.on_aborted(transaction, writer)
        self.undecided.on_marked(transaction, writer, entry.entry_index)

    def use_up(self, stamp: Stamp, now: int) -> None:
        """Use up the sequence of a refused batch without valid records.

        No entry has that sequence, so this holds for the present leader only.
        """
        known = self.producers.get(stamp.producer_id)
        end = self.bounds_state.log_end.offset
        self.producers[stamp.producer_id] = producers.appended(known, stamp, end, 0, now)

    def acknowledge(
        self, ticket: int, stamp: Stamp | None, level: Isolation, last_offset: int
    ) -> bool:
        """Return whether to acknowledge an append now. Otherwise a later effect requests it."""
        if not _waits(stamp, level) or last_offset < self.bounds_state.high_watermark.offset:
            return True
        self._tickets.add(ticket, last_offset)
        return False

    def give_up(self, ticket: int) -> None:
        """Remove this append: its caller waits no longer."""
        self._tickets.cancel(ticket)

    def wait(self, waiter: int, bound: WaitBound, offset: int) -> bool:
        """Register a read until the bound is above the offset. Return False if it is already."""
        if offset_of(self.bounds_state.bounds(), bound) > offset:
            return False
        self._waiters[bound].add(waiter, offset)
        self._bound_of[waiter] = bound
        return True

    def stop_waiting(self, waiter: int) -> None:
        """Remove a waiting read: its time expired, or its caller disconnected."""
        bound = self._bound_of.pop(waiter, None)
        if bound is not None:
            self._waiters[bound].cancel(waiter)

    def evict(self, log_start: Boundary) -> None:
        """Move the log start after retention removed the entries below this place."""
        self.bounds_state = transitions.evicted(self.bounds_state, log_start)
        self.spans.on_evicted(self.bounds_state.log_start.offset)

    def trim(self, before: Offset) -> Effects:
        """Hide the records below ``before`` from readers, in this role and in all later ones."""
        if before <= self.bounds_state.trimmed:
            return []
        return self._publish(transitions.trimmed_below(self.bounds_state, before))

    def forget_producers(self, now: int) -> int | None:
        """Remove the producers that expired without a write.

        Return the time at which the next producer expires if it does not write, or None.
        """
        times = {
            producer_id: expires
            for producer_id, state in self.producers.items()
            if (expires := producers.expires(state, self._producer_expiry_us)) is not None
        }
        old = [producer_id for producer_id, expires in times.items() if expires <= now]
        for producer_id in old:
            del self.producers[producer_id], times[producer_id]
        return min(times.values(), default=None)

    def truncate(
        self, tables: Sequence[Table], log_end: Boundary, now: int, *, lost: bool = False
    ) -> Effects:
        """Update the state after a truncation to ``log_end``. ``tables`` are the remaining entries.

        The effects of the removed entries on producers, transactions and epochs are undone.
        ``lost``: the removed entries include committed ones that the leader no longer has.
        """
        self._derive(tables, transitions.truncated(self.bounds_state, log_end, lost=lost), now)
        disowned = self._tickets.beyond(log_end.offset)
        effects = self._publish(self.bounds_state)  # a whole open transaction may be truncated
        return [Disown(tuple(disowned)), *effects] if disowned else effects

    def reset(self, log_start: Boundary, now: int) -> None:
        """Update the state of a follower whose log is now empty and begins at this position."""
        self._derive([], transitions.emptied(self.bounds_state, log_start), now)

    # -- effects ----------------------------------------------------------------------------------

    def _publish(self, state: BoundsState) -> Effects:
        leads = self.progress is not None
        moved = leads and state.high_watermark != self.bounds_state.high_watermark
        self.undecided.on_replicated(state.high_watermark.entry)
        self.bounds_state = transitions.undecided_from(state, self.undecided.first())
        effects: Effects = []
        if moved:
            effects.append(HighWatermarkMoved(state.high_watermark.entry))
        if self._tickets:
            answered = self._tickets.remove_passed(state.high_watermark.offset)
            if answered:
                effects.append(Answer(tuple(answered)))
        if self._bound_of:
            bounds = self.bounds_state.bounds()
            woken = list(
                itertools.chain.from_iterable(
                    waiters.remove_passed(offset_of(bounds, bound))
                    for bound, waiters in self._waiters.items()
                    if waiters
                )
            )
            for waiter in woken:
                del self._bound_of[waiter]
            if woken:
                effects.append(Wake(tuple(woken)))
        return effects


def _waits(stamp: Stamp | None, level: Isolation) -> bool:
    """Return whether an append is acknowledged only once it is replicated."""
    inside = stamp is not None and stamp.transaction != NO_TRANSACTION
    return inside or level is not Isolation.READ_UNCOMMITTED
