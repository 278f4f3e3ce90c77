"""What a broker has of a topic: its replicas, and the streams by which they follow others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from spark_stream.broker.partition.partition import Partition
from spark_stream.broker.partition.replication import Followed
from spark_stream.cluster.partitions import PartitionId
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.ids import BrokerId
from spark_stream.errors import IsologError, NotLeader, UnknownPartition
from spark_stream.schema.schemas import TIMESTAMP_COLUMN, is_default
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.settings import LogSettings


class FollowerLinks(Protocol):
    """The streams by which this broker's replicas follow others."""

    def follow(self, leader: BrokerId, partition: Followed) -> None:
        """Follow that broker only with the partition."""

    def unfollow(self, key: PartitionId) -> None:
        """Stop following."""

    def may_lead_at(self, key: PartitionId) -> float:
        """Return when the partition may lead, in seconds of the broker's monotonic clock.

        It may have promised a leader that it followed not to lead before.
        """


class NoLinks:
    """Links of a broker without others: they follow nothing."""

    def follow(self, leader: BrokerId, partition: Followed) -> None:
        pass

    def unfollow(self, key: PartitionId) -> None:
        pass

    def may_lead_at(self, key: PartitionId) -> float:
        return 0.0


@dataclass(frozen=True)
class HostedTopic:
    """A topic, with the replicas that this broker has; one that could not be opened is its error.

    ``elsewhere`` makes the error for a partition that this broker does not lead.
    """

    topic: Topic
    settings: LogSettings
    elsewhere: Callable[[Topic, int], IsologError] = field(repr=False)
    replicas: dict[int, Partition | IsologError] = field(default_factory=dict)

    def partition(self, number: int) -> Partition:
        """Return the partition, which this broker leads.

        Raises:
            UnknownPartition: the topic has none of this number.
            NotLeader, LeaderUnavailable: another broker leads it, or nobody does at the moment; it
                was added a moment ago.
            IsologError: why it could not be opened.
        """
        if number < 0:
            self.check_number(number)
        found = self.replicas.get(number)
        if isinstance(found, Partition) and found.leads:
            return found
        error = self.elsewhere(self.topic, number)
        if isinstance(found, IsologError) and not isinstance(error, NotLeader):
            raise found.again()
        raise error

    def check_number(self, number: int) -> None:
        """Raise UnknownPartition if the topic has no partition of this number."""
        if not 0 <= number < self.topic.partitions:
            raise unknown_partition(self.topic, number)

    def open_partitions(self) -> list[Partition]:
        """Return the replicas that this broker has open, leading or not."""
        found = dict(self.replicas)
        return [each for _, each in sorted(found.items()) if isinstance(each, Partition)]

    def led(self) -> list[Partition]:
        """Return the replicas that this broker leads."""
        return [each for each in self.open_partitions() if each.leads]

    def ends(self) -> Iterator[tuple[str, int]]:
        """Yield each partition's name and its log's end, in the form of ``cluster.generations``."""
        for number, found in self.replicas.items():
            end = found.log.end.entry if isinstance(found, Partition) else -1
            yield f"{self.topic.id}/{number}", end


def format_of(topic: Topic, settings: LogSettings, number: int) -> LogFormat:
    """Return how the log of a partition is written."""
    facts = (
        ("isolog.format", "1"),
        ("isolog.topic", topic.name),
        ("isolog.topic_id", topic.id),
        ("isolog.partition", str(number)),
    )
    timestamps = TIMESTAMP_COLUMN if is_default(topic.schema) else None
    return LogFormat(topic.schema, settings, timestamps, facts, topic.earlier)


def unknown_partition(topic: Topic, number: int) -> UnknownPartition:
    """Return the error for a partition that the topic does not have."""
    return UnknownPartition(
        f"topic {topic.name!r} has partitions 0 to {topic.partitions - 1}, not {number}",
        topic=topic.name,
        partition=number,
    )
