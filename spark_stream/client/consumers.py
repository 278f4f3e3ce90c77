"""What a client asks about consumers' names, those of clients and those of queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_stream.client.connecting.connection import Connection
from spark_stream.client.topics import TopicsClient
from spark_stream.client.values import ConsumedPartition, ConsumerDescription
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.transactions import ReadPosition
from spark_stream.errors import UnknownConsumer
from spark_stream.wire.consumer_messages import (
    NamedReader,
    NamedReaders,
    PinnedStart,
    PinStart,
    RecordProgress,
)
from spark_stream.wire.messages import AskedTopic, Empty, PartitionOffsets
from spark_stream.wire.transaction_messages import NamedConsumer


class ConsumersClient:
    """The names of consumers behind a connection."""

    def __init__(self, connection: Connection, topics: TopicsClient) -> None:
        self._connection = connection
        self._topics = topics

    def pin_start(self, asked: PinStart) -> PinnedStart:
        """Where the query of this name first started."""
        return self._connection.act("pin-start", asked, PinnedStart)

    def record_progress(self, asked: RecordProgress, timeout_s: float | None = None) -> None:
        """Writes down how far a query has come; ConsumerFenced if another run has its name."""
        self._connection.act("record-progress", asked, Empty, timeout_s)

    def all(self) -> list[ConsumerDescription]:
        """Every name that is known, with where it reads and how much is left, by name."""
        found = self._connection.act("list-consumers", Empty(), NamedReaders).consumers
        ends = self._ends(found)
        return [_described(each, ends[_level(each)]) for each in found]

    def describe(self, name: str) -> list[ConsumerDescription]:
        """What is known under a name, or UnknownConsumer."""
        found = self._connection.act("list-consumers", Empty(), NamedReaders).consumers
        found = [each for each in found if each.consumer == name]
        if not found:
            raise UnknownConsumer(f"nothing is known of a consumer {name!r}", consumer=name)
        ends = self._ends(found)
        return [_described(each, ends[_level(each)]) for each in found]

    def delete(self, name: str) -> None:
        """Forgets all that is known under a name, or UnknownConsumer."""
        asked = NamedConsumer.of(consumer=name)
        self._connection.act("delete-consumer", asked, Empty)

    def _ends(
        self, readers: Iterable[NamedReader]
    ) -> dict[Isolation, Mapping[str, PartitionOffsets]]:
        """Where the topics that are read end now, under each isolation level that they are read."""
        topics: dict[Isolation, set[str]] = {}
        for each in readers:
            topics.setdefault(_level(each), set()).update(at.topic for at in each.positions)
        return {
            isolation: self._topics.look_up(
                [AskedTopic.of(topic=name, isolation=isolation) for name in sorted(names)]
            ).topics
            for isolation, names in topics.items()
        }


def _level(reader: NamedReader) -> Isolation:
    """The level that a reader's lag is counted under; that of a client's consumer is not known."""
    return reader.isolation or Isolation.READ_UNCOMMITTED


def _described(reader: NamedReader, ends: Mapping[str, PartitionOffsets]) -> ConsumerDescription:
    return ConsumerDescription(
        name=reader.consumer,
        kind="query" if reader.query else "client",
        isolation=None if reader.isolation is None else str(reader.isolation),
        selection=reader.selection,
        starting=reader.starting,
        started_ms=reader.started_ms,
        recorded_ms=reader.recorded_ms,
        partitions=tuple(
            ConsumedPartition(at.topic, at.partition, at.offset, _end(at, ends.get(at.topic)))
            for at in reader.positions
        ),
    )


def _end(at: ReadPosition, topic: PartitionOffsets | None) -> int | None:
    if topic is None or topic.topic_id != at.topic_id:
        return None
    found = topic.partitions.get(at.partition)
    return None if found is None else found.offset
