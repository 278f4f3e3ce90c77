"""DoActions on transactions, consumers' positions and cuts: from a message to a message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from spark_stream.broker.cuts import atomic_cut
from spark_stream.broker.host import Host
from spark_stream.broker.sinks import SinkDesk
from spark_stream.broker.transactions import TransactionDesk
from spark_stream.consistency.sinks import Claim, Stop
from spark_stream.consistency.transactions import Content, Joined, PositionOf, Transaction
from spark_stream.errors import IsologError
from spark_stream.wire.messages import (
    AtomicCut,
    BeginTransaction,
    BranchFacts,
    CommitTransaction,
    ConsumerPosition,
    Empty,
    EndTransaction,
    InitTransactions,
    KillTransaction,
    Message,
    NamedConsumer,
    NamedTransaction,
    OwnedConsumer,
    Positions,
    ProducerFacts,
    TopicContent,
    TransactionFacts,
    TransactionList,
    TransactionPartition,
)
from spark_stream.wire.sink_messages import (
    DropBranch,
    OpenBranch,
    RenewBatch,
    SettledBatch,
    StopRun,
)


class TransactionActions:
    """The transactions' actions of one broker."""

    def __init__(self, host: Host, desk: TransactionDesk) -> None:
        self._host = host
        self._desk = desk
        self._sinks = SinkDesk(desk)

    def run(self, name: str, body: bytes) -> Message:
        """Runs the action, which is one of ``TRANSACTION_ACTIONS``."""
        kind, action = TRANSACTION_ACTIONS[name]
        return action(self, kind.from_bytes(body))

    def _new_producer(self, asked: Empty) -> Message:
        return ProducerFacts(producer_id=self._desk.new_producer())

    def _init(self, asked: InitTransactions) -> Message:
        found = self._desk.init(asked.transactional_id, asked.instance, asked.timeout_ms)
        return self._transaction(found)

    def _begin(self, asked: BeginTransaction) -> Message:
        begun = self._desk.begin(asked.transactional_id, asked.instance, asked.after)
        return BranchFacts(
            transactional_id=begun.transactional_id,
            number=begun.number,
            producer_id=begun.producer_id,
            epoch=begun.epoch,
        )

    def _open_branch(self, asked: OpenBranch) -> Message:
        found, producer_id = self._sinks.open_branch(
            asked.transactional_id, _claim(asked), renamed=asked.renamed
        )
        return BranchFacts(
            transactional_id=found.transactional_id,
            number=found.number,
            producer_id=-1 if producer_id is None else producer_id,
            epoch=0,
            committed=producer_id is None,
        )

    def _settle_batch(self, asked: OpenBranch) -> Message:
        found, committed = self._sinks.settle(
            asked.transactional_id, _claim(asked), renamed=asked.renamed
        )
        if not committed or found.content is None:
            return SettledBatch(committed=committed)
        content = [TopicContent(**asdict(each)) for each in found.content]
        return SettledBatch(committed=True, content=content)

    def _renew_batch(self, asked: RenewBatch) -> Message:
        self._sinks.renew(asked.transactional_id, asked.instance, asked.batch)
        return Empty()

    def _drop_branch(self, asked: DropBranch) -> Message:
        self._sinks.drop_branch(
            asked.transactional_id, asked.instance, asked.number, asked.producer_id
        )
        return Empty()

    def _stop_run(self, asked: StopRun) -> Message:
        self._sinks.stop_run(Stop(asked.run, asked.planned, asked.batch))
        return Empty()

    def _renew(self, asked: EndTransaction) -> Message:
        return self._transaction(
            self._desk.renew(asked.transactional_id, asked.instance, asked.number)
        )

    def _commit(self, asked: CommitTransaction) -> Message:
        positions = [PositionOf(**each.model_dump()) for each in asked.positions]
        content = None
        if asked.content is not None:
            content = [Content(**each.model_dump()) for each in asked.content]
        return self._transaction(
            self._desk.commit(
                asked.transactional_id,
                asked.instance,
                asked.number,
                asked.branches,
                asked.batch,
                positions,
                content,
                asked.owners,
            )
        )

    def _abort(self, asked: EndTransaction) -> Message:
        return self._transaction(
            self._desk.abort(asked.transactional_id, asked.instance, asked.number)
        )

    def _transactions(self, asked: Empty) -> Message:
        return TransactionList(transactions=[self._transaction(each) for each in self._desk.all()])

    def _describe_transaction(self, asked: NamedTransaction) -> Message:
        return self._transaction(self._desk.get(asked.transactional_id))

    def _kill(self, asked: KillTransaction) -> Message:
        return self._transaction(self._desk.kill(asked.transactional_id, asked.number))

    def _take_consumer(self, asked: OwnedConsumer) -> Message:
        found = self._desk.take_consumer(asked.consumer, asked.instance)
        return Positions(positions=[ConsumerPosition(**asdict(each)) for each in found])

    def _check_consumer(self, asked: OwnedConsumer) -> Message:
        self._desk.check_consumer(asked.consumer, asked.instance)
        return Empty()

    def _position(self, asked: NamedConsumer) -> Message:
        found = self._desk.positions(asked.consumer)
        return Positions(positions=[ConsumerPosition(**asdict(each)) for each in found])

    def _commit_position(self, asked: Positions) -> Message:
        positions = [PositionOf(**each.model_dump()) for each in asked.positions]
        self._desk.store_positions(positions, asked.owners)
        return Empty()

    def _cut(self, asked: AtomicCut) -> Message:
        return atomic_cut(self._host, asked)

    def _transaction(self, found: Transaction) -> TransactionFacts:
        return TransactionFacts(
            transactional_id=found.transactional_id,
            state=found.state.value,
            number=found.number,
            producer_id=found.producer_id,
            epoch=found.epoch,
            instance=found.instance,
            query=found.query,
            branches=list(found.branches),
            partitions=[
                TransactionPartition(
                    topic=each.topic,
                    partition=each.partition,
                    first_offset=self._first_offset(each, found.number),
                )
                for each in found.partitions
            ],
            timeout_ms=found.timeout_ms,
            began_ms=found.began_ms,
            deadline_ms=found.deadline_ms,
            committed_batch=found.committed_batch,
        )

    def _first_offset(self, joined: Joined, number: int) -> int | None:
        """Where an open transaction begins in a partition; None once it is ended there."""
        try:
            partition = self._host.topic(joined.topic, joined.topic_id).partition(joined.partition)
        except IsologError:
            return None
        firsts = [
            int(each.first_offset)
            for each in partition.open_transactions()
            if each.transaction == number
        ]
        return min(firsts, default=None)


def _claim(asked: OpenBranch) -> Claim:
    return Claim(
        query=asked.query,
        instance=asked.instance,
        batch=asked.batch,
        timeout_ms=asked.timeout_ms,
        run=asked.run,
        planned=asked.planned,
    )


TRANSACTION_ACTIONS: Final[
    Mapping[str, tuple[type[Message], Callable[[TransactionActions, Any], Message]]]
] = {
    "new-producer": (Empty, TransactionActions._new_producer),
    "init-transactions": (InitTransactions, TransactionActions._init),
    "begin-transaction": (BeginTransaction, TransactionActions._begin),
    "open-branch": (OpenBranch, TransactionActions._open_branch),
    "settle-batch": (OpenBranch, TransactionActions._settle_batch),
    "renew-batch": (RenewBatch, TransactionActions._renew_batch),
    "drop-branch": (DropBranch, TransactionActions._drop_branch),
    "stop-run": (StopRun, TransactionActions._stop_run),
    "renew-transaction": (EndTransaction, TransactionActions._renew),
    "commit-transaction": (CommitTransaction, TransactionActions._commit),
    "abort-transaction": (EndTransaction, TransactionActions._abort),
    "list-transactions": (Empty, TransactionActions._transactions),
    "describe-transaction": (NamedTransaction, TransactionActions._describe_transaction),
    "kill-transaction": (KillTransaction, TransactionActions._kill),
    "take-consumer": (OwnedConsumer, TransactionActions._take_consumer),
    "check-consumer": (OwnedConsumer, TransactionActions._check_consumer),
    "consumer-position": (NamedConsumer, TransactionActions._position),
    "commit-position": (Positions, TransactionActions._commit_position),
    "atomic-cut": (AtomicCut, TransactionActions._cut),
}
