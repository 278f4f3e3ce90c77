"""Renewal of a batch's transaction by the Python workers that write it.

A worker renews while it runs a task of the batch, by a thread that does not depend on the rows.
It continues after the task until the transaction is decided: other tasks may not have begun yet,
and the driver has yet to commit. Spark ends its workers when the driver's JVM dies, and a minute
after their last task. So only the transaction of a dead driver times out soon.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from types import TracebackType
from typing import Any, Final, Self

from msgspec import Struct

from spark_stream.client.transactions import TransactionsClient
from spark_stream.datasource.options.values import TRANSACTION_TIMEOUT_MS
from spark_stream.datasource.writing.identity import BranchIdentity
from spark_stream.errors import IsologError

logger = logging.getLogger(__name__)

_RENEWALS: Final = 12
_FIRST_S: Final = 1.0
_AFTER_TASK_S: Final = 15 * 60.0
"""How long a worker renews after its last task at most. A driver may hang without an abort."""
_due: dict[str, tuple[list[Any], float]] = {}
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
        transactions: TransactionsClient,
        identity: BranchIdentity,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    ) -> None:
        self._transactions = transactions
        self._asked = (identity.transactional_id, identity.instance, identity.batch)
        self._pause_s = timeout_ms / 1000 / _RENEWALS
        self._over = threading.Event()
        self._transaction: Transaction | None = None

    def wrote(self, transaction: Transaction) -> None:
        """Record the transaction with the task's rows, for its renewal after the task."""
        self._transaction = transaction

    def _renew(self) -> None:
        while not self._over.wait(max(0.0, self._due() - time.monotonic())):
            if not self._renew_once():
                return

    def _due(self) -> float:
        """Return when this process has to renew the batch's transaction next."""
        name, *which = self._asked
        known = _due.get(name)
        if known is None or known[0] != which:
            now = time.monotonic()
            self._forget_ended(now)
            known = _due[name] = (which, now + min(_FIRST_S, self._pause_s))
        return known[1]

    def _forget_ended(self, now: float) -> None:
        """Forget the batches that no task has renewed for a whole pause after it was due."""
        for name, (_, due) in list(_due.items()):
            if due + self._pause_s < now:
                _due.pop(name, None)

    def _renew_once(self) -> bool:
        """Renew the transaction; return False if there is nothing more to renew."""
        name, *which = self._asked
        _due[name] = (which, time.monotonic() + self._pause_s)
        try:
            self._transactions.renew_batch(*self._asked)
        except IsologError as error:
            if not error.retriable:  # the task's own writes fail with it as well
                return False
            logger.warning("a transaction's deadline could not be renewed: %s", error)
        return True

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
            undecided.add(self._transactions, self._transaction, self._pause_s)


class _Undecided(Struct):
    """A transaction that a task of this process has written in."""

    transactions: TransactionsClient
    transaction: Transaction
    pause_s: float
    due: float
    until: float


class UndecidedTransactions:
    """The transactions of this process's ended tasks, renewed until they are decided.

    One thread renews all of them. It ends with the last one. A later transaction of an id replaces
    the earlier one, so a query with quick micro-batches renews nothing here.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._by_id: dict[str, _Undecided] = {}
        self._running = False

    @property
    def pending(self) -> frozenset[str]:
        """The transactional ids with a transaction that is renewed."""
        with self._changed:
            return frozenset(self._by_id)

    def add(
        self, transactions: TransactionsClient, transaction: Transaction, pause_s: float
    ) -> None:
        """Renew the transaction, for the first time after a pause."""
        now = time.monotonic()
        entry = _Undecided(transactions, transaction, pause_s, now + pause_s, now + _AFTER_TASK_S)
        with self._changed:
            self._by_id[transaction[0]] = entry
            self._changed.notify()
            if not self._running:
                self._running = True
                threading.Thread(target=self._renew, name="isolog-undecided", daemon=True).start()

    def _renew(self) -> None:
        while (entry := self._next()) is not None:
            try:
                entry.transactions.renew(*entry.transaction)
            except IsologError as error:
                if not error.retriable:  # it is decided, or its id has another owner
                    entry.until = -math.inf

    def _next(self) -> _Undecided | None:
        """Return a transaction that is due; None if no transaction is left."""
        with self._changed:
            while True:
                now = time.monotonic()
                for name, each in list(self._by_id.items()):
                    if each.until <= now:
                        del self._by_id[name]
                if not self._by_id:
                    self._running = False
                    return None
                first = min(self._by_id.values(), key=lambda each: each.due)
                if first.due <= now:
                    first.due = now + first.pause_s
                    return first
                self._changed.wait(first.due - now)


undecided: Final = UndecidedTransactions()
