"""The branches that a sink's tasks write under, and what the driver makes of them.

Every attempt of a task has a branch of its own in the transaction of its micro-batch. A commit
message carries it, and the commit takes the branches of the messages that it is given, and no
others: what a failed, killed or slower attempt wrote aborts with the same decision.

The driver keeps nothing between calls. If the answer to a commit is lost, the same commit is asked
again and gets the same answer; and whatever an abort asks, a decided commit stays.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from spark_stream.client.transactions import TransactionsClient
from spark_stream.client.values import Branch
from spark_stream.datasource.identity import Identity
from spark_stream.errors import (
    InvalidTransaction,
    IsologError,
    ProducerFenced,
    TransactionAborted,
    UnknownTransaction,
)
from spark_stream.wire.messages import BranchFacts

logger = logging.getLogger(__name__)

TIMEOUT_MS: Final = 15 * 60_000
"""How long a transaction may go on with no task that renews it.

It has to outlast what may lie between two signs of life: the last task's end and the commit, lost
executors, a cluster that has no room for the batch's next task. And it bounds how long a query that
died for good holds back readers of committed records.
"""

_RENEWALS: Final = 4


@dataclass(frozen=True, slots=True)
class TaskBranch:
    """Under what one task attempt wrote. ``committed``: it wrote nothing, the batch was there."""

    transactional_id: str
    instance: str
    number: int
    producer_id: int
    epoch: int
    batch: int
    committed: bool = False

    @property
    def under(self) -> Branch:
        """As a producer takes it."""
        return Branch(self.transactional_id, self.number, self.producer_id, self.epoch)

    @property
    def transaction(self) -> tuple[str, str, int]:
        """Transactional id, owner and number: whose decision it is."""
        return self.transactional_id, self.instance, self.number


def opened(transactions: TransactionsClient, identity: Identity) -> TaskBranch:
    """A new branch of the transaction that writes the identity's batch.

    Raises:
        SinkInUse: the transactional id belongs to another query.
        StaleBatch: a later batch is committed already.
        ProducerFenced: a later run of the query has taken over.
    """
    facts: BranchFacts = transactions.open_branch(
        identity.transactional_id,
        query=identity.query,
        instance=identity.instance,
        batch=identity.batch,
        timeout_ms=TIMEOUT_MS,
    )
    return TaskBranch(
        identity.transactional_id,
        identity.instance,
        facts.number,
        facts.producer_id,
        facts.epoch,
        identity.batch,
        facts.committed,
    )


class KeptOpen:
    """While a task runs, its transaction does not time out."""

    def __init__(
        self, transactions: TransactionsClient, branch: TaskBranch, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        self._transactions = transactions
        self._branch = branch
        self._pause_s = timeout_ms / 1000 / _RENEWALS
        self._over = threading.Event()

    def _renew(self) -> None:
        while not self._over.wait(self._pause_s):
            try:
                self._transactions.renew(*self._branch.transaction)
            except IsologError as error:
                if not error.retriable:  # the task's own writes meet it as well, and fail
                    return
                logger.warning("a transaction's deadline could not be renewed: %s", error)

    def __enter__(self) -> Self:
        threading.Thread(target=self._renew, name="isolog-renewal", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()  # not joined: it may be in a call to a broker that is gone


def commit(transactions: TransactionsClient, branches: Sequence[TaskBranch], batch: int) -> None:
    """Commits the micro-batch that these branches wrote; returns when it is visible.

    Nothing is left to do where no task had a row, or where the batch was committed before.

    Raises:
        TransactionAborted, ProducerFenced, and others: nothing of the batch is visible.
    """
    if not branches or all(branch.committed for branch in branches):
        return
    wholes = {(branch.transaction, branch.batch, branch.committed) for branch in branches}
    (whole, *others) = sorted(wholes)
    (name, instance, number), written, _ = whole
    if others:
        numbers = sorted({branch.number for branch in branches})
        raise TransactionAborted(
            f"the tasks of batch {batch} of {name!r} wrote in different transactions"
            f" ({', '.join(map(str, numbers))}): the first ended before the last task began",
            hint="Restart the query: it writes the batch again, once.",
        )
    if written != batch:
        raise InvalidTransaction(
            f"Spark commits batch {batch} of {name!r}, its tasks wrote batch {written}",
            hint="Restart the query; if it happens again, this Spark release is not supported.",
        )
    taken = [branch.producer_id for branch in branches]
    transactions.commit(name, instance, number, taken, batch=batch)


def abort(transactions: TransactionsClient, branches: Iterable[TaskBranch]) -> None:
    """Aborts what is still open of the branches' transactions. Raises nothing.

    What cannot be aborted now is by the query's next run, or by its timeout.
    """
    for whole in {branch.transaction for branch in branches if not branch.committed}:
        try:
            transactions.abort(*whole)
        except (InvalidTransaction, TransactionAborted, ProducerFenced, UnknownTransaction):
            pass  # it is decided, or another's: nothing to take back
        except IsologError as error:
            logger.warning("transaction %d of %r was not aborted: %s", whole[2], whole[0], error)


def abort_job(transactions: TransactionsClient, name: str) -> None:
    """Aborts a batch write of which no task may have left a message. Raises nothing."""
    try:
        number = transactions.describe(name).number
        transactions.abort(name, name, number)
    except (InvalidTransaction, TransactionAborted, ProducerFenced, UnknownTransaction):
        pass  # no task had a row, or it is decided
    except IsologError as error:
        logger.warning("the write %r was not aborted: %s", name, error)
