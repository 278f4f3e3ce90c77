"""Handlers of calls on named consumers, groups and queries: positions and owners."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from spark_stream.access.rules import ResourceKind
from spark_stream.broker.actions.context import BrokerContext, handles
from spark_stream.cluster.consumers import Query, ReaderSession
from spark_stream.consistency.groups import Group, GroupMember, MemberAnswer, Place
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.transactions.transactions import PositionOf, ReadPosition
from spark_stream.scripts import groups, readers
from spark_stream.scripts.readers import GROUP, Named
from spark_stream.scripts.transactions import positions
from spark_stream.wire.consumer_messages import (
    CheckConsumer,
    CommitPosition,
    ConsumedPartition,
    ConsumerDescription,
    ConsumerDescriptions,
    DeleteConsumer,
    DescribedMember,
    GetPosition,
    GroupDescription,
    GroupHeartbeat,
    JoinGroup,
    LeaveGroup,
    ListConsumers,
    PinnedStart,
    PinStart,
    Positions,
    ReaderHeartbeat,
    RecordProgress,
    TakeConsumer,
    TakenPartitions,
    TakePartitions,
)

_OPTION: Final = re.compile(r"(assign|subscribe|subscribePattern) ")
_WORD: Final = re.compile(r"[A-Za-z0-9._-]+")
"""A possible name of a topic, or a part of one in a pattern."""


@handles(PinStart)
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
        readers.pin_start(asked.consumer, query, context.transactions.now_ms())
    )
    if found is None:
        return PinnedStart(selection=asked.selection, starting="")
    is_shown = found.selection == asked.selection or _may_know(context, found.selection)
    return PinnedStart(
        selection=found.selection if is_shown else "",
        starting=_starting(context, found),
        start=None if found.start is None else _start(context, found.start),
        started_ms=found.started_ms,
    )


@handles(RecordProgress)
def record_progress(context: BrokerContext, asked: RecordProgress) -> None:
    query = Query(
        asked.instance,
        asked.selection,
        asked.isolation,
        positions=tuple(asked.positions),
        principal=context.known_principal,
    )
    now_ms = context.transactions.now_ms()
    context.transactions.run(
        readers.record_progress(asked.consumer, query, now_ms, claim=asked.claim)
    )


@handles(ReaderHeartbeat)
def reader_heartbeat(context: BrokerContext, asked: ReaderHeartbeat) -> None:
    session = ReaderSession(
        asked.instance, asked.session_ms, asked.isolation, asked.idle_ms, asked.ending
    )
    claim = asked.claim or asked.kind == GROUP
    context.transactions.run(
        readers.record_heartbeat(asked.kind, asked.consumer, session, claim=claim)
    )


@handles(ListConsumers)
def list_consumers(context: BrokerContext, asked: ListConsumers) -> ConsumerDescriptions:
    found = context.transactions.run(readers.read_named())
    clients = [
        _client(context, name, positions, found) for name, positions in found.consumers.items()
    ]
    of_queries = [
        ConsumerDescription(
            name=name,
            kind="query",
            isolation=Isolation(query.isolation),
            selection=_selection(context, query),
            starting=_starting(context, query) or None,
            started_ms=query.started_ms,
            recorded_ms=query.recorded_ms,
            partitions=_partitions(context, query.positions),
            principal=query.principal,
            ending=session.ending,
            idle_ms=session.idle_ms,
        )
        for name, query in found.queries.items()
        for session in (found.session("query", name),)
    ]
    both = sorted([*clients, *of_queries], key=lambda each: (each.name, each.kind))
    return ConsumerDescriptions(
        consumers=[each for each in both if context.may_describe(ResourceKind.CONSUMER, each.name)]
    )


def _client(
    context: BrokerContext,
    name: str,
    positions: Iterable[PositionOf],
    found: Named,
) -> ConsumerDescription:
    group = found.groups.get(name)
    session = found.session(found.kind(name), name)
    members = () if group is None else group.members
    assigned = {at.place: each.id for each in members for at in each.assigned}
    return ConsumerDescription(
        name=name,
        kind="client",
        isolation=found.isolation(name),
        principal=found.owners[name],
        partitions=_partitions(context, positions, assigned),
        group=None if group is None else _described(context, group),
        ending=session.ending,
        idle_ms=found.idle_ms(name),
        lost_member=session.lost_member,
        lost_ms=session.lost_ms,
    )


def _described(context: BrokerContext, group: Group) -> GroupDescription:
    return GroupDescription(
        epoch=group.epoch,
        members=tuple(
            DescribedMember(
                id=each.id,
                topics=tuple(
                    name for name in each.topics if context.may_describe(ResourceKind.TOPIC, name)
                ),
                isolation=each.isolation,
                session_ms=each.session_ms,
                principal=each.principal,
                partitions=len(each.assigned),
            )
            for each in group.members
        ),
    )


def _selection(context: BrokerContext, query: Query) -> str | None:
    """Return the query's selection, or None if it names topics that the caller may not describe."""
    is_own = query.principal == context.caller.principal and context.caller.grants is None
    return query.selection if is_own or _may_know(context, query.selection) else None


def _may_know(context: BrokerContext, selection: str) -> bool:
    """Return whether the caller may describe each topic that a selection names.

    Each word of a pattern counts as the name of a topic.
    """
    text = _OPTION.sub("", selection, count=1)
    assigned = _json_object(text)
    names = _WORD.findall(text) if assigned is None else assigned
    return all(context.may_describe(ResourceKind.TOPIC, name) for name in names)


def _starting(context: BrokerContext, query: Query) -> str:
    """Return the requested start of the query, or an empty text if it names hidden topics."""
    named = _json_object(query.starting.partition("=")[2]) or {}
    is_known = all(context.may_describe(ResourceKind.TOPIC, name) for name in named)
    return query.starting if is_known else ""


def _start(context: BrokerContext, start: str) -> str:
    """Return a start without the topics that the caller may not describe."""
    places = _json_object(start) or {}
    shown = {
        name: place
        for name, place in places.items()
        if context.may_describe(ResourceKind.TOPIC, name)
    }
    return start if len(shown) == len(places) else json.dumps(shown)


def _json_object(text: str) -> dict[str, Any] | None:
    """Return the object of a JSON text, or None for any other text."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _partitions(
    context: BrokerContext,
    positions: Iterable[ReadPosition | PositionOf],
    readers: Mapping[Place, str] = MappingProxyType({}),
) -> tuple[ConsumedPartition, ...]:
    return tuple(
        ConsumedPartition(
            topic=each.topic,
            topic_id=each.topic_id,
            partition=each.partition,
            offset=each.offset,
            member=readers.get((each.topic_id, each.partition)),
        )
        for each in positions
        if context.may_describe(ResourceKind.TOPIC, each.topic)
    )


@handles(DeleteConsumer)
def delete_consumer(context: BrokerContext, asked: DeleteConsumer) -> None:
    context.transactions.run(readers.delete_name(asked.consumer))


@handles(TakeConsumer)
def take_consumer(context: BrokerContext, asked: TakeConsumer) -> Positions:
    script = context.transactions.consumers.take(
        asked.consumer,
        asked.instance,
        context.known_principal,
        keeps_group=asked.keeps_group,
    )
    return _shown(context, context.transactions.run(script))


@handles(CheckConsumer)
def check_consumer(context: BrokerContext, asked: CheckConsumer) -> None:
    context.transactions.run(positions.check_owners({asked.consumer: asked.instance}))


@handles(GetPosition)
def consumer_position(context: BrokerContext, asked: GetPosition) -> Positions:
    script = context.transactions.consumers.read_settled(asked.consumer)
    return _shown(context, context.transactions.run(script))


def _shown(context: BrokerContext, found: Iterable[PositionOf]) -> Positions:
    """Return the positions in topics that the caller may describe."""
    return Positions(
        positions=[each for each in found if context.may_describe(ResourceKind.TOPIC, each.topic)]
    )


@handles(CommitPosition)
def commit_position(context: BrokerContext, asked: CommitPosition) -> None:
    context.transactions.run(positions.commit_positions(asked.positions, asked.owners))


# -- groups ---------------------------------------------------------------------------------------


@handles(JoinGroup)
def join_group(context: BrokerContext, asked: JoinGroup) -> MemberAnswer:
    member = GroupMember(
        asked.member,
        tuple(sorted(set(asked.topics))),
        asked.session_ms,
        asked.isolation,
        context.known_principal,
    )
    return context.transactions.run(groups.join(asked.consumer, member))


@handles(GroupHeartbeat)
def group_heartbeat(context: BrokerContext, asked: GroupHeartbeat) -> MemberAnswer:
    script = groups.beat(asked.consumer, asked.member, asked.released, renew=asked.renew)
    return context.transactions.run(script)


@handles(LeaveGroup)
def leave_group(context: BrokerContext, asked: LeaveGroup) -> None:
    script = context.leaves.leave(asked.consumer, asked.member, hangs=asked.hangs)
    context.transactions.run(script)


@handles(TakePartitions)
def take_partitions(context: BrokerContext, asked: TakePartitions) -> TakenPartitions:
    script = groups.take_partitions(
        context.transactions.consumers, asked.consumer, asked.member, asked.assigned
    )
    found, group = context.transactions.run(script)
    added = [each for each in asked.assigned if group.is_later(each)]
    return TakenPartitions(positions=_shown(context, found).positions, added=added)
