"""Topics as records of the metadata store: schema, configuration, number of partitions."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from spark_stream.cluster.store import MetadataStore, Record
from spark_stream.errors import InvalidTopic, TopicExists, UnknownTopic

PARTITIONS_MAX: Final = 10_000
TOPICS: Final = "topics/"
REMOVED: Final = "removed/"
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as all brokers know it. ``config`` has what its creator set, as given.

    ``leader`` is the id of the broker that leads its partitions; "": the broker whose directory
    holds the store.
    """

    name: str
    id: str
    schema: pa.Schema
    partitions: int
    config: Mapping[str, str]
    leader: str = ""


def check_name(name: object) -> str:
    """A topic's name, or InvalidTopic; a name is also a folder's name, so it is a narrow set."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidTopic(f"{name!r} is not a topic name", topic=str(name))
    return name


class Topics:
    """The topics of a store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def all(self) -> list[Topic]:
        """Every topic, by name."""
        return [decode_topic(record) for record in self._store.list(TOPICS)]

    def get(self, name: str) -> Topic:
        """The topic of this name, or UnknownTopic."""
        record = self._store.get(TOPICS + name)
        if record is None:
            raise UnknownTopic(f"there is no topic {name!r}", topic=name)
        return decode_topic(record)

    def create(self, topic: Topic) -> Topic:
        """Adds a topic; TopicExists if there is one of this name."""
        check_name(topic.name)
        check_partitions(topic)
        if self._store.put(TOPICS + topic.name, encode_topic(topic), expected=0) is None:
            raise TopicExists(f"there is a topic {topic.name!r} already", topic=topic.name)
        return topic

    def replace(self, old: Topic, new: Topic) -> Topic:
        """Puts ``new`` in the place of ``old``, which must still be what the store has.

        Raises:
            UnknownTopic: it was deleted meanwhile.
            InvalidTopic: somebody else changed it meanwhile.
        """
        check_partitions(new)
        record = self._store.get(TOPICS + old.name)
        if record is None:
            raise UnknownTopic(f"there is no topic {old.name!r}", topic=old.name)
        unchanged = decode_topic(record) == old
        if not unchanged or self._store.put(record.key, encode_topic(new), record.version) is None:
            raise InvalidTopic(
                f"topic {old.name!r} was changed by somebody else at the same time",
                topic=old.name,
                hint="Look at it with `isolog topic describe`, then try again.",
            )
        return new

    def delete(self, name: str) -> Topic:
        """Removes the topic and returns what it was, or UnknownTopic."""
        while True:
            record = self._store.get(TOPICS + name)
            if record is None:
                raise UnknownTopic(f"there is no topic {name!r}", topic=name)
            if self._store.delete(record.key, record.version):
                return decode_topic(record)


def check_partitions(topic: Topic) -> None:
    """InvalidTopic for a number of partitions that no topic can have."""
    if not 1 <= topic.partitions <= PARTITIONS_MAX:
        raise InvalidTopic(
            f"a topic has 1 to {PARTITIONS_MAX} partitions, not {topic.partitions}",
            topic=topic.name,
            hint="Choose another number of partitions.",
        )


def encode_topic(topic: Topic) -> dict[str, Any]:
    return {
        "id": topic.id,
        "schema": base64.b64encode(topic.schema.serialize()).decode(),
        "partitions": topic.partitions,
        "config": dict(topic.config),
        "leader": topic.leader,
    }


def decode_topic(record: Record) -> Topic:
    value: Mapping[str, Any] = record.value
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value["schema"])))
    return Topic(
        name=str(value.get("name", record.key.removeprefix(TOPICS))),
        id=str(value["id"]),
        schema=schema,
        partitions=int(value["partitions"]),
        config={str(key): str(each) for key, each in value["config"].items()},
        leader=str(value.get("leader", "")),
    )
