"""DoActions about brokers, and about who leads what: any broker answers them."""

from __future__ import annotations

from collections.abc import Iterable

from spark_stream.broker.actions.context import BrokerContext
from spark_stream.broker.host.host import Host
from spark_stream.cluster.topics import Topic
from spark_stream.wire.messages import (
    BrokerAddress,
    BrokerList,
    Empty,
    FindLeaders,
    LeaderFacts,
    Leaders,
)


def find_leaders(context: BrokerContext, asked: FindLeaders) -> Leaders:
    topic = context.host.find(asked.topic, asked.topic_id)
    return Leaders(
        topic_id=topic.id, partitions=leaders_of(context.host, topic, range(topic.partitions))
    )


def list_brokers(context: BrokerContext, asked: Empty) -> BrokerList:
    found = context.host.view.now.brokers.values()
    return BrokerList(brokers=[BrokerAddress(id=each.id, address=each.address) for each in found])


def leaders_of(host: Host, topic: Topic, numbers: Iterable[int]) -> list[LeaderFacts]:
    """Return who leads these partitions of the topic, as this broker sees it."""
    brokers = host.view.now.brokers
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
            )
        )
    return found
