"""Calls of producers, operators and named consumers on transactions.

A call that decides a transaction also finishes it. Every call can be repeated: a decision stays,
and the next call or the next sweep finishes what a dead broker left half done.

**A commit moves a position for the owner of the consumer's name only, or not at all**, although the
owner's name and the transaction are two records that no single compare-and-set covers, and although
two brokers may handle the calls. The steps, in these orders:

* a commit (:meth:`Decisions.commit`) **announces** in its open transaction the positions that it
  moves, then **checks** the owners of the names, then **decides**, if the record is still the one
  that has the announcement;
* a new owner (:class:`Consumers`) **takes** the name, then **looks** for transactions with that
  name: it **withdraws** an announcement (the commit's decision then fails, and the commit begins
  again), and finishes a decided transaction; then it **reads** the position.

If the name is taken before the check, the check finds the new owner and the commit is refused. If
not, the order is announce, check, take, look: the new owner sees the announcement or its outcome.
Withdrawing and deciding are compare-and-sets on one record. If the withdrawal wins, the commit
announces and checks once more, and is refused. If the decision wins, the new owner finishes the
transaction with its positions before it reads. So a position that the new owner has read moves for
no other owner afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Final

from msgspec import Struct

from spark_stream.cluster.stores.store import Put
from spark_stream.cluster.topics import TOPICS, id_in
from spark_stream.cluster.transactions import TransactionKey
from spark_stream.consistency.groups import Place
from spark_stream.consistency.transactions import events as rules
from spark_stream.consistency.transactions.sinks import is_listed, is_sink
from spark_stream.consistency.transactions.transactions import (
    DECIDED,
    Allotted,
    Cause,
    Denial,
    Denied,
    Event,
    Joined,
    Outcome,
    PositionOf,
    State,
    Transaction,
    not_open,
)
from spark_stream.errors import (
    ForeignBranch,
    InternalError,
    InvalidTransaction,
    IsologError,
    ProducerFenced,
    SinkInUse,
    StaleBatch,
    TransactionAborted,
    UnknownTopic,
    UnknownTransaction,
)
from spark_stream.scripts.readers import end_fenced
from spark_stream.scripts.steps import (
    CatchUp,
    FindTransactions,
    Force,
    Get,
    Numbering,
    Script,
    TakeNumber,
    ask_present_leaders,
)
from spark_stream.scripts.transactions import records
from spark_stream.scripts.transactions.finishing import Finisher
from spark_stream.scripts.transactions.positions import check_owners, read_positions, take_name
from spark_stream.scripts.transactions.records import Judge, P, Rule, as_judge
from spark_stream.wire.transaction_messages import (
    AbortTransaction,
    BeginTransaction,
    CommitTransaction,
    InitTransactions,
    KillTransaction,
    RenewTransaction,
)

_ABORTS: Final = {
    Cause.EXPIRED: "it was not renewed within its timeout of {timeout} ms",
    Cause.KILLED: "an operator aborted it",
    Cause.FENCED: "a newer producer took its id over",
    Cause.ASKED: "its producer aborted it",
}


_JOIN: Final = "a write"
_LATER_RUN: Final = "A later run of the query continues. Do not restart this one."


def of_transaction(denied: Denied, number: int | None, asked: str) -> IsologError:
    """Build the error for a denied event. ``asked`` names the event."""
    found = denied.transaction
    name = repr(found.transactional_id)
    which = f"transaction {number} of {name}" if number is not None else name
    match denied.why:
        case Denial.FENCED:
            return ProducerFenced(
                f"{which}: another producer has taken over the id {name}",
                hint=_LATER_RUN if is_sink(found) else ProducerFenced.hint,
            )
        case Denial.ABORTED:
            reason = _ABORTS.get(found.cause, "it failed").format(timeout=found.timeout_ms)
            return TransactionAborted(f"{which} was aborted: {reason}", cause=found.cause.value)
        case Denial.OVER:
            return InvalidTransaction(
                f"{which} has ended: the present transaction is {found.number}",
                hint="Another producer with the same id began that one, or this call came late.",
            )
        case Denial.UNKNOWN:
            return UnknownTransaction(f"there is no {which}")
        case Denial.INVALID:
            return InvalidTransaction(f"{which} is {found.state}: {asked} is not possible")
        case Denial.FOREIGN:
            ids = sorted({found.producer_id, *found.branches} - {-1})
            return ForeignBranch(
                f"{asked}: a producer id does not belong to {which}, which has {ids}"
            )
        case Denial.IN_USE:
            return SinkInUse(
                f"the sink {name} belongs to another query ({found.query}), which has written"
                f" batches up to {found.committed_batch}: {asked}"
            )
        case Denial.STALE:
            return StaleBatch(
                f"the sink {name} has written batch {max(found.committed_batch, found.batch)}"
                f" already: {asked}",
                committed_batch=found.committed_batch,
            )
    return InternalError(f"{which}: {asked}: {denied.why}")


class Here(Struct, frozen=True):
    """The broker that handles a call, at the time of the call.

    ``coordinator``: its id. ``now_ms``: its time, in milliseconds since the epoch.
    ``may_reserve``: all brokers of the cluster can begin a transaction with a reserved number.
    """

    coordinator: str
    now_ms: int
    may_reserve: bool


class Decisions:
    """Calls of producers and operators on transactions, at one broker."""

    def __init__(self, finisher: Finisher, here: Callable[[], Here]) -> None:
        self.finisher = finisher
        self.here = here

    def judge_record(self, transactional_id: str, judge: Judge) -> Script[Outcome]:
        """Apply the judge to the record, after finishing an earlier transaction if necessary."""

        def settle_and_judge(found: Transaction) -> Script[Outcome]:
            return (yield from judge(self.finisher.settled(found)))

        while True:
            outcome = yield from records.change(transactional_id, settle_and_judge)
            if not (isinstance(outcome, Denied) and outcome.why is Denial.PENDING):
                return outcome
            yield from self.finisher.finish(outcome.transaction)

    def conclude(self, outcome: Outcome, number: int | None, asked: str) -> Script[Transaction]:
        """Return the record, finishing a decided transaction, or raise the error for a denial."""
        found = allowed(outcome, number, asked)
        return (yield from self.finisher.finish(found)) if found.state in DECIDED else found

    def apply_rule(
        self,
        transactional_id: str,
        number: int | None,
        asked: str,
        rule: Rule[P],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Script[Transaction]:
        """Apply the rule to the record, finish a decided transaction, and return the record.

        ``number`` and ``asked`` name the transaction and the event in an error.
        """
        outcome = yield from self.judge_record(transactional_id, as_judge(rule, *args, **kwargs))
        return (yield from self.conclude(outcome, number, asked))

    def take_over(self, asked: InitTransactions) -> Script[Transaction]:
        """Give the instance the id, and abort an open transaction.

        Raises:
            ProducerFenced: A later instance took the id over already.
        """
        return (
            yield from self.apply_rule(
                asked.transactional_id,
                None,
                "taking it over",
                rules.init,
                asked.instance,
                asked.timeout_ms,
                self.here().now_ms,
            )
        )

    def begin(self, asked: BeginTransaction) -> Script[Transaction]:
        """Begin a transaction of the owner.

        Raises:
            ProducerFenced, InvalidTransaction, UnknownTransaction: The id is unknown, or another
                instance has it, or it cannot begin a transaction now.
        """
        here = self.here()
        allotted = Allotted(-1, -1, here.coordinator)

        def judge(found: Transaction) -> Script[Outcome]:
            nonlocal allotted
            wanted = rules.needs_producer_id(found)
            allotted = yield from allot(found, allotted, producer_id=wanted)
            return rules.begin(
                found, asked.instance, asked.after, allotted, here.now_ms, retriable=asked.retriable
            )

        outcome = yield from self.judge_record(asked.transactional_id, judge)
        return (yield from self.conclude(outcome, None, "beginning a transaction"))

    def join(
        self,
        transactional_id: str,
        number: int,
        producer_id: int,
        epoch: int,
        *places: Joined,
    ) -> Script[None]:
        """Join these partitions to the transaction: all of them, or none.

        Order of steps: the joins are put on record, then the transaction's record is read. If the
        transaction is still open then, its decision comes later, and its finisher finds the joins.
        If not, the joins may have come too late for the finisher: they are refused, and the
        broker's sweep removes them. The record is read from this broker's cache, unless a join was
        on record already. A first check before both steps, of a cached record, mostly keeps the
        joins of a wrong stamp off the record.

        The first join of a reserved number also begins the transaction, in the same write, after
        the joins. If that compare-and-set succeeds, every decision comes after the joins. If it
        fails (another leader was faster), the record is read again.

        Raises:
            ProducerFenced, TransactionAborted, InvalidTransaction, UnknownTransaction,
                ForeignBranch: The partitions must not take batches of this stamp.
        """
        stamp = (transactional_id, number, producer_id, epoch)
        begin = yield from self.check_joins(*stamp, fresh=False)
        while True:
            recorded, begun = yield from records.record_joins(
                transactional_id, number, places, begin
            )
            if begun:
                return
            cached = recorded and begin is None
            try:
                if cached:
                    yield CatchUp()  # with the joins: so the cached record is not older
                begin = yield from self.check_joins(*stamp, fresh=not cached)
            except IsologError:
                self.finisher.ended[number] = transactional_id
                raise
            if begin is None:
                return

    def check_joins(
        self,
        transactional_id: str,
        number: int,
        producer_id: int,
        epoch: int,
        *,
        fresh: bool = True,
    ) -> Script[Put | None]:
        """Raise an error unless the transaction has this producer, and is open or can begin.

        Return the write that begins it, or None if it is open. Without ``fresh``, a cached record
        is enough for a permission. A denial is checked against a fresh record.
        """
        before, version = yield from records.read_version(transactional_id, fresh=fresh)
        found = self._begun(before, number)
        outcome = rules.join(found, number, producer_id, epoch)
        if isinstance(outcome, Denied):
            if not fresh:
                return (yield from self.check_joins(transactional_id, number, producer_id, epoch))
            allowed(outcome, number, f"{_JOIN} by producer {producer_id} of epoch {epoch}")
        return None if found is before else records.put_of(found, version)

    def renew(self, asked: RenewTransaction) -> Script[Transaction]:
        """Restart the transaction's timeout: its owner is alive."""
        return (
            yield from self.apply_rule(
                asked.transactional_id,
                asked.number,
                "a new deadline",
                rules.renew,
                asked.instance,
                asked.number,
                self.here().now_ms,
            )
        )

    def commit(self, asked: CommitTransaction) -> Script[Transaction]:
        """Commit, and wait until the markers are below the high watermark everywhere.

        The transaction's records are forced before it is decided, if their topics require that.
        Each partition is forced once: all records were acknowledged before this call, and renewals
        of the transaction, which repeat the judgement, must not repeat a long fsync. Positions of
        consumers whose names have owners are announced first: see the module.

        Raises:
            ConsumerFenced: A consumer whose position is to move has another owner. This call
                decided nothing.
            ProducerFenced, TransactionAborted, UnknownTransaction, ForeignBranch,
                InvalidTransaction: This call decided nothing.
            UnknownTopic: A topic that the transaction wrote to was deleted before this call. This
                call decided nothing.
            DiskFull, StorageFailure, LeaderUnavailable: If forcing failed, this call decided
                nothing. A later failure is after the decision: repeat the call, or the next sweep
                finishes it.
        """

        forced: set[Joined] = set()

        def judge(before: Transaction) -> Script[Outcome]:
            found = self._begun(before, asked.number)
            outcome = rules.commit(
                found,
                asked.instance,
                asked.number,
                asked.branches,
                asked.batch,
                asked.positions,
                asked.content,
            )
            if found.state is not State.OPEN or isinstance(outcome, Denied):
                return outcome
            if asked.owners and found.positions != asked.positions:
                return rules.announce(found, asked.instance, asked.number, asked.positions)
            yield from check_owners(asked.owners, asked.positions)
            places = yield from records.read_places(found.number)
            yield from force_partitions(each for each in places if each not in forced)
            forced.update(places)
            yield from check_topics(places, asked.transactional_id, asked.number)
            return (yield from self._reserving(outcome))

        while True:
            outcome = yield from self.judge_record(asked.transactional_id, judge)
            if isinstance(outcome, Denied) or outcome.state is not State.OPEN:
                what = f"a commit of {sorted(asked.branches)}"
                return (yield from self.conclude(outcome, asked.number, what))

    def abort(self, asked: AbortTransaction) -> Script[Transaction]:
        """Abort the transaction.

        Raises:
            InvalidTransaction: The transaction is committed, and stays committed.
            ProducerFenced, UnknownTransaction: Another instance has the id, or it is unknown.
        """

        def judge(before: Transaction) -> Script[Outcome]:
            found = self._begun(before, asked.number)
            outcome = rules.abort(found, asked.instance, asked.number)
            if found.state is not State.OPEN or isinstance(outcome, Denied):
                return outcome
            return (yield from self._reserving(outcome))

        outcome = yield from self.judge_record(asked.transactional_id, judge)
        return (yield from self.conclude(outcome, asked.number, "an abort"))

    def _begun(self, found: Transaction, number: int) -> Transaction:
        """Return the record after the beginning of the transaction if its number is reserved."""
        here = self.here()
        return rules.begun_if_reserved(found, number, here.coordinator, here.now_ms)

    def _reserving(self, decided: Transaction) -> Script[Transaction]:
        """Reserve the number of the owner's next transaction.

        A sink has none: the begin of each batch checks its number. A transaction that needs another
        producer id has none either.
        """
        is_batch = decided.batch >= 0
        if is_batch or rules.needs_producer_id(decided) or not self.here().may_reserve:
            return decided
        number = yield from TakeNumber(Numbering.TRANSACTIONS, above=decided.number)
        return rules.reserve(decided, number)

    def describe(self, transactional_id: str) -> Script[Transaction]:
        """Return the record of the id, or raise UnknownTransaction."""
        found = yield from records.read(transactional_id)
        if found is None:
            raise UnknownTransaction(f"there is no transactional id {transactional_id!r}")
        return self.finisher.settled(found)

    def describe_all(self) -> Script[list[Transaction]]:
        """Return the records of the transactional ids by id, without old ids of batch writes."""
        found = [self.finisher.settled(record) for record in (yield from records.read_all())]
        now_ms = self.here().now_ms
        return [each for each in found if is_listed(each, now_ms)]

    def kill(self, asked: KillTransaction) -> Script[Transaction]:
        """Abort an open transaction, whoever owns it. With ``number``: only if that is its number.

        Raises:
            UnknownTransaction, InvalidTransaction: There is no such transaction, or it is not open.
        """
        present = yield from self.describe(asked.transactional_id)
        return (
            yield from self.apply_rule(
                asked.transactional_id,
                present.number if asked.number is None else asked.number,
                "an abort",
                rules.kill,
                asked.number,
            )
        )


def allowed(outcome: Outcome, number: int | None, asked: str) -> Transaction:
    """Return the resulting record, or raise the error for a denial."""
    if isinstance(outcome, Denied):
        raise of_transaction(outcome, number, asked)
    return outcome


def allot(found: Transaction, spare: Allotted, *, producer_id: bool = True) -> Script[Allotted]:
    """Give ``spare`` a number above all that the record has, and a producer id if one is wanted.

    The writes of a displaced owner are fenced by their numbers. So the number of a new owner must
    be above those, and above a reserved one.
    """
    number, producer = spare.number, spare.producer_id
    used = max(found.number, found.displaced, found.reserved)
    if number <= used:
        number = yield from TakeNumber(Numbering.TRANSACTIONS, above=used)
    if producer_id and producer < 0:
        producer = yield from TakeNumber(Numbering.PRODUCERS)
    return Allotted(number, producer, spare.coordinator)


def explain_refusal(transactional_id: str, number: int, error: IsologError) -> Script[IsologError]:
    """Return the error of a write to an aborted or displaced transaction, or else ``error``."""
    found = yield from records.read(transactional_id)
    denied = None if found is None else not_open(found, number, Event.JOIN)
    if denied is None or denied.why not in (Denial.FENCED, Denial.ABORTED):
        return error
    return of_transaction(denied, number, _JOIN)


def check_topics(places: Iterable[Joined], transactional_id: str, number: int) -> Script[None]:
    """Check that the topics of the partitions exist, and were not created again.

    ``places`` were read a moment ago, so the cached records of topics are not older than the call.
    A deletion after this check is concurrent with the commit, and counts as later.

    Raises:
        UnknownTopic: naming the deleted topic.
    """
    for name, topic_id in sorted({(each.topic, each.topic_id) for each in places}):
        record = yield from Get(TOPICS + name, fresh=False)
        if record is None or id_in(record) != topic_id:
            raise UnknownTopic(
                f"transaction {number} of {transactional_id!r} wrote to topic {name!r}, which was"
                " deleted since: it cannot be committed",
                hint="Abort the transaction, and write its records again.",
                topic=name,
                topic_id=topic_id,
            )


def force_partitions(places: Iterable[Joined]) -> Script[None]:
    """Force the partitions to their leaders' disks if their topics require that.

    ``places`` were read a moment ago.
    """
    for answer in (yield from ask_present_leaders(Force(at) for at in places)):
        if isinstance(answer, IsologError) and answer.code != "UNKNOWN_TOPIC":
            raise answer


class Consumers:
    """Calls of named consumers, at one broker."""

    def __init__(self, finisher: Finisher) -> None:
        self._finisher = finisher

    def take(
        self,
        consumer: str,
        instance: str,
        principal: str = "",
        *,
        keeps_group: bool = False,
    ) -> Script[list[PositionOf]]:
        """Give the principal's instance the consumer's name. Return its stored positions.

        ``keeps_group``: for a reset, whose instance does not read. The name stays that of its
        group, and the session of the earlier owner ends.
        """
        yield from take_name(consumer, instance, principal, keeps_group=keeps_group)
        if keeps_group:
            yield from end_fenced("client", consumer, instance)
        return (yield from self.take_over(consumer))

    def take_over(
        self, consumer: str, places: Container[Place] | None = None
    ) -> Script[list[PositionOf]]:
        """Return the positions from which a new owner continues.

        ``places``: the partitions that become the new owner's, or None for all. Transactions that
        are about to move a position in one must check the owner again.
        """
        for record in (yield from FindTransactions(TransactionKey.CONSUMER, consumer)):
            if record.state is State.OPEN and any(
                places is None or (each.topic_id, each.partition) in places
                for each in record.positions
            ):
                yield from withdraw_announcement(record.transactional_id, record.number, consumer)
        return (yield from self.read_settled(consumer))

    def read_settled(self, consumer: str) -> Script[list[PositionOf]]:
        """Return the positions of a named consumer, after finishing its committing transactions."""
        for record in (yield from FindTransactions(TransactionKey.CONSUMER, consumer)):
            if record.state is State.COMMITTING:
                yield from self._finisher.finish(record)
        return (yield from read_positions(consumer))


def withdraw_announcement(transactional_id: str, number: int, consumer: str) -> Script[None]:
    """Make an undecided commit check again which instance owns the name."""
    yield from records.change(transactional_id, as_judge(rules.withdraw, number, consumer))
