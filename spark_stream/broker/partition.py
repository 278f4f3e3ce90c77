"""One partition in this broker, as clients see it: appends, transactions, reads that wait.

``replica_shell`` is what it does as a replica. A batch is inspected, encoded and checksummed before
the lock is taken. Readers take the lock only to say what they wait for.

Order of steps in an append: the core judges the batch, the log takes it, the core applies its
entry and publishes the new bounds, the append is acknowledged, and then the reads that it satisfies
are woken.

Time: what ages (entries, producers) goes by the steady clock, deadlines by the monotonic one; only
the timestamps of records are the wall clock's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto
from typing import Any

import pyarrow as pa
from msgspec import structs

from spark_stream.broker.following import FollowingReplica
from spark_stream.broker.inspection import inspected, refusal
from spark_stream.broker.outcomes import (
    Acknowledgement,
    Appended,
    Candidate,
    OpenTransaction,
    Taken,
    WakeUp,
    unknown_outcome,
    wake_all,
)
from spark_stream.broker.refusals import of_stamp
from spark_stream.consistency.atomic import greatest_cut
from spark_stream.consistency.effects import BOUND_OF, Effects
from spark_stream.consistency.entries import Entry, Kind
from spark_stream.consistency.extents import SpansSnapshot
from spark_stream.consistency.ids import NO_TRANSACTION, Offset
from spark_stream.consistency.isolation import Bounds, Isolation
from spark_stream.consistency.joins import PendingJoin
from spark_stream.consistency.producers import NOBODY, Duplicate, Refused, Stamp
from spark_stream.environment import Clock
from spark_stream.errors import (
    BrokerStopping,
    IsologError,
    NotEnoughReplicas,
    UnknownTopic,
)
from spark_stream.scripts.steps import Described, Marked
from spark_stream.storage.log_format import LogFormat, Prepared, marker_at
from spark_stream.storage.replica_log import ReplicaLog


class Closing(Enum):
    """Why a partition is closed. Who asks for it afterwards is told so."""

    BROKER_STOPS = auto()
    TOPIC_MISSING = auto()  # its record is gone; its files stay
    TOPIC_DELETED = auto()
    MOVED = auto()  # to other brokers: who asks is to go there

    @property
    def removes_files(self) -> bool:
        """Whether the files are removed next, so that they need not be forced."""
        return self in (Closing.TOPIC_DELETED, Closing.MOVED)


class Partition(FollowingReplica):
    """A replica of a partition. What is asked of its leader is refused while it does not lead."""

    def __init__(
        self,
        topic: str,
        topic_id: str,
        number: int,
        log: ReplicaLog,
        producer_age_us: int,
        clock: Clock,
        **shell: Any,
    ) -> None:
        """As :class:`~spark_stream.broker.replica_shell.ReplicaShell`."""
        super().__init__(topic, topic_id, number, log, producer_age_us, clock, **shell)
        self._cut = (Offset(-1), Offset(-1))

    # -- bounds -----------------------------------------------------------------------------------

    def bounds(self, isolation: Isolation | None = None) -> Bounds:
        """LEO, HW, LSO and the log's start, as one observation; the cut too if it is asked for."""
        bounds = self._core.bounds_state.bounds()
        if isolation is Isolation.READ_ATOMIC:
            return structs.replace(bounds, atomic_cut=self._own_cut(bounds.last_stable_offset))
        return bounds

    def _own_cut(self, stable: Offset) -> Offset:
        # What lies below the LSO is decided and changes no more: the cut is a function of the LSO.
        known, cut = self._cut
        if known != stable:
            cut = Offset(int(greatest_cut([stable], [self.spans()])[0]))
            self._cut = (stable, cut)
        return cut

    @property
    def is_empty(self) -> bool:
        """Whether its log has never had an entry, and so has no files yet."""
        return self._core.bounds_state.log_end.entry == 0

    def spans(self) -> SpansSnapshot:
        """The extents of this partition's transactions, as they are now."""
        with self._lock:
            return self._core.spans.snapshot()

    # -- appending --------------------------------------------------------------------------------

    def append(
        self,
        batch: pa.RecordBatch,
        stamp: Stamp | None = None,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> Appended:
        """Appends a message, waits for its acknowledgement, and wakes who waited for it.

        Raises: as :meth:`prepare` and :meth:`take`.
        """
        taken = self.take(self.prepare(batch, stamp), stamp, isolation)
        assert taken is not None  # without patience_s it waits for the lock
        taken.wake()
        if taken.pending is not None:
            self.await_acknowledgement(taken, None)
        return taken.appended

    def prepare(self, batch: pa.RecordBatch, stamp: Stamp | None) -> Candidate:
        """Inspects and encodes a message: all of it, or the records before its first bad one.

        In a transaction it is all or nothing.

        Raises:
            BatchTooLarge, InvalidRecord: nothing of the message can be taken.
        """
        log_format = self.log.format
        verdict = inspected(batch, log_format.required, log_format.settings.max_record_bytes)
        kept = verdict.kept
        if _in_transaction(stamp) and verdict.flaw is not None:
            kept = 0
        prepared = None
        if kept:
            good = batch if kept == batch.num_rows else batch.slice(0, kept)
            prepared = log_format.prepare(log_format.conformed(good), self._clock.wall_us())
        return Candidate(prepared, verdict.flaw)

    def take(
        self,
        candidate: Candidate,
        stamp: Stamp | None,
        isolation: Isolation,
        patience_s: float = -1,
    ) -> Taken | None:
        """Judges and appends. A batch that is there already is not appended again.

        None: others held the partition for ``patience_s`` (negative: it waits for as long as that
        takes), and nothing was done.

        Raises:
            DiskFull, StorageFailure: nothing was kept.
            ProducerFenced, OutOfOrderSequence, InvalidTransaction: the stamp does not fit.
            NotLeader, NotEnoughReplicas: it cannot be appended here, or not now.
            BrokerStopping, UnknownTopic, NotLeader: the partition is closed.
        """
        if not self._lock.acquire(timeout=patience_s):
            return None
        try:
            self._check_takes()
            if not self._core.has_enough_replicas(stamp, isolation):
                raise self._too_few_replicas()
            done, effects = self._judge_and_append(candidate.prepared, stamp)
            pending = None
            if done.count:
                last = done.offset + done.count - 1
                pending = self._acknowledgement(stamp, isolation, last)
            woken = self._carry_out(effects)
        finally:
            self._lock.release()
        if candidate.flaw is not None:
            kept = 0 if candidate.prepared is None else candidate.prepared.records
            limit, within = self.log.format.settings.max_record_bytes, _in_transaction(stamp)
            error = refusal(candidate.flaw, kept, done.offset, limit, in_transaction=within)
            done = replace(done, refused=error)
        return Taken(done, pending, woken)

    def await_acknowledgement(self, taken: Taken, timeout_s: float | None) -> None:
        """Waits until the append is as safe as it asked to be.

        Raises:
            UnknownOutcome: it is not by then; the records stay, and may still be.
            BrokerStopping, UnknownTopic, NotLeader: the partition was closed meanwhile.
        """
        pending, done = taken.pending, taken.appended
        if pending is None or pending.wait(timeout_s):
            return
        with self._lock:
            self._core.give_up(pending.ticket)
            self._callers.remove(pending.ticket)
        raise unknown_outcome(done, self.topic, self.number, "were not replicated in time")

    def _judge_and_append(
        self, prepared: Prepared | None, stamp: Stamp | None
    ) -> tuple[Appended, Effects]:
        """The caller holds the lock. None: a message with no good record."""
        core, now = self._core, self._clock.steady_us()
        end = core.bounds_state.log_end
        records = 0 if prepared is None else prepared.records
        if stamp is not None:
            verdict = core.judge(stamp, records)
            if isinstance(verdict, Duplicate):
                return Appended(verdict.offset, verdict.count, duplicate=True), []
            if isinstance(verdict, Refused):
                if prepared is None:  # its own error says more
                    return Appended(end.offset, 0), []
                raise of_stamp(self, stamp, verdict)
        if prepared is None:
            if stamp is not None:
                core.use_up(stamp, now)
            return Appended(end.offset, 0), []
        writer = stamp or NOBODY
        with self.fitness:
            self.log.append(prepared, core.leader_epoch, now, writer)
        entry = prepared.entry_at(end, core.leader_epoch, now, writer)
        effects = core.apply(entry)
        self._sessions.give_batch(entry, prepared.message)
        return Appended(end.offset, records), effects

    def _acknowledgement(
        self, stamp: Stamp | None, isolation: Isolation, last_offset: int
    ) -> Acknowledgement | None:
        ticket = self._callers.new_number()
        if self._core.acknowledge(ticket, stamp, isolation, last_offset):
            return None
        return self._callers.add_append(ticket)

    def _too_few_replicas(self) -> NotEnoughReplicas:
        progress = self._core.progress
        members = () if progress is None else progress.record.isr
        needed = self.log.format.settings.min_insync_replicas
        return NotEnoughReplicas(
            f"{self.name}: in sync is {', '.join(each.broker for each in members)} alone, and"
            f" min.insync.replicas is {needed}; nothing was appended",
            topic=self.topic,
            partition=self.number,
        )

    # -- transactions -----------------------------------------------------------------------------

    def has_joined(self, transaction: int, producer_id: int) -> bool:
        """Whether batches of the transaction are taken; judged again when one comes."""
        return (transaction, producer_id) in self._core.joins

    def open_join(
        self, transaction: int, producer_id: int, patience_s: float = -1
    ) -> PendingJoin | None:
        """Before the transaction's record names this partition, for its first batch.

        None: others held the partition for ``patience_s``, and nothing was done.
        """
        if not self._lock.acquire(timeout=patience_s):
            return None
        try:
            self._check_leads()
            return self._core.joins.open(transaction, producer_id)
        finally:
            self._lock.release()

    def close_join(self, pending: PendingJoin, *, on_record: bool, waits: bool = True) -> None:
        """The record names this partition, or refused to.

        A transaction that was sealed meanwhile has not joined: its batches are refused
        (``consistency.joins``). ``waits=False``: where others hold the partition, return at once;
        the holder does this when it lets go.
        """

        def close() -> tuple[WakeUp, ...]:
            if on_record:
                self._core.joins.confirm(pending)
            else:
                self._core.joins.give_up(pending)
            return ()

        if waits:
            with self._lock:
                close()
        else:
            self._lock.do_soon(close)

    def described(self) -> Described:
        """How the partition is, as its leader sees it."""
        with self._lock:
            self._check_leads()
            state, progress = self._core.bounds_state, self._core.progress
            found = {} if progress is None else progress.followers()
            numbers = {transaction for (transaction, _), _ in self._core.undecided.open()}
            hw_known = self._core.hw_known
        return Described(
            state.bounds(),
            state.leader_epoch,
            state.log_end.entry,
            self.log.size,
            len(numbers),
            found,
            hw_known,
        )

    def open_transactions(self) -> list[OpenTransaction]:
        """The open ones, with where each producer's part of them begins; the earliest first."""
        with self._lock:
            return [
                OpenTransaction(transaction, producer_id, part.first_offset)
                for (transaction, producer_id), part in self._core.undecided.open()
            ]

    def shows_uncommitted(self, start: Offset, end: Offset) -> bool:
        """Whether ``[start, end)`` has aborted records, or lies behind where an open one began."""
        first = self._core.bounds_state.first_undecided
        if first is not None and first < end:
            return True
        return self.log.has_aborted(start, end)

    def seal(self, transaction: int) -> None:
        """From now on nothing more is taken of a decided transaction; NotLeader: ask another."""
        with self._lock:
            self._check_leads()
            self._core.joins.seal(transaction)

    def end_transaction(self, transaction: int, takes: Callable[[int], bool]) -> Marked:
        """Writes the markers of a decided transaction: commits for the producer ids it takes.

        What is ended already stays as it is. The answer says up to where its markers are.

        Raises:
            DiskFull, StorageFailure: some markers may be missing; the call can be repeated.
            NotLeader: another broker leads the partition.
            BrokerStopping, UnknownTopic, NotLeader: the partition is closed.
        """
        self.seal(transaction)
        return self._end_parts(transaction, takes, lambda _: True)

    def drop_branch(self, transaction: int, producer_id: int) -> None:
        """Aborts what one producer id wrote in a transaction that goes on; takes no more of it.

        Raises: as :meth:`end_transaction`.
        """
        with self._lock:
            self._core.joins.drop(transaction, producer_id)
        self._end_parts(transaction, lambda _: False, lambda each: each == producer_id)

    def _end_parts(
        self, transaction: int, takes: Callable[[int], bool], ends: Callable[[int], bool]
    ) -> Marked:
        """Writes the markers of the producer ids that end now."""
        written: list[Entry] = []
        woken: tuple[WakeUp, ...] = ()
        with self._lock:
            self._check_takes()
            try:
                for producer_id, part in self._core.undecided.parts(transaction):
                    if ends(producer_id):
                        kind = Kind.COMMIT if takes(producer_id) else Kind.ABORT
                        written.append(self._mark(kind, producer_id, part.epoch, transaction))
            finally:  # all at once: a transaction may have many branches
                effects = self._core.apply(*written)
                if written:
                    self._sessions.give_news()
                woken = self._carry_out(effects)
            state = self._core.bounds_state
        wake_all(woken)
        end = state.log_end.entry
        return Marked(end, state.leader_epoch, state.high_watermark.entry >= end)

    def _mark(self, kind: Kind, producer_id: int, epoch: int, transaction: int) -> Entry:
        """Writes one marker; its entry."""
        at, now, leader_epoch = self.log.end, self._clock.steady_us(), self._core.leader_epoch
        with self.fitness:
            self.log.mark(kind, producer_id, epoch, transaction, leader_epoch, now)
        return marker_at(at, kind, producer_id, epoch, transaction, leader_epoch, now)

    # -- waiting and keeping ----------------------------------------------------------------------

    def wait_beyond(self, offset: Offset, isolation: Isolation, wake: WakeUp) -> int | None:
        """Calls ``wake``, once, when the isolation's bound may have passed ``offset``.

        The answer is a number for :meth:`stop_waiting`; None: it has passed already.

        Raises:
            NotLeader, BrokerStopping, UnknownTopic: it cannot be read here. What comes later wakes.
        """
        beyond = offset
        if isolation is Isolation.READ_ATOMIC:
            seen = self.bounds(isolation)
            if seen.atomic_cut is not None and seen.atomic_cut > offset:
                return None
            beyond = max(offset, seen.last_stable_offset)  # the cut moves only with that
        with self._lock:
            self._check_leads()
            number = self._callers.new_number()
            if not self._core.wait(number, BOUND_OF[isolation], beyond):
                return None
            self._callers.add_read(number, wake)
        return number

    def stop_waiting(self, number: int) -> None:
        """Nobody waits under this number any more."""
        with self._lock:
            self._core.stop_waiting(number)
            self._callers.remove(number)

    def configure(self, log_format: LogFormat) -> None:
        """What is appended, rolled, flushed and removed from now on goes by this format."""
        if log_format == self.log.format:
            return
        with self._lock:
            self.log.format = log_format
            woken = self._carry_out(self._take_isr_settings(log_format.settings))
        wake_all(woken)

    def flush_if_due(self, moment: float) -> float | None:
        """Forces what was appended if ``flush.ms`` says so; else when it will, None: never.

        Both moments are on the monotonic clock.
        """
        with self._lock:
            due = None if self._closed is not None else self.log.next_flush_due(moment)
            if due is not None and due <= moment:
                self.log.flush_if_due(moment)
                due = None
            return due

    def housekeep(self) -> int | None:
        """Rolls and removes what is due; when there is more to do if nothing moves, None: never.

        By the steady clock, in microseconds.
        """
        put_shorter = self.log.drop_tail() if self._closed is None else None
        with self._lock:
            if self._closed is not None:
                return None
            if put_shorter is not None:
                put_shorter()
            now = self._clock.steady_us()
            try:
                self.log.housekeep(now, self.bounds().last_stable_offset)
            finally:  # segments may have gone before an error
                self._core.evict(self.log.start)
            dues = (self._core.forget_producers(now), self.log.housekeeping_due())
            return min((due for due in dues if due is not None), default=None)

    def close(self, closing: Closing = Closing.BROKER_STOPS) -> None:
        """Ends appends and waits, then closes the files.

        Everything acknowledged is in them, and on the disk unless they are removed next.
        """
        with self._lock:
            if self._closed is not None:
                return
            self._closed = self._why_closed(closing)
            woken = self._callers.end_all(self._closed)
            self._sessions.end_all()
            self._moved(self)
            try:
                self.log.close(forced=not closing.removes_files)
            finally:
                wake_all(woken)

    def _why_closed(self, closing: Closing) -> IsologError:
        if closing in (Closing.TOPIC_DELETED, Closing.TOPIC_MISSING):
            return UnknownTopic(f"topic {self.topic!r} was deleted", topic=self.topic)
        if closing is Closing.MOVED:
            return self._not_leader()
        return BrokerStopping("the broker is shutting down")


def _in_transaction(stamp: Stamp | None) -> bool:
    return stamp is not None and stamp.transaction != NO_TRANSACTION
