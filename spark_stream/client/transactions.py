"""Requests about transactions: one call each, safe to repeat when an answer is lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.leaders import Partitions, held_back, see_partitions
from spark_stream.consistency.transactions.transactions import Content, PositionOf
from spark_stream.errors import InvalidRequest, UnknownTransaction
from spark_stream.wire.offset_messages import AtomicCut, CutTopic
from spark_stream.wire.sink_messages import (
    AbortBranch,
    DeleteSink,
    ListSinks,
    OpenBranch,
    RenewBatch,
    SettledBatch,
    SettleSinkBatch,
    SinkDescription,
    StopRun,
)
from spark_stream.wire.transaction_messages import (
    UNFINISHED,
    AbortTransaction,
    BeginTransaction,
    Branch,
    CheckConsumer,
    CommitPosition,
    CommitTransaction,
    DescribeTransaction,
    GetPosition,
    InitTransactions,
    KillTransaction,
    ListTransactions,
    NewProducer,
    ProducerFacts,
    RenewTransaction,
    TakeConsumer,
    TransactionDescription,
    TransactionPartition,
)


class TransactionsClient:
    """The transactions of a connection's log; calls raise the broker's errors, typed."""

    def __init__(self, connection: ClusterConnection) -> None:
        self._connection = connection

    def new_producer(self, timeout_s: float | None = None) -> ProducerFacts:
        """Return a producer id for writes outside transactions."""
        return self._connection.call(NewProducer(), timeout_s)

    def init(self, transactional_id: str, instance: str, timeout_ms: int) -> TransactionDescription:
        """Take over the transactional id; see ``wire.transaction_messages.InitTransactions``."""
        asked = InitTransactions.of(
            transactional_id=transactional_id, instance=instance, timeout_ms=timeout_ms
        )
        return self._connection.call(asked)

    def begin(self, transactional_id: str, instance: str, after: int) -> Branch:
        """Begin the transaction that follows number ``after``.

        Raises:
            ProducerFenced: another instance took over.
            InvalidTransaction: a transaction is open.
        """
        asked = BeginTransaction(transactional_id=transactional_id, instance=instance, after=after)
        return self._connection.call(asked)

    def open_branch(self, asked: OpenBranch) -> Branch:
        """Open a branch under which to write a sink's batch.

        Raises:
            SinkInUse, StaleBatch, ProducerFenced.
            TransactionAborted: the driver that planned the batch has abandoned it.
        """
        return self._connection.call(asked)

    def settle_batch(self, asked: SettleSinkBatch) -> SettledBatch:
        """Return whether the batch is committed. If it is not, abort what the sink has open.

        Raises:
            SinkInUse, StaleBatch, ProducerFenced.
        """
        return self._connection.call(asked)

    def renew_batch(
        self, transactional_id: str, instance: str, batch: int, timeout_s: float | None = None
    ) -> None:
        """Extend the deadline of the transaction that writes the batch, if it is open."""
        asked = RenewBatch(transactional_id=transactional_id, instance=instance, batch=batch)
        self._connection.call(asked, timeout_s)

    def drop_branch(
        self, transactional_id: str, instance: str, number: int, producer_id: int
    ) -> None:
        """Abort one branch of a transaction that continues."""
        asked = AbortBranch(
            transactional_id=transactional_id,
            instance=instance,
            number=number,
            producer_id=producer_id,
        )
        self._connection.call(asked)

    def stop_run(self, run: str, planned: int, batch: int) -> None:
        """Abort what the driver planned up to ``planned``; its late tasks can open no branch."""
        self._connection.call(StopRun(run=run, planned=planned, batch=batch))

    def sinks(self) -> list[SinkDescription]:
        """Return all sinks, by id."""
        return self._connection.call(ListSinks()).sinks

    def delete_sink(self, transactional_id: str) -> None:
        """Forget a sink, or raise UnknownTransaction or InvalidTransaction."""
        asked = DeleteSink.of(transactional_id=transactional_id)
        self._connection.call(asked)

    def renew(
        self, transactional_id: str, instance: str, number: int, timeout_s: float | None = None
    ) -> TransactionDescription:
        """Set the deadline of an open transaction to now plus its timeout."""
        asked = RenewTransaction(
            transactional_id=transactional_id, instance=instance, number=number
        )
        return self._connection.call(asked, timeout_s)

    def commit(
        self,
        transactional_id: str,
        instance: str,
        number: int,
        branches: Iterable[int],
        *,
        batch: int | None = None,
        content: Iterable[Content] | None = None,
        positions: Iterable[PositionOf] = (),
        owners: Mapping[str, str] | None = None,
    ) -> TransactionDescription:
        """Commit; return when everything in it is visible to the next read_committed read.

        Raises:
            TransactionAborted, ProducerFenced, UnknownTransaction, ForeignBranch,
            InvalidTransaction, ConsumerFenced: this call decided nothing.
            UnknownTopic: a topic that the transaction wrote to was deleted. As above.
        """
        asked = CommitTransaction(
            transactional_id=transactional_id,
            instance=instance,
            number=number,
            branches=tuple(sorted(branches)),
            batch=batch,
            content=None if content is None else tuple(content),
            positions=tuple(positions),
            owners=dict(owners or {}),
        )
        return self._connection.call(asked)

    def abort(self, transactional_id: str, instance: str, number: int) -> TransactionDescription:
        """Abort, or raise InvalidTransaction if the commit is decided: it is never undone."""
        asked = AbortTransaction(
            transactional_id=transactional_id, instance=instance, number=number
        )
        return self._connection.call(asked)

    def all(self) -> list[TransactionDescription]:
        """Return all transactional ids with their present or last transaction."""
        found = self._connection.call(ListTransactions()).transactions
        return self._with_places(found)

    def describe(self, transactional_id: str) -> TransactionDescription:
        """Return one transactional id with its transaction, or raise UnknownTransaction."""
        try:
            asked = DescribeTransaction.of(transactional_id=transactional_id)
        except InvalidRequest:
            raise UnknownTransaction(f"there is no transactional id {transactional_id!r}") from None
        found = self._connection.call(asked)
        return self._with_places([found])[0]

    def kill(self, transactional_id: str, number: int | None = None) -> TransactionDescription:
        """Abort the transaction that is open now, whoever owns it: its writes and commit fail.

        ``number``: only the transaction of this number, and no later one.

        Raises:
            UnknownTransaction: there is no such id.
            InvalidTransaction: no transaction is open.
        """
        if number is None:
            number = self.describe(transactional_id).number
        asked = KillTransaction(
            transactional_id=transactional_id, number=None if number < 0 else number
        )
        return self._connection.call(asked)

    def _with_places(self, found: Sequence[TransactionDescription]) -> list[TransactionDescription]:
        """Add what the leaders of the partitions of unfinished transactions answer."""
        unfinished = [each for each in found if each.state in UNFINISHED]
        names = {at.topic for each in unfinished for at in each.partitions}
        seen = see_partitions(self._connection, sorted(names))
        return [
            structs.replace(
                each, partitions=tuple(_placed(at, each.number, seen) for at in each.partitions)
            )
            for each in found
        ]

    def position(self, consumer: str) -> list[PositionOf]:
        """Return where a named consumer continues; empty if it never committed a position."""
        asked = GetPosition.of(consumer=consumer)
        return self._connection.call(asked).positions

    def take_consumer(
        self, consumer: str, instance: str, *, keeps_group: bool = False
    ) -> list[PositionOf]:
        """Take over the consumer's name. Return its stored positions."""
        asked = TakeConsumer.of(consumer=consumer, instance=instance, keeps_group=keeps_group)
        return self._connection.call(asked).positions

    def check_consumer(self, consumer: str, instance: str) -> None:
        """Raise ConsumerFenced if another consumer has taken over the name."""
        asked = CheckConsumer(consumer=consumer, instance=instance)
        self._connection.call(asked)

    def commit_position(
        self,
        positions: Iterable[PositionOf],
        owners: Mapping[str, str],
        timeout_s: float | None = None,
    ) -> None:
        """Store positions outside any transaction; raise ConsumerFenced if others own the names."""
        asked = CommitPosition(positions=list(positions), owners=dict(owners))
        self._connection.call(asked, timeout_s)

    def cut(self, topics: Iterable[CutTopic]) -> Mapping[str, Mapping[int, int]]:
        """Return a cut, by topic and partition: offsets that split no transaction."""
        return self._connection.call(AtomicCut(topics=list(topics))).offsets


def _placed(at: TransactionPartition, number: int, seen: Partitions) -> TransactionPartition:
    partition = seen.get(at.topic, {}).get(at.partition)
    if partition is None or (facts := partition.found.facts) is None:
        return at
    firsts = {each.transaction: each.first_offset for each in facts.open}
    return structs.replace(
        at,
        first_offset=firsts.get(number, at.first_offset),
        held_back=held_back(facts).get(number, 0),
    )
