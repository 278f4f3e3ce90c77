"""One partition: its log, its leader's state, its producers, and who waits for it.

One lock a partition guards log and state together. A batch is inspected, encoded and checksummed
before the lock is taken. Readers take it only to wait.

Order of steps in an append: the rules judge the batch, the log takes it, then the new state is
published in one assignment; so no reader ever sees an end without the transaction that holds it
back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_stream.broker.inspection import inspected, refusal
from spark_stream.broker.refusals import of_stamp
from spark_stream.consistency import leader, producers
from spark_stream.consistency.atomic import Spans, SpansSnapshot, greatest_cut
from spark_stream.consistency.entries import Kind
from spark_stream.consistency.epochs import EpochStarts
from spark_stream.consistency.ids import NO_TRANSACTION, LeaderEpoch, Offset
from spark_stream.consistency.isolation import Bounds, Isolation, upper_bound
from spark_stream.consistency.producers import NOBODY, Duplicate, Refused, Stamp
from spark_stream.consistency.undecided import Undecided, open_parts
from spark_stream.errors import BrokerStopping, IsologError, UnknownTopic
from spark_stream.storage.log import PartitionLog, Prepared
from spark_stream.storage.settings import Flush, LogSettings
from spark_stream.wire.limits import CANCEL_POLL_S

FIRST_EPOCH = LeaderEpoch(0)
_ENDED_KEPT = 4_096  # transactions, and dropped branches, that a delayed batch may still name


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of a message: ``count`` records from ``offset`` on are in the log.

    ``refused`` is the error for the first bad record, if there was one; those before it count.
    ``duplicate``: they were there already.
    """

    offset: Offset
    count: int
    refused: IsologError | None = None
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A producer's part of an open transaction in a partition."""

    transaction: int
    producer_id: int
    first_offset: Offset


def now_us() -> int:
    """The wall clock, microseconds since the epoch."""
    return time.time_ns() // 1000


class Partition:
    """A partition that this broker leads."""

    def __init__(
        self, topic: str, topic_id: str, number: int, log: PartitionLog, producer_age_us: int
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.number = number
        self.log = log
        self._producer_age = producer_age_us
        self._changed = threading.Condition()
        self._closed: IsologError | None = None
        schema = log.format.schema
        self._required = tuple(field.name for field in schema if not field.nullable)
        tables = log.tables()
        self._producers = producers.derived(tables, now_us(), producer_age_us)
        self._spans = Spans.derived(tables)
        self._undecided = Undecided()
        self._ended: dict[int, None] = {}  # in the order in which they ended
        self._dropped: dict[tuple[int, int], None] = {}  # (transaction, producer id), likewise
        # Not from the producers' states: where damage took a marker, a producer may have gone on.
        for (transaction, producer_id), part in open_parts(tables):
            self._undecided.began(transaction, producer_id, part.epoch, part.first_offset)
        state = leader.opened(FIRST_EPOCH, log.start, log.end)
        self._state = leader.undecided_from(state, self._undecided.first())
        self._cut = (Offset(-1), Offset(-1))
        self._epochs = EpochStarts.derived(tables)

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self._state.leader_epoch

    @property
    def last_epoch(self) -> LeaderEpoch | None:
        """The epoch of the log's last entry; None: it has none."""
        return self._epochs.last

    def lead(self, epoch: LeaderEpoch) -> None:
        """What is appended from now on is of this epoch, which no entry is above."""
        with self._changed:
            self._state = replace(self._state, leader_epoch=epoch)

    def epoch_end(self, epoch: int) -> Offset:
        """Where that leader epoch ended in this log; the log's end for one that has not ended."""
        return self._epochs.end_of(epoch, self._state.log_end.offset)

    def bounds(self, isolation: Isolation | None = None) -> Bounds:
        """LEO, HW, LSO and the log's start, as one observation; the cut too if it is asked for."""
        bounds = self._state.bounds()
        if isolation is Isolation.READ_ATOMIC:
            return replace(bounds, atomic_cut=self._own_cut(bounds.last_stable_offset))
        return bounds

    def _own_cut(self, stable: Offset) -> Offset:
        # What lies below the LSO is decided and changes no more: the cut is a function of the LSO.
        known, cut = self._cut
        if known != stable:
            cut = Offset(int(greatest_cut([stable], [self.spans()])[0]))
            self._cut = (stable, cut)
        return cut

    def spans(self) -> SpansSnapshot:
        """The extents of this partition's transactions, as they are now."""
        with self._changed:
            return self._spans.snapshot()

    def append(self, batch: pa.RecordBatch, stamp: Stamp | None = None) -> Appended:
        """Appends a message: all of it, or the records before its first bad one.

        In a transaction it is all or nothing. A batch that is there already is not appended again.

        Raises:
            DiskFull, StorageFailure: nothing was kept.
            BatchTooLarge, InvalidRecord: the message as a whole is none.
            ProducerFenced, OutOfOrderSequence, InvalidTransaction: the stamp does not fit.
            BrokerStopping, UnknownTopic: the partition is closed.
        """
        record_bytes_max = self.log.format.settings.max_record_bytes
        verdict = inspected(batch, self._required, record_bytes_max)
        kept = verdict.kept
        in_transaction = stamp is not None and stamp.transaction != NO_TRANSACTION
        if in_transaction and verdict.flaw is not None:
            kept = 0
        now = now_us()
        prepared = None
        if kept:
            whole = kept == batch.num_rows
            prepared = self.log.format.prepare(batch if whole else batch.slice(0, kept), now)
        with self._changed:
            if self._closed is not None:
                raise self._closed.again()
            done = self._appended(prepared, stamp, now)
        if verdict.flaw is None:
            return done
        refused = refusal(
            verdict.flaw, kept, done.offset, record_bytes_max, in_transaction=in_transaction
        )
        return replace(done, refused=refused)

    def _appended(self, prepared: Prepared | None, stamp: Stamp | None, now: int) -> Appended:
        """Judges and appends; the caller holds the lock. None: a message with no good record."""
        end = self._state.log_end.offset
        records = 0 if prepared is None else prepared.records
        if stamp is not None:
            known = self._producers.get(stamp.producer_id)
            dropped = (stamp.transaction, stamp.producer_id) in self._dropped
            if dropped or stamp.transaction in self._ended:
                raise of_stamp(self, stamp, Refused(producers.Wrong.ENDED, 0))
            verdict = producers.judge(known, stamp, records)
            if isinstance(verdict, Duplicate):
                return Appended(verdict.offset, verdict.count, duplicate=True)
            if isinstance(verdict, Refused):
                if prepared is None:  # its own error says more
                    return Appended(end, 0)
                raise of_stamp(self, stamp, verdict)
        if prepared is not None:
            epoch = self._state.leader_epoch
            self.log.append(prepared, epoch, now, stamp or NOBODY)
            self._epochs.appended(epoch, end)
        if stamp is not None:
            self._producers[stamp.producer_id] = producers.appended(
                self._producers.get(stamp.producer_id), stamp, end, records, now
            )
            if records and stamp.transaction != NO_TRANSACTION:
                self._undecided.began(stamp.transaction, stamp.producer_id, stamp.epoch, end)
                last = end + records - 1
                self._spans.appended(stamp.transaction, stamp.producer_id, end, last)
        if prepared is not None:
            self._publish(leader.appended(self._state, records))
        return Appended(end, records)

    def _publish(self, state: leader.LeaderState) -> None:
        self._undecided.replicated(state.replicated_to.entry)
        self._state = leader.undecided_from(state, self._undecided.first())
        self._changed.notify_all()

    # -- transactions ---------------------------------------------------------------------------

    def holds(self, transaction: int, producer_id: int) -> bool:
        """Whether the producer has written here in the transaction, which is still open."""
        return (transaction, producer_id) in self._undecided

    def open_transactions(self) -> list[OpenTransaction]:
        """The open ones, with where each producer's part of them begins; the earliest first."""
        with self._changed:
            return [
                OpenTransaction(transaction, producer_id, part.first_offset)
                for (transaction, producer_id), part in self._undecided.open()
            ]

    def shows_uncommitted(self, start: Offset, end: Offset) -> bool:
        """Whether ``[start, end)`` has aborted records, or lies behind where an open one began."""
        first = self._state.first_undecided
        if first is not None and first < end:
            return True
        return self.log.has_aborted(start, end)

    def seal(self, transaction: int) -> None:
        """From now on nothing more is taken of a decided transaction."""
        with self._changed:
            self._ended[transaction] = None
            if len(self._ended) > _ENDED_KEPT:
                del self._ended[next(iter(self._ended))]

    def end_transaction(self, transaction: int, takes: Callable[[int], bool]) -> None:
        """Writes the markers of a decided transaction: commits for the producer ids it takes.

        What is ended already stays as it is.

        Raises:
            DiskFull, StorageFailure: some markers may be missing; the call can be repeated.
            BrokerStopping, UnknownTopic: the partition is closed.
        """
        self.seal(transaction)
        self._end_parts(transaction, takes, lambda _: True)

    def drop_branch(self, transaction: int, producer_id: int) -> None:
        """Aborts what one producer id wrote in a transaction that goes on; takes no more of it.

        Raises: as :meth:`end_transaction`.
        """
        with self._changed:
            self._dropped[transaction, producer_id] = None
            if len(self._dropped) > _ENDED_KEPT:
                del self._dropped[next(iter(self._dropped))]
        self._end_parts(transaction, lambda _: False, lambda each: each == producer_id)

    def _end_parts(
        self, transaction: int, takes: Callable[[int], bool], ends: Callable[[int], bool]
    ) -> None:
        """Writes the markers of the producer ids that end now."""
        with self._changed:
            if self._closed is not None:
                raise self._closed.again()
            state = self._state
            try:
                for producer_id, part in self._undecided.parts(transaction):
                    if ends(producer_id):
                        committed = takes(producer_id)
                        self._mark(transaction, producer_id, part.epoch, committed=committed)
                        state = leader.appended(state, 0)
            finally:
                self._publish(state)  # all at once: a transaction may have many branches

    def _mark(self, transaction: int, producer_id: int, epoch: int, *, committed: bool) -> None:
        now = now_us()
        kind = Kind.COMMIT if committed else Kind.ABORT
        end = self.log.end
        marker = end.entry
        self.log.mark(kind, producer_id, epoch, transaction, self._state.leader_epoch, now)
        self._epochs.appended(self._state.leader_epoch, end.offset)
        if not committed:
            self._spans.aborted(transaction, producer_id)
        known = self._producers.get(producer_id)
        if known is None or known.epoch <= epoch:
            self._producers[producer_id] = producers.ended(known, epoch, now)
        self._undecided.marked(transaction, producer_id, marker)

    def force(self) -> None:
        """Puts what was appended on the disk, where the topic wants that at all."""
        if self.log.format.settings.flush is Flush.NONE:
            return
        with self._changed:
            if self._closed is None:
                self.log.flush()

    # -- waiting and keeping ----------------------------------------------------------------------

    def wait_beyond(
        self,
        offset: Offset,
        isolation: Isolation,
        deadline: float | None,
        cancelled: Callable[[], bool],
    ) -> bool:
        """Waits until the isolation's bound is above ``offset``; False when the wait ended without.

        ``deadline`` is on the monotonic clock, None means without end; ``cancelled`` is asked four
        times a second.

        Raises:
            BrokerStopping, UnknownTopic: the partition was closed meanwhile.
        """
        with self._changed:
            while upper_bound(self.bounds(isolation), isolation) <= offset:
                if self._closed is not None:
                    raise self._closed.again()
                left = CANCEL_POLL_S if deadline is None else deadline - time.monotonic()
                if left <= 0 or cancelled():
                    return False
                self._changed.wait(min(left, CANCEL_POLL_S))
        return True

    def configure(self, settings: LogSettings) -> None:
        """What is appended, rolled, flushed and removed from now on goes by these settings."""
        with self._changed:
            self.log.format = replace(self.log.format, settings=settings)

    def flush_if_due(self, moment: float) -> float | None:
        """Forces what was appended if ``flush.ms`` says so; when to ask again, None: never.

        Both moments are on the monotonic clock.
        """
        with self._changed:
            if self._closed is not None:
                return None
            self.log.flush_if_due(moment)
            return self.log.next_flush_due(moment)

    def housekeep(self) -> None:
        """Rolls and removes what is due."""
        with self._changed:
            if self._closed is not None:
                return
            self.log.housekeep(now_us(), self.bounds().last_stable_offset)
            self._state = leader.evicted(self._state, self.log.start)
            self._spans.evicted(self._state.log_start.offset)
            self._forget_producers()

    def _forget_producers(self) -> None:
        now = now_us()
        old = [
            producer_id
            for producer_id, state in self._producers.items()
            if producers.expired(state, now, self._producer_age)
        ]
        for producer_id in old:
            del self._producers[producer_id]

    def close(self, *, deleted: bool = False) -> None:
        """Ends appends and waits, then closes the files. Everything acknowledged is in them."""
        with self._changed:
            if self._closed is not None:
                return
            self._closed = (
                UnknownTopic(f"topic {self.topic!r} was deleted", topic=self.topic)
                if deleted
                else BrokerStopping("the broker is shutting down")
            )
            self._changed.notify_all()
            self.log.close()
