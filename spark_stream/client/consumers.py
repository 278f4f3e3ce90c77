"""Named consumers, groups and queries: lists, positions, lags, resets."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches

from msgspec import Struct, structs

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.lake_tables import LakeTables
from spark_stream.client.leaders import Partitions, describe_partitions
from spark_stream.client.reading.named_reader import check_name
from spark_stream.client.topics import Key, Place, TopicsClient, cut_of, resolve_with_lineages
from spark_stream.consistency.isolation import Isolation, lag_of
from spark_stream.consistency.replication.epochs import NO_LINEAGE, Lineage
from spark_stream.consistency.transactions.transactions import PositionOf
from spark_stream.errors import InvalidRequest, UnknownConsumer, UnknownPartition, UnknownTopic
from spark_stream.wire.consumer_messages import (
    CommitPosition,
    ConsumedPartition,
    ConsumerDescription,
    DeleteConsumer,
    ListConsumers,
    TakeConsumer,
)


class MovedPosition(Struct, frozen=True):
    """A reset of a stored position. ``before`` is None if no position was stored."""

    topic: str
    partition: int
    before: int | None
    after: int


class ResetPlan(Struct, frozen=True):
    """A planned reset of a name's positions. ``apply_reset`` carries it out."""

    name: str
    moved: list[MovedPosition]
    positions: list[PositionOf]


class ConsumersClient:
    """The consumers' names of a connection's log."""

    def __init__(
        self, connection: ClusterConnection, topics: TopicsClient, tables: LakeTables
    ) -> None:
        self._connection = connection
        self._topics = topics
        self._tables = tables

    def all(self) -> list[ConsumerDescription]:
        """Return all names, sorted, with their positions and lags."""
        return self._with_ends(self._list())

    def describe(self, name: str) -> list[ConsumerDescription]:
        """Return the consumer, group or query with this name, or raise UnknownConsumer."""
        found = [each for each in self._list() if each.name == name]
        if not found:
            raise UnknownConsumer(f"there is no consumer, group or query {name!r}", consumer=name)
        return self._with_ends(found)

    def delete(self, name: str) -> None:
        """Delete a name with its positions, or raise UnknownConsumer."""
        self._connection.call(DeleteConsumer.of(consumer=name))

    def reset(
        self,
        name: str,
        to: Place,
        topics: Sequence[str] | None,
        partitions: Collection[int] | None,
        isolation: Isolation,
        *,
        dry_run: bool,
    ) -> list[MovedPosition]:
        """Replace the stored positions, as ``Log.reset_consumer`` describes."""
        plan = self.plan_reset(name, to, topics, partitions, isolation)
        if not dry_run:
            self.apply_reset(plan)
        return plan.moved

    def plan_reset(
        self,
        name: str,
        to: Place,
        topics: Sequence[str] | None,
        partitions: Collection[int] | None,
        isolation: Isolation,
    ) -> ResetPlan:
        """Return the positions before and after a reset. Store nothing."""
        check_name(name, "name")
        before = self._stored(name, is_new=topics is not None)
        moved, positions = [], []
        for topic in sorted({place for place, _ in before}) if topics is None else topics:
            try:
                topic_id = self._topics.describe(topic).id
            except UnknownTopic:
                if topics is None:
                    continue  # it was deleted
                raise
            offsets, lineages = self._places(topic, topic_id, to, isolation)
            for number in _chosen(topic, offsets, to, partitions):
                old, new = before.get((topic, number)), offsets[number]
                at = None if old is None or old.topic_id != topic_id else old.offset
                moved.append(MovedPosition(topic, number, at, new))
                lineage = lineages.get(number, NO_LINEAGE)
                positions.append(PositionOf(name, topic, topic_id, number, new, lineage))
        return ResetPlan(name, moved, positions)

    def apply_reset(self, plan: ResetPlan, *, if_unmoved: bool = False) -> None:
        """Fence the owner of the name, and store the planned positions.

        ``if_unmoved``: store them only if each position is still the one of the plan.

        Raises:
            InvalidRequest: A position moved after the plan. Nothing is stored.
        """
        name, instance = plan.name, uuid.uuid4().hex
        take = TakeConsumer(consumer=name, instance=instance, keeps_group=True)
        stored = {
            (at.topic, at.topic_id, at.partition): at.offset
            for at in self._connection.call(take).positions
        }
        for old, new in zip(plan.moved, plan.positions, strict=True):
            found = stored.get((new.topic, new.topic_id, new.partition))
            if if_unmoved and found != old.before:
                raise InvalidRequest(
                    f"the position of {name!r} in {new.topic}/{new.partition} moved from"
                    f" {old.before} to {found} after the plan",
                    hint="Close the consumer, and plan the reset again.",
                    consumer=name,
                )
        self._connection.call(CommitPosition(positions=plan.positions, owners={name: instance}))

    def _stored(self, name: str, *, is_new: bool) -> dict[Key, ConsumedPartition]:
        """Return the stored positions. Without ``is_new`` there must be some.

        Raises:
            UnknownConsumer: No position is stored.
            InvalidRequest: A group has members, or the name is that of a query.
        """
        found = {each.kind: each for each in self._list() if each.name == name}
        client = found.get("client")
        if client is None and found:
            raise InvalidRequest(
                f"{name!r} is the name of a Spark query, whose position is in its checkpoint",
                hint="Start the query with a new checkpoint and startingOffsets.",
                consumer=name,
            )
        if client is not None and client.group is not None and client.group.members:
            raise InvalidRequest(
                f"{name!r} is a consumer group with members",
                hint="Close them. A killed member leaves when its session expires.",
                consumer=name,
            )
        partitions = () if client is None else client.partitions
        if not partitions and not is_new:
            names = {each.name for each in self._list() if each.kind == "client"}
            near = get_close_matches(name, names, 1)
            guess = f"; did you mean {near[0]!r}?" if near else ""
            raise UnknownConsumer(
                f"no position of a consumer {name!r} is stored{guess}",
                hint="Check the name, or name the topics of a new one.",
                consumer=name,
            )
        return {(each.topic, each.partition): each for each in partitions}

    def _places(
        self, topic: str, topic_id: str, to: Place, isolation: Isolation
    ) -> tuple[dict[int, int], dict[int, Lineage]]:
        """Return the offset of each partition, between the first record and the log's end."""
        if to == "latest" and isolation is Isolation.READ_ATOMIC:
            cut = cut_of(self._connection, {topic: topic_id})
            return {number: offset for (_, number), offset in cut.items()}, {}
        offsets, lineages = resolve_with_lineages(self._topics, topic, to, isolation, self._tables)
        if isinstance(to, int | Mapping):
            bounds = self._topics.offsets(topic)
            first, last = bounds.log_start_offsets, bounds.offsets
            below = {number: at for number, at in first.items() if offsets[number] < at}
            first = first | self._tables.first_offsets(self._topics.known(topic), below)
            offsets = {
                number: max(first[number], min(offset, last[number]))
                for number, offset in offsets.items()
            }
        return offsets, lineages

    def _list(self) -> list[ConsumerDescription]:
        return self._connection.call(ListConsumers()).consumers

    def _with_ends(self, found: Sequence[ConsumerDescription]) -> list[ConsumerDescription]:
        """Add the ends of the partitions, and the numbers of held-back records."""
        names = {at.topic for each in found for at in each.partitions}
        seen = describe_partitions(self._connection, sorted(names))
        return [
            structs.replace(
                each,
                partitions=tuple(_with_end(at, each.isolation, seen) for at in each.partitions),
            )
            for each in found
        ]


def _chosen(
    topic: str, known: Collection[int], to: Place, partitions: Collection[int] | None
) -> list[int]:
    """Return the partitions to reset. Raise UnknownPartition if the topic lacks one."""
    named = to if isinstance(to, Mapping) else known
    for number in () if partitions is None else partitions:
        if number not in known:
            raise UnknownPartition(
                f"topic {topic!r} has partitions 0 to {len(known) - 1}, not {number!r}",
                topic=topic,
                partition=number,
            )
    return sorted(set(named) if partitions is None else set(named) & set(partitions))


def _with_end(
    at: ConsumedPartition, isolation: Isolation | None, seen: Partitions
) -> ConsumedPartition:
    partition = seen.get(at.topic, {}).get(at.partition)
    if partition is None or partition.topic_id != at.topic_id:
        return at
    facts = partition.found.facts
    lag = lag_of(
        at.offset,
        isolation,
        partition.found.log_end_offset,
        None if facts is None else facts.high_watermark,
        None if facts is None else facts.last_stable_offset,
    )
    if lag is None:
        return at
    return structs.replace(at, end=lag.end, held_back=lag.held_back)
