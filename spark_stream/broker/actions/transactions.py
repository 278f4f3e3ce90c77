"""Handlers of calls on transactions, sinks and atomic cuts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar

from msgspec import structs

from spark_stream.access.rules import Operation, ResourceKind
from spark_stream.broker.actions.context import BrokerContext, handles
from spark_stream.consistency.transactions.transactions import Joined, Transaction
from spark_stream.errors import InvalidRequest, IsologError
from spark_stream.scripts.readers import find_cut
from spark_stream.scripts.steps import Numbering, Script, TakeNumber
from spark_stream.scripts.transactions import records
from spark_stream.wire.topic_messages import AtomicCut, Cut
from spark_stream.wire.transaction_messages import (
    AbortBranch,
    AbortTransaction,
    BeginTransaction,
    Branch,
    CommitTransaction,
    DeleteSink,
    DescribeTransaction,
    EndedTransaction,
    InitTransactions,
    KillTransaction,
    ListSinks,
    ListTransactions,
    NewProducer,
    OpenBranch,
    ProducerFacts,
    RenewBatch,
    RenewTransaction,
    SettledBatch,
    SettleSinkBatch,
    SinkBatch,
    SinkDescription,
    SinkList,
    StopRun,
    TransactionDescription,
    TransactionList,
    TransactionPartition,
)

R = TypeVar("R", SinkBatch, OpenBranch, SettleSinkBatch, StopRun)

# -- producers ------------------------------------------------------------------------------------


@handles(NewProducer)
def new_producer(context: BrokerContext, asked: NewProducer) -> ProducerFacts:
    return ProducerFacts(
        producer_id=context.transactions.run(iter(TakeNumber(Numbering.PRODUCERS))), epoch=0
    )


def _claim_id(context: BrokerContext, transactional_id: str) -> None:
    """Record the owner of the id, if callers authenticate."""
    if context.authorizer.requires_authentication:
        may_take = context.is_administrator
        script = records.claim(transactional_id, context.known_principal, may_take=may_take)
        context.transactions.run(script)


def check_id_owner(context: BrokerContext, transactional_id: str, instance: str = "") -> None:
    """Check that the caller owns the id or is an administrator, if callers authenticate.

    Raises:
        PermissionDenied: The id belongs to another principal.
    """
    if context.authorizer.requires_authentication and not context.is_administrator:
        principal = context.known_principal
        context.transactions.run(records.check_id_owner(transactional_id, principal, instance))


@handles(InitTransactions)
def init_transactions(context: BrokerContext, asked: InitTransactions) -> TransactionDescription:
    transactions = context.transactions
    _claim_id(context, asked.transactional_id)
    return _facts(context, transactions.run(transactions.decisions.take_over(asked)))


@handles(BeginTransaction)
def begin_transaction(context: BrokerContext, asked: BeginTransaction) -> Branch:
    check_id_owner(context, asked.transactional_id, asked.instance)
    transactions = context.transactions
    begun = transactions.run(transactions.decisions.begin(asked))
    return Branch(
        transactional_id=begun.transactional_id,
        number=begun.number,
        producer_id=begun.producer_id,
        epoch=begun.epoch,
    )


@handles(RenewTransaction)
def renew_transaction(context: BrokerContext, asked: RenewTransaction) -> TransactionDescription:
    check_id_owner(context, asked.transactional_id, asked.instance)
    transactions = context.transactions
    return _facts(context, transactions.run(transactions.decisions.renew(asked)))


@handles(CommitTransaction)
def commit_transaction(context: BrokerContext, asked: CommitTransaction) -> EndedTransaction:
    check_id_owner(context, asked.transactional_id, asked.instance)
    return _ended(context, context.transactions.decisions.commit(asked))


@handles(AbortTransaction)
def abort_transaction(context: BrokerContext, asked: AbortTransaction) -> EndedTransaction:
    check_id_owner(context, asked.transactional_id, asked.instance)
    return _ended(context, context.transactions.decisions.abort(asked))


def _ended(context: BrokerContext, ending: Script[Transaction]) -> EndedTransaction:
    """End a transaction. The answer names the next one, since this one is finished by then."""
    found = context.transactions.run(ending)
    facts = structs.asdict(_facts(context, found))
    return EndedTransaction(**facts, next_number=found.reserved)


# -- sinks ----------------------------------------------------------------------------------------


@handles(OpenBranch)
def open_branch(context: BrokerContext, asked: OpenBranch) -> Branch:
    transactions = context.transactions
    _claim_id(context, asked.transactional_id)
    found, producer_id = transactions.run(
        transactions.sinks.open_branch(
            _with_own_run(context, asked), transactions.coordinator, transactions.now_ms()
        )
    )
    return Branch(
        transactional_id=found.transactional_id,
        number=found.number,
        producer_id=-1 if producer_id is None else producer_id,
        committed=producer_id is None,
    )


@handles(SettleSinkBatch)
def settle_batch(context: BrokerContext, asked: SettleSinkBatch) -> SettledBatch:
    _claim_id(context, asked.transactional_id)
    script = context.transactions.sinks.settle_batch(_with_own_run(context, asked))
    found, committed = context.transactions.run(script)
    return SettledBatch(committed=committed, content=found.content if committed else None)


@handles(RenewBatch)
def renew_batch(context: BrokerContext, asked: RenewBatch) -> None:
    check_id_owner(context, asked.transactional_id, asked.instance)
    transactions = context.transactions
    transactions.run(transactions.sinks.renew_batch(asked, transactions.now_ms()))


@handles(AbortBranch)
def drop_branch(context: BrokerContext, asked: AbortBranch) -> None:
    check_id_owner(context, asked.transactional_id, asked.instance)
    context.transactions.run(context.transactions.sinks.drop_branch(asked))


@handles(StopRun)
def stop_run(context: BrokerContext, asked: StopRun) -> None:
    context.check_has_rules()
    transactions = context.transactions
    stop = _with_own_run(context, asked)
    transactions.run(transactions.sinks.stop_run(stop, transactions.now_ms()))


@handles(ListSinks)
def list_sinks(context: BrokerContext, asked: ListSinks) -> SinkList:
    found = [
        SinkDescription(
            transactional_id=each.transactional_id,
            query=each.query,
            state="expired" if expired else each.state.value,
            committed_batch=each.committed_batch,
            last_used_ms=each.deadline_ms - each.timeout_ms,
            query_name=each.query_name,
        )
        for each, expired in context.transactions.run(context.transactions.sinks.list_all())
        if context.may_describe(ResourceKind.TRANSACTION, each.transactional_id)
    ]
    return SinkList(sinks=found)


@handles(DeleteSink)
def delete_sink(context: BrokerContext, asked: DeleteSink) -> None:
    context.transactions.run(context.transactions.sinks.delete(asked.transactional_id))


def _with_own_run(context: BrokerContext, asked: R) -> R:
    """Return the request with the run's name on record, which has its principal.

    So a principal cannot stop the run of another one.
    """
    principal = context.known_principal
    if not (asked.run and principal):
        return asked
    return structs.replace(asked, run=f"{len(principal)} {principal} {asked.run}")


# -- operators ------------------------------------------------------------------------------------


@handles(ListTransactions)
def list_transactions(context: BrokerContext, asked: ListTransactions) -> TransactionList:
    joins = defaultdict(list)
    for join in context.transactions.run(records.read_joins()):
        joins[join.number].append(join.at)
    transactions = context.transactions
    found = transactions.run(transactions.decisions.describe_all())
    return TransactionList(
        transactions=[
            _facts(context, each, joins[each.number])
            for each in found
            if context.may_describe(ResourceKind.TRANSACTION, each.transactional_id)
        ]
    )


@handles(DescribeTransaction)
def describe_transaction(
    context: BrokerContext, asked: DescribeTransaction
) -> TransactionDescription:
    script = context.transactions.decisions.describe(asked.transactional_id)
    found = context.transactions.run(script)
    return _facts(context, found, context.transactions.run(records.read_places(found.number)))


@handles(KillTransaction)
def kill_transaction(context: BrokerContext, asked: KillTransaction) -> TransactionDescription:
    transactions = context.transactions
    found = transactions.run(transactions.decisions.describe(asked.transactional_id))
    places = transactions.run(records.read_places(found.number))  # they are removed when it ends
    script = transactions.decisions.kill(asked)
    return _facts(context, transactions.run(script), places)


def _facts(
    context: BrokerContext, found: Transaction, places: Iterable[Joined] = ()
) -> TransactionDescription:
    return TransactionDescription(
        transactional_id=found.transactional_id,
        state=found.state.value,
        number=found.number,
        producer_id=found.producer_id,
        epoch=found.epoch,
        query=found.query,
        branches=found.branches,
        partitions=tuple(
            TransactionPartition(
                topic=each.topic,
                partition=each.partition,
                first_offset=_first_offset(context, each, found.number),
            )
            for each in sorted(places, key=lambda each: (each.topic, each.partition))
            if context.may_describe(ResourceKind.TOPIC, each.topic)
        ),
        timeout_ms=found.timeout_ms,
        began_ms=found.began_ms,
        deadline_ms=found.deadline_ms,
        committed_batch=found.committed_batch,
        principal=found.principal,
        query_name=found.query_name,
    )


def _first_offset(context: BrokerContext, joined: Joined, number: int) -> int | None:
    """Return the first offset of an open transaction in a partition, or None once it ended there.

    Also None if another broker leads the partition.
    """
    try:
        partition = context.host.topic(joined.topic, joined.topic_id).partition(joined.partition)
    except IsologError:
        return None
    firsts = [
        int(each.first_offset)
        for each in partition.transactions.open()
        if each.transaction == number
    ]
    return min(firsts, default=None)


# -- cuts -----------------------------------------------------------------------------------------


@handles(AtomicCut)
def atomic_cut(context: BrokerContext, asked: AtomicCut) -> Cut:
    if len({each.topic for each in asked.topics}) != len(asked.topics):
        raise InvalidRequest("duplicate topic in the request")
    offsets = context.transactions.run(find_cut(asked.topics))  # refreshes the view
    names = context.topic_names(Operation.READ) if asked.names else None
    return Cut(offsets=offsets, names=names)
