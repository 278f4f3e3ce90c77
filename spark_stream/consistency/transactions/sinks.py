"""What a sink asks of its id's record: one transaction a batch, one branch a task attempt.

A sink writes numbered batches. All its task attempts write under branches of one transaction, and
its driver decides which of them count (``transaction_events.commit``). The events are those of the
table in ``transactions``; this module says which of a sink's calls is which event.

Invariants:

* a batch is committed once, and batches are committed in the order of their numbers;
* a new run of the query displaces the runs before it before it writes anything: what they left
  open is aborted;
* a branch that was dropped is never taken by a commit, and takes nothing more: the event comes
  first, then its partitions are sealed against its producer id and marked;
* what a driver has given up stays so: a task that it planned and that comes late opens nothing that
  would stay open (``Stop``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.consistency.transactions.transactions import (
    DECIDED,
    Allotted,
    Cause,
    Denial,
    Denied,
    Event,
    Outcome,
    State,
    Transaction,
    aborting,
    begun,
    entered,
    moved,
    owned,
    renewed,
)


class Claim(Struct, frozen=True):
    """Who writes which batch of a sink.

    ``query`` owns the sink for good, ``instance`` is the query's present run. ``run`` names the
    driver that planned the batch, ``planned`` when it did, on a clock of that driver that never
    goes back.
    """

    query: str
    instance: str
    batch: int
    timeout_ms: int = 60_000
    run: str = ""
    planned: int = 0


class Stop(Struct, frozen=True):
    """A driver gives its batch up: all that it planned until ``planned``."""

    run: str
    planned: int
    batch: int


def is_sink(transaction: Transaction) -> bool:
    """Tell whether the record is a sink's: that of a batch write without an id is not."""
    return transaction.query not in ("", transaction.transactional_id)


def branch(transaction: Transaction, claim: Claim, allotted: Allotted, now_ms: int) -> Outcome:
    """A branch (the allotted producer id) of the transaction that writes the claimed batch.

    The first branch begins the transaction. A run of the query that was not seen before takes the
    sink over, and what the run before left open is aborted; a caller that asks again after that
    gets a branch of a new transaction.
    """
    denied = _not_next(transaction, claim)
    if denied is not None:
        return denied
    mine = transaction.instance == claim.instance
    if transaction.state is State.ABORTED and (
        transaction.query == transaction.transactional_id  # a job has one transaction: it is over
        or (mine and transaction.cause is Cause.ASKED and transaction.batch == claim.batch)
    ):
        return Denied(Denial.ABORTED, transaction)
    if transaction.state is State.OPEN:
        if mine and claim.batch == transaction.batch:
            branches = (*transaction.branches, allotted.producer_id)
            return entered(renewed(transaction, now_ms), Event.BRANCH, branches=branches)
        return _displaced(transaction, claim.instance)
    mine_now = replace(owned(transaction, claim.instance), timeout_ms=claim.timeout_ms)
    return replace(
        begun(mine_now, allotted, now_ms),
        query=claim.query,
        batch=claim.batch,
        run=claim.run,
        planned=claim.planned,
        branches=(allotted.producer_id,),
    )


def settle(transaction: Transaction, claim: Claim) -> Outcome:
    """The claimed batch has nothing to commit: what is still open of the sink is aborted.

    A dead run left it open, or failed attempts of this batch. A sink that never wrote stays without
    a record.
    """
    denied = _not_next(transaction, claim)
    if denied is not None:
        return denied
    if transaction.state is not State.OPEN:
        return transaction
    if transaction.instance == claim.instance and transaction.batch == claim.batch:
        return aborting(transaction, Event.ABORT, Cause.ASKED)
    return _displaced(transaction, claim.instance)


def renew(transaction: Transaction, instance: str, batch: int, now_ms: int) -> Outcome:
    """A task of this batch is alive: the transaction that writes it, if it is open, goes on."""
    if instance in transaction.fenced:
        return Denied(Denial.FENCED, transaction)
    here = transaction.instance == instance and transaction.batch == batch
    if not here or moved(transaction, Event.RENEW) is None:
        return transaction
    return renewed(transaction, now_ms)


def drop(transaction: Transaction, instance: str, number: int, producer_id: int) -> Outcome:
    """The branch failed: no commit takes it, and it writes no more. The others go on.

    In a transaction that is decided or over there is nothing to drop.
    """
    if number != transaction.number or moved(transaction, Event.DROP) is None:
        return transaction
    if instance != transaction.instance:
        return Denied(Denial.FENCED, transaction)
    if producer_id in transaction.dropped:
        return transaction
    if producer_id not in transaction.branches:
        return Denied(Denial.FOREIGN, transaction)
    return entered(
        transaction,
        Event.DROP,
        branches=tuple(each for each in transaction.branches if each != producer_id),
        dropped=(*transaction.dropped, producer_id),
    )


def stop(transaction: Transaction, asked: Stop) -> Outcome:
    """Aborts the transaction if it is open and writes what the driver has given up."""
    planned_there = transaction.run == asked.run and transaction.planned <= asked.planned
    if transaction.state is not State.OPEN or not planned_there:
        return transaction
    if transaction.batch != asked.batch:
        return transaction
    return aborting(transaction, Event.ABORT, Cause.ASKED)


def hand_over(transaction: Transaction, instance: str) -> Outcome:
    """The query writes under another transactional id from now on: nothing stays open here."""
    if instance in transaction.fenced:
        return Denied(Denial.FENCED, transaction)
    if transaction.state in DECIDED:
        return Denied(Denial.PENDING, transaction)
    if transaction.state is State.OPEN:
        return _displaced(transaction, instance)
    return owned(transaction, instance)


def inherit(transaction: Transaction, before: Transaction) -> Transaction:
    """Return the record with what its query committed under another id, if that is news."""
    news = before.committed_batch > transaction.committed_batch
    if transaction.query not in ("", before.query) or not news:
        return transaction
    return replace(
        transaction,
        query=before.query,
        committed_batch=before.committed_batch,
        content=before.content,
        coordinator=transaction.coordinator or before.coordinator,
        deadline_ms=max(transaction.deadline_ms, before.deadline_ms),
    )


def revive(transaction: Transaction, expired: Sequence[Transaction]) -> Transaction:
    """Return the record with what its query committed under ids that expired.

    Of the same id the whole record comes back, with its fences and its number.
    """
    if transaction == Transaction(transaction.transactional_id):
        names = [each.transactional_id for each in expired]
        if transaction.transactional_id in names:
            transaction = expired[names.index(transaction.transactional_id)]
    return reduce(inherit, expired, transaction)


def _not_next(transaction: Transaction, claim: Claim) -> Denied | None:
    """Why the claimed batch is not the one to write now; None if it is."""
    if transaction.query not in ("", claim.query):
        return Denied(Denial.IN_USE, transaction)
    if claim.instance in transaction.fenced:
        return Denied(Denial.FENCED, transaction)
    if transaction.state in DECIDED:
        return Denied(Denial.PENDING, transaction)
    if claim.batch <= transaction.committed_batch:
        same = claim.batch == transaction.committed_batch
        return Denied(Denial.DONE if same else Denial.STALE, transaction)
    mine = transaction.state is State.OPEN and transaction.instance == claim.instance
    if mine and claim.batch < transaction.batch:
        return Denied(Denial.STALE, transaction)
    return None


def _displaced(transaction: Transaction, instance: str) -> Transaction:
    return entered(owned(transaction, instance), Event.INIT, cause=Cause.FENCED)
