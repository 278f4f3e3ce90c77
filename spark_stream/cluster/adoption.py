"""Topics of earlier releases, which had one leader for the whole topic, get records of partitions.

Each broker adopts the topics that it led, because their files are in its directory. It does so at
its start, when it knows the generation of its logs, and before it serves.

Invariant: leader epochs never fall. A broker of an earlier release led all its partitions in one
epoch, which was on a record of its own. The adopted partitions have that epoch and no leader, so
the first election begins a higher one.

Order of writes: the partitions' records, then the topic's without its leader, then the record of
the epoch goes. A broker that stops in between adopts the rest when it starts again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from spark_stream.cluster.partitions import PartitionId, put_of
from spark_stream.cluster.store import MetadataStore, Record
from spark_stream.cluster.topics import TOPICS, decode, encode
from spark_stream.consistency.ids import BrokerId, Generation, LeaderEpoch
from spark_stream.consistency.partition_record import Member, PartitionRecord

LEADERSHIP: Final = "leadership/"
"""The keys of the records of epochs: one for each broker."""
ONLY_BROKER: Final = "leadership"
"""The key of that record in releases whose stores had one broker, without an id."""


def adopt(
    store: MetadataStore,
    broker: BrokerId,
    generation: Generation,
    last: LeaderEpoch | None,
    *,
    holds_store: bool,
) -> list[str]:
    """Puts the partitions of the topics that the broker led on record; the names of the topics.

    ``last``: the greatest epoch in the broker's logs; None: they have no entry. ``holds_store``:
    the store lies in the broker's directory. So the broker also led the topics of the releases that
    knew one broker only, and named no leader.
    """
    leaders = {str(broker), ""} if holds_store else {str(broker)}
    keys = [LEADERSHIP + broker, *([ONLY_BROKER] if holds_store else [])]
    begun = [record for record in map(store.get, keys) if record is not None]
    epoch = max([last or 0, *(int(each.value["epoch"]) for each in begun)])
    record = PartitionRecord((broker,), None, LeaderEpoch(epoch), (Member(broker, generation),))
    adopted: set[str] = set()
    while mine := [each for each in store.list(TOPICS) if _leader_of(each) in leaders]:
        for found in mine:
            topic = decode(found)
            ids = [PartitionId(topic.id, number) for number in range(topic.partitions)]
            store.put_many([put_of(each, record, 0) for each in ids])
            led = store.put(found.key, encode(replace(topic, leader="")), found.version)
            adopted |= set() if led is None else {topic.name}
    for each in begun:
        store.delete(each.key, each.version)
    return sorted(adopted)


def _leader_of(record: Record) -> str | None:
    """The broker that led the topic in an earlier release; None: it is not of one."""
    if "replication_factor" in record.value and not record.value.get("leader"):
        return None
    return str(record.value.get("leader", ""))
