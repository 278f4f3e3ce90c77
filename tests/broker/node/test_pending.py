"""The list of pending partitions equals a search through all, after any changes."""

from __future__ import annotations

from random import Random

import pytest

from spark_stream.broker.node.pending import PendingPartitions
from spark_stream.cluster.partitions import PartitionId, key_of, put_of
from spark_stream.cluster.view import ClusterView
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, Generation, LeaderEpoch
from spark_stream.scripts.partition_records import is_moving, needs_leader
from tests.simulation.store import MemoryRecords, MemoryStore

BROKERS = tuple(BrokerId(each) for each in "abc")
PARTITIONS = tuple(PartitionId(topic, number) for topic in "tu" for number in range(3))


class Cluster:
    """Records and leases that change at random."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._store = MemoryStore(MemoryRecords())
        self.view = ClusterView(self._store)
        self.pending = PendingPartitions(self.view)
        self.alive: dict[BrokerId, Generation] = {}

    def change(self) -> None:
        """A record is written or deleted, a broker stops or starts, or the view is refreshed."""
        match self._random.choice(("write", "write", "delete", "broker", "refresh", "refresh")):
            case "write":
                partition = self._random.choice(PARTITIONS)
                self._store.put_many([put_of(partition, self._record(), self._version(partition))])
            case "delete":
                partition = self._random.choice(PARTITIONS)
                self._store.delete(key_of(partition), self._version(partition))
            case "broker":
                broker = self._random.choice(BROKERS)
                if self.alive.pop(broker, None) is None:
                    self.alive[broker] = Generation(self._random.choice("12"))
            case "refresh":
                self.view.refresh()

    def _version(self, partition: PartitionId) -> int:
        found = self._store.get(key_of(partition))
        return 0 if found is None else found.version

    def _record(self) -> PartitionRecord:
        isr = tuple(Member(each, Generation(self._random.choice("12"))) for each in BROKERS)
        leader = self._random.choice((*BROKERS, None))
        adding = BROKERS[:1] if self._random.random() < 0.3 else ()
        return PartitionRecord(BROKERS, leader, LeaderEpoch(1), isr, adding)

    def check(self) -> None:
        """Compare both lists with a search."""
        stored = [each for each in map(self.view.now.partition, PARTITIONS) if each is not None]
        due = [each for each in stored if needs_leader(each.record, self.alive)]
        assert self.pending.without_leader(self.alive) == due
        assert self.pending.moving() == [each for each in stored if is_moving(each.record)]


@pytest.mark.rule("a controller's round examines changed partitions only", "broker/node/pending.py")
@pytest.mark.parametrize("first", range(0, 400, 100))
def test_lists_equal_a_search_after_random_changes(first):
    for seed in range(first, first + 100):
        cluster = Cluster(seed)
        random = Random(-seed)
        for _ in range(60):
            cluster.change()
            if random.random() < 0.1:
                cluster.pending.end()
            cluster.pending.begin()
            if random.random() < 0.5:
                cluster.check()
        cluster.view.refresh()
        cluster.check()


def test_another_broker_keeps_no_list():
    cluster = Cluster(0)
    for _ in range(40):
        cluster.change()
    cluster.view.refresh()
    assert cluster.pending.without_leader(cluster.alive) == cluster.pending.moving() == []
