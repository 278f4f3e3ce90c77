"""A transaction's life, as a table and one function for each event that may change it.

There is one record for each transactional id: who owns the id now, and its present or last
transaction. An event takes the record to the next (or is denied, and changes nothing); the caller
puts the new record in the place of the old by one compare-and-set, and that decides.

::

                    BEGIN                COMMIT                FINISH
    EMPTY, ─────────────────────▶ OPEN ───────────▶ COMMITTING ───────▶ COMMITTED
    COMMITTED,                     │   ABORT, EXPIRE, KILL,    FINISH
    ABORTED                        └───────────────▶ ABORTING ────────▶ ABORTED
                                      a new owner

Who may ask: BEGIN, BRANCH, RENEW, DROP, COMMIT and ABORT are the owner's (the ``instance`` that
took the id over last); JOIN is a partition leader's, before the transaction's first batch there;
EXPIRE is anybody's who has looked at the clock; KILL is an operator's; FINISH is whoever wrote the
markers. What only sinks ask (BRANCH, DROP, and their forms of the others) is in ``sinks``.

Invariants:

* a number names one transaction for good; numbers rise with each transaction of an id;
* the owner's epoch rises with every transaction, and each branch has a producer id that is used in
  no other, so a delayed request of an earlier transaction can do nothing to a later one;
* no partition joins after the decision, so the record names every partition that needs a marker,
  and anybody who can read it can finish the transaction;
* once COMMITTING, always committed; once ABORTING, always aborted. A repeated call gets the same
  answer; the opposite one is denied;
* the next transaction begins after the one before is finished everywhere.

Order of steps: the decision, then the markers, then the consumers' positions, then FINISH (which
may come later than the answer). A crash between any two leaves a decided record, which is finished
again from its first step: markers of a transaction that is not open in a partition are not written
twice.

Source: Kafka's TransactionCoordinator; KIP-890 (an epoch a transaction); KIP-360.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from spark_stream.consistency.producers import EPOCH_MAX

FENCED_KEPT: Final = 64


class State(StrEnum):
    """Where the present or last transaction of an id stands."""

    EMPTY = "empty"
    OPEN = "open"
    COMMITTING = "committing"
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Event(StrEnum):
    """What may happen to it."""

    INIT = "init"
    BEGIN = "begin"
    JOIN = "join"
    BRANCH = "branch"
    RENEW = "renew"
    DROP = "drop"
    COMMIT = "commit"
    ABORT = "abort"
    EXPIRE = "expire"
    KILL = "kill"
    FINISH = "finish"


TABLE: Final[Mapping[tuple[State, Event], State]] = {
    (State.EMPTY, Event.INIT): State.EMPTY,
    (State.COMMITTED, Event.INIT): State.COMMITTED,
    (State.ABORTED, Event.INIT): State.ABORTED,
    (State.OPEN, Event.INIT): State.ABORTING,
    (State.EMPTY, Event.BEGIN): State.OPEN,
    (State.COMMITTED, Event.BEGIN): State.OPEN,
    (State.ABORTED, Event.BEGIN): State.OPEN,
    (State.OPEN, Event.JOIN): State.OPEN,
    (State.OPEN, Event.BRANCH): State.OPEN,
    (State.OPEN, Event.RENEW): State.OPEN,
    (State.OPEN, Event.DROP): State.OPEN,
    (State.OPEN, Event.COMMIT): State.COMMITTING,
    (State.COMMITTING, Event.COMMIT): State.COMMITTING,
    (State.COMMITTED, Event.COMMIT): State.COMMITTED,
    (State.OPEN, Event.ABORT): State.ABORTING,
    (State.ABORTING, Event.ABORT): State.ABORTING,
    (State.ABORTED, Event.ABORT): State.ABORTED,
    (State.OPEN, Event.EXPIRE): State.ABORTING,
    (State.OPEN, Event.KILL): State.ABORTING,
    (State.COMMITTING, Event.FINISH): State.COMMITTED,
    (State.ABORTING, Event.FINISH): State.ABORTED,
    (State.COMMITTED, Event.FINISH): State.COMMITTED,
    (State.ABORTED, Event.FINISH): State.ABORTED,
}

DECIDED: Final = frozenset({State.COMMITTING, State.ABORTING})
ABORTS: Final = frozenset({State.ABORTING, State.ABORTED})
COMMITS: Final = frozenset({State.COMMITTING, State.COMMITTED})


class Cause(StrEnum):
    """Why a transaction was aborted."""

    NONE = ""
    ASKED = "asked"
    EXPIRED = "expired"
    KILLED = "killed"
    FENCED = "fenced"


class Denial(StrEnum):
    """Why an event changes nothing."""

    FENCED = "fenced"  # another instance owns the id
    ABORTED = "aborted"  # the transaction was aborted: it expired, or an operator did it
    OVER = "over"  # the transaction is not the present one any more
    UNKNOWN = "unknown"  # there never was such a transaction
    INVALID = "invalid"  # the table has no such transition
    PENDING = "pending"  # a decided transaction has to be finished first, then ask again
    FOREIGN = "foreign"  # a producer id that is no branch of this transaction
    IN_USE = "in_use"  # the sink belongs to another query
    STALE = "stale"  # a batch below the last committed one
    DONE = "done"  # the batch is committed already: nothing to write, no error


@dataclass(frozen=True, slots=True)
class Joined:
    """A partition that the transaction writes to."""

    topic: str
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class PositionOf:
    """Where a named consumer goes on, once the transaction is committed."""

    consumer: str
    topic: str
    topic_id: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Content:
    """What a batch put into a topic: enough to tell a replay that is not the same.

    ``digest`` depends neither on the order of the rows nor on how tasks share them.
    """

    topic: str
    rows: int
    digest: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """The record of a transactional id. Times in milliseconds since the epoch.

    ``deadline_ms`` also says when an id that has nothing open was last used. ``after`` is the
    number that its BEGIN named; ``fresh`` that this instance has begun none yet;
    ``fenced`` the instances that were displaced, the latest last. ``run`` is the driver that
    planned a sink's batch, ``planned`` when, on that driver's clock. ``dropped`` are branches that
    failed. ``content`` is what ``committed_batch`` wrote; None: it is not known.
    """

    transactional_id: str
    state: State = State.EMPTY
    number: int = -1
    producer_id: int = -1
    epoch: int = -1
    instance: str = ""
    fenced: tuple[str, ...] = ()
    fresh: bool = True
    after: int = -1
    cause: Cause = Cause.NONE
    query: str = ""
    batch: int = -1
    committed_batch: int = -1
    run: str = ""
    planned: int = -1
    content: tuple[Content, ...] | None = None
    branches: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    taken: tuple[int, ...] = ()
    partitions: tuple[Joined, ...] = ()
    positions: tuple[PositionOf, ...] = ()
    timeout_ms: int = 60_000
    began_ms: int = 0
    deadline_ms: int = 0


@dataclass(frozen=True, slots=True)
class Denied:
    """The event changed nothing; ``state`` is what it met."""

    why: Denial
    transaction: Transaction


Outcome = Transaction | Denied


@dataclass(frozen=True, slots=True)
class Fresh:
    """Numbers that nobody has used: for the transaction that begins, and for a producer."""

    number: int
    producer_id: int


def moved(transaction: Transaction, event: Event) -> State | None:
    """The state that the table has for it; None: there is no such transition."""
    return TABLE.get((transaction.state, event))


def init(transaction: Transaction, instance: str, timeout_ms: int, now_ms: int) -> Outcome:
    """An instance takes the id over. Its owner is fenced, an open transaction aborted."""
    if instance in transaction.fenced:
        return Denied(Denial.FENCED, transaction)
    if instance == transaction.instance:
        return replace(transaction, timeout_ms=timeout_ms)
    after = moved(transaction, Event.INIT)
    if after is None:
        return Denied(Denial.PENDING, transaction)
    return replace(
        owned(transaction, instance),
        state=after,
        timeout_ms=timeout_ms,
        deadline_ms=now_ms + timeout_ms,
    )


def begin(
    transaction: Transaction, instance: str, after: int, fresh: Fresh, now_ms: int
) -> Outcome:
    """The owner begins the transaction that follows number ``after`` (-1: its first one)."""
    denied = _not_owner(transaction, instance)
    if denied is not None:
        return denied
    if transaction.state is State.OPEN and transaction.after == after and not transaction.fresh:
        return transaction  # asked again: the first answer was lost
    if transaction.state in DECIDED:
        return Denied(Denial.PENDING, transaction)
    state = moved(transaction, Event.BEGIN)
    follows = transaction.fresh if after == -1 else after == transaction.number
    # It expired, or an operator ended it: its owner need not even know that it was begun.
    follows |= transaction.cause in (Cause.EXPIRED, Cause.KILLED)
    if state is None or not follows:
        return Denied(Denial.INVALID, transaction)
    used_up = transaction.producer_id < 0 or transaction.epoch >= EPOCH_MAX
    started = begun(transaction, fresh.number, now_ms)
    return replace(
        started,
        after=after,
        producer_id=fresh.producer_id if used_up else transaction.producer_id,
        epoch=0 if used_up else transaction.epoch + 1,
    )


def join(
    transaction: Transaction, number: int, producer_id: int, epoch: int, partition: Joined
) -> Outcome:
    """A partition takes part, before the first batch of this producer id is appended there."""
    denied = _not_open(transaction, number, Event.JOIN)
    if denied is not None:
        return denied
    owner = (transaction.producer_id, transaction.epoch)
    branches = transaction.branches
    if (producer_id, epoch) != owner and not (producer_id in branches and epoch == 0):
        return Denied(Denial.FOREIGN, transaction)
    if partition in transaction.partitions:
        return transaction
    return replace(transaction, partitions=(*transaction.partitions, partition))


def renew(transaction: Transaction, instance: str, number: int, now_ms: int) -> Outcome:
    """The owner is alive: the deadline is its timeout from now."""
    denied = _not_owner(transaction, instance) or _not_open(transaction, number, Event.RENEW)
    if denied is not None:
        return denied
    return replace(transaction, deadline_ms=now_ms + transaction.timeout_ms)


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

    Asked again after it is decided, it is the same answer, whoever owns the id by then.
    """
    chosen = tuple(sorted(set(taken)))
    decided = number == transaction.number and transaction.state in COMMITS
    if decided and chosen == transaction.taken:
        return transaction
    denied = _not_owner(transaction, instance)
    if denied is not None:
        return denied
    if decided:
        return Denied(Denial.INVALID, transaction)
    denied = _not_open(transaction, number, Event.COMMIT)
    if denied is not None:
        return denied
    if not set(chosen) <= _writers(transaction):
        return Denied(Denial.FOREIGN, transaction)
    if (-1 if batch is None else batch) != transaction.batch:
        return Denied(Denial.INVALID, transaction)
    return replace(
        transaction,
        state=TABLE[transaction.state, Event.COMMIT],
        taken=chosen,
        committed_batch=transaction.committed_batch if batch is None else batch,
        content=transaction.content if batch is None else _content(content),
        positions=tuple(positions),
    )


def _content(found: Iterable[Content] | None) -> tuple[Content, ...] | None:
    return None if found is None else tuple(found)


def abort(transaction: Transaction, instance: str, number: int) -> Outcome:
    """The owner takes it back. A decided commit stays."""
    asked_again = number == transaction.number and transaction.state in ABORTS
    if asked_again and transaction.cause is not Cause.FENCED:
        return transaction
    denied = _not_owner(transaction, instance)
    if denied is not None:
        return denied
    if asked_again:
        return transaction
    denied = _not_open(transaction, number, Event.ABORT)
    return denied or aborting(transaction, Event.ABORT, Cause.ASKED)


def expire(transaction: Transaction, now_ms: int) -> Outcome:
    """Its time is over: its owner's writes and its commit are refused from now on."""
    if moved(transaction, Event.EXPIRE) is None or now_ms <= transaction.deadline_ms:
        return Denied(Denial.INVALID, transaction)
    return aborting(transaction, Event.EXPIRE, Cause.EXPIRED)


def kill(transaction: Transaction, number: int | None = None) -> Outcome:
    """An operator ends it; with ``number``: that one, and asked again it is the same answer."""
    if number is not None and number != transaction.number:
        return Denied(Denial.OVER, transaction)
    if number is not None and transaction.cause is Cause.KILLED:
        return transaction
    if moved(transaction, Event.KILL) is None:
        return Denied(Denial.INVALID, transaction)
    return aborting(transaction, Event.KILL, Cause.KILLED)


def finish(transaction: Transaction, number: int) -> Outcome:
    """Its markers are below the high watermark everywhere, its positions are stored."""
    state = moved(transaction, Event.FINISH)
    if state is None or number != transaction.number:
        return Denied(Denial.OVER, transaction)
    return replace(transaction, state=state, positions=())


def _writers(transaction: Transaction) -> set[int]:
    return {transaction.producer_id, *transaction.branches} - {-1}


def begun(transaction: Transaction, number: int, now_ms: int) -> Transaction:
    """The record at the beginning of its next transaction."""
    return replace(
        transaction,
        state=TABLE[transaction.state, Event.BEGIN],
        number=number,
        fresh=False,
        cause=Cause.NONE,
        batch=-1,
        run="",
        planned=-1,
        branches=(),
        dropped=(),
        taken=(),
        partitions=(),
        positions=(),
        began_ms=now_ms,
        deadline_ms=now_ms + transaction.timeout_ms,
    )


def owned(transaction: Transaction, instance: str) -> Transaction:
    """The record in the hands of this instance; whoever had it is fenced."""
    if transaction.instance == instance:
        return transaction
    fenced = transaction.fenced
    if transaction.instance:
        fenced = (*fenced, transaction.instance)[-FENCED_KEPT:]
    cause = Cause.FENCED if transaction.state is State.OPEN else transaction.cause
    return replace(transaction, instance=instance, fenced=fenced, fresh=True, cause=cause)


def aborting(transaction: Transaction, event: Event, cause: Cause) -> Transaction:
    """The open transaction, decided against by the event."""
    return replace(transaction, state=TABLE[transaction.state, event], cause=cause)


def _not_owner(transaction: Transaction, instance: str) -> Denied | None:
    if instance == transaction.instance:
        return None
    known = bool(transaction.instance)
    return Denied(Denial.FENCED if known else Denial.UNKNOWN, transaction)


def _not_open(transaction: Transaction, number: int, event: Event) -> Denied | None:
    """Why the event cannot be of this transaction now; None if it can."""
    if number > transaction.number:
        return Denied(Denial.UNKNOWN, transaction)
    if number < transaction.number:
        return Denied(Denial.OVER, transaction)
    if moved(transaction, event) is not None:
        return None
    if transaction.state in ABORTS:
        fenced = transaction.cause is Cause.FENCED
        asked = transaction.cause is Cause.ASKED and event is Event.COMMIT
        return Denied(
            Denial.FENCED if fenced else Denial.INVALID if asked else Denial.ABORTED, transaction
        )
    return Denied(Denial.INVALID, transaction)
