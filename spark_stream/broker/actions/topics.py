"""Handlers of calls on topics and on the broker itself."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from spark_stream.access.rules import Operation, Resource, ResourceKind
from spark_stream.broker.actions.context import BrokerContext, handles
from spark_stream.broker.host.host import Host
from spark_stream.broker.host.hosted_topic import HostedTopic
from spark_stream.broker.node.members import Observation
from spark_stream.broker.partition.partition import Partition
from spark_stream.broker.scripting.topics import (
    held_log_warning,
    lone_replica_warning,
    missing_replicas_warning,
)
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.entries import RecordRun, end_within, stored_bytes
from spark_stream.consistency.ids import BrokerId, Offset
from spark_stream.consistency.isolation import Bounds, Isolation, upper_bound
from spark_stream.consistency.lakes import TopicLake
from spark_stream.consistency.replication.follower import NOWHERE, Spot, nearest
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.errors import (
    InvalidRequest,
    IsologError,
    LeaderEpochFenced,
    NotLeader,
    UnknownPartition,
    UnknownTopic,
)
from spark_stream.scripts.partition_records import trim
from spark_stream.scripts.steps import Describe, Described, together
from spark_stream.storage.settings import shown_settings
from spark_stream.wire.cluster_messages import BrokerAddress
from spark_stream.wire.messages import EARLIEST
from spark_stream.wire.topic_messages import (
    STATES_MAX,
    AlterTopic,
    AskedTopic,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    FindLeaders,
    LeaderFacts,
    Leaders,
    ListedOffsets,
    ListOffsets,
    ListTopics,
    PartitionDescription,
    PartitionOffset,
    PartitionOffsets,
    TopicDescription,
    TopicNames,
    Trimmed,
    TrimTopic,
)


@handles(CreateTopic)
def create_topic(context: BrokerContext, asked: CreateTopic) -> TopicDescription:
    if asked.dry_run:
        return _planned(context, *context.topics.preview(asked))
    hosted = context.topics.create(asked)
    described = _described(context, hosted)
    chosen = (asked.replication_factor, asked.assignment, context.topics.default_replication_factor)
    if any(each is not None for each in chosen):
        return described
    missing = missing_replicas_warning(hosted.topic, context.members)
    if missing is None:
        return described
    return structs.replace(described, warning=_joined(missing, _held_warning(context, hosted)))


@handles(AlterTopic)
def alter_topic(context: BrokerContext, asked: AlterTopic) -> TopicDescription:
    return _described(context, context.topics.alter(asked))


@handles(DeleteTopic)
def delete_topic(context: BrokerContext, asked: DeleteTopic) -> None:
    context.topics.delete(asked.topic, asked.topic_id)


@handles(TrimTopic)
def trim_topic(context: BrokerContext, asked: TrimTopic) -> Trimmed:
    context.host.refresh()  # another broker may have added a partition a moment ago
    hosted = context.host.topic(asked.topic, asked.topic_id)
    for number in asked.before:
        hosted.check_number(number)
    starts = context.transactions.run(
        trim(hosted.topic, asked.before, context.host.view_of, dry_run=asked.dry_run)
    )
    return Trimmed(log_starts=starts)


@handles(DescribeTopic)
def describe_topic(context: BrokerContext, asked: DescribeTopic) -> TopicDescription:
    context.host.contact.try_refresh()  # another broker may have changed it a moment ago
    return _described(context, context.host.topic(asked.topic))


@handles(ListTopics)
def list_topics(context: BrokerContext, asked: ListTopics) -> TopicNames:
    context.host.contact.try_refresh()
    operation = Operation.READ if asked.readable else Operation.DESCRIBE
    return TopicNames(topics=context.topic_names(operation))


@handles(ListOffsets)
def list_offsets(context: BrokerContext, asked: ListOffsets) -> ListedOffsets:
    found: dict[str, PartitionOffsets] = {}
    unknown: dict[str, IsologError] = {}
    if asked.names:
        context.host.contact.try_refresh()  # another broker may have made a topic a moment ago
    for each in asked.topics:
        try:
            need = Operation.DESCRIBE, Resource(ResourceKind.TOPIC, each.topic)
            context.authorizer.check(context.caller, [need])
            found[each.topic] = _offsets(context, each)
        except UnknownTopic as error:
            unknown[each.topic] = error
    names = context.topic_names(Operation.READ) if asked.names else None
    return ListedOffsets(topics=found, unknown=unknown, names=names)


def _offsets(context: BrokerContext, asked: AskedTopic) -> PartitionOffsets:
    """Return the offsets of the partitions that this broker leads, and the leaders of the others.

    Raises:
        UnknownTopic, UnknownPartition: There is no such topic or partition.
        IsologError: A partition has no leader, or cannot be opened. A request for ``facts`` is for
            a view. It gets such a partition in ``elsewhere``, so that it hides no other one.
    """
    hosted = context.host.topic(asked.topic)
    numbers = range(hosted.topic.partitions) if asked.partitions is None else asked.partitions
    found: dict[int, PartitionOffset] = {}
    elsewhere: list[int] = []
    for number in numbers:
        try:
            found[number] = _offset(hosted.partition(number), asked)
        except (NotLeader, LeaderEpochFenced):
            elsewhere.append(number)
        except (UnknownPartition, UnknownTopic):
            raise
        except IsologError:
            if not asked.facts:  # a reader needs all partitions, and retries
                raise
            elsewhere.append(number)
    now = context.host.topic(asked.topic, hosted.topic.id).topic  # after the offsets
    return PartitionOffsets(
        topic_id=now.id,
        partitions=found,
        elsewhere=leaders_of(context.host, now, elsewhere),
        schema_version=len(now.earlier) if asked.schema_version else 0,
    )


def _described(context: BrokerContext, hosted: HostedTopic) -> TopicDescription:
    topic = hosted.topic
    places = [Joined(topic.name, topic.id, number) for number in range(topic.partitions)]
    answers = context.transactions.run(together(Describe(at) for at in places))
    for answer in answers:
        if isinstance(answer, UnknownTopic):  # it was deleted in the meantime
            raise answer
    observed = context.observer.observe()
    return TopicDescription(
        name=topic.name,
        id=topic.id,
        schema=topic.schema,
        config=shown_settings(hosted.settings),
        replication_factor=topic.replication_factor,
        warning=_joined(
            lone_replica_warning(topic, context.members), _held_warning(context, hosted)
        ),
        schema_version=len(topic.earlier),
        lakes=_lakes_of(context, topic),
        overrides=tuple(sorted(topic.config)),
        added=tuple(topic.schema.names[len((*topic.earlier, topic.schema)[0]) :]),
        partitions=tuple(
            partition_facts(
                number, _observed_record(context, observed, topic, number, answer), answer
            )
            for number, answer in enumerate(answers)
        ),
    )


def _planned(
    context: BrokerContext, topic: Topic, records: Iterable[PartitionRecord]
) -> TopicDescription:
    return TopicDescription(
        name=topic.name,
        id=topic.id,
        schema=topic.schema,
        config=shown_settings(context.host.settings_of(topic)),
        replication_factor=topic.replication_factor,
        warning=lone_replica_warning(topic, context.members),
        partitions=tuple(_without_facts(*each) for each in enumerate(records)),
        overrides=tuple(sorted(topic.config)),
    )


def _held_warning(context: BrokerContext, hosted: HostedTopic) -> str | None:
    topic, lakes = hosted.topic, context.host.view.now.lakes.values()
    has_lake = any(each.id == topic.id for lake in lakes for each in lake.topics)
    return held_log_warning(topic, hosted.settings, has_lake=has_lake)


def _joined(*warnings: str | None) -> str | None:
    return ". ".join(each for each in warnings if each) or None


def _lakes_of(context: BrokerContext, topic: Topic) -> tuple[TopicLake, ...]:
    """Return the lakes of a topic. A reader of the topic needs all, to find removed records."""
    reads = context.may(Operation.READ, ResourceKind.TOPIC, topic.name)
    return tuple(
        TopicLake(lake.name, lake.id, lake.location, each.tiered, lake.recorded_ms)
        for lake in context.host.view.now.lakes.values()
        for each in lake.topics
        if each.id == topic.id and (reads or context.may_describe(ResourceKind.LAKE, lake.name))
    )


def _observed_record(
    context: BrokerContext,
    observed: Observation,
    topic: Topic,
    number: int,
    answer: Described | IsologError,
) -> PartitionRecord | None:
    """Return the partition's record, without its leader if that one neither leads nor answered."""
    record = context.host.record(topic, number)
    if record is None or not isinstance(answer, IsologError):
        return record
    return (
        record if observed.leads(topic.id, number, record) else structs.replace(record, leader=None)
    )


def partition_facts(
    number: int, record: PartitionRecord | None, answer: Described | IsologError
) -> PartitionDescription:
    """Return a partition as its leader has described it, or the error of that request."""
    described = _without_facts(number, record)
    if isinstance(answer, IsologError):
        return structs.replace(described, error=answer)
    seen = answer.bounds
    return structs.replace(
        described,
        leader_epoch=int(answer.leader_epoch),
        log_start_offset=seen.log_start_offset,
        log_end_offset=seen.log_end_offset,
        high_watermark=seen.high_watermark if answer.hw_known else None,
        last_stable_offset=seen.last_stable_offset if answer.hw_known else None,
        size=answer.size,
        open_transactions=answer.open_transactions,
        lag={
            str(broker): max(0, int(answer.log_end) - int(entry))
            for broker, entry in answer.followers.items()
        },
    )


def _without_facts(number: int, record: PartitionRecord | None) -> PartitionDescription:
    """Return the part of a partition's description that is on record."""
    return PartitionDescription(
        partition=number,
        leader=None if record is None else record.leader,
        leader_epoch=0 if record is None else int(record.leader_epoch),
        replicas=() if record is None else record.replicas,
        isr=() if record is None else tuple(each.broker for each in record.isr),
        adding=() if record is None else record.adding,
        removing=() if record is None else record.removing,
        log_start_offset=None,
        log_end_offset=None,
        high_watermark=None,
        last_stable_offset=None,
        size=None,
        open_transactions=None,
    )


def _offset(partition: Partition, asked: AskedTopic) -> PartitionOffset:
    """Return the requested facts about a partition, all of one leader epoch.

    Raises:
        NotLeader, LeaderEpochFenced: Another epoch began during the call.
    """
    number, epoch = partition.number, int(partition.leader_epoch)
    facts = partition.facts() if asked.facts else None
    if asked.isolation is not Isolation.READ_UNCOMMITTED:
        partition.check_hw_known()
    bounds = partition.bounds(asked.isolation)
    # From the same bounds: an offset above the log end would look like a truncated one.
    offset = _place(partition, asked, bounds)
    if facts is not None and facts.high_watermark is not None:
        # All bounds are of one observation, with the start and the end of the log.
        facts = structs.replace(
            facts,
            high_watermark=int(bounds.high_watermark),
            last_stable_offset=int(bounds.last_stable_offset),
        )
    reading = asked.ranges.get(number)
    found = PartitionOffset(
        offset=int(offset),
        epoch=epoch,
        log_start_offset=int(bounds.log_start_offset),
        log_end_offset=int(bounds.log_end_offset),
        lineage=partition.lineage(offset),
        surviving=tuple(
            (each, int(partition.surviving(each))) for each in asked.lineages.get(number, ())
        ),
        uncommitted=reading is not None and partition.shows_uncommitted(*map(Offset, reading)),
        size=_size(partition, asked.sizes.get(number)),
        reached=_reached(partition, asked.budgets.get(number)),
        states=_states(partition, asked.states.get(number)),
        facts=facts,
    )
    partition.check_leads()
    partition.check_leader_epoch(epoch)
    return found


def _place(partition: Partition, asked: AskedTopic, bounds: Bounds) -> Offset:
    limit = upper_bound(bounds, asked.isolation)
    if asked.timestamp is not None:
        found = partition.log.offset_at(asked.timestamp, bounds.log_start_offset)
        return limit if found is None else min(found, limit)
    return bounds.log_start_offset if asked.at == EARLIEST else limit


def _size(partition: Partition, asked: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return the stored bytes of a range, and those of its first record."""
    if asked is None:
        return None
    tables, (start, end) = partition.log.tables(), asked
    first = max(start, int(partition.bounds().log_start_offset))
    return stored_bytes(tables, start, end), stored_bytes(tables, first, min(end, first + 1))


def _reached(partition: Partition, asked: tuple[int, int, int] | None) -> int | None:
    return None if asked is None else int(end_within(partition.log.tables(), *asked))


def _states(partition: Partition, asked: tuple[int, int] | None) -> tuple[RecordRun, ...]:
    if asked is None:
        return ()
    start, end = asked
    if end - start > STATES_MAX:
        raise InvalidRequest(f"too many records: states of at most {STATES_MAX}, not {end - start}")
    return tuple(partition.record_states(start, end))


@handles(FindLeaders)
def find_leaders(context: BrokerContext, asked: FindLeaders) -> Leaders:
    context.host.contact.check_may_answer()  # otherwise another broker has to answer
    topic = context.host.find(asked.topic, asked.topic_id)
    reader, numbers = Spot(asked.rack, asked.machine), range(topic.partitions)
    return Leaders(topic_id=topic.id, partitions=leaders_of(context.host, topic, numbers, reader))


def leaders_of(
    host: Host, topic: Topic, numbers: Iterable[int], reader: Spot = NOWHERE
) -> list[LeaderFacts]:
    """Return the leaders of these partitions, and near replicas, in this broker's view."""
    brokers = host.view.now.brokers
    spots = {BrokerId(each.id): Spot(each.rack, each.boot_id) for each in brokers.values()}

    def near(record: PartitionRecord | None) -> BrokerAddress | None:
        follower = None if record is None else nearest(record, spots, reader)
        known = None if follower is None else brokers.get(follower)
        return None if known is None else BrokerAddress(id=known.id, address=known.address)

    found = []
    for number in numbers:
        record = host.record(topic, number)
        leader = None if record is None else record.leader
        known = None if leader is None else brokers.get(leader)
        found.append(
            LeaderFacts(
                partition=number,
                leader=leader,
                address="" if known is None else known.address,
                leader_epoch=None if record is None else int(record.leader_epoch),
                near=near(record),
            )
        )
    return found
