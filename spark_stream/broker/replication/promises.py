"""The promises of a broker to its leaders not to lead (``consistency.replication.promises``).

Before its first promise a broker writes a note to its disk, and after the end of its last promise
it removes the note. If a broker finds the note at its start, an earlier process may have promised
just before it stopped. Then the broker leads no partition until the longest such promise has
expired.

The path of a promise:

========  ==========================================================================================
leader    ``LeaderStreamCore.tick`` requests it, ``take`` passes its end (``holds_until``) to each
          session, and ``Progress.leads_until`` is the earliest end of all members
follower  :meth:`Promises.promise` records it, ``FollowerFetcher.promised_until`` is its end, and
          ``Fetchers.may_lead_at`` keeps the end for partitions that are no longer followed
========  ==========================================================================================
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from spark_stream.consistency.replication.promises import free_at
from spark_stream.environment import Clock
from spark_stream.errors import IsologError
from spark_stream.loggers import logger_of
from spark_stream.storage.disk.directory import PromiseFile

logger = logger_of(__name__)

_RETRY_S: Final = 60.0


class Promises:
    """The promises of one broker, from any thread."""

    def __init__(self, file: PromiseFile, clock: Clock, cut_off: Callable[[], bool]) -> None:
        """``cut_off`` returns whether this broker currently cannot renew its lease."""
        self._file = file
        self._clock = clock
        self._cut_off = cut_off
        self._lock = threading.Lock()
        self._noted_s = file.recorded() or 0.0
        self.earlier_until = free_at(clock.monotonic(), self._noted_s) if self._noted_s else 0.0
        """The latest end of the promises of this broker's earlier processes."""
        self._until = self.earlier_until
        self._given_until = 0.0

    def is_bound(self) -> bool:
        """Return whether a promise of this process has not expired."""
        return self._clock.monotonic() < self._given_until

    def promise(self, lasts_s: float, give: Callable[[float], None]) -> None:
        """Make a promise for ``lasts_s`` and call ``give`` with its end.

        Do nothing while this broker can reach the metadata store, or if it cannot write the note.
        """
        if not self._cut_off():
            return
        with self._lock:
            if lasts_s > self._noted_s:
                try:
                    self._file.record(lasts_s)
                except IsologError as error:
                    logger.warning(
                        "refused a promise, because the file of promises cannot be written: %s",
                        error.message,
                    )
                    return
                self._noted_s = lasts_s
                logger.warning(
                    "lease renewal fails; this broker promises its leaders not to replace them, for"
                    " %g s at a time",
                    lasts_s,
                )
            self._given_until = free_at(self._clock.monotonic(), lasts_s)
            self._until = max(self._until, self._given_until)
            give(self._until)

    def remove_expired(self) -> None:
        """Remove the note if all promises have expired. Call this regularly."""
        with self._lock:
            if self._noted_s and self._clock.monotonic() >= self._until:
                try:
                    self._file.forget()
                except IsologError as error:
                    logger.warning("cannot remove the file of promises: %s", error.message)
                    self._until += _RETRY_S
                    return
                self._noted_s = 0.0
