"""The transactions of one partition at its leader: joins, seals and markers.

Order of steps (``consistency.partition.open_transactions``): a join is opened, then stored in the
transaction's record, then confirmed. A decided transaction is sealed, and then its producers' parts
get their markers.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from spark_stream.broker.partition.state import PartitionState
from spark_stream.broker.partition.waiters import WakeUp, wake_all
from spark_stream.consistency.entries import Entry, Kind
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.partition.open_transactions import PendingJoin
from spark_stream.scripts.steps import Marked
from spark_stream.storage.format.log_format import marker_at


class OpenTransaction(Struct, frozen=True):
    """A producer's part of an open transaction in a partition."""

    transaction: int
    producer_id: int
    first_offset: Offset


class PartitionTransactions:
    """The transactions of one partition, from any thread."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state

    def has_joined(self, transaction: int, producer_id: int) -> bool:
        """Return whether the producer has joined the transaction. An append checks this again."""
        return (transaction, producer_id) in self._state.core.joins

    def open_join(
        self, transaction: int, producer_id: int, patience_s: float = -1
    ) -> PendingJoin | None:
        """Open a join for the first batch, before the transaction's record names this partition.

        Return None, without any effect, if the lock is not free within ``patience_s``.
        """
        state = self._state
        if not state.lock.acquire(timeout=patience_s):
            return None
        try:
            state.check_leads()
            return state.core.joins.open(transaction, producer_id)
        finally:
            state.lock.release()

    def close_join(self, pending: PendingJoin, *, on_record: bool, waits: bool = True) -> None:
        """Confirm a join if the transaction's record names this partition, else give it up.

        A transaction that was sealed since :meth:`open_join` has not joined, and its batches are
        refused (``consistency.partition.open_transactions``). With ``waits=False`` the method never
        blocks: if the lock is held, its holder closes the join after the release.
        """
        if waits:
            with self._state.lock:
                self._close_join(pending, on_record)
        else:
            self._state.lock.run_soon(self._close_join, pending, on_record)

    def _close_join(self, pending: PendingJoin, on_record: bool) -> tuple[WakeUp, ...]:
        joins = self._state.core.joins
        if on_record:
            joins.confirm(pending)
        else:
            joins.give_up(pending)
        return ()

    def open(self) -> list[OpenTransaction]:
        """Return the open parts of transactions with their first offsets, earliest first."""
        with self._state.lock:
            return [
                OpenTransaction(transaction, producer_id, part.first_offset)
                for (transaction, producer_id), part in self._state.core.undecided.open()
            ]

    def seal(self, transaction: int) -> None:
        """Refuse further batches of a decided transaction.

        Raises:
            NotLeader: another broker leads the partition.
        """
        with self._state.lock:
            self._state.check_leads()
            self._state.core.joins.seal(transaction)

    def end(self, transaction: int, takes: Callable[[int], bool]) -> Marked:
        """Write the markers of a decided transaction: commits for the producer ids it takes.

        Parts that have ended do not change. Return the log's end after the markers, with the
        leader epoch and whether the log is replicated up to that end.

        Raises:
            DiskFull, StorageFailure: some markers may be missing. The call can be repeated.
            NotLeader: another broker leads the partition.
            BrokerStopping, UnknownTopic, NotLeader: the partition is closed.
        """
        self.seal(transaction)
        return self._end_parts(transaction, takes)

    def drop_branch(self, transaction: int, producer_id: int) -> None:
        """Abort the part of one producer id in an open transaction, and refuse its next batches.

        Raises:
            DiskFull, StorageFailure, NotLeader, BrokerStopping, UnknownTopic: as :meth:`end`.
        """
        with self._state.lock:
            self._state.check_takes()  # a replica that does not lead must keep the join
            self._state.core.joins.drop(transaction, producer_id)
        self._end_parts(transaction, None, producer_id)

    def _end_parts(
        self, transaction: int, takes: Callable[[int], bool] | None, only: int | None = None
    ) -> Marked:
        """Write the markers of all producer ids, or of ``only`` one. ``takes`` None aborts all."""
        state, core = self._state, self._state.core
        written: list[Entry] = []
        woken: tuple[WakeUp, ...] = ()
        try:
            with state.lock:
                state.check_takes()
                try:
                    for producer_id, part in core.undecided.parts(transaction):
                        if only is None or producer_id == only:
                            taken = takes is not None and takes(producer_id)
                            kind = Kind.COMMIT if taken else Kind.ABORT
                            written.append(self._mark(kind, producer_id, part.epoch, transaction))
                finally:  # a transaction may have many branches, so their markers go together
                    effects = core.apply(*written)
                    if written:
                        state.sessions.notify()
                    woken = state.carry_out(effects)
                bounds = core.bounds_state
                settled = core.is_settled(bounds.log_end.entry)
        finally:  # even if a marker did not fit on the disk
            wake_all(woken)
        end = bounds.log_end.entry
        return Marked(end, bounds.leader_epoch, settled)

    def _mark(self, kind: Kind, producer_id: int, epoch: int, transaction: int) -> Entry:
        """Write one marker under the lock. Return its entry."""
        state = self._state
        at, now, leader_epoch = state.log.end, state.clock.steady_us(), state.core.leader_epoch
        with state.fitness:
            state.log.mark(kind, producer_id, epoch, transaction, leader_epoch, now)
        return marker_at(at, kind, producer_id, epoch, transaction, leader_epoch, now)
