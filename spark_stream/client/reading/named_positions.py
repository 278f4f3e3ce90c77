"""The positions that a consumer stores under its name, so that the next one of the name continues.

A new consumer takes the name over. The one that had it can store nothing from then on.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.reading.positions import Key, resolve
from spark_stream.client.reading.subscription import Subscription
from spark_stream.client.sessions import ReaderHeartbeats
from spark_stream.client.topics import TopicsClient
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.replication.epochs import NOTHING_KNOWN, Lineage
from spark_stream.consistency.transactions.transactions import PositionOf
from spark_stream.errors import InvalidOption, InvalidRequest
from spark_stream.wire.consumer_messages import CommitPosition, GetPosition, TakeConsumer


def check_name(name: str, option: str) -> None:
    """Raise InvalidOption if a consumer or a group cannot have this name, which ``option`` gave."""
    try:
        GetPosition.of(consumer=name).to_bytes()
    except (InvalidRequest, UnicodeEncodeError):
        whose = "a group's" if option == "group" else "a consumer's"
        text = f"{whose} name is a text of 1 to 255 characters, not {name!r}"
        raise InvalidOption(text, option=option) from None


class NamedPositions:
    """What one consumer stores under its name.

    ``position`` and ``lineages`` are the consumer's own. The name is taken over at once, and the
    position moves to what is stored under it.
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
    ) -> None:
        self.name = name
        self.committed: dict[Key, int] = {}
        """Where each partition's position is stored."""
        self._topics = topics
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
        """Take over the name; begin at its positions, except in topics that were made anew."""
        asked = TakeConsumer.of(consumer=self.name, instance=self._instance)
        stored = self._subscription.chosen(
            {
                (each.topic, each.partition): each
                for each in self._connection.call(asked).positions
                if self._subscription.ids.get(each.topic) == each.topic_id
            }
        )
        self.committed.update({key: each.offset for key, each in stored.items()})
        self._position.update(self.committed)
        self._lineages.update({key: each.lineage for key, each in stored.items()})
        self._start_added(stored)

    def _start_added(self, stored: Mapping[Key, object]) -> None:
        """Start partitions that are newer than the stored position at their first record."""
        for topic in {topic for topic, _ in stored}:
            first = resolve(self._topics, topic, "earliest", self._isolation, "earliest")
            for key in self._subscription.chosen({(topic, number): 0 for number in first}):
                if key not in stored:
                    self._position[key] = first[key[1]]
                    self._lineages.pop(key, None)

    @property
    def owner(self) -> dict[str, str]:
        """Who must own the name for positions to be stored."""
        return {self.name: self._instance}

    def places(self) -> list[PositionOf]:
        """Return where the consumer is, in the form in which that is stored."""
        return [
            PositionOf(
                self.name,
                topic,
                self._subscription.ids[topic],
                number,
                offset,
                self._lineages.get((topic, number), NOTHING_KNOWN),
            )
            for (topic, number), offset in self._position.items()
        ]

    def store(self, places: list[PositionOf]) -> None:
        """Store positions, outside any transaction; raise ConsumerFenced if it may not."""
        self._connection.call(CommitPosition(positions=places, owners=self.owner))
        self.note_stored(places)

    def note_stored(self, places: Iterable[PositionOf]) -> None:
        """Note that these positions are stored."""
        self.committed.update({(each.topic, each.partition): each.offset for each in places})
