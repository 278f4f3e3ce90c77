"""DoActions on transactions, sinks, consumers' positions and cuts: from a message to a message."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from spark_stream.broker.actions.here import Here
from spark_stream.consistency.transactions.sinks import Claim, Stop
from spark_stream.consistency.transactions.transactions import Joined, Transaction
from spark_stream.errors import InvalidRequest, IsologError
from spark_stream.scripts import cutting
from spark_stream.scripts.cutting import CutRange
from spark_stream.scripts.steps import Numbering, TakeNumber
from spark_stream.scripts.transactions import consumers, deciding, positions, records, sinks
from spark_stream.scripts.transactions.deciding import Commit
from spark_stream.wire.messages import AtomicCut, Cut, Empty
from spark_stream.wire.sink_messages import (
    DropBranch,
    OpenBranch,
    RenewBatch,
    SettledBatch,
    SinkDescription,
    SinkList,
    StopRun,
)
from spark_stream.wire.transaction_messages import (
    BeginTransaction,
    Branch,
    CommitTransaction,
    EndTransaction,
    InitTransactions,
    KillTransaction,
    NamedConsumer,
    NamedTransaction,
    OwnedConsumer,
    Positions,
    ProducerFacts,
    TransactionDescription,
    TransactionList,
    TransactionPartition,
)

# -- producers ------------------------------------------------------------------------------------


def new_producer(here: Here, asked: Empty) -> ProducerFacts:
    return ProducerFacts(producer_id=here.desk.run(iter(TakeNumber(Numbering.PRODUCERS))), epoch=0)


def init_transactions(here: Here, asked: InitTransactions) -> TransactionDescription:
    desk = here.desk
    return _facts(
        here,
        desk.run(
            deciding.take_over(
                desk.finished,
                asked.transactional_id,
                asked.instance,
                asked.timeout_ms,
                desk.now_ms(),
            )
        ),
    )


def begin_transaction(here: Here, asked: BeginTransaction) -> Branch:
    desk = here.desk
    begun = desk.run(
        deciding.begin(
            desk.finished,
            asked.transactional_id,
            asked.instance,
            asked.after,
            desk.coordinator,
            desk.now_ms(),
        )
    )
    return Branch(
        transactional_id=begun.transactional_id,
        number=begun.number,
        producer_id=begun.producer_id,
        epoch=begun.epoch,
    )


def renew_transaction(here: Here, asked: EndTransaction) -> TransactionDescription:
    desk = here.desk
    script = deciding.renew(
        desk.finished, asked.transactional_id, asked.instance, asked.number, desk.now_ms()
    )
    return _facts(here, desk.run(script))


def commit_transaction(here: Here, asked: CommitTransaction) -> TransactionDescription:
    commit = Commit(
        asked.transactional_id,
        asked.instance,
        asked.number,
        tuple(asked.branches),
        asked.batch,
        tuple(asked.positions),
        None if asked.content is None else tuple(asked.content),
        asked.owners,
    )
    return _facts(here, here.desk.run(deciding.commit(here.desk.finished, commit)))


def abort_transaction(here: Here, asked: EndTransaction) -> TransactionDescription:
    script = deciding.abort(
        here.desk.finished, asked.transactional_id, asked.instance, asked.number
    )
    return _facts(here, here.desk.run(script))


# -- sinks ----------------------------------------------------------------------------------------


def open_branch(here: Here, asked: OpenBranch) -> Branch:
    desk = here.desk
    found, producer_id = desk.run(
        sinks.open_branch(
            desk.finished,
            asked.transactional_id,
            _claim(asked),
            desk.coordinator,
            desk.now_ms(),
            renamed=asked.renamed,
        )
    )
    return Branch(
        transactional_id=found.transactional_id,
        number=found.number,
        producer_id=-1 if producer_id is None else producer_id,
        committed=producer_id is None,
    )


def settle_batch(here: Here, asked: OpenBranch) -> SettledBatch:
    script = sinks.settle_batch(
        here.desk.finished, asked.transactional_id, _claim(asked), renamed=asked.renamed
    )
    found, committed = here.desk.run(script)
    if not committed or found.content is None:
        return SettledBatch(committed=committed)
    return SettledBatch(committed=True, content=list(found.content))


def renew_batch(here: Here, asked: RenewBatch) -> Empty:
    desk = here.desk
    desk.run(
        sinks.renew_batch(
            desk.finished, asked.transactional_id, asked.instance, asked.batch, desk.now_ms()
        )
    )
    return Empty()


def drop_branch(here: Here, asked: DropBranch) -> Empty:
    here.desk.run(
        sinks.drop_branch(
            here.desk.finished,
            asked.transactional_id,
            asked.instance,
            asked.number,
            asked.producer_id,
        )
    )
    return Empty()


def stop_run(here: Here, asked: StopRun) -> Empty:
    stop = Stop(asked.run, asked.planned, asked.batch)
    here.desk.run(sinks.stop_run(here.desk.finished, stop, here.desk.now_ms()))
    return Empty()


def list_sinks(here: Here, asked: Empty) -> SinkList:
    found = [
        SinkDescription(
            transactional_id=each.transactional_id,
            query=each.query,
            state="expired" if expired else each.state.value,
            committed_batch=each.committed_batch,
            last_used_ms=each.deadline_ms - each.timeout_ms,
        )
        for each, expired in here.desk.run(sinks.list_sinks(here.desk.finished))
    ]
    return SinkList(sinks=found)


def delete_sink(here: Here, asked: NamedTransaction) -> Empty:
    here.desk.run(sinks.delete_sink(here.desk.finished, asked.transactional_id))
    return Empty()


def _claim(asked: OpenBranch) -> Claim:
    return Claim(
        query=asked.query,
        instance=asked.instance,
        batch=asked.batch,
        timeout_ms=asked.timeout_ms,
        run=asked.run,
        planned=asked.planned,
    )


# -- operators ------------------------------------------------------------------------------------


def list_transactions(here: Here, asked: Empty) -> TransactionList:
    joins = defaultdict(list)
    for join in here.desk.run(records.read_joins()):
        joins[join.number].append(join.at)
    found = here.desk.run(deciding.describe_all(here.desk.finished))
    return TransactionList(transactions=[_facts(here, each, joins[each.number]) for each in found])


def describe_transaction(here: Here, asked: NamedTransaction) -> TransactionDescription:
    script = deciding.describe(here.desk.finished, asked.transactional_id)
    found = here.desk.run(script)
    return _facts(here, found, here.desk.run(records.read_places(found.number)))


def kill_transaction(here: Here, asked: KillTransaction) -> TransactionDescription:
    desk = here.desk
    found = desk.run(deciding.describe(desk.finished, asked.transactional_id))
    places = desk.run(records.read_places(found.number))  # they go when it has ended
    script = deciding.kill(desk.finished, asked.transactional_id, asked.number)
    return _facts(here, desk.run(script), places)


def _facts(here: Here, found: Transaction, places: Iterable[Joined] = ()) -> TransactionDescription:
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
                first_offset=_first_offset(here, each, found.number),
            )
            for each in sorted(places, key=lambda each: (each.topic, each.partition))
        ),
        timeout_ms=found.timeout_ms,
        began_ms=found.began_ms,
        deadline_ms=found.deadline_ms,
        committed_batch=found.committed_batch,
    )


def _first_offset(here: Here, joined: Joined, number: int) -> int | None:
    """Where an open transaction begins in a partition; None once it is ended there.

    None as well where another broker leads the partition.
    """
    try:
        partition = here.host.topic(joined.topic, joined.topic_id).partition(joined.partition)
    except IsologError:
        return None
    firsts = [
        int(each.first_offset)
        for each in partition.transactions.open()
        if each.transaction == number
    ]
    return min(firsts, default=None)


# -- consumers ------------------------------------------------------------------------------------


def take_consumer(here: Here, asked: OwnedConsumer) -> Positions:
    script = consumers.take_consumer(here.desk.finished, asked.consumer, asked.instance)
    return Positions(positions=here.desk.run(script))


def check_consumer(here: Here, asked: OwnedConsumer) -> Empty:
    here.desk.run(positions.check_owners({asked.consumer: asked.instance}))
    return Empty()


def consumer_position(here: Here, asked: NamedConsumer) -> Positions:
    script = consumers.go_on(here.desk.finished, asked.consumer)
    return Positions(positions=here.desk.run(script))


def commit_position(here: Here, asked: Positions) -> Empty:
    here.desk.run(positions.store_positions(asked.positions, asked.owners))
    return Empty()


def atomic_cut(here: Here, asked: AtomicCut) -> Cut:
    if len({each.topic for each in asked.topics}) != len(asked.topics):
        raise InvalidRequest("a topic is named twice")
    ranges = [CutRange(each.topic, each.topic_id, each.lower, each.upper) for each in asked.topics]
    return Cut(offsets=here.desk.run(cutting.find_cut(ranges)))
