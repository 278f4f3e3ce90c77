"""Renewal of a batch's transaction by the Python workers that write it.

A worker renews while it runs a task of the batch, by a thread that does not depend on the rows.
It continues after the task until the transaction is decided: other tasks may not have begun yet,
and the driver has yet to commit. Spark ends its workers when the driver's JVM dies, and a minute
after their last task. So only the transaction of a dead driver times out soon.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Final, Self

from msgspec import Struct

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.datasource.options.values import TRANSACTION_TIMEOUT_MS
from spark_stream.datasource.writing.identity import BranchIdentity
from spark_stream.errors import IsologError
from spark_stream.loggers import logger_of
from spark_stream.wire.transaction_messages import RenewBatch, RenewTransaction

logger = logger_of(__name__)

_RENEWALS: Final = 12
_WAIT_PAUSES: Final = 3
"""A renewal waits for a broker for this many pauses at most, so that later ones are in time."""
_FIRST_S: Final = 1.0
_AFTER_TASK_S: Final = 15 * 60.0
"""How long a worker renews after its last task at most. A driver may hang without an abort."""
_due: dict[str, tuple[RenewBatch, float]] = {}
"""By transactional id: which run and batch this process saw last, and when to renew it.

It outlives a task, so that the many short tasks of a long batch share the renewals.
"""

Transaction = tuple[str, str, int]
"""Transactional id, owner and number."""


class KeptOpen:
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
        """Return when this process has to renew the batch's transaction next."""
        name = self._asked.transactional_id
        known = _due.get(name)
        if known is None or known[0] != self._asked:
            now = time.monotonic()
            self._forget_ended(now)
            known = _due[name] = (self._asked, now + min(_FIRST_S, self._pause_s))
        return known[1]

    def _forget_ended(self, now: float) -> None:
        """Forget the batches that no task has renewed for a whole pause after it was due."""
        for name, (_, due) in list(_due.items()):
            if due + self._pause_s < now:
                _due.pop(name, None)

    def _renew_once(self) -> bool:
        """Renew the transaction; return False if there is nothing more to renew."""
        _due[self._asked.transactional_id] = (self._asked, time.monotonic() + self._pause_s)
        wait_s = self._pause_s * _WAIT_PAUSES
        # After a final error, the task's own writes fail with the same error.
        return self._outage.renewable_after(lambda: self._connection.call(self._asked, wait_s))

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
        if kind is None and self._transaction is not None:
            undecided.add(self._connection, self._transaction, self._pause_s)


class _Outage:
    """The time in which renewals fail. Only its first error is logged."""

    def __init__(self) -> None:
        self._is_logged = False

    def renewable_after(self, renew: Callable[[], object]) -> bool:
        """Renew once. Return False if a later renewal would fail, too.

        An unexpected error must not end the thread, because the transaction would then time out.
        """
        try:
            renew()
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
        """The transactional ids with a transaction that is renewed."""
        with self._changed:
            return frozenset(name for found in self._by_log.values() for name in found)

    def add(self, connection: ClusterConnection, transaction: Transaction, pause_s: float) -> None:
        """Renew the transaction, for the first time after a pause."""
        now = time.monotonic()
        entry = _Undecided(transaction, pause_s, now + pause_s, now + _AFTER_TASK_S)
        with self._changed:
            if connection not in self._by_log:
                # It waits for the lock, and finds the entry then.
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
            if not outage.renewable_after(partial(connection.call, asked, wait_s)):
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
                first = min(found.values(), key=lambda each: each.due)
                if first.due <= now:
                    first.due = now + first.pause_s
                    return first, _WAIT_PAUSES * min(each.pause_s for each in found.values())
                self._changed.wait(first.due - now)


undecided: Final = UndecidedTransactions()
