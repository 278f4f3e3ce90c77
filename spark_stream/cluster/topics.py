"""Topics as records of the metadata store.

A topic lives under its name, and after its deletion under its id, until its files are gone::

    topics/<name>       a topic that is there
    removed/<topic id>  a topic that was deleted, and whose files may still be there

A deletion writes the second record, then deletes the first. From the second record on the topic is
deleted: whoever finds both (a broker died in between) finishes the deletion. So the name is free at
once, for a topic with another id, and no files are forgotten.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
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

    ``leader`` is the id of the broker that leads all its partitions; "" in a record of a release
    that knew one broker only.
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


def check_partitions(topic: Topic) -> None:
    """InvalidTopic for a number of partitions that no topic can have."""
    if not 1 <= topic.partitions <= PARTITIONS_MAX:
        raise InvalidTopic(
            f"a topic has 1 to {PARTITIONS_MAX} partitions, not {topic.partitions}",
            topic=topic.name,
            hint="Choose another number of partitions.",
        )


class Topics:
    """The topics of a store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def all(self) -> list[Topic]:
        """Every topic, by name."""
        return [decode(record) for record in self._store.list(TOPICS)]

    def led_by(self, broker_id: str) -> list[Topic]:
        """The topics that the broker leads, by name."""
        return [topic for topic in self.all() if topic.leader == broker_id]

    def get(self, name: str) -> Topic:
        """The topic of this name, or UnknownTopic."""
        record = self._store.get(TOPICS + name)
        if record is None:
            raise unknown(name)
        return decode(record)

    def create(self, topic: Topic) -> Topic:
        """Adds a topic, however many partitions it has, by one compare-and-set.

        Raises:
            TopicExists: there is one of this name.
        """
        check_name(topic.name)
        check_partitions(topic)
        if self._store.put(TOPICS + topic.name, encode(topic), expected=0) is None:
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
            raise unknown(old.name)
        unchanged = decode(record) == old
        if not unchanged or self._store.put(record.key, encode(new), record.version) is None:
            raise InvalidTopic(
                f"topic {old.name!r} was changed by somebody else at the same time",
                topic=old.name,
                hint="Look at it with `isolog topic describe`, then try again.",
            )
        return new

    def adopt(self, broker_id: str) -> None:
        """The broker leads the topics of a release that knew one broker only.

        For the broker whose directory holds the store: their files are there.
        """
        while unled := [each for each in self._store.list(TOPICS) if not decode(each).leader]:
            for record in unled:
                led = replace(decode(record), leader=broker_id)
                self._store.put(record.key, encode(led), record.version)

    def delete(self, name: str) -> Topic:
        """Deletes a topic: its name is free, and it is among the removed. Returns what it was.

        Raises:
            UnknownTopic: there is no such topic.
        """
        topic = self.get(name)
        self._store.put(REMOVED + topic.id, encode(topic), expected=0)  # else it is there already
        self.finish_deletion(topic)
        return topic

    def finish_deletion(self, removed: Topic) -> None:
        """Frees the name of a removed topic, if a deletion that broke off has not done so."""
        while True:
            record = self._store.get(TOPICS + removed.name)
            if record is None or decode(record).id != removed.id:
                return
            if self._store.delete(record.key, record.version):
                return

    def removed(self) -> list[Topic]:
        """The topics that were deleted and whose files may still be there, by id."""
        return [decode(record) for record in self._store.list(REMOVED)]

    def forget(self, topic_id: str) -> None:
        """Removes the last trace of a removed topic: its files are gone."""
        record = self._store.get(REMOVED + topic_id)
        if record is not None:
            self._store.delete(record.key, record.version)


def unknown(name: str) -> UnknownTopic:
    """The error for a topic that is not there."""
    return UnknownTopic(f"there is no topic {name!r}", topic=name)


def encode(topic: Topic) -> dict[str, Any]:
    """What the store holds of a topic, there or removed."""
    return {
        "name": topic.name,
        "id": topic.id,
        "schema": base64.b64encode(topic.schema.serialize()).decode(),
        "partitions": topic.partitions,
        "config": dict(topic.config),
        "leader": topic.leader,
    }


def decode(record: Record) -> Topic:
    """The topic that a record holds, there or removed."""
    value: Mapping[str, Any] = record.value
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value["schema"])))
    return Topic(
        # Records of earlier releases have neither name nor leader; and all theirs are of topics
        # that are there.
        name=str(value.get("name", record.key.removeprefix(TOPICS))),
        id=str(value["id"]),
        schema=schema,
        partitions=int(value["partitions"]),
        config={str(key): str(each) for key, each in value["config"].items()},
        leader=str(value.get("leader", "")),
    )
