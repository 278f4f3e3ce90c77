"""Events of a transaction, and their changes of its record: one function per event of the table.

The table and the record are in ``transactions``, with the invariants. Events that only sinks use
are in ``sinks``.

A denied event changes nothing. A repeated event gets the same answer.
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
    """Make the instance the id's owner.

    The owner before it is fenced, and an open transaction is aborted.
    """
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
    transaction: Transaction,
    instance: str,
    after: int,
    allotted: Allotted,
    now_ms: int,
    *,
    retriable: bool = True,
) -> Outcome:
    """Begin the owner's transaction that follows number ``after`` (-1: its first one).

    ``retriable``: a repeated call has the same outcome.
    """
    denied = not_owner(transaction, instance)
    if denied is not None:
        return denied
    is_repeated = transaction.after == after and not transaction.unused
    if transaction.state is State.OPEN and is_repeated and retriable:
        return transaction  # the first answer was lost
    if transaction.state in DECIDED:
        return Denied(Denial.PENDING, transaction)
    follows = transaction.unused if after == -1 else after == transaction.number
    # It may also follow an expired or killed one: its owner may have missed the answer to BEGIN.
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


def reserve(decided: Transaction, number: int) -> Transaction:
    """Return the decided record with this number reserved for the owner's next transaction."""
    if number <= decided.number:
        raise ValueError(f"transaction {number} after {decided.number}: numbers rise")
    return replace(decided, reserved=number)


def begun_if_reserved(
    transaction: Transaction, number: int, coordinator: str, now_ms: int
) -> Transaction:
    """Return the record after the beginning of the transaction that has this reserved number.

    Otherwise return the record unchanged. The caller names the number, so it has the answer to the
    decision before. That transaction is finished, even if FINISH is not on record yet. (A commit
    with positions is answered only after FINISH is on record.) Only the owner has that answer. A
    caller that guesses the number harms its own id only, since others may not write under it.
    """
    if number < 0 or number != transaction.reserved:
        return transaction
    before = transaction
    if transaction.state in DECIDED:
        if transaction.state is State.COMMITTING and transaction.positions:
            return transaction
        before = entered(transaction, Event.FINISH)
    return replace(
        begun(before, Allotted(number, -1, coordinator), now_ms),
        after=before.number,
        epoch=before.epoch + 1,
    )


def needs_producer_id(transaction: Transaction) -> bool:
    """Return whether the owner's next transaction needs another producer id."""
    used_up = transaction.producer_id < 0 or transaction.epoch >= EPOCH_MAX
    return used_up or transaction.is_restored


def join(transaction: Transaction, number: int, producer_id: int, epoch: int) -> Outcome:
    """Check whether a partition may accept batches of this producer id in the transaction.

    The caller has put the partition's join on record before.
    """
    denied = not_open(transaction, number, Event.JOIN)
    if denied is not None:
        return denied
    owner = (transaction.producer_id, transaction.epoch)
    branches = transaction.branches
    if (producer_id, epoch) != owner and not (producer_id in branches and epoch == 0):
        return Denied(Denial.FOREIGN, transaction)
    return transaction


def renew(transaction: Transaction, instance: str, number: int, now_ms: int) -> Outcome:
    """Extend the deadline to the timeout from now: the owner is alive."""
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
    """Decide to commit what these producer ids wrote. The other branches abort.

    A call that is repeated after the decision gets the same answer until the next transaction
    begins, also from an instance that no longer owns the id.
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
    """Decide to abort the owner's transaction.

    A commit that is decided is not undone.
    """
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
    """Abort the transaction if its record still has this number and deadline: it timed out.

    From then on its owner's writes and its commit are refused.
    """
    watched = (transaction.number, transaction.deadline_ms) == (number, deadline_ms)
    if moved(transaction, Event.EXPIRE) is None or not watched:
        return Denied(Denial.INVALID, transaction)
    return aborting(transaction, Event.EXPIRE, Cause.EXPIRED)


def kill(transaction: Transaction, number: int | None = None) -> Outcome:
    """Abort the transaction for an operator. With ``number``, only if that is its number.

    With ``number``, a repeated call gets the same answer.
    """
    if number is not None and number != transaction.number:
        is_later = number > transaction.number
        return Denied(Denial.UNKNOWN if is_later else Denial.OVER, transaction)
    if number is not None and transaction.cause is Cause.KILLED:
        return transaction
    if moved(transaction, Event.KILL) is None:
        return Denied(Denial.INVALID, transaction)
    return aborting(transaction, Event.KILL, Cause.KILLED)


def finish(transaction: Transaction, number: int) -> Outcome:
    """End the transaction: its markers are replicated, and its positions are stored."""
    if moved(transaction, Event.FINISH) is None or number != transaction.number:
        return Denied(Denial.OVER, transaction)
    return entered(transaction, Event.FINISH, positions=())


def _writers(transaction: Transaction) -> set[int]:
    return {transaction.producer_id, *transaction.branches} - {-1}


def announce(
    transaction: Transaction, instance: str, number: int, positions: Iterable[PositionOf]
) -> Outcome:
    """Record the positions that the owner's commit is about to move."""
    denied = not_owner(transaction, instance) or not_open(transaction, number, Event.ANNOUNCE)
    return denied or entered(transaction, Event.ANNOUNCE, positions=tuple(positions))


def withdraw(transaction: Transaction, number: int, consumer: str) -> Outcome:
    """Withdraw a commit's announcement, as a name has a new owner: the commit must check again."""
    denied = not_open(transaction, number, Event.WITHDRAW)
    if denied is not None:
        return denied
    if all(each.consumer != consumer for each in transaction.positions):
        return transaction
    return entered(transaction, Event.WITHDRAW, positions=())
