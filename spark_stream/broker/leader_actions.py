"""DoActions about brokers, and about who leads what: any broker answers them."""

from __future__ import annotations

from collections.abc import Iterable

from spark_stream.broker.here import Here
from spark_stream.broker.partition import Partition
from spark_stream.cluster.topics import Topic
from spark_stream.wire.messages import (
    BrokerAddress,
    BrokerList,
    Empty,
    FindLeaders,
    LeaderFacts,
    Leaders,
)


def find_leaders(here: Here, asked: FindLeaders) -> Leaders:
    topic = here.host.find(asked.topic, asked.topic_id)
    return Leaders(topic_id=topic.id, partitions=leaders_of(here, topic, range(topic.partitions)))


def list_brokers(here: Here, asked: Empty) -> BrokerList:
    found = here.host.brokers.all()
    return BrokerList(brokers=[BrokerAddress(id=each.id, address=each.address) for each in found])


def leaders_of(here: Here, topic: Topic, numbers: Iterable[int]) -> list[LeaderFacts]:
    """Who leads these partitions of the topic; epochs where this broker knows them."""
    host = here.host
    if not host.leads(topic):
        leader = host.brokers.get(topic.leader)
        address = "" if leader is None else leader.address
        return [
            LeaderFacts(partition=each, leader=topic.leader, address=address) for each in numbers
        ]
    hosted = host.topic(topic.name, topic.id)
    found = []
    for number in numbers:
        partition = hosted.partitions[number]
        epoch = int(partition.leader_epoch) if isinstance(partition, Partition) else None
        found.append(
            LeaderFacts(
                partition=number,
                leader=host.broker_id,
                address=here.facts.address,
                leader_epoch=epoch,
            )
        )
    return found
