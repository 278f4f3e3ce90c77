"""Operators' requests for topics: checked and placed here; scripts make, alter and delete.

Changes of one topic come one after the other; changes of different topics, and everything else,
do not wait for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from msgspec.structs import replace

from spark_stream.broker.host.host import Host
from spark_stream.broker.host.hosted import HostedTopic
from spark_stream.broker.node.members import Members
from spark_stream.broker.node.placing import default_factor, placed, placed_by_hand
from spark_stream.broker.scripting.driver import Driver
from spark_stream.broker.settings import CoreSettings
from spark_stream.cluster.topics import Topic, check_name, check_partitions
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.environment import Ids
from spark_stream.errors import (
    InvalidConfig,
    InvalidTopic,
    SchemaMismatch,
    StorageFailure,
    UnsupportedType,
)
from spark_stream.loggers import logger_of
from spark_stream.schema.evolution import VERSIONS_MAX, check_evolution
from spark_stream.schema.keys import PARTITION_BY, check_evolved_key, check_setting
from spark_stream.schema.schemas import DEFAULT_SCHEMA, of_topic, stored_schema
from spark_stream.scripts import left_overs
from spark_stream.scripts import topics as scripts
from spark_stream.scripts.steps import Script
from spark_stream.storage.settings import LogSettings, parse_settings
from spark_stream.wire.topic_messages import AlterTopic, CreateTopic

logger = logger_of(__name__)


class TopicAdmin:
    """Makes, alters and deletes topics; any broker may be asked for any topic."""

    def __init__(
        self,
        driver: Driver,
        host: Host,
        members: Members,
        settings: CoreSettings,
        ids: Ids,
    ) -> None:
        self.default_replication_factor = settings.default_replication_factor
        self._driver = driver
        self._host = host
        self._members = members
        self._defaults = settings.topic_defaults
        self._ids = ids
        self._free = threading.Condition()
        self._changing: set[str] = set()

    def create(self, asked: CreateTopic) -> HostedTopic:
        """Make a topic, or return the one that an earlier request with this token made.

        On any error nothing is left of it. Raises: as :meth:`plan`.
        """
        topic, records = self.plan(asked)
        with self._changes(topic.name):
            topic = self._driver.run(scripts.create_topic(topic, records, self._host.broker_id))
        return self._host.topic(topic.name, topic.id)

    def plan(self, asked: CreateTopic) -> tuple[Topic, Sequence[PartitionRecord]]:
        """Check a new topic. Return it, and the first records of its partitions.

        Raises:
            InvalidTopic, InvalidAssignment, InvalidConfig, SchemaMismatch: naming what is wrong.
        """
        check_name(asked.topic)
        self._host.refresh()  # a broker may have started a moment ago
        partitions, factor = asked.partitions, asked.replication_factor
        assignment = asked.assignment
        if assignment is not None:
            partitions, factor = len(assignment), len(next(iter(assignment), ()))
        elif factor is None:
            least = parse_settings(asked.config, self._defaults).min_insync_replicas
            factor = self.default_replication_factor or default_factor(self._members, least)
        topic = Topic(
            name=asked.topic,
            id=self._ids.new_id(),
            schema=stored_schema(DEFAULT_SCHEMA if asked.schema is None else asked.schema),
            partitions=partitions,
            config=asked.config,
            replication_factor=factor,
            token=asked.token,
        )
        check_partitions(topic)
        _check_key(topic, parse_settings(topic.config, self._defaults))
        if assignment is not None:
            return topic, placed_by_hand(topic, assignment, self._members)
        return topic, placed(topic, partitions, self._host.view, self._members)

    def alter(self, asked: AlterTopic) -> HostedTopic:
        """Give a topic more partitions, other settings or its next schema: all of it, or nothing.

        Raises:
            UnknownTopic: there is no such topic.
            InvalidTopic, InvalidAssignment, InvalidConfig, SchemaMismatch, UnsupportedType: as
                :meth:`plan_change`.
        """
        change, place = self.plan_change(asked), self.plan_added(asked.assignment)
        with self._changes(asked.topic):
            altered = self._driver.run(scripts.alter_topic(asked.topic, change, place))
        return self._host.topic(asked.topic, altered.id)

    def plan_added(
        self, assignment: Sequence[Sequence[str]] | None = None
    ) -> Callable[[Topic, Topic], Sequence[PartitionRecord]]:
        """Return a function that places the partitions that a topic's new form adds."""

        def place(old: Topic, new: Topic) -> Sequence[PartitionRecord]:
            added = new.partitions - old.partitions
            if assignment is None:
                return placed(new, added, self._host.view, self._members)
            if len(assignment) != added:
                raise InvalidTopic(
                    f"{len(assignment)} new partitions are assigned, and {added} are added",
                    topic=new.name,
                    hint="Name the brokers of each partition that is added, and of no other.",
                )
            return placed_by_hand(new, assignment, self._members, old.partitions)

        return place

    def plan_change(self, asked: AlterTopic) -> Callable[[Topic], Topic]:
        """Return a function that makes the changed topic from the one on record.

        It raises:
            InvalidTopic: fewer partitions than there are, or too many; too many schemas.
            InvalidConfig: naming the setting.
            SchemaMismatch, UnsupportedType: as ``check_evolution``.
        """

        name, schema = asked.topic, asked.schema

        def change(old: Topic) -> Topic:
            new = replace(
                old,
                partitions=old.partitions if asked.partitions is None else asked.partitions,
                config={**old.config, **asked.config},
            )
            if new.partitions < old.partitions:
                raise InvalidTopic(
                    f"topic {name!r} has {old.partitions} partitions and cannot have fewer"
                    f" ({new.partitions} were asked for)",
                    topic=name,
                    hint="Partitions can only be added; for fewer, make another topic.",
                )
            settings = parse_settings(new.config, self._defaults)
            columns = parse_settings(old.config, self._defaults).partition_by
            if settings.partition_by != columns:
                raise InvalidConfig(
                    f"topic {name!r} is made with {PARTITION_BY}={','.join(columns)!r}, which"
                    " cannot change",
                    hint="Make another topic with the setting, and copy the records.",
                    setting=PARTITION_BY,
                    topic=name,
                )
            check_partitions(new)
            return new if schema is None else _evolved(new, schema, columns)

        return change

    def delete(self, name: str, topic_id: str | None = None) -> None:
        """Delete a topic and its records. UnknownTopic as ``scripts.topics.delete_topic``."""
        with self._changes(name):
            topic = self._driver.run(scripts.delete_topic(name, topic_id))
            self._driver.run(left_overs.remove_own(topic, self._host.broker_id))

    def removing_left_overs(self, *, starts: bool = False) -> Script[list[str]]:
        """Remove what a crash, or a deletion, left of topics; return their names.

        ``starts``: nothing that an earlier process of this broker was making is under way.
        """
        removed = []
        me = self._host.broker_id
        for record in (yield from left_overs.left_overs(fresh=False)):
            gone = {
                broker
                for broker in left_overs.makers(record)
                if (starts if broker == me else not self._members.is_alive(broker))
            }
            lost = {
                each
                for each in (*left_overs.brokers_of(record), *left_overs.makers(record))
                if self._members.get(each) is None
            }
            name = left_overs.name_of(record)
            try:
                if (yield from left_overs.remove_left_over(record, me, gone, lost - {me})):
                    removed.append(name)
            except StorageFailure:  # the next look tries it again
                logger.exception("topic %r was deleted, and some of its files are left", name)
        return removed

    @contextmanager
    def _changes(self, name: str) -> Iterator[None]:
        """Let no other change of the topic by this broker run meanwhile."""
        with self._free:
            self._free.wait_for(lambda: name not in self._changing)
            self._changing.add(name)
        try:
            yield
        finally:
            with self._free:
                self._changing.remove(name)
                self._free.notify_all()


def _check_key(topic: Topic, settings: LogSettings) -> None:
    """Raise InvalidConfig if the topic's records cannot be placed by ``partition.by``."""
    try:
        check_setting(topic.schema, settings.partition_by)
    except (SchemaMismatch, UnsupportedType) as error:
        raise InvalidConfig(
            f"{PARTITION_BY}: {error.message}",
            hint=error.hint,
            setting=PARTITION_BY,
            column=error.details["column"],
            topic=topic.name,
        ) from None


def _evolved(topic: Topic, schema: pa.Schema, key: Sequence[str]) -> Topic:
    following = check_evolution(topic.name, topic.schema, schema)
    with of_topic(topic.name):
        check_evolved_key(topic.schema, following, key)
    earlier = (*topic.earlier, topic.schema)
    if len(earlier) >= VERSIONS_MAX:
        raise InvalidTopic(
            f"topic {topic.name!r} has had {VERSIONS_MAX} schemas, and there can be no more",
            topic=topic.name,
            hint="Make another topic, and copy the records.",
        )
    return replace(topic, schema=following, earlier=earlier)
