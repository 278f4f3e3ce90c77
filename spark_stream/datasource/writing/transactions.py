"""The transaction of a micro-batch: its branches, the driver's decision, its renewal.

*Branches.* Each attempt of a task has a separate branch in the transaction of its micro-batch. The
branch is in the attempt's commit message. The driver's commit names the branches of the messages
that it got, and no others: the rows of a failed, killed or slower attempt abort with the same
decision. A task that fails drops its branch: its rows are aborted immediately, and the other
branches continue.

*Decision.* The driver has no state between calls. If the answer to a commit is lost, the same
commit is sent again and gets the same answer. No abort undoes a decided commit.

*Renewal.* A worker renews the transaction while it runs a task of the batch, by a thread that does
not depend on the rows. It continues after the task until the transaction is decided: other tasks
may not have begun yet, and the driver has yet to commit. Spark ends its workers when the driver's
JVM dies, and a minute after their last task. So only the transaction of a dead driver times out
soon.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from types import TracebackType
from typing import Any, Final, Self

from msgspec import Struct, field, structs
from msgspec.structs import replace

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.consistency.transactions.transactions import Content
from spark_stream.datasource.options.values import TRANSACTION_TIMEOUT_MS
from spark_stream.datasource.values.content import Measure, Replays, sum_measures
from spark_stream.datasource.writing.identity import NO_PLAN, BranchIdentity, Plan
from spark_stream.errors import (
    DifferentReplay,
    InvalidTransaction,
    IsologError,
    ProducerFenced,
    TransactionAborted,
    UnknownTransaction,
)
from spark_stream.loggers import logger_of
from spark_stream.wire.messages import Call
from spark_stream.wire.transaction_messages import (
    AbortBranch,
    AbortTransaction,
    Branch,
    CommitTransaction,
    OpenBranch,
    RenewBatch,
    RenewTransaction,
    SettleSinkBatch,
    StopRun,
)

logger = logger_of(__name__)

Transaction = tuple[str, str, int]
"""Transactional id, owner and number."""

_FLOATS_HINT: Final = (
    "If the query adds up floating-point numbers (sum, avg), their last digits may differ each"
    " time: set differentReplay to ignoreFloats. Otherwise: "
)

_RENEWALS: Final = 12
_WAIT_PAUSES: Final = 3
"""A renewal waits for a broker for this many pauses at most, so that later ones are in time."""

_FIRST_S: Final = 1.0
_AFTER_TASK_S: Final = 15 * 60.0
"""The longest renewal by a worker after its last task. A driver may hang without an abort."""

_due: dict[str, tuple[RenewBatch, float]] = {}
"""By transactional id: which run and batch this process saw last, and when to renew it.

It outlives a task, so that the many short tasks of a long batch share the renewals.
"""


class TaskBranch(Branch, kw_only=True):
    """The branch of one task attempt.

    ``committed``: the batch is committed already, so the task writes no rows.
    """

    instance: str
    batch: int

    @property
    def transaction(self) -> tuple[str, str, int]:
        """Transactional id, owner and number: they name the transaction."""
        return self.transactional_id, self.instance, self.number


class WrittenRows(Struct, frozen=True):
    """The rows of a task: their identity, measure and branch (None without rows).

    ``earlier``: the measures of a replay as the previous release recorded them.
    """

    identity: BranchIdentity
    content: Mapping[str, Measure] = field(default_factory=dict)
    branch: TaskBranch | None = None
    earlier: Mapping[str, Measure] = field(default_factory=dict)


def open_branch(
    connection: ClusterConnection,
    identity: BranchIdentity,
    plan: Plan = NO_PLAN,
    timeout_ms: int = TRANSACTION_TIMEOUT_MS,
) -> TaskBranch:
    """Open a branch of the transaction that writes the identity's batch.

    Raises:
        SinkInUse: The transactional id belongs to another query.
        StaleBatch: A later batch is committed already.
        ProducerFenced: A later run of the query has taken over.
        TransactionAborted: The driver has abandoned the batch.
    """
    branch = connection.call(OpenBranch.of(**_claim(identity, plan, timeout_ms)))
    return TaskBranch(**structs.asdict(branch), instance=identity.instance, batch=identity.batch)


def _claim(identity: BranchIdentity, plan: Plan, timeout_ms: int) -> dict[str, Any]:
    """Return the fields of a :class:`SinkBatch`."""
    return {
        "transactional_id": identity.transactional_id,
        "query": identity.query,
        "instance": identity.instance,
        "batch": identity.batch,
        "timeout_ms": timeout_ms,
        "run": plan.run,
        "planned": plan.planned,
        "renamed": identity.streaming,
        "query_name": identity.query_name,
    }


def commit(
    connection: ClusterConnection,
    tasks: Sequence[WrittenRows],
    batch: int,
    *,
    replays: Replays = Replays.FAIL,
) -> None:
    """Commit the micro-batch that these tasks wrote. Return when it is visible.

    If the batch was committed before, or no task had a row, no rows are written. Then the rows must
    be those on record, except as ``replays`` allows, and the open transaction of a dead run is
    aborted.

    Raises:
        DifferentReplay: Other rows were committed as this batch.
        TransactionAborted, ProducerFenced, and others: No row of the batch is visible.
    """
    if not tasks:
        return
    identity = tasks[0].identity
    content = sum_measures(task.content for task in tasks)
    branches = [task.branch for task in tasks if task.branch is not None]
    if all(branch.committed for branch in branches):
        settled = connection.call(
            SettleSinkBatch.of(**_claim(identity, NO_PLAN, TRANSACTION_TIMEOUT_MS))
        )
        if settled.committed and settled.content is not None:
            earlier = sum_measures(task.earlier for task in tasks)
            check_replay(identity, settled.content, content, earlier, replays)
        return
    name, instance, number = _one_transaction(branches, batch)
    written = (Content(topic=topic, **structs.asdict(found)) for topic, found in content.items())
    connection.call(
        CommitTransaction(
            transactional_id=name,
            instance=instance,
            number=number,
            branches=tuple(sorted(branch.producer_id for branch in branches)),
            batch=batch,
            content=tuple(written) if identity.remembered else None,
        )
    )


def _one_transaction(branches: Sequence[TaskBranch], batch: int) -> tuple[str, str, int]:
    """Return the transaction in which all of them wrote, which is the batch's."""
    wholes = {(branch.transaction, branch.batch, branch.committed) for branch in branches}
    (whole, *others) = sorted(wholes)
    transaction, written, _ = whole
    name = transaction[0]
    if others:
        numbers = sorted({branch.number for branch in branches})
        raise TransactionAborted(
            f"the tasks of batch {batch} of {name!r} wrote in different transactions"
            f" ({', '.join(map(str, numbers))}): the first ended before the last task began",
            hint="Restart the query: it writes the batch again, once.",
        )
    if written != batch:
        raise InvalidTransaction(
            f"Spark commits batch {batch} of {name!r}, but its tasks wrote batch {written}",
            hint="Restart the query; if it happens again, this Spark release is not supported.",
        )
    return transaction


def drop(connection: ClusterConnection, branch: TaskBranch) -> None:
    """Abort the branch of a failed task, so that no reader waits for it. Raise nothing."""
    name, instance, number = branch.transaction
    asked = AbortBranch(
        transactional_id=name, instance=instance, number=number, producer_id=branch.producer_id
    )
    try:
        connection.call(asked)
    except IsologError as error:
        logger.warning(
            "a failed task's branch of %r is aborted only when its transaction ends: %s",
            name,
            error,
        )


def abort(connection: ClusterConnection, branches: Iterable[TaskBranch]) -> None:
    """Abort the open transactions of the branches. Raise nothing.

    The query's next run, or the timeout, aborts the rest. If the log does not answer, the first
    call is the last: a query that stops waits for one call.
    """
    written = {branch.transaction for branch in branches if not branch.committed}
    for name, instance, number in written:
        asked = AbortTransaction(transactional_id=name, instance=instance, number=number)
        try:
            connection.call(asked)
        except (InvalidTransaction, TransactionAborted, ProducerFenced, UnknownTransaction):
            pass  # it is decided, or has another owner
        except IsologError as error:
            logger.warning("transaction %d of %r was not aborted: %s", number, name, error)
            if error.retriable:
                return


def stop(connection: ClusterConnection, plan: Plan, batch: int) -> bool:
    """Abort everything that the driver has planned until now. Raise nothing.

    Return False if the log does not answer.
    """
    if not plan.run:
        return True
    try:
        connection.call(StopRun(run=plan.run, planned=plan.planned, batch=batch))
    except IsologError as error:
        logger.warning("the transaction of Spark's batch %d was not aborted: %s", batch, error)
        return not error.retriable
    return True


def check_replay(
    identity: BranchIdentity,
    committed: Sequence[Content],
    came: Mapping[str, Measure],
    earlier: Mapping[str, Measure],
    replays: Replays,
) -> None:
    """Raise DifferentReplay, or warn, if the rows differ from the committed ones.

    ``earlier``: their measures as the previous release recorded them. The record does not name the
    kind of its digests, so it has to agree with one of the two.
    """
    known = {each.topic: Measure(each.rows, each.digest, each.floats) for each in committed}
    if known == earlier or _of_all_values(known) == _of_all_values(came):
        return
    only_floats = _without_floats(known) in (_without_floats(came), _without_floats(earlier))
    if only_floats and replays is Replays.IGNORE_FLOATS:
        return
    # Other topics come if the query was changed, or if two queries share the sink's id.
    elsewhere = known.keys() != came.keys()
    shared = "Use a separate sinkId for each sink. " if elsewhere else ""
    values = ""
    if _rows(known) == _rows(came):
        values = " of other floating-point values" if only_floats else " of other values"
    floats = _FLOATS_HINT if only_floats else ""
    other = DifferentReplay(
        f"batch {identity.batch} of {identity.transactional_id!r} is committed, and is replayed"
        f" with other rows: committed {_rows(known)}, now {_rows(came)}{values}",
        hint=f"{shared}{floats}{DifferentReplay.hint}",
        batch=identity.batch,
        committed={topic: found.rows for topic, found in known.items()},
        came={topic: found.rows for topic, found in came.items()},
    )
    if replays is not Replays.KEEP:
        raise other
    logger.warning(
        "kept the committed rows of a batch that was replayed with other rows: %s", other.message
    )


def _of_all_values(found: Mapping[str, Measure]) -> dict[str, Measure]:
    """Leave out the digest that differs if an integer became a floating-point number."""
    return {topic: replace(each, digest=0) for topic, each in found.items()}


def _without_floats(found: Mapping[str, Measure]) -> dict[str, Measure]:
    return {topic: replace(each, floats=0) for topic, each in found.items()}


def _rows(found: Mapping[str, Measure]) -> str:
    if not found:
        return "no rows"
    return ", ".join(f"{each.rows} rows to {topic!r}" for topic, each in sorted(found.items()))


class TransactionRenewal:
    """While a task runs, and after it, the transaction of its batch does not time out.

    It is renewed from the task's start, whether the task has a row yet or not: another task may
    have opened the transaction. A process that sees a batch for the first time waits for a moment,
    so that small micro-batches renew nothing. A task that has written in a transaction calls
    :meth:`wrote`.
    """

    def __init__(
        self,
        connection: ClusterConnection,
        identity: BranchIdentity,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    ) -> None:
        self._connection = connection
        self._asked = RenewBatch(
            transactional_id=identity.transactional_id,
            instance=identity.instance,
            batch=identity.batch,
        )
        self._pause_s = timeout_ms / 1000 / _RENEWALS
        self._over = threading.Event()
        self._transaction: Transaction | None = None
        self._outage = _Outage()

    def wrote(self, transaction: Transaction) -> None:
        """Record the transaction with the task's rows, for its renewal after the task."""
        self._transaction = transaction

    def _renew(self) -> None:
        while not self._over.wait(max(0.0, self._due() - time.monotonic())):
            if not self._renew_once():
                return

    def _due(self) -> float:
        """Return the time when this process renews the batch's transaction next."""
        name = self._asked.transactional_id
        known = _due.get(name)
        if known is None or known[0] != self._asked:
            now = time.monotonic()
            self._forget_ended(now)
            known = _due[name] = (self._asked, now + min(_FIRST_S, self._pause_s))
        return known[1]

    def _forget_ended(self, now: float) -> None:
        """Remove the batches that no task has renewed for a whole pause after it was due."""
        for name, (_, due) in list(_due.items()):
            if due + self._pause_s < now:
                _due.pop(name, None)

    def _renew_once(self) -> bool:
        """Renew the transaction. Return False if no later renewal is necessary."""
        _due[self._asked.transactional_id] = (self._asked, time.monotonic() + self._pause_s)
        wait_s = self._pause_s * _WAIT_PAUSES
        # After a final error, the task's own writes fail with the same error.
        return self._outage.renew(self._connection, self._asked, wait_s)

    def __enter__(self) -> Self:
        threading.Thread(target=self._renew, name="isolog-renewal", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()  # not joined: it may be in a call to a dead broker
        if kind is None and self._transaction is not None:
            undecided.add(self._connection, self._transaction, self._pause_s)


class _Outage:
    """The time in which renewals fail. Only its first error is logged."""

    def __init__(self) -> None:
        self._is_logged = False

    def renew(self, connection: ClusterConnection, asked: Call[Any], wait_s: float) -> bool:
        """Renew once. Return False if a later renewal would fail, too.

        An unexpected error must not end the thread, because the transaction would then time out.
        """
        try:
            connection.call(asked, wait_s)
        except IsologError as error:
            if not error.retriable:
                return False
            if not self._is_logged:
                logger.warning("a transaction's deadline could not be renewed: %s", error)
            self._is_logged = True
        except Exception:
            if not self._is_logged:
                logger.exception("the renewal of a transaction failed unexpectedly")
            self._is_logged = True
        else:
            self._is_logged = False
        return True


class _Undecided(Struct):
    """A transaction that a task of this process has written in."""

    transaction: Transaction
    pause_s: float
    due: float
    until: float


class UndecidedTransactions:
    """The transactions of this process's ended tasks, renewed until they are decided.

    One thread for each log renews the log's transactions, so a log with dead brokers delays no
    other log. The thread ends with its last transaction. A later transaction of an id replaces the
    earlier one, so a query with quick micro-batches renews nothing here.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._by_log: dict[ClusterConnection, dict[str, _Undecided]] = {}

    @property
    def pending(self) -> frozenset[str]:
        """The transactional ids whose transaction is renewed."""
        with self._changed:
            return frozenset(name for found in self._by_log.values() for name in found)

    def add(self, connection: ClusterConnection, transaction: Transaction, pause_s: float) -> None:
        """Renew the transaction, for the first time after a pause."""
        now = time.monotonic()
        entry = _Undecided(transaction, pause_s, now + pause_s, now + _AFTER_TASK_S)
        with self._changed:
            if connection not in self._by_log:
                # It waits for the lock, and then finds the entry.
                threading.Thread(
                    target=self._renew, args=(connection,), name="isolog-undecided", daemon=True
                ).start()
            self._by_log.setdefault(connection, {})[transaction[0]] = entry
            self._changed.notify_all()

    def _renew(self, connection: ClusterConnection) -> None:
        outage = _Outage()
        while (following := self._next(connection)) is not None:
            entry, wait_s = following
            name, instance, number = entry.transaction
            asked = RenewTransaction(transactional_id=name, instance=instance, number=number)
            if not outage.renew(connection, asked, wait_s):
                entry.until = -math.inf  # it is decided, or its id has another owner

    def _next(self, connection: ClusterConnection) -> tuple[_Undecided, float] | None:
        """Return a due transaction and the limit of its renewal, or None after the last one.

        The limit is a part of the shortest timeout: a renewal must not delay the others too long.
        """
        with self._changed:
            while True:
                now = time.monotonic()
                found = self._by_log[connection]
                for name, each in list(found.items()):
                    if each.until <= now:
                        del found[name]
                if not found:
                    del self._by_log[connection]
                    return None
                first = min(found.values(), key=attrgetter("due"))
                if first.due <= now:
                    first.due = now + first.pause_s
                    return first, _WAIT_PAUSES * min(each.pause_s for each in found.values())
                self._changed.wait(first.due - now)


undecided: Final = UndecidedTransactions()
