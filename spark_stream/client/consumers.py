"""Requests about consumers' names: those of clients and those of queries."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.topics import TopicsClient
from spark_stream.consistency.isolation import Isolation
from spark_stream.errors import UnknownConsumer
from spark_stream.wire.consumer_messages import (
    ConsumedPartition,
    ConsumerDescription,
    ConsumerDescriptions,
    PinnedStart,
    PinStart,
    RecordProgress,
)
from spark_stream.wire.messages import AskedTopic, Empty, PartitionOffsets
from spark_stream.wire.transaction_messages import NamedConsumer


class ConsumersClient:
    """The consumers' names of a connection's log."""

    def __init__(self, connection: ClusterConnection, topics: TopicsClient) -> None:
        self._connection = connection
        self._topics = topics

    def pin_start(self, asked: PinStart) -> PinnedStart:
        """Return where the query of this name first started."""
        return self._connection.act("pin-start", asked, PinnedStart)

    def record_progress(self, asked: RecordProgress, timeout_s: float | None = None) -> None:
        """Store how far a query has come; raise ConsumerFenced if another run has its name."""
        self._connection.act("record-progress", asked, Empty, timeout_s)

    def all(self) -> list[ConsumerDescription]:
        """Return every known name, sorted, with where it reads and how much is left."""
        return self._with_ends(self._list())

    def describe(self, name: str) -> list[ConsumerDescription]:
        """Return what is known under a name, or raise UnknownConsumer."""
        found = [each for each in self._list() if each.name == name]
        if not found:
            raise UnknownConsumer(f"nothing is known of a consumer {name!r}", consumer=name)
        return self._with_ends(found)

    def delete(self, name: str) -> None:
        """Forget all that is known under a name, or raise UnknownConsumer."""
        asked = NamedConsumer.of(consumer=name)
        self._connection.act("delete-consumer", asked, Empty)

    def _list(self) -> list[ConsumerDescription]:
        return self._connection.act("list-consumers", Empty(), ConsumerDescriptions).consumers

    def _with_ends(self, found: Sequence[ConsumerDescription]) -> list[ConsumerDescription]:
        """Fill in where the partitions end now, under the isolation level of each consumer."""
        topics: dict[Isolation, set[str]] = {}
        for each in found:
            topics.setdefault(_level(each), set()).update(at.topic for at in each.partitions)
        ends = {
            isolation: self._topics.look_up(
                [AskedTopic.of(topic=name, isolation=isolation) for name in sorted(names)]
            ).topics
            for isolation, names in topics.items()
        }
        return [
            structs.replace(
                each,
                partitions=tuple(
                    structs.replace(at, end=_end(at, ends[_level(each)].get(at.topic)))
                    for at in each.partitions
                ),
            )
            for each in found
        ]


def _level(consumer: ConsumerDescription) -> Isolation:
    """Return the level to count the lag under; a client's own level is unknown."""
    return consumer.isolation or Isolation.READ_UNCOMMITTED


def _end(at: ConsumedPartition, topic: PartitionOffsets | None) -> int | None:
    if topic is None or topic.topic_id != at.topic_id:
        return None
    found = topic.partitions.get(at.partition)
    return None if found is None else found.offset
