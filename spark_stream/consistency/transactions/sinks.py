"""A sink's events on its id's record: one transaction per batch, one branch per task attempt.

A sink writes numbered batches. All its task attempts write under branches of one transaction, and
its driver decides which of them count (``events.commit``). The events are those of the table in
``transactions``. This module maps a sink's calls to them.

Invariants:

* a batch is committed once, and batches are committed in the order of their numbers.
* a new run of the query displaces the earlier runs before its first write: their open transaction
  is aborted.
* a branch that was dropped is never part of a commit, and takes no more writes: first comes the
  event, then its partitions are sealed against its producer id and marked.
* a batch that a driver has given up stays given up: a task of it that starts late opens no
  transaction that would stay open (``Stop``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Annotated, Final

from msgspec import Meta, Struct
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
from spark_stream.structs import Name, OffsetField

BATCH_WRITES: Final = "batch writes of "
"""The beginning of the ``query`` of batch writes with a ``sinkId``. No streaming query has it."""
BATCH_WRITE_LISTED_MS: Final = 3_600_000
"""The time for which lists have a finished id of batch writes, longer than clients retry calls."""


class Claim(Struct, frozen=True):
    """The claim of a query's run to write a batch of a sink.

    ``query`` owns the sink permanently, ``instance`` is the query's present run. ``run`` names the
    driver that planned the batch, ``planned`` is the time of the plan, on a clock of that driver
    that never goes back. ``query_name`` is for people.
    """

    query: Name
    instance: Name
    batch: OffsetField
    timeout_ms: int = 60_000
    run: Annotated[str, Meta(max_length=255)] = ""
    planned: OffsetField = 0
    query_name: str = ""


class Stop(Struct, frozen=True):
    """A driver's end of a batch: it gives up all plans of the batch up to ``planned``."""

    run: Name
    planned: OffsetField
    batch: OffsetField


def is_sink(transaction: Transaction) -> bool:
    """Return whether the record is a sink's, not that of a batch write without an id."""
    return transaction.query not in ("", transaction.transactional_id)


def is_listed(transaction: Transaction, now_ms: int) -> bool:
    """Return whether lists of transactions have the record.

    Finished ids of batch writes leave the lists after an hour, as each job has a separate id. The
    records of ids with a ``sinkId`` stay, so that a duplicate of a batch is detected.
    """
    query = transaction.query
    is_batch_write = query.startswith(BATCH_WRITES) or query == transaction.transactional_id
    last_used_ms = transaction.deadline_ms - transaction.timeout_ms
    return (
        not is_batch_write
        or transaction.state not in (State.COMMITTED, State.ABORTED)
        or now_ms - last_used_ms <= BATCH_WRITE_LISTED_MS
    )


def branch(transaction: Transaction, claim: Claim, allotted: Allotted, now_ms: int) -> Outcome:
    """Add a branch (the allotted producer id) to the transaction that writes the claimed batch.

    The first branch begins the transaction. A new run of the query takes the sink over, and the
    open transaction of the run before is aborted. A retry after that gets a branch of a new
    transaction.
    """
    denied = _not_next(transaction, claim)
    if denied is not None:
        return denied
    mine = transaction.instance == claim.instance
    if transaction.state is State.ABORTED and (
        transaction.query == transaction.transactional_id  # a job has only one transaction
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
        query_name=claim.query_name,
        batch=claim.batch,
        run=claim.run,
        planned=claim.planned,
        branches=(allotted.producer_id,),
    )


def settle(transaction: Transaction, claim: Claim) -> Outcome:
    """Abort the sink's open transaction, because the claimed batch is empty.

    A dead run or failed attempts of this batch left the transaction open. A sink that never wrote
    gets no record.
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
    """Extend the deadline of the open transaction that writes this batch: a task of it is alive."""
    if instance in transaction.fenced:
        return Denied(Denial.FENCED, transaction)
    here = transaction.instance == instance and transaction.batch == batch
    if not here or moved(transaction, Event.RENEW) is None:
        return transaction
    return renewed(transaction, now_ms)


def drop(transaction: Transaction, instance: str, number: int, producer_id: int) -> Outcome:
    """Drop a failed branch: no commit includes it, and its writes are refused. Others continue.

    This is a no-op if the transaction is decided or finished.
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
    """Abort the transaction if it is open and writes the batch that the driver has given up."""
    planned_there = transaction.run == asked.run and transaction.planned <= asked.planned
    if transaction.state is not State.OPEN or not planned_there:
        return transaction
    if transaction.batch != asked.batch:
        return transaction
    return aborting(transaction, Event.ABORT, Cause.ASKED)


def hand_over(transaction: Transaction, instance: str) -> Outcome:
    """Displace the sink's run and abort its transaction: its query now uses another id."""
    if instance in transaction.fenced:
        return Denied(Denial.FENCED, transaction)
    if transaction.state in DECIDED:
        return Denied(Denial.PENDING, transaction)
    if transaction.state is State.OPEN:
        return _displaced(transaction, instance)
    return owned(transaction, instance)


def inherit(transaction: Transaction, before: Transaction) -> Transaction:
    """Return the record with its query's last commit under another id, if that is later."""
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
    """Return the record with its query's commits under ids that expired.

    If the same id expired, its whole record is restored, with its fences and its number.
    """
    if transaction == Transaction(transaction.transactional_id, transaction.principal):
        names = [each.transactional_id for each in expired]
        if transaction.transactional_id in names:
            before = expired[names.index(transaction.transactional_id)]
            transaction = replace(before, principal=transaction.principal)
    return reduce(inherit, expired, transaction)


def _not_next(transaction: Transaction, claim: Claim) -> Denied | None:
    """Return the denial if the claimed batch is not the next one to write, or None."""
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
