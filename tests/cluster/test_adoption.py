"""Topics that an earlier release led as a whole become partitions, and no epoch falls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from spark_stream.cluster.adoption import LEADERSHIP, ONLY_BROKER, adopt
from spark_stream.cluster.partitions import Partitions
from spark_stream.cluster.store import MetadataStore
from spark_stream.cluster.topics import TOPICS, Topic, Topics, encode
from spark_stream.consistency.ids import BrokerId, Generation, LeaderEpoch
from spark_stream.consistency.partition_record import Member, PartitionRecord
from spark_stream.testing.simulation.store import MemoryRecords, MemoryStore

B1, B2, G = BrokerId("b1"), BrokerId("b2"), Generation("g1")
SCHEMA = pa.schema([pa.field("n", pa.int64())])


def earlier(store: MetadataStore, name: str, partitions: int, leader: str | None) -> None:
    """A topic's record as an earlier release wrote it; None: it knew no leader."""
    value = encode(Topic(name, f"id-{name}", SCHEMA, partitions, {}, leader or ""))
    del value["replication_factor"]
    if leader is None:
        del value["name"]
    assert store.put(TOPICS + name, value, 0)


def led(store: MetadataStore, broker: str, epoch: int, ends: str | None = None) -> None:
    assert store.put(LEADERSHIP + broker, {"epoch": epoch, "ends": ends}, 0)


def adopted(epoch: int, broker: BrokerId = B1) -> PartitionRecord:
    return PartitionRecord((broker,), None, LeaderEpoch(epoch), (Member(broker, G),))


def partitions(store: MetadataStore, name: str) -> list[PartitionRecord]:
    return [each.record for each in Partitions(store).of_topic(f"id-{name}")]


def test_a_broker_adopts_the_topics_that_it_led(store):
    earlier(store, "mine", 3, "b1")
    earlier(store, "others", 2, "b2")
    led(store, "b1", 7)
    led(store, "b2", 9)
    assert adopt(store, B1, G, LeaderEpoch(5), holds_store=False) == ["mine"]
    assert partitions(store, "mine") == [adopted(7)] * 3
    assert partitions(store, "others") == []
    topic = Topics(store).get("mine")
    assert (topic.leader, topic.replication_factor, topic.partitions) == ("", 1, 3)
    assert Topics(store).get("others").leader == "b2"
    assert adopt(store, B2, G, None, holds_store=False) == ["others"]
    assert partitions(store, "others") == [adopted(9, B2)] * 2
    assert store.list(LEADERSHIP) == []


def test_who_holds_the_store_adopts_topics_without_a_leader(store):
    earlier(store, "old", 2, None)
    assert store.put(ONLY_BROKER, {"epoch": 4, "ends": "ten"}, 0)
    assert adopt(store, B2, G, None, holds_store=False) == []
    assert adopt(store, B1, G, None, holds_store=True) == ["old"]
    assert partitions(store, "old") == [adopted(4)] * 2
    assert store.get(ONLY_BROKER) is None


def test_the_epoch_is_never_below_that_of_the_logs(store):
    """A release without epochs has no record of them; or the store is an older copy."""
    earlier(store, "old", 1, "b1")
    adopt(store, B1, G, LeaderEpoch(6), holds_store=True)
    assert partitions(store, "old") == [adopted(6)]


def test_topics_of_this_release_are_left_alone(store):
    value = encode(Topic("new", "id-new", SCHEMA, 1, {}, replication_factor=3))
    version = store.put(TOPICS + "new", value, 0)
    assert adopt(store, B1, G, None, holds_store=True) == []
    assert store.get(TOPICS + "new").version == version
    assert partitions(store, "new") == []


class Stopped(Exception):
    pass


class StoppingStore(MemoryStore):
    """Its broker ends before one of its changes."""

    def __init__(self, records: MemoryRecords, changes: int) -> None:
        super().__init__(records)
        self._left = changes

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Stopped

    def put(self, key: str, value: Mapping[str, Any], expected: int) -> int | None:
        self._count()
        return super().put(key, value, expected)

    def delete(self, key: str, expected: int) -> bool:
        self._count()
        return super().delete(key, expected)


def test_an_adoption_that_stops_before_any_change_is_finished_by_the_next():
    """Three partitions and their topic, twice, and two records of epochs: ten changes."""
    for changes in range(10):
        records = MemoryRecords()
        store = MemoryStore(records)
        earlier(store, "a", 3, "b1")
        earlier(store, "b", 3, None)
        led(store, "b1", 5)
        assert store.put(ONLY_BROKER, {"epoch": 4, "ends": None}, 0)
        with pytest.raises(Stopped):
            adopt(StoppingStore(records, changes), B1, G, None, holds_store=True)
        for topic in Topics(store).all():
            done = topic.leader == "" and topic.name == "a"
            if done:
                assert partitions(store, topic.name) == [adopted(5)] * 3
        again = Generation("g2")
        adopt(store, B1, again, LeaderEpoch(5), holds_store=True)
        for name in "ab":
            found = partitions(store, name)
            assert len(found) == 3
            assert {each.leader_epoch for each in found} == {5}
            assert {each.isr[0].generation for each in found} <= {G, again}
            assert Topics(store).get(name).leader == ""
        assert store.list("leadership") == []
