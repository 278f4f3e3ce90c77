"""Actions on named consumers: their positions and owners, and the queries that have a name."""

from __future__ import annotations

from collections.abc import Iterable

from spark_stream.access.rules import ResourceKind
from spark_stream.broker.actions.context import BrokerContext
from spark_stream.cluster.consumers import Query
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.transactions.transactions import PositionOf, ReadPosition
from spark_stream.scripts import queries
from spark_stream.scripts.transactions import consumers, positions
from spark_stream.wire.consumer_messages import (
    ConsumedPartition,
    ConsumerDescription,
    ConsumerDescriptions,
    PinnedStart,
    PinStart,
    RecordProgress,
)
from spark_stream.wire.messages import Empty
from spark_stream.wire.transaction_messages import NamedConsumer, OwnedConsumer, Positions


def pin_start(context: BrokerContext, asked: PinStart) -> PinnedStart:
    query = Query(
        asked.instance,
        asked.selection,
        asked.isolation,
        asked.starting,
        asked.start,
        principal=context.known_principal,
    )
    found = context.transactions.run(
        queries.pin_start(asked.consumer, query, context.transactions.now_ms())
    )
    if found is None:
        return PinnedStart(selection=asked.selection, starting="")
    return PinnedStart(
        selection=found.selection,
        starting=found.starting,
        start=found.start,
        started_ms=found.started_ms,
    )


def record_progress(context: BrokerContext, asked: RecordProgress) -> Empty:
    query = Query(
        asked.instance,
        asked.selection,
        asked.isolation,
        positions=tuple(asked.positions),
        principal=context.known_principal,
    )
    now_ms = context.transactions.now_ms()
    context.transactions.run(
        queries.record_progress(asked.consumer, query, now_ms, claim=asked.claim)
    )
    return Empty()


def list_consumers(context: BrokerContext, asked: Empty) -> ConsumerDescriptions:
    found = context.transactions.run(queries.read_named())
    clients = [
        ConsumerDescription(
            name=name,
            kind="client",
            partitions=_partitions(context, positions),
            principal=found.owners[name],
        )
        for name, positions in found.consumers.items()
    ]
    of_queries = [
        ConsumerDescription(
            name=name,
            kind="query",
            isolation=Isolation(query.isolation),
            selection=query.selection,
            starting=query.starting or None,
            started_ms=query.started_ms,
            recorded_ms=query.recorded_ms,
            partitions=_partitions(context, query.positions),
            principal=query.principal,
        )
        for name, query in found.queries.items()
    ]
    both = sorted([*clients, *of_queries], key=lambda each: (each.name, each.kind))
    return ConsumerDescriptions(
        consumers=[each for each in both if context.may_describe(ResourceKind.CONSUMER, each.name)]
    )


def _partitions(
    context: BrokerContext,
    positions: Iterable[ReadPosition | PositionOf],
) -> tuple[ConsumedPartition, ...]:
    return tuple(
        ConsumedPartition(
            topic=each.topic,
            topic_id=each.topic_id,
            partition=each.partition,
            offset=each.offset,
        )
        for each in positions
        if context.may_describe(ResourceKind.TOPIC, each.topic)
    )


def delete_consumer(context: BrokerContext, asked: NamedConsumer) -> Empty:
    context.transactions.run(queries.forget_name(asked.consumer))
    return Empty()


def take_consumer(context: BrokerContext, asked: OwnedConsumer) -> Positions:
    script = consumers.take_consumer(
        context.transactions.finished, asked.consumer, asked.instance, context.known_principal
    )
    return Positions(positions=context.transactions.run(script))


def check_consumer(context: BrokerContext, asked: OwnedConsumer) -> Empty:
    context.transactions.run(positions.check_owners({asked.consumer: asked.instance}))
    return Empty()


def consumer_position(context: BrokerContext, asked: NamedConsumer) -> Positions:
    script = consumers.go_on(context.transactions.finished, asked.consumer)
    found = context.transactions.run(script)
    return Positions(
        positions=[each for each in found if context.may_describe(ResourceKind.TOPIC, each.topic)]
    )


def commit_position(context: BrokerContext, asked: Positions) -> Empty:
    context.transactions.run(positions.store_positions(asked.positions, asked.owners))
    return Empty()
