"""The producer of transactions: its writes become visible together or never.

One transaction at a time. Invariants: a commit is requested only after every write of the
transaction was acknowledged. A failed write turns the commit into an abort. The broker's decision
is passed on: after :class:`TransactionAborted` another transaction can begin, after
:class:`ProducerFenced` every call raises it. An error that leaves the decision unknown (no broker
answered) leaves the transaction unchanged: a retry of the call gets the answer that was lost.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from datetime import datetime
from types import TracebackType
from typing import Any, Final, TypeVar, TypeVarTuple

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.options import check_setting
from spark_stream.client.topics import TopicsClient
from spark_stream.client.values import Written
from spark_stream.client.writing.batches import AnyHeaders, ArrowData
from spark_stream.client.writing.producer import Positioned, Producer, author_of
from spark_stream.consistency.transactions.transactions import PositionOf
from spark_stream.errors import (
    ConsumerFenced,
    InvalidOption,
    InvalidTransaction,
    IsologError,
    ProducerFenced,
    TransactionAborted,
    UnknownTopic,
    UnknownTransaction,
)
from spark_stream.loggers import logger_of
from spark_stream.transport.lifetime import (
    ProcessBound,
    at_end_while_used,
    check_may_wait,
    new_lock,
)
from spark_stream.wire.limits import TRANSACTION_TIMEOUT_MS_MAX
from spark_stream.wire.transaction_messages import (
    AbortTransaction,
    BeginTransaction,
    Branch,
    CommitTransaction,
    EndedTransaction,
    InitTransactions,
)

logger = logger_of(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TRANSACTION_TIMEOUT_MS: Final = 60_000
_ID_LENGTH_MAX: Final = 255
_RESERVED_S: Final = 3_600.0  # far below the age at which brokers delete an unused id
# Errors after which a transaction has ended. Any other leaves it unchanged.
_DECIDED: Final = (TransactionAborted, InvalidTransaction, UnknownTransaction)


class TransactionalProducer(Producer):
    """A producer whose records become visible together, or not at all.

    :meth:`Log.producer` with a ``transactional_id`` returns it. A new producer with the same id
    fences the earlier one and aborts its open transaction. Any thread may write, but no write may
    be in progress when the transaction ends.

    Args:
        transactional_id: The id, 1 to 255 characters.
        transaction_timeout_ms: Milliseconds after its first write, after which the broker aborts an
            open transaction.
        settings: The settings of :class:`Producer`.

    Raises:
        InvalidOption: A setting or the id is not valid.

    Examples:
        >>> topic = log.create_topic("payments")
        >>> with log.producer(transactional_id="loader") as producer:
        ...     with producer.transaction():  # commits; an exception aborts
        ...         written = producer.send("payments", b"10 EUR")
        >>> log.read("payments", isolation="read_committed").num_rows
        1
    """

    def __init__(
        self,
        connection: ClusterConnection,
        topics: TopicsClient,
        *,
        transactional_id: str,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        **settings: Any,
    ) -> None:
        if not (isinstance(transactional_id, str) and 0 < len(transactional_id) <= _ID_LENGTH_MAX):
            raise InvalidOption(
                f"transactional_id takes a text of 1 to {_ID_LENGTH_MAX} characters, not"
                f" {transactional_id!r}",
                option="transactional_id",
            )
        check_setting(
            "transaction_timeout_ms", transaction_timeout_ms, 1, TRANSACTION_TIMEOUT_MS_MAX
        )
        super().__init__(connection, topics, **settings)
        self._transactional_id = transactional_id
        self._instance = uuid.uuid4().hex
        self._own = {"transactional_id": transactional_id, "instance": self._instance}
        self._deciding = new_lock(is_brief=False)
        self._branch: Branch | None = None
        self._reserved: Branch | None = None
        """The next transaction, whose number is reserved. Its first write begins it."""
        self._reserved_until = 0.0
        self._aborting = False
        self._committing = False
        self._fenced: IsologError | None = None
        self._owners: dict[str, str] = {}
        self._positions: dict[tuple[str, str, int], PositionOf] = {}
        self._positioned: dict[str, Positioned] = {}
        """The consumers of these positions, by name."""
        self._timeout_ms = transaction_timeout_ms
        at_end_while_used(self._end_transaction)
        connection.before_close(self._end_transaction)
        try:
            self._take_over()
        except BaseException:
            super().close()
            raise

    # -- writing --------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: AnyHeaders | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
    ) -> Future[Written]:
        """Send a record in the open transaction. The arguments are those of :meth:`Producer.send`.

        Raises:
            InvalidTransaction: No transaction is open.
            ProducerFenced: Another producer has taken the id over.
        """
        self._writable("a write")
        return super().send(
            topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
        )

    def append(
        self,
        topic: str,
        batch: ArrowData,
        partition: int | None = None,
        key: str | Sequence[str] | None = None,
    ) -> Future[Written]:
        """Append a batch in the open transaction. Arguments are those of :meth:`Producer.append`.

        Raises:
            InvalidTransaction: No transaction is open.
            ProducerFenced: Another producer has taken the id over.
        """
        self._writable("a write")
        return super().append(topic, batch, partition, key)

    # -- transactions ---------------------------------------------------------------------------

    def transaction(self) -> AbstractContextManager[None]:
        """Return a context manager for a transaction: it commits, or aborts after an exception."""
        return _TransactionBlock(self)

    def begin_transaction(self) -> None:
        """Begin a transaction. Later writes belong to it.

        Its timeout starts with its first write. The commit or abort of a transaction usually
        reserves the number of the next one, which then begins without a request.

        Raises:
            InvalidTransaction: A transaction is open already.
            ProducerFenced: Another producer has taken the id over. Without a request here, the
                first write, the commit or the abort raises this.
        """
        with self._deciding:
            self._check_usable()
            if self._branch is not None and self._aborting:
                self._abort(self._branch)  # an earlier abort got no answer
            if self._branch is not None:
                raise InvalidTransaction(
                    f"{self._named()} is open already",
                    hint="Commit it, or end it by abort_transaction() if an exception left it.",
                )
            begun = self._take_reserved() or self._call(self._begin)
            self._sender.failures.clear()
            self._clear_positions()
            self._aborting = False
            self._branch = begun
            self._sender.write_as(*author_of(self._branch))

    def commit_transaction(self) -> None:
        """Commit the transaction. Later ``read_committed`` reads see all of it.

        Raises:
            TransactionAborted: A write failed (the cause of the error), the transaction timed out,
                or an operator aborted it. Nothing of it is visible, and another transaction can
                begin.
            ProducerFenced: Another producer has taken the id over. Nothing of the transaction is
                visible, unless an earlier call of this commit got no answer. Then look for its
                records.
            ConsumerFenced: A consumer whose position belongs to the transaction has lost its name.
                The transaction is aborted.
            UnknownTopic: A topic of the transaction was deleted. The transaction is aborted.
            InvalidTransaction: No transaction is open.
            BrokerUnavailable: The outcome is unknown. Commit again.
            RequestTimeout: The outcome is unknown. Commit again.
        """
        with self._deciding:
            branch = self._opened("a commit")
            if not self._committing:
                failure = self._settle()
                if failure is not None or self._aborting:
                    refusal = self._refusal(failure)
                    self._give_up(branch)
                    raise (self._fenced or refusal).again() from failure
                # After this only the broker has the outcome.
                self._committing = True
            try:
                ended = self._call(self._committed, branch)
            except (ConsumerFenced, UnknownTopic):
                self._give_up(branch)
                raise
            for name, consumer in self._positioned.items():
                mine = [each for each in self._positions.values() if each.consumer == name]
                consumer.record_committed(mine)
            self._over(branch, ended)

    def abort_transaction(self) -> None:
        """Abort the transaction. Its unacknowledged writes fail with TransactionAborted.

        Raises:
            InvalidTransaction: No transaction is open, or it was committed and the answer was lost.
            ProducerFenced: Another producer has taken the id over. The transaction is aborted.
            BrokerUnavailable: No broker answers. Abort again.
            RequestTimeout: No broker answers in time. Abort again.
        """
        with self._deciding:
            self._abort(self._opened("an abort"))

    def commit_position(self, consumer: Positioned) -> None:
        """Store the position of a consumer if and when the transaction commits.

        After an aborted transaction ``consumer.seek("committed")`` returns to the stored position.

        Args:
            consumer: A consumer with a name, or a member of a group without ``auto_commit``.

        Raises:
            InvalidOption: The consumer has no name and no group, reads another log, or stores its
                positions automatically.
            InvalidTransaction: No transaction is open.
            ProducerFenced: Another producer has taken the id over.
            ConsumerFenced: Another consumer has taken the name or a partition over.

        Examples:
            >>> source, target = log.create_topic("raw"), log.create_topic("copies")
            >>> with log.producer() as producer:
            ...     written = producer.send("raw", b"one")
            >>> with (
            ...     log.producer(transactional_id="copier") as producer,
            ...     log.consumer("raw", isolation="read_committed", name="copier") as consumer,
            ... ):
            ...     for record in consumer.records(until="latest"):
            ...         with producer.transaction():
            ...             copied = producer.send("copies", record.value)
            ...             producer.commit_position(consumer)
            >>> log.read("copies", isolation="read_committed").num_rows
            1
        """
        with self._deciding:
            self._writable("a position")
            places = consumer.places(self._connection)
            consumer.check_owner()
            self._owners.update(consumer.owner())
            for place in places:
                self._positions[place.consumer, place.topic, place.partition] = place
                self._positioned[place.consumer] = consumer

    def close(self) -> None:
        """Abort an open transaction, then close as :meth:`Producer.close` does."""
        if self._closed or self._connection.lifetime.is_over:
            return
        check_may_wait()
        try:
            self._abandon()
        finally:
            super().close()

    # -- the inside -----------------------------------------------------------------------------

    def _named(self) -> str:
        number = "" if self._branch is None else f" {self._branch.number}"
        return f"transaction{number} of {self._transactional_id!r}"

    def _check_usable(self) -> None:
        """Raise ForkedClient in a forked child, and ProducerFenced if the id was taken over."""
        self._connection.lifetime.check()
        if self._fenced is None and isinstance(self._sender.failures.first, ProducerFenced):
            self._fenced = self._sender.failures.first
        if self._fenced is not None:
            raise self._fenced.again()

    def _opened(self, action: str) -> Branch:
        """Return the open transaction. Raise InvalidTransaction if there is none for ``action``."""
        self._check_usable()
        if self._branch is None:
            raise InvalidTransaction(
                f"{action} of {self._transactional_id!r} outside a transaction",
                hint="Call begin_transaction() first, or use `with producer.transaction()`.",
            )
        return self._branch

    def _writable(self, action: str) -> None:
        self._opened(action)
        if self._committing:
            raise InvalidTransaction(
                f"{action}: the outcome of the commit of {self._named()} is unknown",
                hint="Call commit_transaction() again to get the outcome.",
            )

    def _take_over(self) -> None:
        self._connection.call(InitTransactions.of(**self._own, timeout_ms=self._timeout_ms))
        self._last = -1

    def _begin(self) -> Branch:
        try:
            return self._connection.call(BeginTransaction.of(**self._own, after=self._last))
        except UnknownTransaction:  # the broker has deleted the id, which was unused for long
            self._take_over()
            return self._connection.call(BeginTransaction.of(**self._own, after=self._last))

    def _take_reserved(self) -> Branch | None:
        """Return the branch of the next transaction if its number is reserved, but only once.

        A broker deletes the ids that were unused for days. So an old number is not used.
        """
        branch, self._reserved = self._reserved, None
        return branch if time.monotonic() < self._reserved_until else None

    def _committed(self, branch: Branch) -> EndedTransaction:
        return self._connection.call(
            CommitTransaction(
                transactional_id=self._transactional_id,
                instance=self._instance,
                number=branch.number,
                branches=(branch.producer_id,),
                positions=tuple(self._positions.values()),
                owners=dict(self._owners),
            )
        )

    def _settle(self) -> IsologError | None:
        """Wait for all acknowledgements. Return the first failure, or None."""
        try:
            self.flush()
        except IsologError as error:
            return self._sender.failures.first or error
        return self._sender.failures.first

    def _call(self, call: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Call the broker. An error that has the decision ends the transaction here too."""
        try:
            return call(*arguments)
        except ProducerFenced as error:
            self._fenced = error
            self._branch = None
            raise
        except _DECIDED as error:
            if self._branch is not None:
                last = self._last
                self._over(self._branch)
                if isinstance(error, UnknownTransaction):
                    self._last = last  # the broker never had this number
            raise

    def _over(self, branch: Branch, ended: EndedTransaction | None = None) -> None:
        """Clear the ended transaction. ``ended``: the broker's answer, with the next number."""
        self._last = branch.number
        self._branch = None
        if ended is not None and ended.next_number >= 0:
            self._reserved = Branch(
                transactional_id=self._transactional_id,
                number=ended.next_number,
                producer_id=ended.producer_id,
                epoch=ended.epoch + 1,
            )
            self._reserved_until = time.monotonic() + _RESERVED_S
        self._committing = self._aborting = False
        self._sender.failures.clear()
        self._clear_positions()

    def _clear_positions(self) -> None:
        self._positions.clear()
        self._positioned.clear()
        self._owners.clear()

    def _abort(self, branch: Branch) -> None:
        self._aborting = True
        self._sender.discard(
            TransactionAborted(f"{self._named()} was aborted before this was acknowledged")
        )
        request = AbortTransaction.of(**self._own, number=branch.number)
        self._over(branch, self._call(self._connection.call, request))

    def _give_up(self, branch: Branch) -> None:
        """Abort. Without an answer the transaction times out, and cannot be committed any more."""
        try:
            self._abort(branch)
        except IsologError as error:
            if self._branch is not None:
                logger.warning("cannot abort %s: %s", self._named(), error)

    def _abandon(self) -> None:
        """Abort the open transaction, unless it belongs to the parent of this process."""
        if self._connection.lifetime.is_over:
            return
        with self._deciding:
            if self._branch is not None:
                self._give_up(self._branch)

    def _end_transaction(self) -> None:
        """Abort the open transaction, unless another thread is ending it.

        The program ends, or the connection is closed.
        """
        timeout_s = self._connection.lifetime.seconds_left(self._connection.timeout_s) or 0.0
        if self._deciding.acquire(timeout=timeout_s):
            try:
                self._abandon()
            finally:
                self._deciding.release()

    def _refusal(self, failure: IsologError | None) -> IsologError:
        """Return the error of a commit after this failure of a write."""
        if isinstance(failure, ProducerFenced):
            self._fenced = failure
        if isinstance(failure, ProducerFenced | TransactionAborted):
            return type(failure)(failure.message, hint=failure.hint, **failure.details)
        why = "it was to be aborted" if failure is None else f"a write failed: {failure.message}"
        return TransactionAborted(f"{self._named()} was aborted: {why}")


class _TransactionBlock(ProcessBound, AbstractContextManager[None]):
    """The ``with`` block of a transaction."""

    def __init__(self, producer: TransactionalProducer) -> None:
        self._producer = producer
        self._is_entered = False

    def __enter__(self) -> None:
        self._producer.begin_transaction()
        self._is_entered = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._is_entered:
            return
        self._is_entered = False
        if kind is None:
            self._producer.commit_transaction()
        else:
            self._producer._abandon()
