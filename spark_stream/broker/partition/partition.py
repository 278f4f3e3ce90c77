"""One replica of a partition in this broker, for any thread.

**Invariant.** Whenever the lock is free, the core (``consistency.partition.replica``) has exactly
the completely written entries of the log. It publishes its bounds as one immutable value
(``bounds_state``), which readers use without the lock.

**Lock.** Each replica has one lock. It guards core, log, role, waiters and sessions together. A
batch is inspected, encoded and checksummed before the lock is taken. No thread waits for an
acknowledgement, and no reader is woken, while it holds the lock. Threads that must not wait for the
lock queue their work at it (``waiters``). The callbacks under the lock (``moved``, ``proposed``,
``notify``) only record facts.

**Order of effects.** The core judges, the log is written, the core applies the entries and
publishes the new bounds, its effects are carried out (proposals recorded, followers notified), the
lock is released, and then appends are acknowledged and reads woken.

The package lists its parts, which share one
:class:`~spark_stream.broker.partition.state.PartitionState`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import structs

from spark_stream.broker.partition.appends import Appends
from spark_stream.broker.partition.replication import FollowedReplica, FollowerRole, Followers
from spark_stream.broker.partition.sessions import MemoryRoom, Recent, Sessions
from spark_stream.broker.partition.state import Fitness, PartitionState, ReplicaRole, Role
from spark_stream.broker.partition.transactions import PartitionTransactions
from spark_stream.broker.partition.waiters import Appended, PartitionWaiters, WakeUp, wake_all
from spark_stream.cluster.partitions import PartitionId
from spark_stream.consistency.entries import RecordRun, appended_at, record_states
from spark_stream.consistency.ids import BrokerId, EntryIndex, Generation, LeaderEpoch, Offset
from spark_stream.consistency.isolation import Bounds, Isolation
from spark_stream.consistency.partition.atomic_cuts import SpansSnapshot, greatest_cut
from spark_stream.consistency.partition.effects import BOUND_OF, Effects, ProposeIsr, ProposeRecord
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.consistency.partition.progress import GenerationOf, IsrSettings
from spark_stream.consistency.partition.replica import Replica, ReplicaLookups
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
from spark_stream.storage.format.stored import ChunkPlace
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.segment.checks import Suspect
from spark_stream.storage.settings import LogSettings
from spark_stream.wire.topic_messages import OPEN_MAX, EpochStart, OpenExtent, PartitionFacts

_EPOCHS_MAX: Final = 16


class CloseReason(Enum):
    """The reason for closing a partition, which selects the error for its later callers."""

    BROKER_STOPS = auto()
    TOPIC_MISSING = auto()  # its record is missing, and its files stay
    TOPIC_DELETED = auto()
    MOVED = auto()  # to other brokers

    @property
    def removes_files(self) -> bool:
        """Whether the files are removed next and so need no fsync."""
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
        """Create a replica over an open log.

        Args:
            topic: The topic's name.
            topic_id: The topic's id.
            number: The partition's number.
            log: The open log.
            producer_expiry_us: The idle time, in microseconds, after which a producer expires.
            clock: The source of the times of entries and waits.
            alone: Whether the replica leads from the start, without followers. Otherwise it has no
                role yet.
            moved: Called whenever housekeeping or an fsync may have become due.
            proposed: Called with changes of the partition's record to propose.
            generation_of: See ``consistency.partition.progress``.
            recent_room: The memory for recent batches (``sessions``). None: no memory.
            on_trouble: Called when the log refuses a write.
            traffic: The counts of appended, fetched and replicated records.
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
            lookups=ReplicaLookups(log.boundary_of, generation_of or _no_generation),
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
            PartitionWaiters(self.name),
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

    # -- facts -------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The partition's name in errors and logs."""
        return f"{self.topic}/{self.number}"

    @property
    def leads(self) -> bool:
        """Whether it leads, with a valid lease or its followers' promises."""
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
    ) -> FollowedReplica:
        """Return the replica as a follower in its present turn."""
        turn = self._state.turn
        return FollowedReplica(
            self.id, self.leader_epoch, generation, turn, self.following, refresh
        )

    @property
    def has_followers(self) -> bool:
        """Whether it leads a partition that has replicas on other brokers."""
        progress = self.core.progress
        return progress is not None and len(progress.record.replicas) > 1

    @property
    def is_empty(self) -> bool:
        """Whether its log has never had an entry, so that it has no files yet."""
        return self.core.bounds_state.log_end.entry == 0

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The latest leader epoch that the replica has received."""
        return self.core.leader_epoch

    @property
    def last_epoch(self) -> LeaderEpoch | None:
        """The epoch of the log's last entry. None: the log is empty."""
        return self.core.epochs.last

    def committed(self) -> tuple[EntryIndex, LeaderEpoch] | None:
        """Return the high watermark as an entry index, and the epoch of the last entry below it.

        Return None if no entry is known to be committed, if the replica is closed, or if it leads
        without followers, because then its whole log is committed.
        """
        alone = self.core.progress is not None and not self.has_followers
        with self._state.lock:
            return None if alone or self._state.closed is not None else self.core.committed()

    def described(self) -> Described:
        """Describe the partition at its leader: bounds, size, followers, open transactions."""
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
        """Return the leader's detailed facts: watermarks, followers, epochs, open transactions.

        Raises:
            NotLeader: this replica does not lead.
        """
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
        except EntriesGone:  # retention has removed it, or the log was truncated
            return int(self.log.start.offset)

    def record_states(self, start: int, end: int) -> list[RecordRun]:
        """Return the states of the records ``[start, end)``.

        Raises:
            LeaderUnavailable: as :meth:`check_hw_known`.
        """
        self.check_hw_known()
        with self._state.lock:
            open_parts = {key for key, _ in self.core.undecided.open()}
            high = self.core.bounds_state.high_watermark.offset
            tables = self.log.judged_tables()
        return record_states(tables, start, end, high, open_parts)

    def check_alone(self, damage: DamagedSegment) -> None:
        """Check that no other in-sync replica has the damaged records of this leader.

        Raises:
            NotLeader: another replica leads, so the reader has to ask that one.
            LeaderUnavailable: another replica is in sync and will lead soon.
        """
        with self._state.lock:
            self.check_leads()
            progress = self.core.progress
        if progress is not None and len(progress.record.isr) > 1:
            raise LeaderUnavailable(
                f"{self.name}: {damage.message}; another in-sync replica will lead soon",
                topic=self.topic,
                partition=self.number,
            ) from damage

    def check_leads(self) -> None:
        """Check as :meth:`PartitionState.check_leads`."""
        self._state.check_leads()

    def check_answers(self, *, near: bool) -> None:
        """Check as :meth:`PartitionState.check_answers`."""
        self._state.check_answers(near=near)

    def check_leader_epoch(self, known: int | None) -> None:
        """Compare a client's leader epoch (None: it has none) with the present one.

        Raises:
            LeaderEpochFenced: the client's epoch is older.
            UnknownLeaderEpoch: the client's epoch is newer, so this leader may have been replaced.
        """
        present = int(self.leader_epoch)
        if known is None or known == present:
            return
        kind = LeaderEpochFenced if known < present else UnknownLeaderEpoch
        raise kind(
            f"{self.name}: the leader epoch at this broker is {present}, not {known}",
            topic=self.topic,
            partition=self.number,
            leader_epoch=present,
        )

    def lags(self) -> dict[BrokerId, tuple[int, float]]:
        """Return each follower's lag: its missing entries, and the age of the first in seconds.

        The age is measured by this leader's clock. The method takes no lock.
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
        """Return the age of an entry in seconds, or 0 if the entry was removed."""
        for table in reversed(self.log.tables()):
            if len(table) and (row := entry - int(table["entry_index"][0])) >= 0:
                if row >= len(table):
                    break
                age_us = self._clock.steady_us() - int(table["appended"][row])
                return max(0, age_us) / 1_000_000
        return 0.0

    def is_all_replicated(self) -> bool:
        """Return whether all in-sync replicas have all entries, or this replica does not lead."""
        bounds = self.core.bounds_state
        return not self.leads or bounds.high_watermark.entry >= bounds.log_end.entry

    def is_replicated(self, entry: EntryIndex, epoch: int) -> bool:
        """Return whether the entries below ``entry`` of the leader of this epoch are replicated.

        Return False, too, while an in-sync replica may have other entries, which would survive if
        it became the next leader.

        Raises:
            NotLeader: another leader's epoch has begun, so the entries may be truncated.
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
        """Append a message, wake the reads that it satisfies, and wait for its acknowledgement.

        Raises:
            IsologError: as ``Appends.prepare``, ``take`` and ``await_acknowledgement``.
        """
        taken = self.appends.take(self.appends.prepare(batch, stamp), stamp, isolation)
        assert taken is not None  # the wait for the lock has no limit
        wake_all(taken.take_woken())
        if taken.pending is not None:
            self.appends.await_acknowledgement(taken, None)
        return taken.appended

    # -- reading -----------------------------------------------------------------------------------

    def bounds(self, isolation: Isolation | None = None) -> Bounds:
        """Return LEO, HW, LSO and the log start, consistently. READ_ATOMIC adds the atomic cut."""
        derived = self.core.derived  # read before the bounds
        bounds = self.core.bounds_state.bounds()
        if isolation is Isolation.READ_ATOMIC:
            cut = self._own_cut(bounds.last_stable_offset, derived)
            return structs.replace(bounds, atomic_cut=cut)
        return bounds

    def _own_cut(self, stable: Offset, derived: int) -> Offset:
        # Transactions below the LSO are decided. They change only if the log is truncated below it.
        known, cut = self._cut
        if known != (stable, derived):
            cut = Offset(int(greatest_cut([stable], [self.spans()])[0]))
            self._cut = ((stable, derived), cut)
        return cut

    def spans(self) -> SpansSnapshot:
        """Return a snapshot of the extents of this partition's transactions."""
        with self._state.lock:
            return self.core.spans.snapshot()

    def shows_uncommitted(self, start: Offset, end: Offset) -> bool:
        """Return whether ``[start, end)`` has aborted records, or ends above an undecided one."""
        first = self.core.bounds_state.first_undecided
        if first is not None and first < end:
            return True
        return self.log.has_aborted(start, end)

    def lineage(self, offset: Offset) -> Lineage:
        """Return the lineage of a reader at the offset, which identifies this log's past."""
        return lineage_of(self.core.epochs, offset, self.core.bounds_state.high_watermark.offset)

    def surviving(self, lineage: Lineage) -> Offset:
        """Return the offset below which this log has the records of the lineage."""
        state = self.core.bounds_state
        start = state.bounds().log_start_offset
        return surviving(lineage, self.core.epochs, start, state.log_end)

    def check_hw_known(self) -> None:
        """Check that the high watermark, and so the last stable offset, is known.

        Raises:
            LeaderUnavailable: a new leader first replicates all its entries, because readers of an
                earlier leader may have seen them.
        """
        if not self.core.hw_known:
            raise self.hw_unknown()

    def hw_unknown(self) -> LeaderUnavailable:
        """Return the error for a request before the high watermark is known."""
        return LeaderUnavailable(
            f"{self.name}: the leader of epoch {self.leader_epoch} has not yet replicated all its"
            " records, so its high watermark is unknown",
            topic=self.topic,
            partition=self.number,
        )

    def known_bounds(self) -> Bounds:
        """Return LEO, HW, LSO and the log start.

        Raises:
            LeaderUnavailable: as :meth:`check_hw_known`.
        """
        self.check_hw_known()
        return self.core.bounds_state.bounds()

    def wait_beyond(
        self, offset: Offset, isolation: Isolation, wake: WakeUp, *, near: bool = False
    ) -> int | None:
        """Call ``wake``, once, when the isolation's bound may have passed ``offset``.

        With ``near``, a follower answers too. Return a number for :meth:`stop_waiting`, or None if
        the bound has already passed the offset.

        Raises:
            NotLeader, BrokerStopping, UnknownTopic: this replica cannot be read. If that happens
                later, ``wake`` is called.
        """
        beyond = offset
        if isolation is Isolation.READ_ATOMIC:
            seen = self.bounds(isolation)
            if seen.atomic_cut is not None and seen.atomic_cut > offset:
                return None
            beyond = max(offset, seen.last_stable_offset)  # the cut moves only with the LSO
        waiters = self._state.waiters
        with self._state.lock:
            self._state.check_answers(near=near)
            number = waiters.new_number()
            if not self.core.wait(number, BOUND_OF[isolation], beyond):
                return None
            waiters.add_read(number, wake)
        return number

    def stop_waiting(self, number: int) -> None:
        """Remove the pending read of this number."""
        with self._state.lock:
            self.core.stop_waiting(number)
            self._state.waiters.remove(number)

    def wake_refused(self) -> None:
        """Wake the pending reads if this leader may not answer at this moment. Never block.

        Another broker may lead already, and a read at this one would wait in vain.
        """
        if self._state.role is Role.LEADER and not self._state.leads:
            self.wake_reads()

    def wake_reads(self) -> None:
        """Wake the pending reads, so that they check whether they may wait. Never block."""
        self._state.lock.run_soon(self._take_reads)

    def _take_reads(self) -> tuple[WakeUp, ...]:
        reads = self._state.waiters.take_reads()
        for number in reads:
            self.core.stop_waiting(number)
        return tuple(reads.values())

    # -- its log -----------------------------------------------------------------------------------

    def _note_moved(self) -> None:
        if self._moved is not None:
            self._moved(self)

    def _propose(self, change: ProposeIsr | ProposeRecord) -> None:
        if self._proposed is not None:
            self._proposed(self, change)

    def _note_failure(self) -> None:
        """Record the failure of the log, which refuses writes until it is opened again."""
        if self.log.failed is not None:
            self.fitness.record_refusal(self.log.failed)

    def probe(self) -> None:
        """Check that the log accepts entries, by a write that is undone.

        Raises:
            DiskFull, StorageFailure: the log refuses the write.
            BrokerStopping, UnknownTopic, NotLeader: the partition is closed.
        """
        with self._state.lock:
            self._state.check_open()
            with self.fitness:
                self.log.probe()
            self.fitness.clear()

    def force(self) -> None:
        """Fsync the appended records, as :meth:`PartitionState.force`."""
        self._state.force()

    def confirm(self, suspect: Suspect) -> bool:
        """Call :meth:`PartitionLog.confirm` under the lock, without concurrent writes."""
        with self._state.lock:
            return self._state.closed is None and self.log.confirm(suspect)

    def locate(
        self, indexes: np.ndarray, epoch: int, *, doubted: bool = False
    ) -> ChunkPlace | None:
        """Call :meth:`PartitionLog.locate` in any role. Return None if the partition is closed."""
        with self._state.lock:
            if self._state.closed is not None:
                return None
            return self.log.locate(indexes, epoch, doubted=doubted)

    def configure(self, log_format: LogFormat) -> None:
        """Replace the format and the settings of the log."""
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
        """Fsync the appended records if ``flush.ms`` has passed.

        Otherwise return the due time (None: never). Both times are on the monotonic clock.
        """
        with self._state.lock:
            due = None if self._state.closed is not None else self.log.next_flush_due(moment)
            if due is not None and due <= moment:
                self.log.flush_if_due(moment)
                due = None
            return due

    def housekeep(self, tiered: int = 0) -> int | None:
        """Roll and remove due segments, and remove expired producers.

        ``tiered``: the offset up to which the tables of lakes have all records.
        Return the next due time by the steady clock, in microseconds. None: nothing will become due
        by time alone.
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
                self.log.housekeep(now, state.removable, state.trimmed, Offset(tiered))
            finally:  # segments may have been removed before an error
                self.core.evict(self.log.start)
            dues = (self.core.forget_producers(now), self.log.housekeeping_due())
            return min((due for due in dues if due is not None), default=None)

    def held_back(self, tiered: int) -> tuple[int, int]:
        """Return the number and bytes of segments that local retention holds for tables."""
        limit = self.core.bounds_state.removable
        return self.log.held_back(self._clock.steady_us(), limit, Offset(tiered))

    def close(self, closing: CloseReason = CloseReason.BROKER_STOPS) -> None:
        """End appends and waits, then close the files.

        All acknowledged records are in the files, and fsynced unless the files are removed next.
        """
        state = self._state
        woken: tuple[WakeUp, ...] = ()
        try:
            with state.lock:
                if state.closed is not None:
                    return
                state.closed = self._closing_error(closing)
                woken = state.waiters.end_all(state.closed)
                state.sessions.end_all()
                state.moved()
                self.log.close(forced=not closing.removes_files)
        finally:
            wake_all(woken)

    def _closing_error(self, closing: CloseReason) -> IsologError:
        """Return the error for calls to a replica that was closed for this reason."""
        if closing is CloseReason.TOPIC_DELETED:
            return UnknownTopic(f"topic {self.topic!r} was deleted", topic=self.topic)
        if closing is CloseReason.TOPIC_MISSING:
            return UnknownTopic(
                f"the metadata record of topic {self.topic!r} is missing",
                hint="Its files stay. Restore the metadata store from a backup.",
                topic=self.topic,
            )
        if closing is CloseReason.MOVED:
            return self._state.not_leader()
        return BrokerStopping("the broker is shutting down")


def _no_generation(broker: BrokerId) -> None:
    """Return None, because a replica without followers compares no generations."""
