"""Topics as records of the metadata store, and records of the left-overs of removed topics.

A topic exists if its record exists, under ``topics/<name>``. Deleting the record deletes the topic,
and frees its name for a topic with another id. Its partitions have separate records
(``partitions``). ``scripts/topics`` makes, alters and deletes topics.

**Left-overs.** ``removed/<topic id>`` announces that a topic may have partition records and files
without existing itself. Such a record exists during the creation of a topic, from before its first
record, during the addition of partitions, because the topic may be deleted at the same time, and
from before a topic is deleted until all of its left-overs are removed. As long as the topic exists,
the record has no effect unless it is ``cleared``. ``maker`` is the broker that creates the topic,
or None. ``brokers`` are those that may have files of it: each takes itself off once it has removed
its own, and the last one removes the record. No broker does so while there is a ``stalled`` maker.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa

from spark_stream.cluster.stores.store import MetadataStore, StoreRecord
from spark_stream.consistency.ids import BrokerId, is_folder_name
from spark_stream.errors import InvalidTopic, TopicExists, UnknownPartition, UnknownTopic
from spark_stream.structs import Positional, learn_types

T = TypeVar("T")

PARTITIONS_MAX: Final = 10_000
TOPICS: Final = "topics/"
_NEAR: Final = 0.7  # with less, the guess would be any topic
_GUESSES_MAX: Final = 1000  # queries request a topic that does not exist yet again and again


class Topic(Positional, frozen=True):
    """A topic. ``config`` has the settings of its creator, unchanged.

    ``replication_factor``: how many replicas each partition is to have. ``earlier``: the schemas
    that it had before its present one, in their order. ``token``: of the request that made it.
    """

    name: str
    id: str
    schema: pa.Schema
    partitions: int
    config: Mapping[str, str]
    replication_factor: int = 1
    earlier: tuple[pa.Schema, ...] = ()
    token: str = ""


def check_name(name: object) -> str:
    """Return the name, or raise InvalidTopic. Names are limited because they also name folders."""
    if not isinstance(name, str) or not is_folder_name(name):
        raise InvalidTopic(f"{name!r} is not a topic name", topic=str(name))
    return name


def check_partitions(topic: Topic) -> None:
    """Raise InvalidTopic for a number of partitions that no topic can have."""
    if not 1 <= topic.partitions <= PARTITIONS_MAX:
        raise InvalidTopic(
            f"a topic has 1 to {PARTITIONS_MAX} partitions, not {topic.partitions}",
            topic=topic.name,
            partitions_max=PARTITIONS_MAX,
            hint="Choose another number of partitions.",
        )


class Topics:
    """The topics of a store: looks them up."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def all(self) -> list[Topic]:
        """Return every topic, by name."""
        return [decode(record) for record in self._store.list(TOPICS)]

    def get(self, name: str) -> Topic:
        """Read the topic of this name from the store, or raise UnknownTopic."""
        record = self._store.get(TOPICS + name)
        if record is None:
            raise unknown(name)
        return decode(record)


def unknown(name: str, names: Collection[str] = ()) -> UnknownTopic:
    """Return the error for a topic that does not exist. Suggest a similar one of ``names``."""
    near = get_close_matches(name, names, 1, _NEAR) if len(names) <= _GUESSES_MAX else []
    guess = f"; did you mean {near[0]!r}?" if near else ""
    return UnknownTopic(f"there is no topic {name!r}{guess}", topic=name)


def unknown_partition(topic: Topic, number: int) -> UnknownPartition:
    """Return the error for a partition that the topic does not have."""
    return UnknownPartition(
        f"topic {topic.name!r} has partitions 0 to {topic.partitions - 1}, not {number}",
        topic=topic.name,
        partition=number,
    )


def exists(name: str) -> TopicExists:
    """Return the error for a topic that exists already."""
    return TopicExists(f"topic {name!r} exists already", topic=name)


def check_id(topic: Topic, topic_id: str | None) -> None:
    """Raise UnknownTopic if ``topic_id`` is not this topic's, but an earlier one's of its name."""
    if topic_id is not None and topic_id != topic.id:
        raise UnknownTopic(
            f"topic {topic.name!r} was deleted and created again:"
            f" its id is {topic.id}, not {topic_id}",
            topic=topic.name,
            topic_id=topic.id,
        )


def encode(topic: Topic) -> dict[str, Any]:
    """Encode a topic for the store."""
    return stored(topic)


def decode(record: StoreRecord) -> Topic:
    """Decode the topic in a record."""
    return from_store(record, Topic)


def id_in(record: StoreRecord) -> str:
    """Return the id of the topic in a record, without decoding its schemas."""
    return str(record.value["id"])


def stored(value: msgspec.Struct) -> dict[str, Any]:
    """Encode a struct with schemas for the store."""
    fields: dict[str, Any] = msgspec.to_builtins(value, enc_hook=_schema_text)
    return fields


def from_store(record: StoreRecord, kind: type[T]) -> T:
    """Decode the struct with schemas in a record."""
    return msgspec.convert(record.value, kind, dec_hook=_schema)


def _schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()


def _schema(kind: type, text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


REMOVED: Final = "removed/"


class LeftOver(Positional, frozen=True):
    """The possible left-overs of a topic, and the brokers that may have them.

    ``cleared``: the creation was given up, for example because the maker seemed dead. Its files and
    records are removed, even if the maker had only paused and creates the topic's record later.
    ``stalled``: the maker that seemed dead, until it has restarted or left the cluster: before that
    it may continue, and create again what others removed.
    """

    topic: Topic
    brokers: tuple[BrokerId, ...]
    maker: BrokerId | None = None
    cleared: bool = False
    stalled: BrokerId | None = None


def encode_left_over(left: LeftOver) -> dict[str, Any]:
    """Encode left-overs for the store."""
    return stored(left)


def decode_left_over(record: StoreRecord) -> LeftOver:
    """Decode the left-overs in a record."""
    return from_store(record, LeftOver)


learn_types(Topic)
learn_types(LeftOver)
