"""Partitions as records of the metadata store: leader, in-sync replicas and replicas of each.

There is one record for each partition, ``partitions/<topic id>/<number>``. A topic's partitions are
on record before the topic is, and are deleted after it. So the topic's record decides whether the
topic exists, and with it exist the records of its partitions.

``consistency.control.election`` has the valid changes of a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from spark_stream.cluster.stores.store import MetadataStore, Put, StoreRecord
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.structs import learn_types

PARTITIONS: Final = "partitions/"


class PartitionId(NamedTuple):
    """A partition, by its topic's id instead of its name."""

    topic_id: str
    number: int


class StoredPartition(Struct, frozen=True):
    """A partition's record, with the version that a change of it must expect."""

    id: PartitionId
    record: PartitionRecord
    version: int


class Partitions:
    """The partitions of a store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def get(self, partition: PartitionId) -> StoredPartition | None:
        """Return the partition, or None."""
        record = self._store.get(key_of(partition))
        return None if record is None else decode(record)

    def of_topic(self, topic_id: str) -> list[StoredPartition]:
        """Return the topic's recorded partitions, by number."""
        found = [decode(each) for each in self._store.list(f"{PARTITIONS}{topic_id}/")]
        return sorted(found, key=lambda each: each.id.number)


def key_of(partition: PartitionId) -> str:
    """Return the key of a partition's record."""
    return f"{PARTITIONS}{partition.topic_id}/{partition.number}"


def id_of(key: str) -> PartitionId:
    """Return the partition whose record has this key."""
    topic_id, _, number = key.removeprefix(PARTITIONS).rpartition("/")
    return PartitionId(topic_id, int(number))


def put_of(partition: PartitionId, record: PartitionRecord, expected: int) -> Put:
    """Build the compare-and-set that writes this record of the partition."""
    return Put(key_of(partition), encode(record), expected)


def encode(record: PartitionRecord) -> dict[str, Any]:
    """Encode a partition's record for the store."""
    value: dict[str, Any] = msgspec.to_builtins(record)
    return value


def decode(record: StoreRecord) -> StoredPartition:
    """Decode the partition in a record."""
    return StoredPartition(id_of(record.key), decode_value(record.value), record.version)


def decode_value(value: Mapping[str, Any]) -> PartitionRecord:
    """Decode a partition's record from the store's value."""
    return msgspec.convert(value, PartitionRecord)


learn_types(PartitionRecord)
