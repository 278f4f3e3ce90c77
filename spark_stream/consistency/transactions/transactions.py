"""The life of a transaction as a table of states and events, and its record.

There is one record for each transactional id: the instance that owns the id, and its present or
last transaction. An event leads from one record to the next (or is denied, and changes nothing).
The caller replaces the old record by the new one in one compare-and-set, which decides.

Each partition that the transaction may have written to has a separate record
(``cluster.transactions``), so this record stays small with any number of partitions. JOIN does not
change the record of an open transaction: its outcome shows whether the partition's record, just
written, came before the decision.

The owner's COMMIT or ABORT reserves the number of its next transaction (``reserved``). The first
JOIN, COMMIT or ABORT with that number also begins it. So a producer sends no BEGIN between two
transactions.

::

             BEGIN (or first event)      COMMIT                FINISH
    EMPTY, ─────────────────────▶ OPEN ───────────▶ COMMITTING ───────▶ COMMITTED
    COMMITTED,                     │   ABORT, EXPIRE, KILL,    FINISH
    ABORTED                        └───────────────▶ ABORTING ────────▶ ABORTED
                                      a new owner

Permitted callers: BEGIN, BRANCH, RENEW, DROP, ANNOUNCE, COMMIT and ABORT are for the owner (the
``instance`` that took the id over last). JOIN for a partition's leader, before the transaction's
first batch there. WITHDRAW for the new owner of a consumer's name. EXPIRE for any broker that has
watched the record for its timeout. KILL for an operator. FINISH for the broker that wrote the
markers. ``events`` has the changes by each event. Events that only sinks use (BRANCH, DROP, and
their forms of the others) are in ``sinks``.

Invariants:

* a number names one transaction forever. Numbers rise with each transaction of an id.
* the owner's epoch rises with every transaction, and each branch has a producer id that is used in
  no other, so a delayed request of an earlier transaction has no effect on a later one.
* no partition accepts a batch whose join was not on record before the decision. So only the joins
  that are on record after it need a marker, and any broker can finish the transaction.
* once COMMITTING, always committed. Once ABORTING, always aborted. A repeated call gets the same
  answer. The opposite one is denied.
* the next transaction begins after the one before is finished in all partitions. The answer to a
  decision has the reserved number, and comes after that.
* a reserved number begins one transaction at most, and only for the owner that reserved it.
* a commit that moves positions of named consumers announces them in the record, then checks the
  owners of the names, and decides only while its announcement is on record
  (``scripts.transactions.deciding`` has the reason).

Order of steps: the decision, then the markers, then the consumers' positions, then FINISH (which
may come later than the answer). A crash between any two leaves a decided record, which is finished
again from its first step: no markers are written in a partition where the transaction is not open.

Source: Kafka's TransactionCoordinator, KIP-890 (one epoch per transaction), KIP-360.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from spark_stream.consistency.replication.epochs import NO_LINEAGE
from spark_stream.structs import Name, OffsetField, PartitionField, Positional

FENCED_KEPT: Final = 64


class State(StrEnum):
    """The state of an id's present or last transaction."""

    EMPTY = "empty"
    OPEN = "open"
    COMMITTING = "committing"
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Event(StrEnum):
    """An event in the life of a transaction."""

    INIT = "init"
    BEGIN = "begin"
    JOIN = "join"
    BRANCH = "branch"
    RENEW = "renew"
    DROP = "drop"
    ANNOUNCE = "announce"
    WITHDRAW = "withdraw"
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
    (State.OPEN, Event.ANNOUNCE): State.OPEN,
    (State.OPEN, Event.WITHDRAW): State.OPEN,
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
    """The cause of an abort."""

    NONE = ""
    ASKED = "asked"
    EXPIRED = "expired"
    KILLED = "killed"
    FENCED = "fenced"


class Denial(StrEnum):
    """The reason for the denial of an event."""

    FENCED = "fenced"  # another instance owns the id
    ABORTED = "aborted"  # the transaction was aborted: it expired, or an operator did it
    OVER = "over"  # the id has a later transaction
    UNKNOWN = "unknown"  # there never was such a transaction
    INVALID = "invalid"  # the table has no such transition
    PENDING = "pending"  # a decided transaction has to be finished first, then retry
    FOREIGN = "foreign"  # a producer id that is no branch of this transaction
    IN_USE = "in_use"  # the sink belongs to another query
    STALE = "stale"  # a batch below the last committed one
    DONE = "done"  # the batch is committed already: nothing to write, no error


class Joined(Positional):
    """A partition that the transaction writes to."""

    topic: Name
    topic_id: str
    partition: PartitionField


class ReadPosition(Positional):
    """All records of a partition below the offset are read."""

    topic: Name
    topic_id: str
    partition: PartitionField
    offset: OffsetField


class PositionOf(Positional):
    """The position from which a named consumer continues in a partition.

    ``lineage``: the offset's lineage, if it is known. By it the consumer later detects a truncation
    of records below the offset.
    """

    consumer: Name
    topic: Name
    topic_id: str
    partition: PartitionField
    offset: OffsetField
    lineage: tuple[tuple[OffsetField, OffsetField], ...] = NO_LINEAGE


class Content(Positional):
    """The content that a batch wrote to a topic: enough to detect a replay that differs.

    The digests depend neither on the order of the rows nor on their distribution to tasks:
    ``floats`` is of all values, ``digest`` of all but floating-point values. (Records of the
    previous release: ``floats`` is of floating-point values only.)
    """

    topic: Name
    rows: OffsetField
    digest: Annotated[int, Meta(ge=0)]
    floats: Annotated[int, Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        if max(self.digest, self.floats) >= 1 << 64:
            raise ValueError("Expected digests of 64 bits")


class Transaction(Struct, frozen=True):
    """The record of a transactional id: its owner, and its present or last transaction.

    Times are in milliseconds since the epoch, by the clock of the broker that got the call. They
    are for people: expiry does not use them (``scripts.transactions.finishing``).
    """

    transactional_id: str
    """The record's id: any name that its users chose."""

    principal: str = ""
    """The principal to whom the id belongs, or "" at a broker without authentication."""
    instance: str = ""
    """The producer (or the run of a query) that took the id over last, or "" without one."""
    fenced: tuple[str, ...] = ()
    """Instances that were displaced, the latest last."""
    displaced: int = -1
    """The last number of the displaced instances, or -1."""
    unused: bool = True
    """The instance has begun no transaction yet."""
    timeout_ms: int = 60_000
    """The longest time between two renewals by the owner."""
    coordinator: str = ""
    """The broker that expires and finishes the transaction if its owner does not.

    "": the id has begun no transaction yet."""

    state: State = State.EMPTY
    """The transaction's state."""
    number: int = -1
    """The transaction's number. -1 before the id's first transaction."""
    reserved: int = -1
    """The number of the owner's next transaction, which its first event begins, or -1."""
    after: int = -1
    """The number of the transaction before it, as its BEGIN named it, or as it was on record."""
    producer_id: int = -1
    """The producer id of the owner's writes, or -1 if it writes under branches only."""
    epoch: int = -1
    """The epoch of that producer id that its owner writes in."""
    is_restored: bool = False
    """The record is from a backup: logs may have later epochs of that producer id."""
    cause: Cause = Cause.NONE
    """The reason for the abort."""
    branches: tuple[int, ...] = ()
    """The producer ids of a sink's task attempts."""
    dropped: tuple[int, ...] = ()
    """Branches that failed: aborted, and never taken."""
    taken: tuple[int, ...] = ()
    """The producer ids that its commit named. The records of others are aborted."""
    positions: tuple[PositionOf, ...] = ()
    """The positions of consumers after the commit. While open, those that the commit announced."""
    began_ms: int = 0
    """The time of the transaction's beginning."""
    deadline_ms: int = 0
    """The end of its timeout, or the last use of the id. Each renewal changes it."""

    query: str = ""
    """The query of the sink, or "" if this is no sink."""
    query_name: str = ""
    """The name of that query, as its user and Spark's web page have it, or ""."""
    batch: int = -1
    """The batch that the present transaction writes."""
    run: str = ""
    """The driver that planned that batch."""
    planned: int = -1
    """The time of that driver's plan of the batch, on the driver's own clock."""
    committed_batch: int = -1
    """The last committed batch, or -1."""
    content: tuple[Content, ...] | None = None
    """The content of that batch, or None if it is unknown."""


class Denied(Struct, frozen=True):
    """The event changed nothing. ``transaction`` is the record as it is."""

    why: Denial
    transaction: Transaction


Outcome = Transaction | Denied


class Allotted(Struct, frozen=True):
    """The numbers that a broker allots to a transaction that begins.

    ``number`` is above those of all earlier transactions of the id. ``producer_id`` is unused.
    """

    number: int
    producer_id: int
    coordinator: str = ""


def moved(transaction: Transaction, event: Event) -> State | None:
    """Return the state after the event, or None if the table has no such transition."""
    return TABLE.get((transaction.state, event))


def entered(transaction: Transaction, event: Event, **changes: Any) -> Transaction:
    """Return the record after an event that the table allows, with the event's other changes."""
    return replace(transaction, state=TABLE[transaction.state, event], **changes)


def renewed(transaction: Transaction, now_ms: int) -> Transaction:
    """Return the record of an open transaction after a renewal."""
    deadline = deadline_after(transaction, now_ms + transaction.timeout_ms)
    return entered(transaction, Event.RENEW, deadline_ms=deadline)


def deadline_after(transaction: Transaction, deadline_ms: int) -> int:
    """Return the deadline, plus 1 if it is unchanged: a renewal must change the record."""
    return deadline_ms + (deadline_ms == transaction.deadline_ms)


def begun(transaction: Transaction, allotted: Allotted, now_ms: int) -> Transaction:
    """Return the record at the beginning of its next transaction."""
    if allotted.number <= transaction.number:
        raise ValueError(f"transaction {allotted.number} after {transaction.number}: numbers rise")
    return entered(
        transaction,
        Event.BEGIN,
        number=allotted.number,
        reserved=-1,
        coordinator=allotted.coordinator,
        unused=False,
        cause=Cause.NONE,
        batch=-1,
        run="",
        planned=-1,
        branches=(),
        dropped=(),
        taken=(),
        positions=(),
        began_ms=now_ms,
        deadline_ms=deadline_after(transaction, now_ms + transaction.timeout_ms),
    )


def owned(transaction: Transaction, instance: str) -> Transaction:
    """Return the record with this instance as its owner. The owner before it is fenced."""
    if transaction.instance == instance:
        return transaction
    fenced = transaction.fenced
    if transaction.instance:
        fenced = (*fenced, transaction.instance)[-FENCED_KEPT:]
    cause = Cause.FENCED if transaction.state is State.OPEN else transaction.cause
    return replace(
        transaction,
        instance=instance,
        fenced=fenced,
        displaced=max(transaction.number, transaction.reserved),
        reserved=-1,
        unused=True,
        cause=cause,
    )


def aborting(transaction: Transaction, event: Event, cause: Cause) -> Transaction:
    """Return the record after an event that aborts its open transaction."""
    return entered(transaction, event, cause=cause)


def not_owner(transaction: Transaction, instance: str) -> Denied | None:
    """Return the denial of all events of this instance, or None if it owns the id."""
    if instance == transaction.instance:
        return None
    known = bool(transaction.instance)
    return Denied(Denial.FENCED if known else Denial.UNKNOWN, transaction)


def not_open(transaction: Transaction, number: int, event: Event) -> Denied | None:
    """Return the denial of an event of this transaction, or None if the table allows it."""
    if number <= transaction.displaced:
        return Denied(Denial.FENCED, transaction)
    if number > transaction.number:
        return Denied(Denial.UNKNOWN, transaction)
    if number < transaction.number:
        return Denied(Denial.OVER, transaction)
    if moved(transaction, event) is not None:
        return None
    if transaction.state in ABORTS:
        # The previous release records a displaced owner by the cause alone.
        fenced = transaction.cause is Cause.FENCED
        asked = transaction.cause is Cause.ASKED and event is Event.COMMIT
        return Denied(
            Denial.FENCED if fenced else Denial.INVALID if asked else Denial.ABORTED, transaction
        )
    return Denied(Denial.INVALID, transaction)
