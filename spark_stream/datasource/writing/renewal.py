"""Signs of life: while a task of a batch runs, the batch's transaction does not time out."""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType
from typing import Any, Final, Self

from spark_stream.client.transactions import TransactionsClient
from spark_stream.datasource.writing.identity import BranchIdentity
from spark_stream.errors import IsologError

logger = logging.getLogger(__name__)

TIMEOUT_MS: Final = 15 * 60_000
"""How long a transaction may go on with no task that renews it.

It has to outlast what may lie between two signs of life: the last task's end and the commit, lost
executors, a cluster that has no room for the batch's next task. And it bounds how long a query that
died for good holds back readers of committed records.
"""

_RENEWALS: Final = 4
_FIRST_S: Final = 1.0
_due: dict[str, tuple[list[Any], float]] = {}
"""By transactional id: which run and batch this process saw last, and when to renew it.

It outlives a task, so that the many short tasks of a long batch share the renewals.
"""


class KeptOpen:
    """While a task runs, the transaction of its batch does not time out.

    It is renewed from the task's start, whether the task has a row yet or not: another task may
    have opened the transaction. A process that sees a batch for the first time waits for a moment,
    so that small micro-batches renew nothing.
    """

    def __init__(
        self,
        transactions: TransactionsClient,
        identity: BranchIdentity,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        self._transactions = transactions
        self._asked = (identity.transactional_id, identity.instance, identity.batch)
        self._pause_s = timeout_ms / 1000 / _RENEWALS
        self._over = threading.Event()

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
