"""Calls of sinks: branches, renewals, and the abort of failed branches.

The rules are in ``consistency/transactions/sinks``. As in ``deciding``, every call can be repeated.

A sink's id expires if it is unused for long (``finishing``). Its committed batches are kept by
query, and the first call of the query's next run takes them over.

If a driver has given a batch up, a record of the run has the time up to which its plans are given
up. It is kept as long as a task planned before that time may still start.
"""

from __future__ import annotations

from typing import Final

from spark_stream.cluster.stores.store import StoreRecord
from spark_stream.cluster.transactions import TransactionKey
from spark_stream.consistency.transactions import sinks as rules
from spark_stream.consistency.transactions.sinks import Stop
from spark_stream.consistency.transactions.transactions import (
    DECIDED,
    Allotted,
    Cause,
    Denial,
    Denied,
    Outcome,
    State,
    Transaction,
)
from spark_stream.errors import InvalidTransaction, TransactionAborted, UnknownTransaction
from spark_stream.scripts.steps import (
    DeleteRecord,
    FindTransactions,
    Get,
    ListRecords,
    PutRecord,
    Script,
)
from spark_stream.scripts.transactions import records
from spark_stream.scripts.transactions.deciding import Decisions, allot, allowed
from spark_stream.scripts.transactions.finishing import mark_dropped
from spark_stream.scripts.transactions.records import Judge, P, Rule, as_judge
from spark_stream.wire.transaction_messages import AbortBranch, RenewBatch, SinkBatch

_ASKED: Final = "batch {0.batch} of {0.query}"


class Sinks:
    """Calls of sinks and on sinks, at one broker."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._finisher = decisions.finisher

    def open_branch(
        self, asked: SinkBatch, coordinator: str, now_ms: int
    ) -> Script[tuple[Transaction, int | None]]:
        """Return the transaction that writes the batch, and a producer id to use.

        The id is None if the batch is committed already.

        Raises:
            SinkInUse, StaleBatch, ProducerFenced: The sink is another query's or run's, or it is
                past the batch.
            TransactionAborted: The driver that planned the batch has given it up.
        """
        if asked.renamed:
            yield from self.inherit_other_ids(asked)
        allotted = Allotted(-1, -1, coordinator)

        def judge(found: Transaction) -> Script[Outcome]:
            nonlocal allotted
            allotted = yield from allot(found, allotted)
            return rules.branch(found, asked, allotted, now_ms)

        while True:
            outcome = yield from self._judge_claim(asked, judge)
            if isinstance(outcome, Denied) and outcome.why is Denial.DONE:
                return outcome.transaction, None
            # If this aborted an open transaction of an earlier run, finish that. Then try again.
            found = yield from self._decisions.conclude(outcome, None, _ASKED.format(asked))
            if allotted.producer_id in found.branches:
                break
        yield from self._end_if_given_up(asked)
        return found, allotted.producer_id

    def _end_if_given_up(self, asked: SinkBatch) -> Script[None]:
        # Check only once the branch is on record: either this call finds that the run was stopped,
        # or the call that stops the run finds the branch.
        if not asked.run or (yield from stopped_until(asked.run)) < asked.planned:
            return
        stop = Stop(asked.run, asked.planned, asked.batch)
        yield from self._apply(asked.transactional_id, rules.stop, stop)
        raise TransactionAborted(
            f"{_ASKED.format(asked)} was given up by its driver before this task began to write",
            cause=Cause.ASKED.value,
        )

    def settle_batch(self, asked: SinkBatch) -> Script[tuple[Transaction, bool]]:
        """Abort an open batch. Return the sink's record, and whether the batch is committed.

        Raises:
            SinkInUse, StaleBatch, ProducerFenced: as :meth:`open_branch`.
        """
        if asked.renamed:
            yield from self.inherit_other_ids(asked)
        outcome = yield from self._judge_claim(asked, as_judge(rules.settle, asked))
        if isinstance(outcome, Denied) and outcome.why is Denial.DONE:
            return outcome.transaction, True
        return (yield from self._decisions.conclude(outcome, None, _ASKED.format(asked))), False

    def _judge_claim(self, asked: SinkBatch, judge: Judge) -> Script[Outcome]:
        """Apply the judge to the record, after adding the query's commits under expired ids.

        Read the copies after the record: expiry writes a copy before it deletes the record.
        """
        expired: list[tuple[StoreRecord, Transaction]] = []

        def inherit_and_judge(found: Transaction) -> Script[Outcome]:
            expired.clear()
            first = found.instance != asked.instance and asked.query != asked.transactional_id
            if first and found.state not in DECIDED:
                every = yield from records.read_expired(asked.query)
                expired.extend(each for each in every if records.is_of(each[1], found.principal))
                found = rules.revive(found, [each for _, each in expired])
            return (yield from judge(found))

        outcome = yield from self._decisions.judge_record(asked.transactional_id, inherit_and_judge)
        if not isinstance(outcome, Denied):
            yield from records.delete_expired(expired)
        return outcome

    def renew_batch(self, asked: RenewBatch, now_ms: int) -> Script[None]:
        """Renew the batch's transaction if it is open: a task is alive.

        Raises:
            ProducerFenced: A later run of the query has taken over.
        """
        rule = as_judge(rules.renew, asked.instance, asked.batch, now_ms)
        outcome = yield from self._decisions.judge_record(asked.transactional_id, rule)
        allowed(outcome, None, "a sign of life")

    def drop_branch(self, asked: AbortBranch) -> Script[None]:
        """Abort the batches of a failed task. The transaction stays open.

        Raises:
            ProducerFenced, ForeignBranch: The branch is not the caller's.
            DiskFull, StorageFailure: A marker is missing. The transaction's end writes it.
        """
        branch = asked.producer_id
        rule = as_judge(rules.drop, asked.instance, asked.number, branch)
        judged = yield from self._decisions.judge_record(asked.transactional_id, rule)
        outcome = allowed(judged, asked.number, "dropping a branch")
        if outcome.state is State.OPEN and branch in outcome.dropped:
            yield from mark_dropped(outcome, branch)

    def stop_run(self, asked: Stop, now_ms: int) -> Script[None]:
        """Abort the batch that the driver gave up, and keep it from being opened again."""
        yield from record_stop(asked, now_ms)
        for record in (yield from FindTransactions(TransactionKey.RUN, asked.run)):
            name = record.transactional_id
            yield from self._apply(name, rules.stop, asked)

    def inherit_other_ids(self, asked: SinkBatch) -> Script[None]:
        """Add the last batches that the query committed under other ids to this sink's record.

        The first call of each run does this. Ids of other principals are skipped, because any
        client can use a query's name.
        """
        own = asked.transactional_id
        present = (yield from records.read(own)) or Transaction(own)
        if present.instance == asked.instance:
            return
        for record in (yield from FindTransactions(TransactionKey.QUERY, asked.query)):
            name = record.transactional_id
            if name == own or not records.is_of(record, present.principal):
                continue
            given = yield from self._apply(name, rules.hand_over, asked.instance)
            if given.committed_batch >= 0:
                judge = as_judge(rules.inherit, given)
                outcome = yield from self._decisions.judge_record(own, judge)
                allowed(outcome, None, "a sink's call")

    def list_all(self) -> Script[list[tuple[Transaction, bool]]]:
        """Return the sinks by id, and whether each is expired."""
        kept = [each for _, each in (yield from records.read_expired())]
        used = [self._finisher.settled(each) for each in (yield from read_sinks())]
        known = {(each.transactional_id, each.query) for each in used}
        expired = [each for each in kept if (each.transactional_id, each.query) not in known]
        every = [(each, False) for each in used] + [(each, True) for each in expired]
        return sorted(every, key=lambda each: (each[0].transactional_id, each[0].query))

    def delete(self, transactional_id: str) -> Script[None]:
        """Delete a sink with all its commits, expired or not.

        Raises:
            UnknownTransaction: There is no such sink.
            InvalidTransaction: A batch is being written.
        """
        deleted = False
        while (found := (yield from records.read(transactional_id))) and rules.is_sink(found):
            if found.state is State.OPEN:
                raise InvalidTransaction(
                    f"batch {found.batch} of {transactional_id!r} is being written",
                    hint="Stop the query first. If it is dead: isolog transactions abort.",
                    transactional_id=transactional_id,
                )
            if found.state in DECIDED:
                yield from self._finisher.finish(found)
                yield from self._finisher.record_finish(found)
            else:
                deleted = (yield from records.delete_unchanged(found)) or deleted
        every = yield from records.read_expired()
        gone = [each for each in every if each[1].transactional_id == transactional_id]
        yield from records.delete_expired(gone)
        if not deleted and not gone:
            raise UnknownTransaction(
                f"there is no sink {transactional_id!r}",
                hint="`isolog sinks list` shows all sinks.",
                already_done=True,
            )

    def _apply(
        self, transactional_id: str, rule: Rule[P], *args: P.args, **kwargs: P.kwargs
    ) -> Script[Transaction]:
        return (
            yield from self._decisions.apply_rule(
                transactional_id, None, "a sink's call", rule, *args, **kwargs
            )
        )


def read_sinks(*, fresh: bool = True) -> Script[list[Transaction]]:
    """Return the records of sinks. Without ``fresh``: as they were a moment ago."""
    found = yield from FindTransactions(TransactionKey.ANY, fresh=fresh)
    return [each for each in found if rules.is_sink(each)]


STOPPED: Final = "stopped/"
STOPPED_KEPT_MS: Final = 24 * 3_600_000


def stopped_until(run: str) -> Script[int]:
    """Return the time up to which the run's plans are given up, or -1."""
    record = yield from Get(STOPPED + run)
    return -1 if record is None else int(record.value["planned"])


def record_stop(asked: Stop, now_ms: int) -> Script[None]:
    """Record that the run's plans up to that time are given up."""
    while True:
        record = yield from Get(STOPPED + asked.run)
        if record is not None and int(record.value["planned"]) >= asked.planned:
            return
        value = {"planned": asked.planned, "at_ms": now_ms}
        version = 0 if record is None else record.version
        if (yield from PutRecord(STOPPED + asked.run, value, version)):
            return


def delete_old_stops(now_ms: int) -> Script[None]:
    """Remove the records of runs that were stopped long ago."""
    for old in (yield from ListRecords(STOPPED)):
        if now_ms - int(old.value["at_ms"]) > STOPPED_KEPT_MS:
            yield from DeleteRecord(old.key, old.version)
