"""One replica of a partition in this broker, for any thread.

**Invariant.** The core (``consistency.partition.replica``) knows exactly the entries of the log
that were written whole, whenever the lock is free. What it publishes (``bounds_state``) is one
value that never changes: readers take it without the lock.

**Lock.** Each replica has one lock. It guards core, log, role, waiters and sessions together. A
batch is inspected, encoded and checksummed before the lock is taken; nobody waits, and no reader is
woken, while it is held. Work that must not wait for it is left to its holder
(``waiters``). What is called back under the lock (``moved``, ``proposed``, ``news``) only
notes something.

**Order of effects.** The core judges, the log is written, the core applies the entries and
publishes the new bounds, its effects are carried out (proposals noted, followers notified), the
lock is released, and then appends are acknowledged and reads woken.

Its parts work over one :class:`~spark_stream.broker.partition.state.PartitionState`; the package
lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import structs

from spark_stream.broker.partition.appends import Appends
from spark_stream.broker.partition.replication import Followed, FollowerRole, Followers
from spark_stream.broker.partition.sessions import MemoryRoom, Recent, Sessions
from spark_stream.broker.partition.state import Fitness, PartitionState, ReplicaRole, Role
from spark_stream.broker.partition.transactions import PartitionTransactions
from spark_stream.broker.partition.waiters import Appended, Callers, WakeUp, wake_all
from spark_stream.cluster.partitions import PartitionId
from spark_stream.consistency.entries import RecordRun, appended_at, record_states
from spark_stream.consistency.ids import BrokerId, EntryIndex, Generation, LeaderEpoch, Offset
from spark_stream.consistency.isolation import Bounds, Isolation
from spark_stream.consistency.partition.atomic_cuts import SpansSnapshot, greatest_cut
from spark_stream.consistency.partition.effects import BOUND_OF, Effects, ProposeIsr, ProposeRecord
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.consistency.partition.progress import GenerationOf, IsrSettings
from spark_stream.consistency.partition.replica import Replica, Surroundings
from spark_stream.consistency.replication.epochs import Lineage, lineage_of, surviving
from spark_stream.counting import Traffic
from spark_stream.environment import Clock
from spark_stream.errors import (
    BrokerStopping,
    DamagedSegment,
    EntriesGone,
    IsologError,
    LeaderEpochFenced,
    LeaderUnavailable,
    UnknownLeaderEpoch,
    UnknownTopic,
)
from spark_stream.scripts.steps import Described
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.format.stored import Stored
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.segment.checking import Suspect
from spark_stream.storage.settings import LogSettings
from spark_stream.wire.topic_messages import OPEN_MAX, EpochStart, OpenExtent, PartitionFacts

_EPOCHS_MAX: Final = 16


class CloseReason(Enum):
    """Why a partition is closed. The errors of later callers say so."""

    BROKER_STOPS = auto()
    TOPIC_MISSING = auto()  # its record is gone; its files stay
    TOPIC_DELETED = auto()
    MOVED = auto()  # to other brokers: callers should go there

    @property
    def removes_files(self) -> bool:
        """Whether the files are removed next, so that they need not be forced."""
        return self in (CloseReason.TOPIC_DELETED, CloseReason.MOVED)


class Partition:
    """A replica of a partition. It refuses requests to the leader while it does not lead."""

    def __init__(
        self,
        topic: str,
        topic_id: str,
        number: int,
        log: PartitionLog,
        producer_expiry_us: int,
        clock: Clock,
        *,
        alone: bool = True,
        moved: Callable[[Partition], None] | None = None,
        proposed: Callable[[Partition, ProposeIsr | ProposeRecord], None] | None = None,
        generation_of: GenerationOf | None = None,
        recent_room: MemoryRoom | None = None,
        on_trouble: Callable[[], None] | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        """Make a replica over an open log.

        Args:
            topic: The topic's name.
            topic_id: The topic's id.
            number: The partition's number.
            log: The open log.
            producer_expiry_us: After how many microseconds idle producers are forgotten.
            clock: For the times of entries and of waits.
            alone: It leads from the start and has no followers; else it has no role yet.
            moved: Is called whenever housekeeping or a force may have become due.
            proposed: Is called with changes of the partition's record that are to be made.
            generation_of: As ``consistency.partition.progress`` says.
            recent_room: What may be kept in memory for followers (``sessions``); None for nothing.
            on_trouble: Is called when the log refuses a write.
            traffic: Counts what goes through it.
        """
        self.topic = topic
        self.topic_id = topic_id
        self.number = number
        self.log = log
        self.fitness = Fitness(clock, on_trouble)
        log.when_failed(self._note_failure)
        self.core = Replica(
            log.tables(),
            log.start,
            log.end,
            clock.steady_us(),
            producer_expiry_us,
            followers=0 if alone else 1,
            surroundings=Surroundings(log.boundary_of, generation_of or _no_generation),
        )
        self.traffic = traffic or Traffic.new()
        self._clock = clock
        self._moved = moved
        self._proposed = proposed
        self._cut = ((Offset(-1), -1), Offset(-1))
        self._state = state = PartitionState(
            topic,
            number,
            log,
            self.core,
            clock,
            self.fitness,
            Sessions(Recent(recent_room or MemoryRoom(0))),
            Callers(self.name),
            moved=self._note_moved,
            proposed=self._propose,
            role=Role.LEADER if alone else Role.NONE,
            traffic=self.traffic,
        )
        self._take_isr_settings(log.format.settings)
        self.role = ReplicaRole(state)
        self.appends = Appends(state)
        self.transactions = PartitionTransactions(state)
        self.followers = Followers(state)
        self.following = FollowerRole(state)

    # -- what it is --------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The partition's name in messages."""
        return f"{self.topic}/{self.number}"

    @property
    def leads(self) -> bool:
        """Whether it leads, and may do so at this moment."""
        return self._state.leads

    @property
    def follows(self) -> bool:
        """Whether it follows a leader."""
        return self._state.role is Role.FOLLOWER

    @property
    def id(self) -> PartitionId:
        """The partition's id."""
        return PartitionId(self.topic_id, self.number)

    def followed(
        self, generation: Generation, refresh: Callable[[], None] | None = None
    ) -> Followed:
        """Return the replica in its present turn as a follower. The result never changes."""
        turn = self._state.turn
        return Followed(self.id, self.leader_epoch, generation, turn, self.following, refresh)

    @property
    def has_followers(self) -> bool:
        """Whether it leads a partition of which others have replicas too."""
        progress = self.core.progress
        return progress is not None and len(progress.record.replicas) > 1

    @property
    def is_empty(self) -> bool:
        """Whether its log has never had an entry, and so has no files yet."""
        return self.core.bounds_state.log_end.entry == 0

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The epoch of the leader that it knows of."""
        return self.core.leader_epoch

    @property
    def last_epoch(self) -> LeaderEpoch | None:
        """The epoch of the log's last entry; None if it has none."""
        return self.core.epochs.last

    def committed(self) -> tuple[EntryIndex, LeaderEpoch] | None:
        """Return the high watermark as an entry, and the epoch of the last entry below it.

        None if there is nothing to remember: no entry is known to be committed, the replica is
        closed, or it leads without followers, so that its whole log is committed.
        """
        alone = self.core.progress is not None and not self.has_followers
        with self._state.lock:
            return None if alone or self._state.closed is not None else self.core.committed()

    def described(self) -> Described:
        """Return how the partition is, as its leader sees it."""
        with self._state.lock:
            self._state.check_leads()
            bounds, progress = self.core.bounds_state, self.core.progress
            found = {} if progress is None else progress.followers()
            numbers = {transaction for (transaction, _), _ in self.core.undecided.open()}
            hw_known = self.core.hw_known
        return Described(
            bounds.bounds(),
            bounds.leader_epoch,
            bounds.log_end.entry,
            self.log.size,
            len(numbers),
            found,
            hw_known,
        )

    def facts(self) -> PartitionFacts:
        """Return what its leader knows of it beside its offsets; raise NotLeader at a follower."""
        with self._state.lock:
            self._state.check_leads()
            seen, progress = self.core.bounds_state, self.core.progress
            acked = {} if progress is None else progress.followers()
            epochs = self.core.epochs.latest(_EPOCHS_MAX)
            firsts: dict[int, int] = {}
            for (transaction, _), part in self.core.undecided.open():
                firsts.setdefault(transaction, int(part.first_offset))
                if len(firsts) == OPEN_MAX:
                    break
            hw_known = self.core.hw_known
        bounds, tables = seen.bounds(), self.log.tables()
        return PartitionFacts(
            high_watermark=int(bounds.high_watermark) if hw_known else None,
            last_stable_offset=int(bounds.last_stable_offset) if hw_known else None,
            size=self.log.size,
            followers={str(broker): self._offset_of(entry) for broker, entry in acked.items()},
            epochs=[
                EpochStart(epoch=int(epoch), offset=int(at.offset), began_ms=began_us // 1000)
                for epoch, at in epochs
                if (began_us := appended_at(tables, at.entry)) is not None
            ],
            open=[OpenExtent(transaction=number, first_offset=at) for number, at in firsts.items()],
        )

    def _offset_of(self, entry: EntryIndex) -> int:
        try:
            return int(self.log.boundary_of(entry).offset)
        except EntriesGone:  # retention has removed it, or the log was cut meanwhile
            return int(self.log.start.offset)

    def record_states(self, start: int, end: int) -> list[RecordRun]:
        """Return what became of the records ``[start, end)``; raise as :meth:`check_hw_known`."""
        self.check_hw_known()
        with self._state.lock:
            open_parts = {key for key, _ in self.core.undecided.open()}
            high = self.core.bounds_state.high_watermark.offset
            tables = self.log.judged_tables()
        return record_states(tables, start, end, high, open_parts)

    def check_alone(self, damage: DamagedSegment) -> None:
        """Check that no other replica can replace what is damaged in this leader's log.

        Raises:
            LeaderUnavailable: another replica is in sync, and is about to lead.
        """
        progress = self.core.progress
        if progress is not None and len(progress.record.isr) > 1:
            raise LeaderUnavailable(
                f"{self.name}: {damage.message}; another in-sync replica is to lead",
                topic=self.topic,
                partition=self.number,
            ) from damage

    def check_leads(self) -> None:
        """Raise NotLeader unless it leads; raise why it is closed if it is."""
        self._state.check_leads()

    def check_answers(self, *, near: bool) -> None:
        """Check as :meth:`PartitionState.check_answers`."""
        self._state.check_answers(near=near)

    def check_leader_epoch(self, known: int | None) -> None:
        """Refuse a client that knows the leader in another epoch; None means that it knows none.

        Raises:
            LeaderEpochFenced: the client's epoch is over.
            UnknownLeaderEpoch: the client's epoch is newer: this leader may have been replaced.
        """
        present = int(self.leader_epoch)
        if known is None or known == present:
            return
        kind = LeaderEpochFenced if known < present else UnknownLeaderEpoch
        raise kind(
            f"{self.name}: the leader epoch is {present} here, not {known}",
            topic=self.topic,
            partition=self.number,
            leader_epoch=present,
        )

    def lags(self) -> dict[BrokerId, tuple[int, float]]:
        """Return, of each follower, how many entries it lacks, and how old the first of them is.

        In seconds, by this leader's clock. Takes no lock.
        """
        progress = self.core.progress
        if progress is None:
            return {}
        end = self.core.bounds_state.log_end.entry
        return {
            broker: (max(0, end - acked), self._age_of(acked) if acked < end else 0.0)
            for broker, acked in progress.followers().items()
        }

    def _age_of(self, entry: EntryIndex) -> float:
        """Return how many seconds ago an entry was appended; 0 if it is gone."""
        for table in reversed(self.log.tables()):
            if len(table) and (row := entry - int(table["entry_index"][0])) >= 0:
                if row >= len(table):
                    break
                age_us = self._clock.steady_us() - int(table["appended"][row])
                return max(0, age_us) / 1_000_000
        return 0.0

    def is_all_replicated(self) -> bool:
        """Return whether all in-sync replicas have all entries, or it leads no more."""
        bounds = self.core.bounds_state
        return not self.leads or bounds.high_watermark.entry >= bounds.log_end.entry

    def is_replicated(self, entry: EntryIndex, epoch: int) -> bool:
        """Return whether the entries below ``entry`` of the leader of this epoch are replicated.

        Also False while an in-sync replica may have other entries, which would stay if it led next.

        Raises:
            NotLeader: another leader's epoch has begun: the entries may be cut off.
        """
        with self._state.lock:
            self._state.check_leads()
            if epoch != self.leader_epoch:
                raise self._state.not_leader()
            return self.core.is_settled(entry)

    # -- appending ---------------------------------------------------------------------------------

    def append(
        self,
        batch: pa.RecordBatch,
        stamp: Stamp | None = None,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> Appended:
        """Append a message, wait for its acknowledgement, and wake the reads that wait for it.

        Raises: as ``Appends.prepare`` and ``Appends.take``.
        """
        taken = self.appends.take(self.appends.prepare(batch, stamp), stamp, isolation)
        assert taken is not None  # without patience_s it waits for the lock
        wake_all(taken.take_woken())
        if taken.pending is not None:
            self.appends.await_acknowledgement(taken, None)
        return taken.appended

    # -- reading -----------------------------------------------------------------------------------

    def bounds(self, isolation: Isolation | None = None) -> Bounds:
        """Return LEO, HW, LSO and the log's start, as one observation; the cut for READ_ATOMIC."""
        derived = self.core.derived  # read before the bounds
        bounds = self.core.bounds_state.bounds()
        if isolation is Isolation.READ_ATOMIC:
            cut = self._own_cut(bounds.last_stable_offset, derived)
            return structs.replace(bounds, atomic_cut=cut)
        return bounds

    def _own_cut(self, stable: Offset, derived: int) -> Offset:
        # What lies below the LSO is decided, and changes only if the log is cut below it.
        known, cut = self._cut
        if known != (stable, derived):
            cut = Offset(int(greatest_cut([stable], [self.spans()])[0]))
            self._cut = ((stable, derived), cut)
        return cut

    def spans(self) -> SpansSnapshot:
        """Return the extents of this partition's transactions, as they are now."""
        with self._state.lock:
            return self.core.spans.snapshot()

    def shows_uncommitted(self, start: Offset, end: Offset) -> bool:
        """Return whether ``[start, end)`` has aborted records, or reaches into an open part."""
        first = self.core.bounds_state.first_undecided
        if first is not None and first < end:
            return True
        return self.log.has_aborted(start, end)

    def lineage(self, offset: Offset) -> Lineage:
        """Return what a reader at the offset is to remember of this log."""
        return lineage_of(self.core.epochs, offset, self.core.bounds_state.high_watermark.offset)

    def surviving(self, lineage: Lineage) -> Offset:
        """Return the offset up to which this log has the records that the lineage describes."""
        state = self.core.bounds_state
        start = state.bounds().log_start_offset
        return surviving(lineage, self.core.epochs, start, state.log_end)

    def check_hw_known(self) -> None:
        """Check that the high watermark is known, and so the last stable offset.

        Raises:
            LeaderUnavailable: a new leader waits until all that it has is replicated: readers of an
                earlier leader may have seen that.
        """
        if not self.core.hw_known:
            raise self.hw_not_known()

    def hw_not_known(self) -> LeaderUnavailable:
        """Return the error for a request that comes before the high watermark is known."""
        return LeaderUnavailable(
            f"{self.name}: the leader of epoch {self.leader_epoch} does not know yet up to"
            f" where all in-sync replicas have its records",
            topic=self.topic,
            partition=self.number,
        )

    def known_bounds(self) -> Bounds:
        """Return LEO, HW, LSO and the log's start; raise as :meth:`check_hw_known`."""
        self.check_hw_known()
        return self.core.bounds_state.bounds()

    def wait_beyond(
        self, offset: Offset, isolation: Isolation, wake: WakeUp, *, near: bool = False
    ) -> int | None:
        """Call ``wake``, once, when the isolation's bound may have passed ``offset``.

        ``near``: also at a follower. Return a number for :meth:`stop_waiting`, or None if it has
        passed already.

        Raises:
            NotLeader, BrokerStopping, UnknownTopic: it cannot be read here. If that happens later,
                ``wake`` is called.
        """
        beyond = offset
        if isolation is Isolation.READ_ATOMIC:
            seen = self.bounds(isolation)
            if seen.atomic_cut is not None and seen.atomic_cut > offset:
                return None
            beyond = max(offset, seen.last_stable_offset)  # the cut moves only with the LSO
        callers = self._state.callers
        with self._state.lock:
            self._state.check_answers(near=near)
            number = callers.new_number()
            if not self.core.wait(number, BOUND_OF[isolation], beyond):
                return None
            callers.add_read(number, wake)
        return number

    def stop_waiting(self, number: int) -> None:
        """Forget a read that waits under this number."""
        with self._state.lock:
            self.core.stop_waiting(number)
            self._state.callers.remove(number)

    # -- its log -----------------------------------------------------------------------------------

    def _note_moved(self) -> None:
        if self._moved is not None:
            self._moved(self)

    def _propose(self, change: ProposeIsr | ProposeRecord) -> None:
        if self._proposed is not None:
            self._proposed(self, change)

    def _note_failure(self) -> None:
        """Note that the log has failed, so it takes no more until it is opened again."""
        if self.log.failed is not None:
            self.fitness.note(self.log.failed)

    def probe(self) -> None:
        """Check that the log takes entries, by a write that is taken back.

        Raises:
            DiskFull, StorageFailure: The log does not.
            BrokerStopping, UnknownTopic, NotLeader: The partition is closed.
        """
        with self._state.lock:
            self._state.check_open()
            with self.fitness:
                self.log.probe()
            self.fitness.end()

    def force(self) -> None:
        """Put what was appended on the disk, as ``PartitionState.force`` does."""
        self._state.force()

    def confirm(self, suspect: Suspect) -> bool:
        """Call :meth:`PartitionLog.confirm` while nothing is written."""
        with self._state.lock:
            return self._state.closed is None and self.log.confirm(suspect)

    def locate(self, indexes: np.ndarray, epoch: int, *, doubted: bool = False) -> Stored | None:
        """Call :meth:`PartitionLog.locate`, whatever its role is; return None if it is closed."""
        with self._state.lock:
            if self._state.closed is not None:
                return None
            return self.log.locate(indexes, epoch, doubted=doubted)

    def configure(self, log_format: LogFormat) -> None:
        """Append, roll, flush and remove by this format from now on."""
        if log_format == self.log.format:
            return
        with self._state.lock:
            self.log.format = log_format
            woken = self._state.carry_out(self._take_isr_settings(log_format.settings))
        wake_all(woken)

    def _take_isr_settings(self, settings: LogSettings) -> Effects:
        lag_us = settings.replica_lag_time_max_ms * 1_000
        unclean = settings.unclean_leader_election
        known = IsrSettings(settings.min_insync_replicas, lag_us, unclean)
        return self.core.configure(known, self._clock.steady_us())

    def flush_if_due(self, moment: float) -> float | None:
        """Force what was appended if ``flush.ms`` says so, else return when it will (None: never).

        Both moments are on the monotonic clock.
        """
        with self._state.lock:
            due = None if self._state.closed is not None else self.log.next_flush_due(moment)
            if due is not None and due <= moment:
                self.log.flush_if_due(moment)
                due = None
            return due

    def housekeep(self) -> int | None:
        """Roll and remove what is due; return when more is due by time alone, or None for never.

        By the steady clock, in microseconds.
        """
        put_shorter = self.log.drop_tail() if self._state.closed is None else None
        with self._state.lock:
            if self._state.closed is not None:
                return None
            if put_shorter is not None:
                put_shorter()
            now = self._clock.steady_us()
            try:
                state = self.core.bounds_state
                self.log.housekeep(now, state.removable, state.trimmed)
            finally:  # segments may have gone before an error
                self.core.evict(self.log.start)
            dues = (self.core.forget_producers(now), self.log.housekeeping_due())
            return min((due for due in dues if due is not None), default=None)

    def close(self, closing: CloseReason = CloseReason.BROKER_STOPS) -> None:
        """End appends and waits, then close the files.

        Everything acknowledged is in them, and on the disk unless they are removed next.
        """
        state = self._state
        woken: tuple[WakeUp, ...] = ()
        try:
            with state.lock:
                if state.closed is not None:
                    return
                state.closed = self._refusal_after(closing)
                woken = state.callers.end_all(state.closed)
                state.sessions.end_all()
                state.moved()
                self.log.close(forced=not closing.removes_files)
        finally:
            wake_all(woken)

    def _refusal_after(self, closing: CloseReason) -> IsologError:
        """Return what callers get once the replica has been closed for this reason."""
        if closing in (CloseReason.TOPIC_DELETED, CloseReason.TOPIC_MISSING):
            return UnknownTopic(f"topic {self.topic!r} was deleted", topic=self.topic)
        if closing is CloseReason.MOVED:
            return self._state.not_leader()
        return BrokerStopping("the broker is shutting down")


def _no_generation(broker: BrokerId) -> None:
    """Report no generation: a broker that is alone has no followers."""
