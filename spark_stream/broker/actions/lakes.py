"""Handlers of calls on lakes."""

from __future__ import annotations

from msgspec.structs import replace

from spark_stream.access.rules import ResourceKind
from spark_stream.broker.actions.context import BrokerContext, handles
from spark_stream.consistency.lakes import LakeDescription, LakeTopic
from spark_stream.scripts import lakes
from spark_stream.wire.lake_messages import (
    AlterLake,
    CreateLake,
    DescribeLake,
    DropLake,
    LakeList,
    ListLakes,
    RecordLakeProgress,
)


@handles(CreateLake)
def create_lake(context: BrokerContext, asked: CreateLake) -> LakeDescription:
    lake = LakeDescription(
        asked.lake,
        asked.lake_id,
        asked.location,
        tuple(LakeTopic(each, "") for each in sorted(asked.topics)),
        asked.freshness_ms,
        asked.file_bytes,
        context.transactions.now_ms(),
        iceberg=asked.iceberg,
        version_retention_ms=asked.version_retention_ms,
        file_retention_ms=asked.file_retention_ms,
    )
    return context.transactions.run(lakes.create(lake))


@handles(AlterLake)
def alter_lake(context: BrokerContext, asked: AlterLake) -> LakeDescription:
    altered = lakes.alter(
        asked.lake,
        asked.lake_id,
        asked.topics,
        asked.freshness_ms,
        asked.file_bytes,
        asked.location,
        asked.copied,
    )
    return _shown(context, context.transactions.run(altered))


@handles(ListLakes)
def list_lakes(context: BrokerContext, asked: ListLakes) -> LakeList:
    context.host.refresh()
    return LakeList(
        lakes=[
            _shown(context, lake)
            for name, lake in sorted(context.host.view.now.lakes.items())
            if context.may_describe(ResourceKind.LAKE, name)
        ]
    )


@handles(DescribeLake)
def describe_lake(context: BrokerContext, asked: DescribeLake) -> LakeDescription:
    context.host.refresh()
    found = context.host.view.now.lakes.get(asked.lake)
    if found is None:
        raise lakes.unknown(asked.lake)
    return _shown(context, found)


def _shown(context: BrokerContext, lake: LakeDescription) -> LakeDescription:
    topics = [each for each in lake.topics if context.may_describe(ResourceKind.TOPIC, each.name)]
    omitted = len(lake.topics) - len(topics)
    relation = lakes.relation_to_others(lake, context.host.view.now.lakes.values())
    shown = replace(lake, topics=tuple(topics), omitted=omitted, overlaps=relation is not None)
    if not (lake.stopped and omitted):
        return shown
    return replace(
        shown,
        stopped="the reason is hidden: you may not describe all topics of the lake",
        stopped_hint="A user who may describe all of them sees the reason.",
    )


@handles(RecordLakeProgress)
def record_lake_progress(context: BrokerContext, asked: RecordLakeProgress) -> None:
    now_ms = context.transactions.now_ms()
    more = asked.stopped, asked.stopped_hint, asked.location
    context.transactions.run(
        lakes.record_progress(asked.lake, asked.lake_id, asked.tiered, now_ms, *more)
    )


@handles(DropLake)
def drop_lake(context: BrokerContext, asked: DropLake) -> None:
    context.transactions.run(lakes.drop(asked.lake, asked.lake_id))
