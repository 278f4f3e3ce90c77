"""A reader with a name: its stored positions, and the heartbeats of its session.

The next consumer of the name continues at the stored positions. A new consumer takes the name over.
The earlier one is fenced, and can no longer store positions.

Heartbeats run while the reader's process runs, and the last one has the way in which it ended. By
them brokers distinguish a reader that crashed from one that was closed, is slow, or hangs
(``consistency.isolation``). They are for monitoring, so a failed heartbeat does not affect a
reader. Spark queries send them too.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from msgspec.structs import replace

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.connecting.threads import call_elsewhere, weakly
from spark_stream.client.lake_tables import LakeTables
from spark_stream.client.reading.subscription import Subscription
from spark_stream.client.topics import Key, TopicsClient, resolve_with_lineages
from spark_stream.consistency.isolation import Isolation, ReaderEnding
from spark_stream.consistency.replication.epochs import NO_LINEAGE, Lineage
from spark_stream.consistency.transactions.transactions import PositionOf
from spark_stream.errors import InvalidOption, InvalidRequest, IsologError
from spark_stream.loggers import logger_of
from spark_stream.transport.client import client_loop
from spark_stream.transport.lifetime import at_end_while_used, new_lock
from spark_stream.wire.consumer_messages import (
    CommitPosition,
    GetPosition,
    ReaderHeartbeat,
    TakeConsumer,
)

logger = logger_of(__name__)

SESSION_S: Final = 45.0
"""A reader without a heartbeat for this time counts as lost."""
_BEAT_S: Final = SESSION_S / 3
_END_S: Final = 2.0


def check_name(name: str, option: str) -> None:
    """Raise InvalidOption for an invalid name of a consumer or a group, given by ``option``."""
    try:
        GetPosition.of(consumer=name).to_bytes()
    except (InvalidRequest, UnicodeEncodeError):
        whose = "a group's" if option == "group" else "a consumer's"
        text = f"{whose} name is a text of 1 to 255 characters, not {name!r}"
        raise InvalidOption(text, option=option) from None


class NamedPositions:
    """The positions that a consumer stores under its name.

    ``position`` and ``lineages`` belong to the consumer. The constructor takes the name over, and
    moves the position to the stored one.
    """

    def __init__(
        self,
        name: str,
        connection: ClusterConnection,
        topics: TopicsClient,
        subscription: Subscription,
        isolation: Isolation,
        position: dict[Key, int],
        lineages: dict[Key, Lineage],
        tables: LakeTables | None = None,
    ) -> None:
        self.name = name
        self.committed: dict[Key, int] = {}
        """The stored position of each partition."""
        self._topics = topics
        self._tables = tables
        self._connection = connection
        self._subscription = subscription
        self._isolation = isolation
        self._position = position
        self._lineages = lineages
        self._instance = uuid.uuid4().hex
        self._take_over()
        self.heartbeats = ReaderHeartbeats(connection, "client", name, self._instance, isolation)
        self.heartbeats.start()

    def _take_over(self) -> None:
        """Take over the name. Begin at its positions, except in topics that were created again."""
        request = TakeConsumer.of(consumer=self.name, instance=self._instance)
        stored = self._subscription.chosen(
            {
                (each.topic, each.partition): each
                for each in self._connection.call(request).positions
                if self._subscription.ids.get(each.topic) == each.topic_id
            }
        )
        self.committed.update({key: each.offset for key, each in stored.items()})
        self._position.update(self.committed)
        self._lineages.update({key: each.lineage for key, each in stored.items()})
        self._start_added(stored)

    def _start_added(self, stored: Mapping[Key, object]) -> None:
        """Start each partition without a stored position at its first record.

        Topics without any stored position are left out.
        """
        for topic in {topic for topic, _ in stored}:
            first, _ = resolve_with_lineages(self._topics, topic, "earliest", self._isolation)
            added = self._subscription.chosen({(topic, number): 0 for number in first})
            added = {key: at for key, at in added.items() if key not in stored}
            if added and self._tables is not None:
                first = self._tables.resolve(topic, "earliest", self._isolation, "earliest")
            for key in added:
                self._position[key] = first[key[1]]
                self._lineages.pop(key, None)

    @property
    def owner(self) -> dict[str, str]:
        """The owner that the name must have when positions are stored: ``{name: instance}``."""
        return {self.name: self._instance}

    def places(self) -> list[PositionOf]:
        """Return the consumer's positions in the form in which they are stored."""
        return [
            PositionOf(
                self.name,
                topic,
                self._subscription.ids[topic],
                number,
                offset,
                self._lineages.get((topic, number), NO_LINEAGE),
            )
            for (topic, number), offset in self._position.items()
        ]

    def store(self, places: list[PositionOf]) -> None:
        """Store positions outside of transactions. Raise ConsumerFenced if this is not allowed."""
        self._connection.call(CommitPosition(positions=places, owners=self.owner))
        self.record_stored(places)

    def record_stored(self, places: Iterable[PositionOf]) -> None:
        """Record that these positions are stored."""
        self.committed.update({(each.topic, each.partition): each.offset for each in places})


class ReaderHeartbeats:
    """The heartbeats of one reader. Thread-safe."""

    def __init__(
        self,
        connection: ClusterConnection,
        kind: Literal["query", "client"],
        name: str,
        instance: str,
        isolation: Isolation,
    ) -> None:
        self._connection = connection
        self._request = ReaderHeartbeat(
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
        """The time of the program's last request for records, on the monotonic clock."""
        self.patience_s = 0.0
        """The time between two requests after which the program counts as idle."""

    def start(self) -> None:
        """Start the heartbeats, which run until the end of the reader."""
        at_end_while_used(self._end_with_program)
        self._begin()

    def record_activity(self) -> bool:
        """Record that the program requests records. Return False: there is no other work."""
        self.active_at = time.monotonic()
        return False

    def end(self, ending: ReaderEnding = ReaderEnding.CLEAN) -> None:
        """Send the reader's end. Repeated calls, and calls in a forked child, have no effect.

        It waits up to two seconds for a heartbeat that is under way. If that hangs, the session
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
        """Send the end of a reader that was collected, without waiting."""
        if not self._lifetime.is_over:
            call_elsewhere(("reader", id(self)), self.end)

    def _end_with_program(self) -> None:
        """Send the end of a reader that was not closed: clean, unless an error ended the program.

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
        request = replace(self._request, idle_ms=round(1_000 * idle_s), ending=ending)
        try:
            self._connection.call(request, timeout_s)
        except IsologError as error:
            # A later reader has the name, or the broker's release has no heartbeats.
            self._is_over |= not error.retriable
            logger.debug("heartbeat of the reader %r failed: %s", request.consumer, error)
        else:
            self._request = replace(self._request, claim=False)
