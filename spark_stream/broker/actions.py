"""A DoAction: administration. Each action is a function from a message to a message."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import psutil

from spark_stream.broker.host import Host, HostedTopic
from spark_stream.broker.partition import Partition
from spark_stream.broker.transaction_actions import TRANSACTION_ACTIONS, TransactionActions
from spark_stream.broker.transactions import TransactionDesk
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.isolation import upper_bound
from spark_stream.errors import InvalidRequest, IsologError
from spark_stream.storage.settings import shown_settings
from spark_stream.version import VERSION
from spark_stream.wire.messages import (
    EARLIEST,
    AlterTopic,
    CreateTopic,
    Empty,
    ListOffsets,
    Message,
    NamedTopic,
    Offsets,
    PartitionFacts,
    Status,
    TopicFacts,
    TopicNames,
)
from spark_stream.wire.schemas import DEFAULT_SCHEMA, schema_from_text, schema_to_text


@dataclass(frozen=True)
class BrokerFacts:
    """What the broker says of itself."""

    address: str
    directory: str
    cluster_id: str
    started: float = field(default_factory=time.monotonic)


class Actions:
    """The actions of one broker."""

    def __init__(self, host: Host, desk: TransactionDesk, facts: BrokerFacts) -> None:
        self._host = host
        self._transactions = TransactionActions(host, desk)
        self._facts = facts
        self._process = psutil.Process()

    def run(self, name: str, body: bytes) -> Message:
        """Runs the action of this name; InvalidRequest if there is none."""
        if name in TRANSACTION_ACTIONS:
            return self._transactions.run(name, body)
        if name not in _TABLE:
            known = ", ".join((*_TABLE, *TRANSACTION_ACTIONS))
            raise InvalidRequest(f"there is no action {name!r}; there are {known}")
        kind, action = _TABLE[name]
        return action(self, kind.from_bytes(body))

    def _create(self, asked: CreateTopic) -> Message:
        schema = DEFAULT_SCHEMA if asked.schema_ipc is None else schema_from_text(asked.schema_ipc)
        hosted = self._host.create(
            asked.topic, asked.partitions, asked.replication_factor, schema, asked.config
        )
        return self._described(hosted)

    def _alter(self, asked: AlterTopic) -> Message:
        return self._described(self._host.alter(asked.topic, asked.partitions, asked.config))

    def _delete(self, asked: NamedTopic) -> Message:
        self._host.delete(asked.topic)
        return Empty()

    def _describe(self, asked: NamedTopic) -> Message:
        return self._described(self._host.topic(asked.topic))

    def _list(self, asked: Empty) -> Message:
        return TopicNames(topics=[hosted.topic.name for hosted in self._host.topics()])

    def _offsets(self, asked: ListOffsets) -> Message:
        hosted = self._host.topic(asked.topic)
        numbers = asked.partitions
        if numbers is None:
            numbers = list(range(len(hosted.partitions)))
        found = {number: hosted.partition(number) for number in numbers}
        bounds = {number: partition.bounds() for number, partition in found.items()}
        return Offsets(
            topic_id=hosted.topic.id,
            offsets={number: _place(partition, asked) for number, partition in found.items()},
            epochs={number: int(each.leader_epoch) for number, each in found.items()},
            log_start_offsets={n: int(each.log_start_offset) for n, each in bounds.items()},
            log_end_offsets={n: int(each.log_end_offset) for n, each in bounds.items()},
            epoch_ends={
                number: {epoch: int(each.epoch_end(epoch)) for epoch in asked.epochs}
                for number, each in found.items()
                if asked.epochs
            },
            uncommitted=[
                number
                for number, (start, end) in asked.ranges.items()
                if number in found and found[number].shows_uncommitted(Offset(start), Offset(end))
            ],
        )

    def _status(self, asked: Empty) -> Message:
        hosted = self._host.topics()
        return Status(
            version=VERSION,
            pid=os.getpid(),
            address=self._facts.address,
            directory=self._facts.directory,
            cluster_id=self._facts.cluster_id,
            topics=len(hosted),
            partitions=sum(len(each.partitions) for each in hosted),
            uptime_s=time.monotonic() - self._facts.started,
            memory=own_memory(self._process),
        )

    def _described(self, hosted: HostedTopic) -> TopicFacts:
        topic = hosted.topic
        return TopicFacts(
            name=topic.name,
            id=topic.id,
            schema_ipc=schema_to_text(topic.schema),
            config=shown_settings(hosted.settings),
            partitions=[
                self._partition(number, each) for number, each in enumerate(hosted.partitions)
            ],
        )

    def _partition(self, number: int, found: Partition | IsologError) -> PartitionFacts:
        here = self._facts.address
        common: dict[str, Any] = {
            "partition": number,
            "leader": here,
            "leader_epoch": 0,
            "replicas": [here],
            "isr": [here],
        }
        if not isinstance(found, Partition):
            bounds: dict[str, Any] = dict.fromkeys(
                ("log_start_offset", "log_end_offset", "high_watermark", "last_stable_offset"), 0
            )
            return PartitionFacts(**common, **bounds, size=0, error=found.to_wire())
        seen = found.bounds()
        return PartitionFacts(
            **common | {"leader_epoch": int(found.leader_epoch)},
            log_start_offset=seen.log_start_offset,
            log_end_offset=seen.log_end_offset,
            high_watermark=seen.high_watermark,
            last_stable_offset=seen.last_stable_offset,
            size=found.log.size,
            open_transactions=len({each.transaction for each in found.open_transactions()}),
        )


def _place(partition: Partition, asked: ListOffsets) -> int:
    bounds = partition.bounds(asked.isolation)
    limit = upper_bound(bounds, asked.isolation)
    if asked.timestamp is not None:
        found = partition.log.offset_at(asked.timestamp)
        return int(limit if found is None else min(found, limit))
    return int(bounds.log_start_offset if asked.at == EARLIEST else limit)


def own_memory(process: psutil.Process) -> int:
    """Resident bytes of a process that no file backs (RSS less mapped files)."""
    seen = process.memory_info()
    return int(seen.rss - seen.shared)


_TABLE: Final[dict[str, tuple[type[Message], Callable[[Actions, Any], Message]]]] = {
    "create-topic": (CreateTopic, Actions._create),
    "alter-topic": (AlterTopic, Actions._alter),
    "delete-topic": (NamedTopic, Actions._delete),
    "describe-topic": (NamedTopic, Actions._describe),
    "list-topics": (Empty, Actions._list),
    "list-offsets": (ListOffsets, Actions._offsets),
    "status": (Empty, Actions._status),
}
