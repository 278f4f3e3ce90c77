"""What the rules deny of a transaction, as the errors that users get."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from spark_stream.consistency.transactions.transactions import Cause, Denial, Denied, Transaction
from spark_stream.errors import (
    ForeignBranch,
    InternalError,
    InvalidTransaction,
    IsologError,
    ProducerFenced,
    SinkInUse,
    StaleBatch,
    TransactionAborted,
    UnknownTransaction,
)

_ABORTS: Final = {
    Cause.EXPIRED: "its timeout of {timeout} ms was over",
    Cause.KILLED: "an operator aborted it",
    Cause.FENCED: "a newer producer took its id over",
    Cause.ASKED: "its producer aborted it",
}


def of_transaction(denied: Denied, number: int | None, asked: str) -> IsologError:
    """Build the error for a denied event; ``asked`` names the event."""
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
        f"{which} is over: {found.number} is the present one",
        hint="Another producer that uses the id has begun that one, or this call came too late.",
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
