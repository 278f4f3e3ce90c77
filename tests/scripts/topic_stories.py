"""Topics on the brokers of a store, for tests of scripts: their brokers, and their left-overs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from msgspec.structs import replace

from spark_stream.cluster.partitions import PARTITIONS, Partitions
from spark_stream.cluster.stores.store import MetadataStore
from spark_stream.cluster.topics import REMOVED, Topic, Topics
from spark_stream.consistency.control import election
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.ids import BrokerId, Generation
from spark_stream.scripts.steps import Script
from spark_stream.scripts.topics import create_topic, left_overs, makers, remove_left_over
from tests.scripts.on_store import OnStore

B1, B2, B3 = (BrokerId(each) for each in ("b1", "b2", "b3"))
ALIVE = {each: Generation(f"{each}-first") for each in (B1, B2, B3)}
ASSIGNMENT = ((B1, B2), (B2, B1), (B1,), (B2,))

MADE = Topic("flights", "id1", pa.schema([("id", pa.int64())]), 4, {"segment.ms": "1000"})
LATER = replace(MADE, id="id2", partitions=1)
STEPS = range(20)  # more than any script of topics takes


def placed(*assignment: Sequence[BrokerId]) -> list[PartitionRecord]:
    """The first records of partitions that are on these brokers."""
    made = [election.create(replicas, ALIVE) for replicas in assignment]
    return [each for each in made if each is not None]


def creation(topic: Topic, maker: BrokerId = B1) -> Script[None]:
    """Make the topic on two brokers."""
    wanted = [ASSIGNMENT[number % 4] for number in range(topic.partitions)]
    return create_topic(topic, placed(*wanted), maker)


def sweep(on: OnStore, *gone: BrokerId, starts: bool = False) -> None:
    """A broker's round over the left-overs of topics, at its start or later.

    ``gone``: the brokers that it believes dead.
    """
    mine = {on.broker} if starts else set()
    for record in on.run(left_overs()):
        over = {each for each in makers(record) if each in {*gone, *mine}}
        on.run(remove_left_over(record, on.broker, over))


def put_anew(store: MetadataStore, topic: Topic) -> None:
    """Rewrite the records of a topic's partitions, so that compare-and-sets on them fail."""
    for each in store.list(f"{PARTITIONS}{topic.id}/"):
        store.put(each.key, each.value, each.version)


def folders(*topics: Topic) -> set[tuple[str, str]]:
    """The brokers with folders of topics that :func:`creation` made."""
    found = set()
    for topic in topics:
        for number in range(topic.partitions):
            found |= {(str(broker), topic.id) for broker in ASSIGNMENT[number % 4]}
    return found


def is_whole(on: OnStore) -> bool:
    """Return whether each existing topic has all its parts, and there are no others."""
    there = Topics(on.store).all()
    numbers = {topic.id: topic.partitions for topic in there}
    recorded = {topic.id: len(Partitions(on.store).of_topic(topic.id)) for topic in there}
    return (
        on.folders == folders(*there)
        and recorded == numbers
        and len(on.store.list(PARTITIONS)) == sum(numbers.values())
    )


def announced(store: MetadataStore) -> list[str]:
    """The ids of the topics that are announced as left over."""
    return [each.key.removeprefix(REMOVED) for each in store.list(REMOVED)]


def everybody_looks(on: OnStore, first: str = B1) -> None:
    """The broker of the request has died and starts again. The other one, and b3, stay alive.

    ``first``: the first broker to run its round.
    """
    brokers = {B1: on.other(B1), B2: on.other(B2), B3: on.other(B3)}
    for broker in (first, *brokers, *brokers):
        sweep(brokers[broker], B1, starts=broker == B1)


def grow(partitions: int) -> Callable[[Topic], Topic]:
    """A change of a topic to so many partitions."""
    return lambda old: replace(old, partitions=partitions)


def added(old: Topic, new: Topic) -> list[PartitionRecord]:
    """New partitions are at the brokers of a creation."""
    return placed(*(ASSIGNMENT[number % 4] for number in range(old.partitions, new.partitions)))


def on_third(old: Topic, new: Topic) -> list[PartitionRecord]:
    """New partitions are on a broker that had no replica of the topic."""
    return placed(*([(B3,)] * (new.partitions - old.partitions)))
