"""Operators' requests for topics: checked and placed here. Scripts make, alter and delete.

Changes of one topic run one after the other. Changes of different topics, and everything else, do
not wait for each other. The placement of new replicas follows ``consistency.control.assignment``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from msgspec.structs import replace

from spark_stream.broker.host.host import Host
from spark_stream.broker.host.hosted_topic import HostedTopic
from spark_stream.broker.node.members import Members
from spark_stream.broker.scripting.driver import Driver
from spark_stream.broker.settings import CoreSettings
from spark_stream.cluster.brokers import BrokerState
from spark_stream.cluster.topics import Topic, check_id, check_name, check_partitions, exists
from spark_stream.cluster.view import ClusterView
from spark_stream.consistency.control import election
from spark_stream.consistency.control.assignment import (
    Misassigned,
    Misfit,
    assign,
    load_of,
    misassigned,
)
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.ids import BrokerId
from spark_stream.environment import Ids
from spark_stream.errors import (
    InvalidAssignment,
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
from spark_stream.scripts import topics as scripts
from spark_stream.scripts.steps import Script
from spark_stream.storage.settings import LogSettings, field_of, parse_settings
from spark_stream.wire.topic_messages import AlterTopic, CreateTopic

logger = logger_of(__name__)


class TopicAdmin:
    """Creation, alteration and deletion of topics, at any broker for any topic."""

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

        An error leaves no part of the topic. Raises: as :meth:`plan`.
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

    def preview(self, asked: CreateTopic) -> tuple[Topic, Sequence[PartitionRecord]]:
        """Check a new topic as :meth:`create` does, and make nothing. Return as :meth:`plan`."""
        topic, records = self.plan(asked)
        if topic.name in self._host.names():
            raise exists(topic.name)
        return topic, records

    def alter(self, asked: AlterTopic) -> HostedTopic:
        """Give a topic more partitions, other settings or its next schema: all of it, or nothing.

        Raises:
            UnknownTopic: there is no such topic.
            InvalidTopic, InvalidAssignment, InvalidConfig, SchemaMismatch, UnsupportedType: as
                :meth:`plan_change`.
        """
        change, place = self.plan_change(asked), self.plan_added(asked.assignment)
        if asked.dry_run:
            self._host.refresh()
            hosted = self._host.topic(asked.topic)
            new = change(hosted.topic)
            if new.partitions > hosted.topic.partitions:
                place(hosted.topic, new)
            return hosted
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
                    f"the assignment has {len(assignment)} new partitions, but {added} are added",
                    topic=new.name,
                    hint="Name the brokers of the added partitions only.",
                )
            return placed_by_hand(new, assignment, self._members, old.partitions)

        return place

    def plan_change(self, asked: AlterTopic) -> Callable[[Topic], Topic]:
        """Return a function that makes the changed topic from the one on record.

        It raises:
            UnknownTopic: the request is for an earlier topic of the name.
            InvalidTopic: Fewer partitions than there are, or too many. Or too many schemas.
            InvalidConfig: naming the setting.
            SchemaMismatch, UnsupportedType: as ``check_evolution``.
        """

        name, schema = asked.topic, asked.schema

        def change(old: Topic) -> Topic:
            check_id(old, asked.topic_id)
            new = replace(
                old,
                partitions=old.partitions if asked.partitions is None else asked.partitions,
                config=_without(old.config, asked.reset) | dict(asked.config),
            )
            if new.partitions < old.partitions:
                raise InvalidTopic(
                    f"topic {name!r} has {old.partitions} partitions and cannot have fewer"
                    f" ({new.partitions} requested)",
                    topic=name,
                    hint="Partitions can only be added; for fewer, make another topic.",
                )
            settings = parse_settings(new.config, self._defaults)
            columns = parse_settings(old.config, self._defaults).partition_by
            if settings.partition_by != columns:
                raise InvalidConfig(
                    f"topic {name!r} was created with {PARTITION_BY}={','.join(columns)!r}, which"
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
            self._driver.run(scripts.remove_own(topic, self._host.broker_id))

    def removing_left_overs(self, *, starts: bool = False) -> Script[list[str]]:
        """Remove the left-overs of crashes and deletions. Return the names of their topics.

        ``starts``: this broker has just started, so it is not making any topic that it announced.
        """
        removed = []
        me = self._host.broker_id
        for record in (yield from scripts.left_overs(fresh=False)):
            gone = {
                broker
                for broker in scripts.makers(record)
                if (starts if broker == me else not self._members.is_alive(broker))
            }
            lost = {
                each
                for each in (*scripts.announced_brokers(record), *scripts.makers(record))
                if self._members.get(each) is None
            }
            name = scripts.name_of(record)
            try:
                if (yield from scripts.remove_left_over(record, me, gone, lost - {me})):
                    removed.append(name)
            except StorageFailure:  # the next round retries it
                logger.exception("cannot remove all files of deleted topic %r", name)
        return removed

    @contextmanager
    def _changes(self, name: str) -> Iterator[None]:
        """Exclude other changes of the topic by this broker."""
        with self._free:
            self._free.wait_for(lambda: name not in self._changing)
            self._changing.add(name)
        try:
            yield
        finally:
            with self._free:
                self._changing.remove(name)
                self._free.notify_all()


def _without(config: Mapping[str, str], reset: Sequence[str]) -> dict[str, str]:
    """Return the settings without some names. Raise InvalidConfig for an unknown name."""
    for name in reset:
        field_of(name)
    return {name: value for name, value in config.items() if name not in reset}


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
            f"topic {topic.name!r} already had {VERSIONS_MAX} schemas, the maximum",
            topic=topic.name,
            hint="Make another topic, and copy the records.",
        )
    return replace(topic, schema=following, earlier=earlier)


FACTOR_MAX: Final = 3
"""The largest replication factor that a topic gets by default."""


def default_factor(members: Members, least: int) -> int:
    """Return the replication factor of a topic that is created without one.

    It is the number of brokers up to three. While some of them are dead, the live ones are enough,
    down to ``least``: the ``min.insync.replicas`` of the topic.
    """
    alive = len(members.takers(members.alive()))
    return min(_usual_factor(members), max(least, alive))


def _usual_factor(members: Members) -> int:
    """Return the default replication factor while all brokers are alive."""
    return min(FACTOR_MAX, max(1, members.count_staying()))


def missing_replicas_warning(topic: Topic, members: Members) -> str | None:
    """Return a warning if a new topic has fewer replicas because brokers are dead."""
    usual = _usual_factor(members)
    if topic.replication_factor >= usual:
        return None
    alive = members.alive()
    dead = [BrokerId(each.id) for each in members.brokers() if BrokerId(each.id) not in alive]
    why = _in_words(sorted(dead), "not alive") or "a broker was not alive"
    return (
        f"topic {topic.name!r} has {topic.replication_factor} of the usual {usual} replicas of each"
        f" partition ({why}): add the others with `isolog topic move` when all brokers are alive"
    )


def lone_replica_warning(topic: Topic, members: Members) -> str | None:
    """Return a warning if the topic has one replica though the cluster has several brokers."""
    brokers = members.count_staying()
    if topic.replication_factor > 1 or brokers < 2:
        return None
    return (
        f"topic {topic.name!r} has one replica of each partition, on a cluster of {brokers}"
        " brokers: while a broker is away, its partitions cannot be read or written; if its disk is"
        " lost, so are their records"
    )


def held_log_warning(topic: Topic, settings: LogSettings, *, has_lake: bool) -> str | None:
    """Return a warning if local retention waits for a lake that does not exist."""
    if has_lake or not settings.needs_table:
        return None
    return (
        f"topic {topic.name!r} has local.retention.*, and no lake has the topic: its log keeps all"
        " records until `isolog lake create`, also with retention.*"
    )


def placed(
    topic: Topic, partitions: int, view: ClusterView, members: Members
) -> Sequence[PartitionRecord]:
    """Return the first records of new partitions of the topic, spread over the brokers.

    Raises:
        InvalidAssignment: fewer brokers can take a replica than the topic has replicas.
    """
    there = [each for found in view.now.partitions.values() for each in found.values()]
    load = load_of(each.record.replicas for each in there)
    found = assign(partitions, topic.replication_factor, members.takers(members.alive()), load)
    if isinstance(found, Misassigned):
        raise _too_few(topic, found, members) or _refused(topic, found)
    return _records(topic, found, members)


def _too_few(topic: Topic, wrong: Misassigned, members: Members) -> InvalidAssignment | None:
    """Return the error that names dead and leaving brokers, or None if they are not the reason."""
    alive = members.alive()
    takers = members.takers(alive)
    others = [each for each in sorted(members.registered()) if each not in takers]
    enough = len(takers) + len(others) >= topic.replication_factor
    if wrong.why is not Misfit.TOO_MANY_REPLICAS or not others or not enough:
        return None
    dead = [each for each in others if each not in alive]
    leaving = [each for each in others if each in alive]
    why = [_in_words(dead, "not alive"), _in_words(leaving, "leaving")]
    return InvalidAssignment(
        "; ".join([f"topic {topic.name!r}: {wrong.message}", *filter(None, why)]),
        topic=topic.name,
        broker=", ".join(others),
        hint=_START if dead else _KEEP,
    )


_START: Final = "Start it again, or ask for fewer replicas and move some there when it is back."
_KEEP: Final = "Keep it (`isolog cluster recommission`), start another, or ask for fewer replicas."


def _in_words(brokers: Sequence[BrokerId], state: str) -> str:
    names = ", ".join(repr(str(each)) for each in brokers)
    if not names:
        return ""
    return f"broker {names} is {state}" if len(brokers) == 1 else f"brokers {names} are {state}"


def placed_by_hand(
    topic: Topic, assignment: Sequence[Sequence[str]], members: Members, first: int = 0
) -> Sequence[PartitionRecord]:
    """Return the first records of partitions whose brokers an operator chose.

    Raises:
        InvalidAssignment: A broker cannot be chosen. The error names it, and the partition.
    """
    wrong = misassigned(assignment, members.registered().keys(), first_partition=first)
    if wrong is not None:
        raise _refused(topic, wrong)
    _check_alive(topic, assignment, members, first)
    for number, replicas in enumerate(assignment, first):
        check_stay(topic, number, replicas, members)
    return _records(topic, [tuple(map(BrokerId, each)) for each in assignment], members)


def check_stay(topic: Topic, number: int, brokers: Iterable[str], members: Members) -> None:
    """Raise InvalidAssignment for a decommissioned broker: its replica would move away again."""
    for broker in brokers:
        found = members.get(broker)
        if found is not None and found.state is BrokerState.LEAVING:
            hint = "Name brokers that stay; `isolog cluster status` shows them."
            raise _unfit(topic, number, broker, "leaving", hint)


def _check_alive(
    topic: Topic, assignment: Sequence[Sequence[str]], members: Members, first: int
) -> None:
    """Check that all brokers are alive: each makes the topic's folder before the topic exists."""
    alive = members.alive()
    for number, replicas in enumerate(assignment, first):
        dead = next((each for each in replicas if BrokerId(each) not in alive), None)
        if dead is not None:
            hint = "Name brokers that are alive; move replicas to the other when it is back."
            raise _unfit(topic, number, dead, "not alive", hint)


def _unfit(topic: Topic, number: int, broker: str, state: str, hint: str) -> InvalidAssignment:
    return InvalidAssignment(
        f"topic {topic.name!r}: partition {number}: broker {broker!r} is {state}",
        topic=topic.name,
        partition=number,
        broker=broker,
        hint=hint,
    )


def _records(
    topic: Topic, assignment: Iterable[tuple[BrokerId, ...]], members: Members
) -> list[PartitionRecord]:
    alive = members.alive()
    records = []
    for number, replicas in enumerate(assignment):
        record = election.create(replicas, alive)
        if record is None:
            raise InvalidAssignment(
                f"topic {topic.name!r}: no broker of {', '.join(replicas)} is alive"
                f" (partition {number})",
                topic=topic.name,
                partition=number,
            )
        records.append(record)
    return records


def _refused(topic: Topic, wrong: Misassigned) -> InvalidAssignment:
    details: dict[str, Any] = {"partition": wrong.partition, "broker": wrong.broker}
    known = {name: value for name, value in details.items() if value is not None}
    hint = "Start more brokers, or ask for fewer replicas."
    return InvalidAssignment(
        f"topic {topic.name!r}: {wrong.message}",
        topic=topic.name,
        hint=hint if wrong.why is Misfit.TOO_MANY_REPLICAS else None,
        **known,
    )
