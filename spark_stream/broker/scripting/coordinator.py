"""Transactions at one broker: its sweeps, its work at a start, and the joins of append streams.

Requests about transactions are scripts (``spark_stream.scripts``). This module has their state in
the broker's memory, and the scripts that the broker starts itself.

Order of steps of a join (``consistency.partition.open_transactions`` has the reason): the partition
opens a join, the join is put on record, the partition confirms it, and then it takes the batch.
The first join of a transaction with a reserved number also begins it.
Many partitions can join before their batches come, with one write.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from spark_stream.broker.host.host import Host
from spark_stream.broker.partition.partition import Partition
from spark_stream.broker.scripting.driver import Driver
from spark_stream.cluster.stores.leases import Leases
from spark_stream.cluster.transactions import TransactionKey
from spark_stream.consistency.ids import LeaderEpoch
from spark_stream.consistency.partition.open_transactions import PendingJoin
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.consistency.transactions.transactions import Joined, State, Transaction
from spark_stream.environment import Clock
from spark_stream.errors import InvalidRequest, IsologError, MetadataUnavailable
from spark_stream.loggers import logger_of
from spark_stream.scripts.steps import FindTransactions, Script
from spark_stream.scripts.transactions import deciding, finishing, records
from spark_stream.scripts.transactions.deciding import Consumers, Decisions, Here
from spark_stream.scripts.transactions.finishing import (
    Finisher,
    LostMarker,
    Sweeper,
    Swept,
    TransactionSettings,
)
from spark_stream.scripts.transactions.sinks import Sinks, delete_old_stops

logger = logger_of(__name__)

_ALL_S: Final = 30.0  # between two sweeps of all records, which also remove old ones
T = TypeVar("T")


class TransactionCoordinator:
    """The transactions of one broker."""

    def __init__(
        self,
        driver: Driver,
        host: Host,
        clock: Clock,
        coordinator: str,
        leases: Leases,
        settings: TransactionSettings,
    ) -> None:
        """Create the coordinator. ``coordinator``: this broker's id, as records name it."""
        self._driver = driver
        self._host = host
        self._clock = clock
        self.coordinator = coordinator
        self._leases = leases
        self._settings = settings
        self._finisher = Finisher()
        self.decisions = Decisions(self._finisher, self.here)
        self.sinks = Sinks(self.decisions)
        self.consumers = Consumers(self._finisher)
        self._sweeper = Sweeper(self._finisher, settings)
        self._complaints: dict[str, str] = {}
        self._all_at = -math.inf  # the time of the last sweep of all records
        self._found_open: list[tuple[Joined, int]] = []  # when this broker began to lead
        self._led: dict[Partition, LeaderEpoch] = {}  # at the last sweep
        self.open: tuple[Transaction, ...] = ()
        """The open transactions that this broker sweeps, as of the last sweep."""
        self._lost: list[LostMarker] = []  # the next sweep writes these again

    def run(self, script: Script[T]) -> T:
        """Drive a script to its end."""
        return self._driver.run(script)

    def now_ms(self) -> int:
        """Return the time by the steady clock, in milliseconds since the epoch."""
        return self._clock.steady_us() // 1_000

    def here(self) -> Here:
        """Return this broker's id and time for a call."""
        brokers = self._host.view.now.brokers.values()
        may_reserve = all(each.begins_reserved for each in brokers)
        return Here(self.coordinator, self.now_ms(), may_reserve)

    # -- sweeps -----------------------------------------------------------------------------------

    def recovering(self) -> Script[None]:
        """Finish decided transactions, and write lost markers, before the first reader."""
        yield from self.sweeping()
        for join in (yield from records.read_joins()):  # their brokers died before removing them
            self._finisher.ended[join.number] = join.transactional_id
        for record in (yield from self._mine(whole=False)):
            try:
                yield from finishing.mark_dropped_again(record)
            except IsologError as error:
                self._complain(record, error)
        self._find_open()
        yield from self._restore_markers()

    def sweeping(self) -> Script[None]:
        """Abort expired transactions, finish decided ones, and remove old records.

        This is called often. Most calls read only the transactions under way.
        """
        yield from self._write_lost_markers()
        began = self._clock.monotonic()
        self._find_open()
        yield from self._restore_markers()
        whole = began - self._all_at >= min(_ALL_S, self._settings.sink_expiry_seconds)
        if whole:
            yield from delete_old_stops(self.now_ms())
        try:
            found = yield from self._mine(whole=whole)
        except MetadataUnavailable:
            self._sweeper.watch.restart()
            raise
        self.open = tuple(each for each in found if each.state is State.OPEN)
        if whole:
            self._all_at = began
            self._sweeper.watch.keep_only(found)
        for record in found:
            # the sweep of an earlier record may have taken long
            if self._is_responsible(record.coordinator):
                yield from self._sweep_record(record)
        yield from self._delete_joins()

    def _find_open(self) -> None:
        """Note the open transactions of partitions that this broker has begun to lead."""
        led = [each for hosted in self._host.topics() for each in hosted.led()]
        for partition in led:
            if self._led.get(partition) != partition.leader_epoch:
                self._found_open += _open_parts(partition)
        self._led = {each: each.leader_epoch for each in led}

    def _restore_markers(self) -> Script[None]:
        """Write the lost markers of transactions that were open when this broker began to lead.

        A transaction that is decided on record is left to the broker that finishes it. That broker
        may have finished it before the marker was lost, and put that on record only later. So each
        sweep includes these.
        """
        if not self._found_open:
            return
        still = {each for partition in self._led for each in _open_parts(partition)}
        self._found_open = [each for each in self._found_open if each in still]
        known = {(each.at, each.number) for each in self._lost}  # those are retried anyway
        parts = [each for each in self._found_open if each not in known]
        for each in (yield from finishing.restore_markers(parts)):
            where = f"{each.at.topic}/{each.at.partition}"
            logger.warning(
                "lost marker in %s, of transaction %d, which is %s",
                where,
                each.number,
                each.fate,
            )
            if each.failure is not None:
                logger.error(
                    "cannot restore the marker of transaction %d in %s: %s",
                    each.number,
                    where,
                    each.failure,
                )
                self._lost.append(each)

    def _write_lost_markers(self) -> Script[None]:
        lost, self._lost = self._lost, []
        for each in lost:
            tried = yield from finishing.write_lost_marker(each)
            if tried.failure is not None:
                self._lost.append(tried)

    def _delete_joins(self) -> Script[None]:
        """Remove the joins of transactions that have ended, many with one write."""
        ended = [self._finisher.ended.popitem() for _ in range(len(self._finisher.ended))]
        try:
            self._finisher.ended.update((yield from records.delete_joins(ended)))
        except IsologError:
            self._finisher.ended.update(ended)
            raise

    def _mine(self, *, whole: bool) -> Script[list[Transaction]]:
        """Read the records that this broker sweeps: all, or those under way."""
        found = yield from FindTransactions(
            TransactionKey.ANY if whole else TransactionKey.UNDER_WAY, fresh=whole
        )
        mine = {name: self._is_responsible(name) for name in {each.coordinator for each in found}}
        return [record for record in found if mine[record.coordinator]]

    def _is_responsible(self, coordinator: str) -> bool:
        """Return whether this broker sweeps the records of this coordinator.

        They are its own, or those of a dead broker. An id that has begun no transaction has no
        coordinator ("") yet: any broker may remove it.
        """
        return coordinator in ("", self.coordinator) or not self._leases.alive(coordinator)

    def _sweep_record(self, record: Transaction) -> Script[None]:
        now_s, now_ms = self._clock.monotonic(), self.now_ms()
        try:
            swept = yield from self._sweeper.sweep_record(record, now_s, now_ms)
        except IsologError as error:
            if isinstance(error, MetadataUnavailable):
                self._sweeper.watch.restart(record)
            self._complain(record, error)
            return
        self._complaints.pop(record.transactional_id, None)
        if swept is Swept.EXPIRED:
            logger.warning(
                "aborted transaction %d of %r: it was not renewed for %d ms",
                record.number,
                record.transactional_id,
                record.timeout_ms,
            )

    def _complain(self, record: Transaction, error: IsologError) -> None:
        """Log each reason once: the sweep runs again in a moment."""
        reason = f"{record.number}: {error}"
        if self._complaints.get(record.transactional_id) != reason:
            self._complaints[record.transactional_id] = reason
            log = logger.warning if error.retriable else logger.error
            log(
                "cannot sweep transaction %d of %r: %s",
                record.number,
                record.transactional_id,
                error,
            )


def _open_parts(partition: Partition) -> list[tuple[Joined, int]]:
    place = Joined(partition.topic, partition.topic_id, partition.number)
    numbers = {each.transaction for each in partition.transactions.open()}
    return [(place, number) for number in sorted(numbers)]


class StreamJoins:
    """The joins of one stream. ``transactional_id``: None if it has batches without transactions.

    A client has one transaction after the other. So only the last writer of the transactional id is
    remembered.
    """

    def __init__(self, decisions: Decisions, transactional_id: str | None) -> None:
        self._decisions = decisions
        self._transactional_id = transactional_id
        self._writer: tuple[int, int, int] | None = None

    def has_joined(self, at: Partition, stamp: Stamp) -> bool:
        """Return whether the partition has joined, and this stream has checked the writer's id.

        A join by another stream's batch does not prove that the writer belongs to the id.
        """
        return self._writer == _writer_of(stamp) and at.transactions.has_joined(
            stamp.transaction, stamp.producer_id
        )

    def join(self, at: Partition, stamp: Stamp, patience_s: float) -> Script[bool]:
        """Join the partition to the transaction. Return False if other joins held the partition.

        If the transaction is sealed before the confirmation, the partition refuses its batches.

        Raises:
            InvalidRequest: The stream has no transactional id.
            IsologError: as ``Decisions.join``.
        """
        name = self._transactional_id
        if name is None:
            raise InvalidRequest(
                "a batch in a transaction needs the transactional_id of its stream"
            )
        if at.transactions.has_joined(stamp.transaction, stamp.producer_id):
            yield from self._decisions.check_joins(name, *_writer_of(stamp))
            self._writer = _writer_of(stamp)
            return True
        pending = at.transactions.open_join(stamp.transaction, stamp.producer_id, patience_s)
        if pending is None:
            return False
        yield from self._put_on_record(name, [(at, pending)], stamp, waits=True)
        return True

    def join_together(self, partitions: Iterable[Partition], stamp: Stamp) -> Script[None]:
        """Join different partitions to the transaction, as far as they are free and led here.

        Any other partition joins with its first batch, or refuses that batch.

        Raises: as ``Decisions.join``.
        """
        if self._transactional_id is None:
            return
        opened = []
        for each in partitions:
            with suppress(IsologError):
                pending = each.transactions.open_join(
                    stamp.transaction, stamp.producer_id, patience_s=0
                )
                if pending is not None:
                    opened.append((each, pending))
        if opened:
            yield from self._put_on_record(self._transactional_id, opened, stamp, waits=False)

    def explain(self, stamp: Stamp, refusal: IsologError) -> Script[IsologError]:
        """Return the error for a batch that its partition refused because of its transaction."""
        assert self._transactional_id is not None
        return (
            yield from deciding.explain_refusal(self._transactional_id, stamp.transaction, refusal)
        )

    def _put_on_record(
        self,
        name: str,
        opened: Sequence[tuple[Partition, PendingJoin]],
        stamp: Stamp,
        *,
        waits: bool,
    ) -> Script[None]:
        """Put open joins on record, and close them. ``waits``: as in ``close_join``."""
        on_record = False
        places = [Joined(at.topic, at.topic_id, at.number) for at, _ in opened]
        try:
            yield from self._decisions.join(name, *_writer_of(stamp), *places)
            on_record = True
        finally:
            for at, pending in opened:
                at.transactions.close_join(pending, on_record=on_record, waits=waits)
        self._writer = _writer_of(stamp)


def _writer_of(stamp: Stamp) -> tuple[int, int, int]:
    """Return the transaction's number, a producer id of it, and the producer's epoch."""
    return stamp.transaction, stamp.producer_id, stamp.epoch
