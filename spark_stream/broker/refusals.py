"""What the rules refuse, as the errors that users get."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from spark_stream.consistency.producers import Refused, Stamp, Wrong
from spark_stream.consistency.transactions import Cause, Denial, Denied, Transaction
from spark_stream.errors import (
    ForeignBranch,
    InternalError,
    InvalidTransaction,
    IsologError,
    OutOfOrderSequence,
    ProducerFenced,
    SinkInUse,
    StaleBatch,
    TransactionAborted,
    UnknownTransaction,
)

if TYPE_CHECKING:
    from spark_stream.broker.partition import Partition


def of_stamp(partition: Partition, stamp: Stamp, refused: Refused) -> IsologError:
    """The error for a batch that a partition refuses because of who sent it, and when."""
    where = f"{partition.topic}/{partition.number}: producer {stamp.producer_id}"
    if refused.wrong is Wrong.FENCED:
        return ProducerFenced(f"{where}: epoch {stamp.epoch} is over, a higher one was seen")
    if refused.wrong is Wrong.ENDED:
        return InvalidTransaction(f"{where}: its transaction of epoch {stamp.epoch} has ended")
    if refused.wrong is Wrong.OUTSIDE:
        return InvalidTransaction(f"{where} has a transaction open and writes outside of it")
    if refused.wrong is Wrong.ANOTHER:
        return InvalidTransaction(f"{where} has another transaction open, or wrote outside of any")
    reasons = {
        Wrong.GAP: "a batch before it is missing",
        Wrong.TOO_OLD: "it is too old to tell whether it was appended",
        Wrong.OTHER_BATCH: "that sequence was another batch's",
    }
    return OutOfOrderSequence(
        f"{where}: sequence {stamp.sequence} instead of {refused.expected}:"
        f" {reasons[refused.wrong]}",
        sequence=stamp.sequence,
        expected=refused.expected,
    )


_ABORTS: Final = {
    Cause.EXPIRED: "its timeout of {timeout} ms was over",
    Cause.KILLED: "an operator aborted it",
    Cause.FENCED: "a newer producer took its id over",
    Cause.ASKED: "its producer aborted it",
}


def of_transaction(denied: Denied, number: int | None, asked: str) -> IsologError:
    """The error for an event that a transaction's record denies; ``asked`` is what it was."""
    found = denied.transaction
    name = repr(found.transactional_id)
    which = f"transaction {number} of {name}" if number is not None else name
    make = _ERRORS.get(denied.why)
    if make is None:
        return InternalError(f"{which}: {asked}: {denied.why}")
    return make(found, which, asked)


def _aborted(found: Transaction, which: str, asked: str) -> IsologError:
    reason = _ABORTS.get(found.cause, "it failed").format(timeout=found.timeout_ms)
    return TransactionAborted(f"{which} was aborted: {reason}", cause=found.cause.value)


_ERRORS: Final[Mapping[Denial, Callable[[Transaction, str, str], IsologError]]] = {
    Denial.FENCED: lambda found, which, asked: ProducerFenced(
        f"{which}: another producer has taken over the id {found.transactional_id!r}"
    ),
    Denial.ABORTED: _aborted,
    Denial.OVER: lambda found, which, asked: InvalidTransaction(
        f"{which} is over: {found.number} is the present one"
    ),
    Denial.UNKNOWN: lambda found, which, asked: UnknownTransaction(f"there is no {which}"),
    Denial.INVALID: lambda found, which, asked: InvalidTransaction(
        f"{which} is {found.state}: {asked} is not possible"
    ),
    Denial.FOREIGN: lambda found, which, asked: ForeignBranch(
        f"{which} has the producer ids"
        f" {sorted({found.producer_id, *found.branches} - {-1})}: {asked}"
    ),
    Denial.IN_USE: lambda found, which, asked: SinkInUse(
        f"the sink {found.transactional_id!r} belongs to another query ({found.query}), which has"
        f" written batches up to {found.committed_batch}: {asked}"
    ),
    Denial.STALE: lambda found, which, asked: StaleBatch(
        f"the sink {found.transactional_id!r} has written batch"
        f" {max(found.committed_batch, found.batch)} already: {asked}",
        committed_batch=found.committed_batch,
    ),
}
