"""The session of a named reader: heartbeats while its process runs, and how it ended.

Brokers use it to tell a reader that crashed from one that was closed, is slow, or hangs
(``consistency.isolation``). It is for people who watch, so a failed heartbeat fails no reader.
"""

from __future__ import annotations

import sys
import time
from typing import Final, Literal

from msgspec.structs import replace

from spark_stream.client.connecting.calls import call_elsewhere, weakly
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.consistency.isolation import Isolation, ReaderEnding
from spark_stream.errors import IsologError
from spark_stream.loggers import logger_of
from spark_stream.transport.client import client_loop
from spark_stream.transport.lifetime import at_end_while_used, new_lock
from spark_stream.wire.consumer_messages import ReaderHeartbeat

logger = logger_of(__name__)

SESSION_S: Final = 45.0
"""Without a heartbeat for so long a reader is lost."""
_BEAT_S: Final = SESSION_S / 3
_END_S: Final = 2.0


class ReaderHeartbeats:
    """The heartbeats of one reader. Any thread may call."""

    def __init__(
        self,
        connection: ClusterConnection,
        kind: Literal["query", "client"],
        name: str,
        instance: str,
        isolation: Isolation,
    ) -> None:
        self._connection = connection
        self._asked = ReaderHeartbeat(
            consumer=name,
            kind=kind,
            instance=instance,
            session_ms=round(1_000 * SESSION_S),
            isolation=isolation,
            claim=True,
        )
        self._timeout_s = min(_BEAT_S, connection.timeout_s)
        self._lock = new_lock(is_brief=False)
        self._lifetime = connection.lifetime
        self._is_over = False
        self.active_at = time.monotonic()
        """When the program last requested records."""
        self.patience_s = 0.0
        """How long the program may take between two calls before it counts as idle."""

    def start(self) -> None:
        """Send the first heartbeat soon, and the others until the end of the reader."""
        at_end_while_used(self._end_with_program)
        self._begin()

    def note_active(self) -> bool:
        """Record that the program requests records. Return False: it has nothing else to do."""
        self.active_at = time.monotonic()
        return False

    def end(self, ending: ReaderEnding = ReaderEnding.CLEAN) -> None:
        """Record how the reader ended. Repeated calls, and those of a forked child, do nothing.

        It waits for a heartbeat that is under way, but not for a hanging one. The session then
        expires.
        """
        if self._is_over or self._lifetime.is_over:
            return
        is_idle = self._lock.acquire(timeout=_END_S)
        self._is_over = True
        if is_idle:
            try:
                self._send(ending, min(_END_S, self._timeout_s))
            finally:
                self._lock.release()

    def end_later(self) -> None:
        """Record the end of a reader that nobody refers to any more, without waiting."""
        if not self._lifetime.is_over:
            call_elsewhere(("reader", id(self)), self.end)

    def _end_with_program(self) -> None:
        """Record the end of a reader that was not closed: clean, unless an error ends the program.

        An error leaves its value in ``sys.last_value``.
        """
        is_clean = getattr(sys, "last_value", None) is None
        self.end(ReaderEnding.CLEAN if is_clean else ReaderEnding.LOST)

    def _begin(self) -> None:
        if not self._is_over:
            call_elsewhere(("reader", id(self)), weakly(self._beat))

    def _beat(self) -> None:
        with self._lock:
            if self._is_over:
                return
            self._send(ReaderEnding.NONE, self._timeout_s)
            if not self._is_over:
                client_loop().call_later(_BEAT_S, weakly(self._begin))

    def _send(self, ending: ReaderEnding, timeout_s: float) -> None:
        idle_s = max(0.0, time.monotonic() - self.active_at - self.patience_s)
        asked = replace(self._asked, idle_ms=round(1_000 * idle_s), ending=ending)
        try:
            self._connection.call(asked, timeout_s)
        except IsologError as error:
            # A later reader has the name, or the broker is of a release without heartbeats.
            self._is_over |= not error.retriable
            logger.debug("no heartbeat of the reader %r: %s", asked.consumer, error)
        else:
            self._asked = replace(self._asked, claim=False)
