"""Topics as operators ask for them: checked here, made, altered and deleted by scripts.

Changes of one topic come one after the other; changes of different topics, and everything else,
do not wait for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from spark_stream.broker.driver import Driver
from spark_stream.broker.host import Host, HostedTopic
from spark_stream.cluster.topics import Topic, check_name, check_partitions, decode
from spark_stream.environment import Ids
from spark_stream.errors import InvalidConfig, InvalidTopic
from spark_stream.scripts import topics as scripts
from spark_stream.scripts.steps import Script
from spark_stream.storage.settings import LogSettings, parse_settings
from spark_stream.wire.schemas import check_topic_schema


class TopicDesk:
    """Makes, alters and deletes the topics that this broker leads."""

    def __init__(self, driver: Driver, host: Host, defaults: LogSettings, ids: Ids) -> None:
        self._driver = driver
        self._host = host
        self._defaults = defaults
        self._ids = ids
        self._free = threading.Condition()
        self._changing: set[str] = set()

    def create(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        schema: pa.Schema,
        config: Mapping[str, Any],
    ) -> HostedTopic:
        """Makes a topic that this broker leads; on any error nothing is left of it."""
        topic = self.plan(name, partitions, replication_factor, schema, config)
        with self._changes(name):
            self._driver.run(scripts.create_topic(topic))
        return self._host.topic(name, topic.id)

    def plan(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        schema: pa.Schema,
        config: Mapping[str, Any],
    ) -> Topic:
        """The topic as it is to be, checked.

        Raises:
            InvalidTopic, InvalidConfig, SchemaMismatch: naming what is wrong.
        """
        check_name(name)
        if replication_factor != 1:
            raise InvalidConfig(
                f"a replication factor of {replication_factor}: partitions are not replicated yet",
                setting="replication_factor",
                hint="Give 1, or leave it out.",
            )
        topic = Topic(
            name=name,
            id=self._ids.new_id(),
            schema=check_topic_schema(schema),
            partitions=partitions,
            config={key: str(value) for key, value in config.items()},
            leader=self._host.broker_id,
        )
        check_partitions(topic)
        parse_settings(topic.config, self._defaults)
        return topic

    def alter(self, name: str, partitions: int | None, config: Mapping[str, Any]) -> HostedTopic:
        """Gives a topic more partitions, and other settings; on any error it stays as it was.

        Raises:
            UnknownTopic, NotLeader: there is no such topic; another broker leads it.
            InvalidTopic, InvalidConfig: as :meth:`plan_change`.
        """
        change = self.plan_change(name, partitions, config)
        with self._changes(name):
            self._host.topic(name)
            altered = self._driver.run(scripts.alter_topic(name, change))
        return self._host.topic(name, altered.id)

    def plan_change(
        self, name: str, partitions: int | None, config: Mapping[str, Any]
    ) -> Callable[[Topic], Topic]:
        """What becomes of the topic as it is found then.

        It raises:
            InvalidTopic: fewer partitions than there are, or too many.
            InvalidConfig: naming the setting.
        """

        def change(old: Topic) -> Topic:
            new = replace(
                old,
                partitions=old.partitions if partitions is None else partitions,
                config={**old.config, **{key: str(value) for key, value in config.items()}},
            )
            if new.partitions < old.partitions:
                raise InvalidTopic(
                    f"topic {name!r} has {old.partitions} partitions and cannot have fewer"
                    f" ({new.partitions} were asked for)",
                    topic=name,
                    hint="Partitions can only be added; for fewer, make another topic.",
                )
            parse_settings(new.config, self._defaults)
            check_partitions(new)
            return new

        return change

    def delete(self, name: str) -> None:
        """Deletes a topic and its records.

        Raises:
            UnknownTopic, NotLeader: there is no such topic; another broker leads it.
        """
        with self._changes(name):
            self._host.topic(name)
            self._driver.run(scripts.delete_topic(name))

    def remove_left_overs(self) -> list[str]:
        """Removes what a crash left of this broker's topics; the folders' topics."""
        return self._driver.run(self.removing_left_overs())

    def removing_left_overs(self) -> Script[list[str]]:
        """What :meth:`remove_left_overs` does, step by step."""
        removed = []
        for record in (yield from scripts.left_overs()):
            topic = decode(record)
            if self._host.leads(topic) and (yield from scripts.remove_left_over(record)):
                removed.append(topic.name)
        return removed

    @contextmanager
    def _changes(self, name: str) -> Iterator[None]:
        """No other change of the topic by this broker meanwhile."""
        with self._free:
            self._free.wait_for(lambda: name not in self._changing)
            self._changing.add(name)
        try:
            yield
        finally:
            with self._free:
                self._changing.remove(name)
                self._free.notify_all()
