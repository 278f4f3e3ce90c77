"""Transactions as a broker carries them out: rules decide, the store records, partitions mark.

Every call can be repeated: what was decided stays decided, and what a broker that died left half
done, the next call or the next sweep finishes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from spark_stream.broker.host import Host
from spark_stream.broker.partition import Partition
from spark_stream.broker.refusals import of_transaction
from spark_stream.cluster.consumers import ConsumerRecords
from spark_stream.cluster.numbers import Numbers
from spark_stream.cluster.stopped import StoppedRuns
from spark_stream.cluster.store import MetadataStore
from spark_stream.cluster.transactions import TransactionRecords
from spark_stream.consistency import transactions as rules
from spark_stream.consistency.producers import EPOCH_MAX
from spark_stream.consistency.transactions import (
    Content,
    Denial,
    Denied,
    Fresh,
    Joined,
    Outcome,
    PositionOf,
    State,
    Transaction,
)
from spark_stream.errors import IsologError, UnknownTopic, UnknownTransaction

logger = logging.getLogger(__name__)

FORGET_AFTER_MS: Final = 7 * 24 * 3_600_000
FORGET_JOB_AFTER_MS: Final = 3_600_000  # nobody asks for a job again, but to repeat a call
_REST: Final = 20.0  # times as long as it took: so looking takes a twentieth of a core at most
_JOIN: Final = "a write"


def now_ms() -> int:
    """The wall clock, milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class TransactionDesk:
    """The transactions of one broker's store."""

    def __init__(self, store: MetadataStore, host: Host) -> None:
        self._host = host
        self._done: dict[str, int] = {}  # finished, and not on record yet: id → number
        self._complaints: dict[str, str] = {}
        self._rest_until = 0.0
        self.records = TransactionRecords(store)
        self.stopped = StoppedRuns(store)
        self._consumers = ConsumerRecords(store)
        self._owning = threading.Lock()
        self._numbers = Numbers(store, "numbers/transactions")
        self._producer_ids = Numbers(store, "numbers/producers")

    # -- what producers ask -----------------------------------------------------------------------

    def new_producer(self) -> int:
        """A producer id that nobody else has."""
        return self._producer_ids.take()

    def new_number(self) -> int:
        """A transaction's number that no other has."""
        return self._numbers.take()

    def init(self, transactional_id: str, instance: str, timeout_ms: int) -> Transaction:
        """The instance owns the id from now on.

        Raises:
            ProducerFenced: a later instance took it over already.
        """
        return self.decided(
            transactional_id,
            lambda found: rules.init(found, instance, timeout_ms, now_ms()),
            None,
            "taking it over",
        )

    def begin(self, transactional_id: str, instance: str, after: int) -> Transaction:
        """A new transaction of the owner.

        Raises:
            ProducerFenced, InvalidTransaction, UnknownTransaction.
        """
        fresh = Fresh(self.new_number(), -1)

        def rule(found: Transaction) -> Outcome:
            nonlocal fresh
            if fresh.producer_id < 0 and (found.producer_id < 0 or found.epoch >= EPOCH_MAX):
                fresh = Fresh(fresh.number, self.new_producer())
            return rules.begin(found, instance, after, fresh, now_ms())

        return self.decided(transactional_id, rule, None, "beginning a transaction")

    def join(
        self, transactional_id: str, number: int, producer_id: int, epoch: int, at: Partition
    ) -> None:
        """The partition takes part from now on.

        Raises:
            ProducerFenced, TransactionAborted, InvalidTransaction, UnknownTransaction,
            ForeignBranch: it must not take the batch.
        """
        joined = Joined(at.topic, at.topic_id, at.number)
        outcome = self.records.change(
            transactional_id,
            lambda found: rules.join(found, number, producer_id, epoch, joined),
        )
        if isinstance(outcome, Denied):
            asked = f"{_JOIN} by producer {producer_id} of epoch {epoch}"
            raise of_transaction(outcome, number, asked)

    def renew(self, transactional_id: str, instance: str, number: int) -> Transaction:
        """The owner is alive: the deadline moves."""
        return self.decided(
            transactional_id,
            lambda found: rules.renew(found, instance, number, now_ms()),
            number,
            "a new deadline",
        )

    def commit(
        self,
        transactional_id: str,
        instance: str,
        number: int,
        taken: Iterable[int],
        batch: int | None,
        positions: Iterable[PositionOf],
        content: Iterable[Content] | None = None,
        owners: Mapping[str, str] = MappingProxyType({}),
    ) -> Transaction:
        """Commits; returns when the markers are below the high watermark everywhere.

        Raises:
            ConsumerFenced: a consumer whose position is to move has another owner; this call
                decided nothing.
            ProducerFenced, TransactionAborted, UnknownTransaction, ForeignBranch,
            InvalidTransaction: this call decided nothing.
            DiskFull, StorageFailure: it is decided; repeat the call, or the next sweep finishes it.
        """
        chosen, moves = tuple(taken), tuple(positions)
        written = None if content is None else tuple(content)

        def rule(found: Transaction) -> Outcome:
            outcome = rules.commit(found, instance, number, chosen, batch, moves, written)
            if found.state is State.OPEN and isinstance(outcome, Transaction):
                self._consumers.check(owners)
                self._force(found)
            return outcome

        with self._owning if owners else contextlib.nullcontext():
            outcome = self.changed(transactional_id, rule)
        return self._told(outcome, number, f"a commit of {sorted(chosen)}")

    def _force(self, found: Transaction) -> None:
        """The decision is on the disk once it is made: so what it is about goes there first."""
        for joined in found.partitions:
            with contextlib.suppress(UnknownTopic):
                hosted = self._host.topic(joined.topic, joined.topic_id)
                hosted.partition(joined.partition).force()

    def abort(self, transactional_id: str, instance: str, number: int) -> Transaction:
        """Takes the transaction back.

        Raises:
            InvalidTransaction: it is committed, and stays so.
            ProducerFenced, UnknownTransaction.
        """
        return self.decided(
            transactional_id,
            lambda found: rules.abort(found, instance, number),
            number,
            "an abort",
        )

    def refusal(self, transactional_id: str, number: int, error: IsologError) -> IsologError:
        """Why a partition takes no more of a transaction, as its record tells; else ``error``."""
        found = self.records.get(transactional_id)
        if found is None or found.number != number or found.state not in rules.ABORTS:
            return error
        why = Denial.FENCED if found.cause is rules.Cause.FENCED else Denial.ABORTED
        return of_transaction(Denied(why, found), number, _JOIN)

    # -- what operators ask -----------------------------------------------------------------------

    def all(self) -> list[Transaction]:
        """Every transactional id's record, by id."""
        return [self._settled(record) for record in self.records.all()]

    def get(self, transactional_id: str) -> Transaction:
        """One of them, or UnknownTransaction."""
        found = self.records.get(transactional_id)
        if found is None:
            raise UnknownTransaction(f"there is no transactional id {transactional_id!r}")
        return self._settled(found)

    def kill(self, transactional_id: str, number: int | None) -> Transaction:
        """Aborts an open transaction (``number``: that one and no later), whoever owns it.

        Raises:
            UnknownTransaction, InvalidTransaction: there is none, or it is not open.
        """
        present = self.get(transactional_id).number
        return self.decided(
            transactional_id,
            lambda found: rules.kill(found, number),
            present if number is None else number,
            "an abort",
        )

    def take_consumer(self, consumer: str, instance: str) -> list[PositionOf]:
        """The instance owns the consumer's name from now on; where it goes on.

        A transaction that moves the position is decided before, and counts, or is refused after:
        the lock keeps a commit from deciding between its look at the owner and its own record.
        """
        with self._owning:
            self._consumers.take(consumer, instance)
        return self.positions(consumer)

    def check_consumer(self, consumer: str, instance: str) -> None:
        """ConsumerFenced if another instance owns the consumer's name."""
        self._consumers.check({consumer: instance})

    def positions(self, consumer: str) -> list[PositionOf]:
        """Where a named consumer goes on, decided transactions included."""
        for record in self.records.all():
            moves = record.state is State.COMMITTING and any(
                each.consumer == consumer for each in record.positions
            )
            if moves:
                self.finished(record)
        return self._consumers.get(consumer)

    def store_positions(self, positions: list[PositionOf], owners: Mapping[str, str]) -> None:
        """Stores positions outside any transaction; ConsumerFenced if ``owners`` are not so."""
        self._consumers.store(positions, owners=owners)

    # -- finishing --------------------------------------------------------------------------------

    def recover(self) -> None:
        """Before anybody reads: finishes what is decided, and mends what damage took of markers.

        A finished transaction that is open in a partition has lost its marker there (a power cut,
        or damage). Its record says what the marker was; where the record has moved on, nobody knows
        any more, and what may have been aborted is not shown.
        """
        self.sweep()
        known = {record.number: record for record in self.records.all()}
        for record in known.values():
            self._redropped(record)
        for hosted in self._host.topics():
            for partition in hosted.open_partitions():
                for number in {each.transaction for each in partition.open_transactions()}:
                    self._recovered(partition, number, known.get(number))

    def _redropped(self, record: Transaction) -> None:
        """The broker died between a branch's drop and its markers, perhaps."""
        for producer_id in record.dropped if record.state is State.OPEN else ():
            try:
                self.mark_dropped(record, producer_id)
            except IsologError as error:
                self._complain(record, error)

    def _recovered(self, partition: Partition, number: int, record: Transaction | None) -> None:
        if record is not None and record.state not in (State.COMMITTED, State.ABORTED):
            return
        fate = "unknown: it is taken as aborted" if record is None else record.state
        where = f"{partition.topic}/{partition.number}"
        logger.warning("%s: the marker of transaction %d was lost; it is %s", where, number, fate)
        try:
            partition.end_transaction(number, _taker(record))
        except IsologError as error:
            logger.error("%s: transaction %d: %s", where, number, error)

    def sweep(self) -> None:
        """Aborts what is too old, finishes what is decided, forgets what nobody asks for again.

        To be called often; with very many records it rests between two looks at them all.
        """
        began = time.monotonic()
        if began < self._rest_until:
            return
        for record in self.records.all():
            try:
                self._swept(record)
            except IsologError as error:
                self._complain(record, error)
            else:
                self._complaints.pop(record.transactional_id, None)
        ended = time.monotonic()
        self._rest_until = ended + _REST * (ended - began)

    def _complain(self, record: Transaction, error: IsologError) -> None:
        """Once for each reason: the sweep will be here again in a moment."""
        reason = f"{record.number}: {error}"
        if self._complaints.get(record.transactional_id) != reason:
            self._complaints[record.transactional_id] = reason
            logger.error("transaction %d of %r: %s", record.number, record.transactional_id, error)

    def _swept(self, record: Transaction) -> None:
        now = now_ms()
        name = record.transactional_id
        if record.state in rules.DECIDED:
            self._recorded(self.finished(record))
        elif record.state is State.OPEN and now > record.deadline_ms:
            outcome = self.records.change(name, lambda found: rules.expire(found, now_ms()))
            if isinstance(outcome, Transaction):
                logger.warning(
                    "transaction %d of %r was open for more than %d ms: aborted",
                    outcome.number,
                    name,
                    outcome.timeout_ms,
                )
                self._recorded(self.finished(outcome))
        elif record.state is not State.OPEN:
            self._forgotten(record, now - record.deadline_ms)

    def _forgotten(self, record: Transaction, idle_ms: int) -> None:
        # What a sink has written it must remember for ever: its query may be started again.
        job = record.query == record.transactional_id
        if idle_ms > (FORGET_JOB_AFTER_MS if job else FORGET_AFTER_MS) and (
            job or record.committed_batch < 0
        ):
            self.records.forget(record)

    def decided(
        self,
        transactional_id: str,
        rule: Callable[[Transaction], Outcome],
        number: int | None,
        asked: str,
    ) -> Transaction:
        """The record after the event, finished if it was decided."""
        return self._told(self.changed(transactional_id, rule), number, asked)

    def _told(self, outcome: Outcome, number: int | None, asked: str) -> Transaction:
        if isinstance(outcome, Denied):
            raise of_transaction(outcome, number, asked)
        return self.finished(outcome) if outcome.state in rules.DECIDED else outcome

    def changed(self, transactional_id: str, rule: Callable[[Transaction], Outcome]) -> Outcome:
        """As the records' ``change``, after what has to be finished first."""
        while True:
            outcome = self.records.change(
                transactional_id, lambda found: rule(self._settled(found))
            )
            if not (isinstance(outcome, Denied) and outcome.why is Denial.PENDING):
                return outcome
            self.finished(outcome.transaction)

    def finished(self, decided: Transaction) -> Transaction:
        """Writes the markers that are missing, stores the positions, and says that it is done.

        Raises:
            DiskFull, StorageFailure, DamagedSegment: a partition could not be marked; all others
                are.
        """
        partitions, failure = self._joined(decided)
        # All are sealed before any is marked: a batch that was on its way would else land in one
        # after a reader has seen the transaction whole without it.
        for partition in partitions:
            partition.seal(decided.number)
        takes = _taker(decided)
        for partition in partitions:
            try:
                partition.end_transaction(decided.number, takes)
            except UnknownTopic:
                continue
            except IsologError as error:
                failure = error
        if failure is not None:
            raise failure
        if decided.state is State.COMMITTING and decided.positions:
            self._consumers.store(
                list(decided.positions), lambda: self._still(decided, State.COMMITTING)
            )
            return self._recorded(decided)
        # Putting that on record can wait for its next change, or the next sweep: a broker that dies
        # before that finishes it once more, and finds every marker there.
        self._done[decided.transactional_id] = decided.number
        return self._settled(decided)

    def _joined(self, found: Transaction) -> tuple[list[Partition], IsologError | None]:
        """The partitions that the transaction writes to, and why one of them is not among them."""
        failure: IsologError | None = None
        partitions = []
        for joined in found.partitions:
            try:
                partitions.append(
                    self._host.topic(joined.topic, joined.topic_id).partition(joined.partition)
                )
            except UnknownTopic:
                continue  # it was deleted, and what the transaction wrote with it
            except IsologError as error:
                failure = error
        return partitions, failure

    def mark_dropped(self, found: Transaction, producer_id: int) -> None:
        """Ends a dropped branch in all partitions: readers wait for it no more.

        Raises:
            DiskFull, StorageFailure, DamagedSegment: as :meth:`finished`.
        """
        partitions, failure = self._joined(found)
        for partition in partitions:
            try:
                partition.drop_branch(found.number, producer_id)
            except UnknownTopic:
                continue
            except IsologError as error:
                failure = error
        if failure is not None:
            raise failure

    def _recorded(self, decided: Transaction) -> Transaction:
        outcome = self.records.change(
            decided.transactional_id, lambda found: rules.finish(found, decided.number)
        )
        if self._done.get(decided.transactional_id) == decided.number:
            del self._done[decided.transactional_id]
        return outcome if isinstance(outcome, Transaction) else outcome.transaction

    def _settled(self, found: Transaction) -> Transaction:
        """The record, finished if it is so and only not on record yet."""
        if self._done.get(found.transactional_id) != found.number:
            return found
        outcome = rules.finish(found, found.number)
        return outcome if isinstance(outcome, Transaction) else found

    def _still(self, decided: Transaction, state: State) -> bool:
        found = self.records.get(decided.transactional_id)
        return found is not None and (found.number, found.state) == (decided.number, state)


def _taker(decided: Transaction | None) -> Callable[[int], bool]:
    """Whether the transaction commits what a producer id wrote."""
    if decided is None or decided.state not in rules.COMMITS:
        return lambda _: False
    return frozenset(decided.taken).__contains__
