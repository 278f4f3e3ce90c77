"""The promises that a broker gives its leaders (``consistency.replication.promises``).

A broker notes on its disk that it promises before it promises for the first time, and removes the
note when all its promises are over. If the note is there when the broker starts, it leads nothing
until the longest promise that it may have given just before it stopped is over.

A promise on its way:

========  ==========================================================================================
leader    ``LeaderStreamCore.tick`` asks; ``take`` tells each session until when it holds
          (``holds_until``); ``Progress.leads_until`` is the least of all members
follower  :meth:`Promising.promise` notes it; ``Fetcher.promised_until`` says when it is over;
          ``Fetchers.may_lead_at`` keeps that for partitions that are followed no more
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


class Promising:
    """The promises of one broker, from any thread."""

    def __init__(self, file: PromiseFile, clock: Clock, cut_off: Callable[[], bool]) -> None:
        """``cut_off`` returns whether this broker cannot renew its lease at the moment."""
        self._file = file
        self._clock = clock
        self._cut_off = cut_off
        self._lock = threading.Lock()
        self._noted_s = file.recorded() or 0.0
        self.earlier_until = free_at(clock.monotonic(), self._noted_s) if self._noted_s else 0.0
        """When all promises of earlier processes of this broker are over."""
        self._until = self.earlier_until
        self._given_until = 0.0

    def is_bound(self) -> bool:
        """Return whether a promise of this process lasts."""
        return self._clock.monotonic() < self._given_until

    def promise(self, lasts_s: float, give: Callable[[float], None]) -> None:
        """Call ``give`` with the end of a promise that lasts so long, if this broker may promise.

        It may not while it can reach the metadata store itself, or if it cannot note the promise.
        """
        if not self._cut_off():
            return
        with self._lock:
            if lasts_s > self._noted_s:
                try:
                    self._file.record(lasts_s)
                except IsologError as error:
                    logger.warning("no promise is given, for it cannot be noted: %s", error.message)
                    return
                self._noted_s = lasts_s
                logger.warning(
                    "the lease cannot be renewed; this broker promises its leaders, for %g s each"
                    " time, that it will not lead in their place",
                    lasts_s,
                )
            self._given_until = free_at(self._clock.monotonic(), lasts_s)
            self._until = max(self._until, self._given_until)
            give(self._until)

    def forget_ended(self) -> None:
        """Remove the note if all promises are over; to be called now and then."""
        with self._lock:
            if self._noted_s and self._clock.monotonic() >= self._until:
                try:
                    self._file.forget()
                except IsologError as error:
                    logger.warning("the note of promises cannot be removed: %s", error.message)
                    self._until += _RETRY_S
                    return
                self._noted_s = 0.0
