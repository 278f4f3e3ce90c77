"""What each event makes of a transaction's record: one function for each, as the table allows.

The table and the record are in ``transactions``, with the invariants. What only sinks ask is in
``sinks``, what is said of consumers' positions before a commit in ``announcements``.

An event that is denied changes nothing. An event that is repeated gets the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from spark_stream.consistency.partition.producers import EPOCH_MAX
from spark_stream.consistency.transactions.transactions import (
    ABORTS,
    COMMITS,
    DECIDED,
    Allotted,
    Cause,
    Content,
    Denial,
    Denied,
    Event,
    Outcome,
    PositionOf,
    State,
    Transaction,
    aborting,
    begun,
    deadline_after,
    entered,
    moved,
    not_open,
    not_owner,
    owned,
    renewed,
)


def init(transaction: Transaction, instance: str, timeout_ms: int, now_ms: int) -> Outcome:
    """An instance takes the id over. Its owner is fenced, an open transaction aborted."""
    if instance in transaction.fenced:
        return Denied(Denial.FENCED, transaction)
    if instance == transaction.instance:
        return replace(transaction, timeout_ms=timeout_ms)
    if moved(transaction, Event.INIT) is None:
        return Denied(Denial.PENDING, transaction)
    return entered(
        owned(transaction, instance),
        Event.INIT,
        timeout_ms=timeout_ms,
        deadline_ms=deadline_after(transaction, now_ms + timeout_ms),
    )


def begin(
    transaction: Transaction, instance: str, after: int, allotted: Allotted, now_ms: int
) -> Outcome:
    """The owner begins the transaction that follows number ``after`` (-1: its first one)."""
    denied = not_owner(transaction, instance)
    if denied is not None:
        return denied
    if transaction.state is State.OPEN and transaction.after == after and not transaction.unused:
        return transaction  # asked again: the first answer was lost
    if transaction.state in DECIDED:
        return Denied(Denial.PENDING, transaction)
    follows = transaction.unused if after == -1 else after == transaction.number
    # After one that expired or was killed: its owner may not even know that it had begun.
    follows |= transaction.cause in (Cause.EXPIRED, Cause.KILLED)
    if moved(transaction, Event.BEGIN) is None or not follows:
        return Denied(Denial.INVALID, transaction)
    used_up = needs_producer_id(transaction)
    return replace(
        begun(transaction, allotted, now_ms),
        after=after,
        producer_id=allotted.producer_id if used_up else transaction.producer_id,
        epoch=0 if used_up else transaction.epoch + 1,
        is_restored=False,
    )


def needs_producer_id(transaction: Transaction) -> bool:
    """Whether the owner's next transaction has to be written under another producer id."""
    used_up = transaction.producer_id < 0 or transaction.epoch >= EPOCH_MAX
    return used_up or transaction.is_restored


def join(transaction: Transaction, number: int, producer_id: int, epoch: int) -> Outcome:
    """A partition may take batches of this producer id, if its join is on record by now."""
    denied = not_open(transaction, number, Event.JOIN)
    if denied is not None:
        return denied
    owner = (transaction.producer_id, transaction.epoch)
    branches = transaction.branches
    if (producer_id, epoch) != owner and not (producer_id in branches and epoch == 0):
        return Denied(Denial.FOREIGN, transaction)
    return transaction


def renew(transaction: Transaction, instance: str, number: int, now_ms: int) -> Outcome:
    """The owner is alive: the deadline is its timeout from now."""
    denied = not_owner(transaction, instance) or not_open(transaction, number, Event.RENEW)
    return denied or renewed(transaction, now_ms)


def commit(
    transaction: Transaction,
    instance: str,
    number: int,
    taken: Iterable[int],
    batch: int | None = None,
    positions: Iterable[PositionOf] = (),
    content: Iterable[Content] | None = None,
) -> Outcome:
    """The owner decides for these producer ids; the other branches abort.

    A call that is repeated after the decision gets the same answer, whoever owns the id by then.
    """
    chosen = tuple(sorted(set(taken)))
    written = None if content is None else tuple(content)
    decided = number == transaction.number and transaction.state in COMMITS
    if decided and chosen == transaction.taken:
        return transaction
    denied = not_owner(transaction, instance)
    if denied is not None:
        return denied
    if decided:
        return Denied(Denial.INVALID, transaction)
    denied = not_open(transaction, number, Event.COMMIT)
    if denied is not None:
        return denied
    if not set(chosen) <= _writers(transaction):
        return Denied(Denial.FOREIGN, transaction)
    if (-1 if batch is None else batch) != transaction.batch:
        return Denied(Denial.INVALID, transaction)
    return entered(
        transaction,
        Event.COMMIT,
        taken=chosen,
        committed_batch=transaction.committed_batch if batch is None else batch,
        content=transaction.content if batch is None else written,
        positions=tuple(positions),
    )


def abort(transaction: Transaction, instance: str, number: int) -> Outcome:
    """The owner gives the transaction up. A commit that is decided stays."""
    asked_again = number == transaction.number and transaction.state in ABORTS
    if asked_again and transaction.cause is not Cause.FENCED:
        return transaction
    denied = not_owner(transaction, instance)
    if denied is not None:
        return denied
    if asked_again:
        return transaction
    denied = not_open(transaction, number, Event.ABORT)
    return denied or aborting(transaction, Event.ABORT, Cause.ASKED)


def expire(transaction: Transaction, number: int, deadline_ms: int) -> Outcome:
    """The transaction's timeout passed while this number and deadline stood in its record.

    From now on its owner's writes and its commit are refused.
    """
    watched = (transaction.number, transaction.deadline_ms) == (number, deadline_ms)
    if moved(transaction, Event.EXPIRE) is None or not watched:
        return Denied(Denial.INVALID, transaction)
    return aborting(transaction, Event.EXPIRE, Cause.EXPIRED)


def kill(transaction: Transaction, number: int | None = None) -> Outcome:
    """An operator aborts the transaction; with ``number``, that one and no other.

    With ``number``, a call that is repeated gets the same answer.
    """
    if number is not None and number != transaction.number:
        return Denied(Denial.OVER, transaction)
    if number is not None and transaction.cause is Cause.KILLED:
        return transaction
    if moved(transaction, Event.KILL) is None:
        return Denied(Denial.INVALID, transaction)
    return aborting(transaction, Event.KILL, Cause.KILLED)


def finish(transaction: Transaction, number: int) -> Outcome:
    """All markers of the transaction are below the high watermark, its positions are stored."""
    if moved(transaction, Event.FINISH) is None or number != transaction.number:
        return Denied(Denial.OVER, transaction)
    return entered(transaction, Event.FINISH, positions=())


def _writers(transaction: Transaction) -> set[int]:
    return {transaction.producer_id, *transaction.branches} - {-1}
